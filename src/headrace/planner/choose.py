"""Choose among all candidates: look at each, look closely at the promising ones, keep the fastest that fits.

all candidates ──first sight──▶ in order of time ──closer look──▶ those that fit ──▶ the best, and why not the others
 (even cut)                                       (best cuts, memory)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from headrace.costs import Seconds, spread
from headrace.layer_costs import at_rows
from headrace.partition.errors import NoCutFits
from headrace.planner.appraise import at_close, at_first_sight, refusal
from headrace.planner.appraised import Appraised
from headrace.planner.candidates import Candidate, candidates
from headrace.planner.request import Request
from headrace.planner.searched import searched

_ENOUGH = 6  # that fit, of which one is the plan and the others its alternatives
_LARGE, _ENOUGH_OF_LARGE = 10_000, 4  # layers × ranks: each takes a second, and fewer alternatives will do
_ADVISERS = 4  # of what does not fit: what would help each of them is compared
_ALIKE = 2  # of these with the same schedule, so that they are real alternatives


class NoPlanFits(ValueError):
    """No schedule, cut and number of micro-batches fits into the memory.

    Attributes:
        ways_out: what would fit, in words.
    """

    def __init__(self, message: str, ways_out: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.ways_out = ways_out


@dataclass(frozen=True)
class Choice:
    """What was chosen, and what was not.

    Attributes:
        best: the plan.
        others: those that fit too, best first.
        refused: those that would have been faster at first sight but do not fit, with the reason.
        lower_bound: seconds below which no step of this batch on these ranks can come.
    """

    best: Appraised
    others: tuple[Appraised, ...]
    refused: tuple[tuple[Candidate, str], ...]
    lower_bound: Seconds


def choose(request: Request) -> Choice:
    """The fastest step that fits, over schedules, micro-batches, cuts, recompute and replicas.

    Raises:
        NoPlanFits: there is none; it says what would.
        ValueError: there are fewer layers than ranks, or no schedule of `request` exists for its numbers.
    """
    seen: list[tuple[tuple[bool, Seconds], int, Candidate]] = []
    impossible: list[str] = []
    for number, candidate in enumerate(candidates(request)):
        try:
            seen.append((at_first_sight(candidate, request), number, candidate))
        except ValueError as error:
            impossible.append(f"{candidate}: {error}")
    if not seen:
        raise ValueError("no schedule exists for these numbers: " + "; ".join(dict.fromkeys(impossible)))
    fitting: list[Appraised] = []
    refused: list[tuple[Candidate, str]] = []
    hopeless: dict[tuple[object, ...], tuple[float, str]] = {}
    for _, _, candidate in sorted(seen):
        if sum(found.candidate.name == candidate.name for found in fitting) == _ALIKE:
            continue
        kind = (candidate.name, *candidate.options.items(), candidate.replicas)
        rows, reason = hopeless.get(kind, (inf, ""))
        if candidate.rows >= rows:
            # Fewer and larger micro-batches never hold less together.
            refused.append((candidate, reason))
            continue
        try:
            fitting.append(at_close(candidate, request))
        except NoCutFits as error:
            refused.append((candidate, str(error)))
            hopeless[kind] = candidate.rows, str(error)
        if len(fitting) == (_ENOUGH if request.layers * request.ranks < _LARGE else _ENOUGH_OF_LARGE):
            break
    if not fitting:
        advice = _nearest([candidate for candidate, _ in refused], request)
        reason = str(advice) if advice is not None else refused[0][1]
        raise NoPlanFits(f"nothing fits: {reason}", advice.ways_out if advice is not None else ())
    if request.search:
        fitting += searched(fitting, request)
    fitting.sort(key=lambda found: found.seconds)
    return Choice(fitting[0], tuple(fitting[1:]), tuple(refused), min(lower_bound(request), fitting[0].seconds))


def _nearest(refused: Sequence[Candidate], request: Request) -> NoCutFits | None:
    """The refusal that lacks least memory, out of those of a few schedules, each with its smallest micro-batches."""
    smallest: dict[str, Candidate] = {}
    for candidate in sorted(refused, key=lambda candidate: candidate.rows):
        smallest.setdefault(candidate.name, candidate)
    few = list(smallest.values())[: _ADVISERS if request.layers * request.ranks < _LARGE else 1]
    found = [advice for advice in (refusal(candidate, request) for candidate in few) if advice is not None]
    return min(found, key=lambda advice: inf if advice.missing is None else advice.missing, default=None)


def lower_bound(request: Request) -> Seconds:
    """No step is shorter: all compute evenly on all ranks, or the dearest layer for every micro-batch on the fastest.

    Over all numbers of micro-batches that may be chosen, as costs are not proportional to rows.
    """
    least: list[Seconds] = []
    for candidate in {(c.micro_batches, c.rows, c.ranks, c.replicas): c for c in candidates(request)}.values():
        layers = at_rows(request.sizes, candidate.rows)
        slow = spread("slowness", request.slowness, candidate.ranks, "ranks")
        full = request.batch / candidate.replicas / candidate.rows  # micro-batches may be smaller than the largest
        even = full * sum(layers.seconds) / sum(1 / s for s in slow)
        least.append(max(even, full * max(layers.seconds) * min(slow)))
    return min(least)
