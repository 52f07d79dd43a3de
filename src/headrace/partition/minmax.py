"""The cut that makes the slowest stage as fast as it can be, exactly (GPipe's balanced partition, by measured compute).

A pipeline runs at the pace of its slowest stage, so of all ways to cut layers into p contiguous, non-empty stages we
want one whose largest sum is smallest. Whether a bound can be kept is a greedy question: fill each stage as far as the
bound allows and see whether p stages suffice. We bisect on the bound, and let each answer jump to a sum that exists:

      low ──────────── mid ──────────── high            the best bound lies in [low, high]
                        ├─ kept:   high = the largest stage that came out   (≤ mid)
                        └─ broken: low  = the smallest sum that would not fit (> mid)

so the search ends on the exact optimum. Costs are scaled to integers first, which is exact for floats too.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import inf, lcm

from headrace.schedule.numbers import at_least


def partition(costs: Sequence[float], stages: int, keep_together: Iterable[Collection[int]] = ()) -> tuple[int, ...]:
    """How many layers each stage gets, in model order, so that the slowest stage is as fast as possible.

    No stage is empty. Of the cuts with the same slowest stage, one with evenly filled stages is taken.

    Args:
        costs: what each layer takes, in seconds or any other unit; none negative.
        stages: how many stages, p.
        keep_together: groups of layers, by number, that must share a stage; what lies between them comes along.

    Raises:
        TypeError: `stages` is not a whole number, or a cost is no number.
        ValueError: there are fewer layers than stages, or so many must stay together that too few pieces are left, or a
            cost is negative or not finite.
    """
    at_least(1, stages=stages)
    if len(costs) < stages:
        raise ValueError(
            f"stages={stages}, but there are only {len(costs)} layers and every stage needs one: "
            "use fewer ranks, or split the model into finer layers"
        )
    for layer, cost in enumerate(costs):
        if not isinstance(cost, (int, float, Fraction)):
            raise TypeError(f"costs[{layer}]={cost!r} must be a number, not {type(cost).__name__}")
        if not 0 <= cost < inf:
            raise ValueError(f"costs[{layer}]={cost!r} must be a finite number that is not negative")
    sums = [0, *accumulate(_integers(costs))]
    inside = {end for group in keep_together if group for end in range(min(group) + 1, max(group) + 1)}
    boundaries = [end for end in range(len(sums)) if end not in inside]
    if len(boundaries) <= stages:
        pieces = len(boundaries) - 1
        raise ValueError(
            f"stages={stages}, but layers that must stay together, such as those with tied weights, leave only "
            f"{pieces} piece{'s' * (pieces > 1)}, and every stage needs one: use fewer ranks, or untie them"
        )
    prefix = [sums[end] for end in boundaries]
    ends = (boundaries[end] for end in _even_cut(prefix, stages, _best_bound(prefix, stages)))
    return tuple(end - start for start, end in pairwise([0, *ends]))


def _integers(costs: Sequence[float]) -> list[int]:
    """The costs times their common denominator: floats are fractions too, so nothing is rounded."""
    exact = [Fraction(cost) for cost in costs]
    scale = lcm(*(fraction.denominator for fraction in exact))
    return [fraction.numerator * (scale // fraction.denominator) for fraction in exact]


def _best_bound(prefix: list[int], stages: int) -> int:
    low = max(end - start for start, end in pairwise(prefix))
    high = prefix[-1]
    while low < high:
        bound = (low + high) // 2
        largest, overflow, start = 0, high, 0
        for _ in range(stages):
            end = bisect_right(prefix, prefix[start] + bound) - 1
            largest = max(largest, prefix[end] - prefix[start])
            if end == len(prefix) - 1:
                high = largest
                break
            overflow = min(overflow, prefix[end + 1] - prefix[start])
            start = end
        else:
            low = overflow
    return high


def _even_cut(prefix: list[int], stages: int, bound: int) -> list[int]:
    """Ends of stages that keep the bound, each as near to an even share of what is left as the bound allows.

    Stage s can end no earlier than `earliest[s]`, or the rest would not fit into the stages after it.
    """
    layers = len(prefix) - 1
    earliest = [layers]
    for left in range(1, stages):
        fits = bisect_left(prefix, prefix[earliest[-1]] - bound)
        earliest.append(max(min(fits, earliest[-1] - 1), stages - left))
    earliest.reverse()
    ends: list[int] = []
    start = 0
    for stage in range(stages):
        stages_left = stages - stage
        latest = min(bisect_right(prefix, prefix[start] + bound) - 1, layers - stages_left + 1)
        target = prefix[start] + Fraction(prefix[-1] - prefix[start], stages_left)
        end = bisect_left(prefix, target)
        if end > 0 and target - prefix[end - 1] < prefix[end] - target:
            end -= 1
        start = min(max(end, earliest[stage], start + 1), latest)
        ends.append(start)
    return ends
