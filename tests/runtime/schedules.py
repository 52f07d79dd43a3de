"""The catalogue for the tests of the runtime: every schedule at numbers that it takes, and which of them cover much."""

import itertools
from functools import cache
from typing import Final

from headrace.schedule import CATALOGUE, Schedule, build

SYNCHRONOUS: Final = [name for name in CATALOGUE if not build(name, ranks=2, micro_batches=2).asynchronous]
ASYNCHRONOUS: Final = [name for name in CATALOGUE if name not in SYNCHRONOUS]
HOW_MANY: Final = {"m < p": lambda p: p - 1, "m = p": lambda p: p, "m = 2p + 1": lambda p: 2 * p + 1}
RANKS: Final = (2, 3, 4)
RECOMPUTES: Final = ("never", "always")

Numbers = tuple[str, int, str, str]
"""A schedule's name, p, how many micro-batches, and what is recomputed."""

EVERY: Final[list[Numbers]] = [*itertools.product(SYNCHRONOUS, RANKS, HOW_MANY, RECOMPUTES)]


def pairwise_covering() -> list[Numbers]:
    """A third of `EVERY`, with every value of one beside every value of another."""
    chosen = itertools.product(*map(enumerate, (SYNCHRONOUS, RANKS, HOW_MANY, RECOMPUTES)))
    return [
        (name, ranks, m, recompute)
        for (i, name), (j, ranks), (k, m), (n, recompute) in chosen
        if (i + j + k + n) % 3 == 0
    ]


@cache
def schedule_of(name: str, ranks: int, how_many: str, recompute: str) -> Schedule:
    """That schedule with these numbers, or where its generator refuses them, with the next that it takes."""
    options = {"segments": 1} if name == "seq1f1b" else {}
    m = HOW_MANY[how_many](ranks)
    for p, more in itertools.product((ranks, ranks + 1), range(ranks + 1)):
        try:
            return build(name, ranks=p, micro_batches=m + more, recompute=recompute, **options)
        except ValueError:
            continue
    raise AssertionError(f"{name} takes no numbers near {ranks} ranks and {m} micro-batches")


def two_way(schedule: Schedule) -> bool:
    """Whether its stages have replicas."""
    return len(schedule.placement.lanes) > 1
