"""The catalogue's schedules that apply: what a search starts from, and is never worse than."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace.schedule.actions import RECOMPUTE
from headrace.schedule.catalogue import CATALOGUE
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def known_schedules(placement: Placement, micro_batches: int) -> Iterator[Schedule]:
    """Every schedule of the catalogue that has this placement, its options at their defaults.

    Overlapped pairs are taken apart: a rank does one action at a time here. Asynchronous schedules, those that cut
    sequences and two-way ones do something else and are left out.
    """
    per_rank = placement.stages // placement.ranks
    for name, generator in CATALOGUE.items():
        for options in _options(inspect.signature(generator).parameters, per_rank):
            # A few micro-batches tell whether all of them are worth it: two-way schedules, say, are not.
            few = min(micro_batches, 2 * placement.ranks)
            if _made(generator, placement, few, options):
                schedule = _made(generator, placement, micro_batches, options)
                if schedule:
                    yield replace(schedule, name=name, pairs=frozenset())


def _made(
    generator: Callable[..., Schedule], placement: Placement, micro_batches: int, options: dict[str, Any]
) -> Schedule | None:
    """What `generator` makes, if it is of the kind that is searched for; None if not, or if it refuses the numbers."""
    try:
        schedule = generator(placement.ranks, micro_batches, **options)
    except ValueError:
        return None
    alike = schedule.placement == placement and schedule.micro_batches == micro_batches
    recomputes = any(action.kind == RECOMPUTE for row in schedule.rows for action in row)
    return schedule if alike and schedule.segments == 1 and not schedule.asynchronous and not recomputes else None


def _options(known: Mapping[str, Any], per_rank: int) -> Iterator[dict[str, Any]]:
    """The options that decide the placement."""
    if "stages_per_rank" in known:
        yield {"stages_per_rank": per_rank}
    elif "waves" in known:
        if per_rank % 2 == 0:
            yield {"waves": per_rank // 2}
    else:
        yield {}
