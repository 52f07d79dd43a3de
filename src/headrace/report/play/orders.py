"""Every order of the catalogue for small numbers, packed for the page, so that no browser ever makes a schedule.

An order depends on whole numbers only, never on costs. So all that a reader can choose is made here, by the generators
themselves, and the page merely looks it up: there is no second description of a schedule in another language.

    zb-h1, 3 ranks, 4 micro-batches     rank 1   1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
                             packed              FFIFIWFIWIWW

A letter is the kind; the micro-batch is the next one of its kind on its stage, or is written behind (`B3B2B1B0`). Where
a rank holds several stages, `a`, `b`, … in front of a letter turn to its first, second, … stage; `&` begins a pair.

Packed are the orders that recompute everything. As an R stands right before its backward and moves nothing else, the
page leaves out those R that are not wanted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.schedule.catalogue import CATALOGUE, NEEDS, build, describe
from headrace.schedule.schedule import Schedule
from headrace.simulate.closed_forms import closed_form

MOST_RANKS: Final = 8
MOST_MICRO_BATCHES: Final = 16


@dataclass(frozen=True)
class Choice:
    """A whole number that a schedule takes besides ranks and micro-batches.

    Attributes:
        option: its name in the generator.
        label: what the page calls it.
        values: what can be chosen.
    """

    option: str
    label: str
    values: tuple[int, ...]


CHOICES: Final[Mapping[str, Choice]] = {
    **dict.fromkeys(
        ("interleaved", "looped-bfs", "interleaved-zb"), Choice("stages_per_rank", "Stages per rank", (1, 2, 3, 4))
    ),
    "hanayo": Choice("waves", "Waves (two stages per rank each)", (1, 2)),
    "seq1f1b": Choice("segments", "Segments per sequence", (1, 2, 3, 4)),
}
_DEFAULTS: Final = {"stages_per_rank": 2, "waves": 1, "segments": 2}


def catalogue() -> list[dict[str, Any]]:
    """What the page knows of each schedule, as plain data in the catalogue's order.

    `cases[value of its choice][p − 1][m − 1]` is what `packed` gives, or `{"refused": why}`; `closed` says what theory
    does of the bubble (see `_theory`).
    """
    return [_entry(name) for name in CATALOGUE]


def _entry(name: str) -> dict[str, Any]:
    choice = CHOICES.get(name)
    options = [{choice.option: value} for value in choice.values] if choice else [{}]
    cases = [
        [[_case(name, ranks, m, of) for m in range(1, MOST_MICRO_BATCHES + 1)] for ranks in range(1, MOST_RANKS + 1)]
        for of in options
    ]
    return {
        "name": name,
        "description": describe(name),
        "needs": NEEDS.get(name, ""),
        "choice": None
        if choice is None
        else {"label": choice.label, "values": choice.values, "default": _DEFAULTS[choice.option]},
        "cases": cases,
    }


def _case(name: str, ranks: int, micro_batches: int, options: dict[str, Any]) -> dict[str, Any]:
    try:
        schedule = build(name, ranks=ranks, micro_batches=micro_batches, recompute="always", **options)
    except ValueError as error:
        return {"refused": str(error)}
    return {**packed(schedule), **_theory(schedule)}


def packed(schedule: Schedule) -> dict[str, Any]:
    """A schedule as few characters; the page unpacks it (`Rows.unpack`).

    Keys: `lanes`, the rank of each stage in each lane, one digit each; `lane_of`, the lane of each micro-batch, "" if
    there is but one; `segments`; `delay`; `m`, the number of micro-batches; `rows`.
    """
    placement = schedule.placement
    return {
        "lanes": ["".join(map(str, lane)) for lane in placement.lanes],
        "lane_of": "".join(map(str, placement.lane_of)),
        "segments": schedule.segments,
        "delay": schedule.delay,
        "m": schedule.micro_batches,
        "rows": ["".join(_letters(schedule, rank)) for rank in range(schedule.ranks)],
    }


def _letters(schedule: Schedule, rank: int) -> Iterator[str]:
    places = {stage: place for place, stage in enumerate(schedule.placement.stages_of(rank))}
    at = 0
    expected: dict[tuple[int, str], int] = {}
    for action in schedule.rows[rank]:
        stage, kind, k = action
        turn = "" if places[stage] == at else chr(ord("a") + places[stage])
        number = "" if expected.get((stage, kind), 0) == k else str(k)
        yield f"{'&' if action in schedule.pairs else ''}{turn}{kind}{number}"
        at = places[stage]
        expected[stage, kind] = k + 1


def _theory(schedule: Schedule) -> dict[str, Any]:
    """`bubble` and `formula`, where theory gives the bubble fraction without asking how long anything takes.

    That is where the closed form needs no cost of W; the fraction is then the same for any F and B.
    """
    plain = closed_form(
        schedule.name,
        schedule.ranks,
        schedule.micro_batches,
        1,
        2,
        stages_per_rank=schedule.stages // schedule.ranks,
        segments=schedule.segments,
    )
    return {} if plain is None else {"bubble": plain.bubble_fraction, "formula": plain.formulas[1]}
