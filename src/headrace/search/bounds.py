"""What no schedule can beat, however clever: lower bounds without a search.

Look at one rank, whose lowest stage is `lo` and whose highest is `hi`:

    0      head          T                        E          end
    ├───────┼─────────────┼────────────────────────┼───────────┤
     nothing│ only F:     │ F, I and W             │ only W:   │ q: I runs down to stage 0, and a W is left somewhere
     is here│ room limits │                        │ room      │
            │ how many    │                        │ limits    │

`simulate` never gives a makespan below `lower_bound`; the proofs are in `bound`.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import inf

from headrace.costs import Costs
from headrace.schedule.placement import Placement
from headrace.search.limits import Limit
from headrace.search.play import Objective
from headrace.search.problem import F, I, Problem, W, problem_of


def lower_bound(costs: Costs, placement: Placement, *, micro_batches: int, memory: Limit | None = None) -> float:
    """Seconds below which no schedule of this placement can stay, within `memory`; see `bound` for the proof.

    With one stage a rank, equal stages and room for k micro-batches it is at least
    m(F+I+W) + max{(p−1)(F+c), (p−1)(I+2c) + (p−k)F}.

    Args:
        costs: of each stage. Overlapped pairs that cost less than their parts are not counted on.
        placement: which rank holds which stage; one lane.
        micro_batches: m.
        memory: `InFlight(k)` or `Bytes(b)`; None for no limit.

    Raises:
        TypeError, ValueError: an argument is out of its range, or the memory too little for one micro-batch.
    """
    problem = problem_of(costs, placement, micro_batches, memory)
    return problem.seconds(bound(problem))


@dataclass(frozen=True)
class Paths:
    """Times along the path of one micro-batch that meets nobody, by stage.

    Attributes:
        head: the earliest start of an F.
        round_trip: the least time from the start of an F to the end of its I.
        tail: the least time from the end of an I to the end of the step.
    """

    head: list[int]
    round_trip: list[int]
    tail: list[int]


def paths(problem: Problem) -> Paths:
    """The times along the path of one micro-batch: up through all F, down through all I, a W after each I."""
    stages, duration, lag = problem.stages, problem.duration, problem.lag
    head = [0] * stages
    tail = [duration[W]] * stages
    for s in range(1, stages):
        head[s] = head[s - 1] + duration[3 * (s - 1) + F] + lag[3 * s + F]
        below = lag[3 * (s - 1) + I] + duration[3 * (s - 1) + I] + tail[s - 1]
        tail[s] = max(duration[3 * s + W], below)
    round_trip = [0] * stages
    for s in reversed(range(stages)):
        beyond = 0 if s == stages - 1 else lag[3 * (s + 1) + F] + round_trip[s + 1] + lag[3 * s + I]
        round_trip[s] = duration[3 * s + F] + beyond + duration[3 * s + I]
    return Paths(head, round_trip, tail)


def bound(problem: Problem, objective: Objective = "makespan") -> int:
    """The largest of four lower bounds on each rank, in units of the problem.

    For the span of a rank, time counts from the start of its first F, which is one of `lo`; nothing but its own W need
    follow its last I, so there `tail` is W.

    **Busy.** No I of the rank starts before T = head + (round trip of `lo` without its I's below `hi`): that is the
    path up to the last stage and down to `hi`. Before T the rank does nothing but F's that have begun and hold
    `before`, so at most a knapsack's worth. All else comes after T, so the rank idles at least T − knapsack before T;
    and at least head. The last I of the rank is one of `lo` and ends at some E > T. After E come only W's, each of
    which held `after` at E: again at most a knapsack's worth, and the step lasts at least `tail` beyond E. The two
    windows do not overlap, so end ≥ work + max(head, T − knapsack of F) + max(0, tail − knapsack of W).

    **Last forward.** The rank's F's fill at least their sum after head. The last of them has the path from its F to
    the end before it, which is shortest for `hi`.

    **Turns.** At most n = capacity ÷ before micro-batches of a stage are between begin of F and end of I at a time,
    each for a round trip or longer. So n machines do m jobs, one of them at least ⌈m/n⌉, and the tail follows. The same
    with F to W and `after`.

    **Room × time.** The rank's micro-batches occupy at least `before` × round trip + `after` × W each, and the
    rank offers its capacity from head to the end.
    """
    m, duration, room = problem.micro_batches, problem.duration, problem.room
    path = paths(problem)
    best = 0
    for rank, mine in enumerate(problem.stages_of):
        lo, hi = mine[0], mine[-1]
        capacity = room.capacity[rank]
        spans = objective == "span"
        origin = path.head[lo] if spans else 0
        tail = [duration[3 * s + W] for s in range(problem.stages)] if spans else path.tail
        forwards = m * sum(duration[3 * s + F] for s in mine)
        work = m * sum(duration[3 * s + kind] for s in mine for kind in (F, I, W))
        first_input = path.head[hi] + path.round_trip[hi] - duration[3 * hi + I]

        early = _knapsack([(duration[3 * s + F], room.before[s]) for s in mine], capacity, m)
        late = _knapsack([(duration[3 * s + W], room.after[s]) for s in mine], capacity, m)
        busy = work + max(path.head[lo], first_input - early) + max(0, tail[lo] - late)

        last_forward = path.head[lo] + forwards + path.round_trip[hi] - duration[3 * hi + F] + tail[hi]
        found = [busy, last_forward]
        for s in mine:
            if room.before[s]:
                rounds = -(-m // (capacity // room.before[s]))
                found.append(path.head[s] + rounds * path.round_trip[s] + tail[s])
            if room.after[s]:
                rounds = -(-m // (capacity // room.after[s]))
                found.append(path.head[s] + rounds * (path.round_trip[s] + duration[3 * s + W]))
        if capacity:
            area = sum(room.before[s] * path.round_trip[s] + room.after[s] * duration[3 * s + W] for s in mine)
            found.append(path.head[lo] - (-m * area // capacity))
        best = max(best, max(found) - origin)
    return best


def _knapsack(items: list[tuple[int, int]], capacity: int, most: int) -> int:
    """At least the greatest sum of times that fits into `capacity`, out of `most` of each (time, size)."""
    total = 0
    densest_first = sorted(items, key=lambda item: Fraction(*item) if item[1] else inf, reverse=True)
    for time, size in densest_first:
        if size * most <= capacity:
            total += time * most
            capacity -= size * most
        else:
            # The last item may be cut, unless it is alone: then only whole ones count.
            return total + (time * (capacity // size) if len(items) == 1 else time * capacity // size)
    return total
