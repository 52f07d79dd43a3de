"""Orders and results of an independent generator and simulator, reproduced exactly.

In the file, costs call the input-gradient part `B` (our I), an overlapped pair `FB` and the seconds of a hop `comm`.
Orders are written `F0.3` for 0F3, `(F0.3|B7.1)` for a pair, with a prime on what travels up in a two-way schedule,
where micro-batches are counted each way for itself. `peak_mem_MB2_MW1` counts 2 from F to I and 1 from I to W. The
optima are of a solver; often there are several orders as good as the one that is listed.
"""

import hashlib
import json
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from headrace import Costs, simulate
from headrace.schedule import Action, Placement, Schedule, build, check

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden.json").read_text(encoding="utf-8"))
CASES, OPTIMAL = GOLDEN["cases"], GOLDEN["optimal"]["cases"]
OPTIONS = {"v": "stages_per_rank", "N": "group", "S": "segments"}


@cache
def exact(text):
    """The decimal number as written, without the rounding of a float."""
    number = Fraction(text)
    return int(number) if number.denominator == 1 else number


def numbers(value):
    return [numbers(v) for v in value] if isinstance(value, list) else exact(str(value))


def generated(case):
    """The catalogue's schedule for a case."""
    name, params = case["schedule"], dict(case["params"])
    options = {OPTIONS[key]: value for key, value in params.items() if key in OPTIONS}
    if name == "gpipe":
        options["drain"] = "forward"
    if name.endswith("-stable"):  # the repeated block as it is
        name, options["squeeze"] = name.removesuffix("-stable"), False
    return build(name, ranks=params["p"], micro_batches=params["m"], **options)


def written(case):
    """The schedule whose rows the case lists, such as `F0.1 B0.1`."""
    rows = []
    for line in case["order"]:
        cells = [cell[1:].split(".") for cell in line.split()]
        rows.append(tuple(Action(int(s), word[0], int(k)) for word, (s, k) in zip(line.split(), cells, strict=True)))
    p = len(rows)
    placement = Placement.v(p) if case["placement"] == "v" else Placement.loop(p, case.get("params", {}).get("v", 1))
    return Schedule("written", tuple(rows), placement, case.get("m") or case["params"]["m"])


def lines_of(schedule):
    """The rows in the notation of the file, where a prime marks the way up of a two-way schedule."""
    first_up = schedule.placement.lane_of.index(1) if schedule.placement.lane_of else schedule.micro_batches

    def word(a):
        k = a.micro_batch
        return f"{a.kind}{a.stage}.{k}" if k < first_up else f"{a.kind}{a.stage}.{k - first_up}'"

    for row in schedule.rows:
        rest = iter(row)
        yield " ".join(f"({word(a)}|{word(next(rest))})" if a in schedule.pairs else word(a) for a in rest)


def costs_of(costs):
    return Costs(
        forward=numbers(costs["F"]),
        backward_input=numbers(costs["B"]),
        backward_weight=numbers(costs["W"]),
        transfer=numbers(costs["comm"]),
        pair=None if costs.get("FB") is None else numbers(costs["FB"]),
    )


def peak(spans, changes):
    """The largest sum of `changes`: for each kind of action, what it adds at its start and at its end."""
    events = [(s.start, changes[s.action.kind][0]) for s in spans if s.action.kind in changes]
    events += [(s.end, changes[s.action.kind][1]) for s in spans if s.action.kind in changes]
    now = most = 0
    for _, change in sorted(events):  # at one instant, what is freed comes first
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_golden(case):
    schedule = written(case) if case["schedule"] == "random" else generated(case)
    lines = list(lines_of(schedule))
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == case["order_sha256"]
    assert lines == case.get("order", lines)

    result = case["result"]
    timeline = simulate(schedule, costs_of(case["costs"]))
    assert timeline.makespan == numbers(result["makespan"])
    assert list(timeline.busy) == numbers(result["busy"])
    assert timeline.makespan - max(timeline.busy) == numbers(result["bubble_time"])
    assert round(float(timeline.bubble_fraction), 12) == result["bubble_ratio"]
    of_rank = [[span for span in timeline.spans if span.rank == rank] for rank in range(schedule.ranks)]
    starts = [min(span.start for span in spans) for spans in of_rank]
    ends = [max(span.end for span in spans) for spans in of_rank]
    assert starts == numbers(result["first_start"])
    assert ends == numbers(result["last_end"])
    span = max(end - start for start, end in zip(starts, ends, strict=True))
    assert span == numbers(result["zb_cost"])
    assert round(float((span - max(timeline.busy)) / span), 12) == result["zb_bubble_rate"]
    assert list(timeline.peak_in_flight) == result["peak_inflight"]
    assert check(schedule).peak_in_flight == timeline.peak_in_flight
    awaiting = {"F": (1, 0), "I": (0, -1), "B": (0, -1)}
    assert [peak(spans, awaiting) for spans in of_rank] == result["peak_await_I"]
    memory = {"F": (2, 0), "I": (0, -1), "W": (0, -1), "B": (0, -2)}
    assert [peak(spans, memory) for spans in of_rank] == result["peak_mem_MB2_MW1"]


@pytest.mark.parametrize(
    "case", OPTIMAL, ids=[f"{c['handcrafted']}-p{c['p']}m{c['m']}-{i}" for i, c in enumerate(OPTIMAL)]
)
def test_proven_optima(case):
    """Optimal orders give what their solver says, and the catalogue's what was measured of it."""
    found = {}
    for name, schedule in {
        "value": written(case),
        "handcrafted_value": build(case["handcrafted"], ranks=case["p"], micro_batches=case["m"]),
    }.items():
        check(schedule)
        timeline = simulate(schedule, costs_of(case))
        found[name] = timeline.makespan
        if case["objective"] == "span":
            of_rank = [[s for s in timeline.spans if s.rank == rank] for rank in range(schedule.ranks)]
            found[name] = max(
                max(s.end for s in spans) - min(s.start for s in spans if s.action.kind == "F") for spans in of_rank
            )
    assert found == {name: case[name] for name in found}
    assert case["value"] <= case["handcrafted_value"]


def test_the_sample_is_whole():
    assert len(CASES) == 78
    assert len({case["schedule"] for case in CASES}) == 15
    assert len(OPTIMAL) == 14
