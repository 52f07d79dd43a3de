"""Processes that draw different batches are found out, as their labels would belong to other inputs."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

import headrace as hr
from distributed.crew import Crew
from headrace.runtime.batch.fingerprint import fingerprint


def _pipe(ranks: int) -> hr.Pipeline:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(ranks)])
    return hr.Pipeline(model, nn.MSELoss(), ranks=ranks, micro_batches=2)


def own_batches(how: str) -> float:
    """Each process draws with a seed of its own, or gets the same, or only what it needs."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    generator = torch.Generator().manual_seed(rank if how == "own" else 7)
    x, y = torch.randn(4, 6, generator=generator), torch.randn(4, 6, generator=generator)
    if how == "where needed":
        x, y = x if rank == 0 else None, y if rank == last else None  # type: ignore[assignment]
    with _pipe(last + 1) as pipe:
        pipe.evaluate(x, y)
        return float(pipe.step(x, y))


def test_batches_that_differ_between_processes_are_refused(crew: Callable[[int], Crew]) -> None:
    assert len(set(crew(2).run(own_batches, "same"))) == 1
    assert len(set(crew(3).run(own_batches, "where needed"))) == 1
    outcomes = crew(2).outcomes(own_batches, "own")
    assert all("x differs between the first and the last rank" in outcome.text for outcome in outcomes)


def test_a_fingerprint_tells_batches_apart() -> None:
    x = torch.randn(40, 5, 3)
    assert fingerprint(x) == fingerprint(x.clone()) != 0
    assert fingerprint({"x": x, "n": 3}) == fingerprint({"x": x, "n": 3})
    for other in (x[torch.arange(39, -1, -1)], x.double(), x.reshape(40, 15), x + 1):
        assert fingerprint(other) != fingerprint(x)
    assert fingerprint(object()) == fingerprint(None) == 0
    assert fingerprint(torch.empty(0, 3)) != 0
    assert fingerprint(torch.tensor(3)) != fingerprint(torch.tensor(4))
    assert fingerprint(x.expand(2, 40, 5, 3)) != fingerprint(x)
