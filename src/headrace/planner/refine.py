"""What recomputes, chosen once more by simulation.

The searches for cuts count what all stages of a rank may hold as if it came at one time, and a recompute as if it never
ran while its rank waits. So from the best that they found, small steps are taken as long as one is faster and fits:

    stage 2 as a whole    ──▶ nothing, or its layers one by one
    layers 3, 4 and 7     ──▶ one fewer, or their stage as a whole
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from headrace.planner.appraised import Appraised, Appraiser

_CUTS: Final = 4
_FREE_CUTS: Final = 2
_EFFORT: Final = 100_000  # actions to simulate for each of them: a tenth of a second, about


class _Choice(NamedTuple):
    """Stages that recompute as a whole, and layers that do one by one."""

    whole: frozenset[int]
    single: frozenset[int]


def refined(found: Sequence[Appraised], free: Sequence[tuple[int, ...]], appraiser: Appraiser) -> list[Appraised]:
    """The best that comes of a few cuts when they recompute something else.

    Args:
        found: those that fit, the fastest first.
        free: the cuts that would be best if memory had no limit. They begin where everything recomputes.
        appraiser: appraises other choices.
    """
    starts: dict[tuple[int, ...], Appraised] = {}
    for each in found:
        starts.setdefault(each.cut, each)
    begun = list(starts.values())[:_CUTS]
    for cut in free[:_FREE_CUTS]:
        begun += [each for each in _everything(cut, appraiser) if each is not None]
    return [_climbed(each, appraiser) for each in begun]


def _everything(cut: tuple[int, ...], appraiser: Appraiser) -> Iterator[Appraised | None]:
    yield appraiser.appraised(cut, range(len(cut)), ())
    if appraiser.by_layers:
        yield appraiser.appraised(cut, (), appraiser.droppable)


def _climbed(best: Appraised, appraiser: Appraiser) -> Appraised:
    tried = {_Choice(frozenset(best.recomputes), frozenset(best.one_by_one))}
    left = _EFFORT
    while True:
        choice = _Choice(frozenset(best.recomputes), frozenset(best.one_by_one))
        for step in _steps(choice, best, appraiser):
            if step in tried:
                continue
            left -= best.schedule.actions
            if left < 0:
                return best
            tried.add(step)
            found = appraiser.appraised(best.cut, step.whole, step.single)
            if found is not None and found.seconds < best.seconds:
                best = found
                break
        else:
            return best


def _steps(choice: _Choice, best: Appraised, appraiser: Appraiser) -> Iterator[_Choice]:
    """Other choices, those first that save most."""
    whole, single = choice
    spans = [range(start, end) for start, end in pairwise(accumulate(best.cut, initial=0))]
    forward, droppable = appraiser.layers.forward, appraiser.droppable
    dearest = sorted(whole, key=lambda stage: -sum(forward[layer] for layer in spans[stage]))
    for stage in dearest:
        yield _Choice(whole - {stage}, single)
    for layer in sorted(single, key=lambda layer: -forward[layer]):
        yield _Choice(whole, single - {layer})
    for stage, span in enumerate(spans):
        mine = single & set(span)
        if mine:
            yield _Choice(whole | {stage}, single - mine)
    if not appraiser.by_layers:
        return
    for stage in dearest:
        yield _Choice(whole - {stage}, single | (droppable & set(spans[stage])))
