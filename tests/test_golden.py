"""Orders and results of an independent generator and simulator, reproduced exactly."""

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import pytest

from headrace import Costs, simulate
from headrace.schedule import build, check

CASES = json.loads((Path(__file__).parent / "data" / "golden_foundation.json").read_text(encoding="utf-8"))["cases"]


def exact(value):
    """The decimal number as written, without the rounding of a float."""
    return [exact(v) for v in value] if isinstance(value, list) else Fraction(str(value))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_golden(case):
    options = {"drain": "forward"} if case["schedule"] == "gpipe" else {}
    schedule = build(case["schedule"], ranks=case["params"]["p"], micro_batches=case["params"]["m"], **options)
    lines = [" ".join(f"{kind}{stage}.{k}" for stage, kind, k in row) for row in schedule.rows]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == case["order_sha256"]
    assert lines == case.get("order", lines)

    costs, result = case["costs"], case["result"]
    assert costs["FB"] is None
    timeline = simulate(
        schedule,
        Costs(
            forward=exact(costs["F"]),
            backward_input=exact(costs["B"]),
            backward_weight=exact(costs["W"]),
            transfer=exact(costs["comm"]),
        ),
    )
    assert timeline.makespan == exact(result["makespan"])
    assert list(timeline.busy) == exact(result["busy"])
    assert round(float(timeline.bubble_fraction), 12) == result["bubble_ratio"]
    assert list(timeline.peak_in_flight) == result["peak_inflight"]
    assert check(schedule).peak_in_flight == timeline.peak_in_flight
    of_rank = [[span for span in timeline.spans if span.rank == rank] for rank in range(schedule.ranks)]
    assert [spans[0].start for spans in of_rank] == exact(result["first_start"])
    assert [spans[-1].end for spans in of_rank] == exact(result["last_end"])


def test_the_sample_is_whole():
    assert len(CASES) == 17
    assert {case["schedule"] for case in CASES} == {"gpipe", "1f1b"}
