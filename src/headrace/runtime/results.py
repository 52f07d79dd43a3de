"""What the last stages made, brought together in every process.

In a one-way schedule one rank has all results; in a two-way schedule each lane ends on another rank.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.runtime.batch.microbatch import join
from headrace.runtime.stage.boundary import Value
from headrace.runtime.transport.base import Transport
from headrace.runtime.work import Outcome


def results_of(outcomes: Mapping[int, Outcome]) -> dict[int, Any]:
    """What the last stages that are held here left, by micro-batch."""
    return {k: result for _, outcome in sorted(outcomes.items()) for k, result in outcome.results.items()}


def share(transport: Transport, results: Mapping[int, Any]) -> Mapping[int, Any]:
    """The results of all last stages, in every process; where all of them are, as they are."""
    merged = {k: result for part in transport.gather(results) for k, result in part.items()}
    return results if len(results) == len(merged) else merged


def share_means(
    transport: Transport, results: Mapping[int, Mapping[str, Tensor]], shares: Sequence[float]
) -> dict[str, Tensor]:
    """The weighted sums of the last stages' results by name: the same numbers in every process."""
    terms: dict[str, Tensor] = {}
    order = sorted(results)
    for name in results[order[0]] if results else ():
        stacked = torch.stack([results[k][name].detach() for k in order])
        weights = torch.tensor([shares[k] for k in order], dtype=stacked.dtype, device=stacked.device)
        terms[name] = stacked * weights
    if transport.alone:
        return {name: term.sum() for name, term in terms.items()}
    # all sum up on the CPU: so it is the same number everywhere
    parts = transport.gather((order, {name: term.cpu() for name, term in terms.items()}))
    holders = [part for part in parts if part[0]]
    merged = torch.tensor([k for whose, _ in holders for k in whose]).argsort()
    sums = {name: torch.cat([part[name] for _, part in holders])[merged].sum() for name in holders[0][1]}
    return {name: total.to(terms[name].device) if name in terms else total for name, total in sums.items()}


def join_all(results: Mapping[int, Value], split: Any, segments: int, sequence_dim: int) -> Value:
    """The outputs of all micro-batches as one, segments first."""
    in_order = [results[k] for k in sorted(results)]
    if segments > 1:
        pieces = range(0, len(in_order), segments)
        in_order = [join(in_order[i : i + segments], sequence_dim) for i in pieces]
    return join(in_order, split)
