"""Optima that other solvers have proven, proven again: the order inside each rank is free, room as stated."""

import json
from pathlib import Path
from time import perf_counter

import pytest

from headrace import Bytes, Costs, InFlight, search, simulate
from headrace.costs import Memory
from headrace.schedule import Placement, check
from headrace.search import lower_bound

GOLDEN = Path(__file__).parent / "data" / "golden.json"
PROVEN = json.loads(GOLDEN.read_text(encoding="utf-8"))["optimal"]["cases"]


def instance(case):
    place = Placement.loop if case["placement"] == "loop" else Placement.v
    memory = Memory(activations=case["MB"], for_weight=case["MW"])
    costs = Costs(case["F"], case["B"], case["W"], transfer=case["comm"], memory=memory)
    arguments = {"micro_batches": case["m"], "memory": Bytes(case["mem_cap"]), "objective": case["objective"]}
    return costs, place(case["p"]), arguments


def name(case):
    return " ".join(str(case[key]) for key in ("placement", "p", "m", "F", "B", "W", "comm", "mem_cap", "objective"))


def test_the_sample_is_whole():
    assert len(PROVEN) == 14
    assert all(case["status"] == "OPTIMAL" for case in PROVEN)


@pytest.mark.parametrize("case", PROVEN, ids=name)
def test_proven_optima(case):
    costs, placement, arguments = instance(case)
    found = search(costs, placement, **arguments, exact=True, workers=1)
    assert (found.value, found.lower_bound, found.proven, found.gap) == (case["value"], case["value"], True, 0)
    check(found.schedule)
    assert simulate(found.schedule, costs).makespan == found.makespan


@pytest.mark.parametrize("case", PROVEN, ids=name)
def test_the_heuristic_comes_close_to_them(case):
    costs, placement, arguments = instance(case)
    found = search(costs, placement, **arguments, time_limit=0.3)
    assert case["value"] <= found.value <= 1.01 * case["value"]
    assert found.lower_bound <= case["value"]


def test_what_only_an_exact_search_finds():
    """A schedule that neither the catalogue nor the rules have, and a bound that needs the solver."""
    costs = Costs([3, 4, 3, 4], [4, 5, 5, 4], [3, 3, 2, 3], transfer=1)
    found = search(costs, Placement.loop(4), micro_batches=8, memory=InFlight(4), exact=True)
    assert found.proven
    assert lower_bound(costs, Placement.loop(4), micro_batches=8, memory=InFlight(4)) < found.lower_bound
    assert "CP-SAT's bound" in found.how


def test_decimal_fractions_are_not_rounded():
    costs = Costs([0.3, 0.4, 0.3, 0.4], [0.4, 0.5, 0.5, 0.4], [0.3, 0.3, 0.2, 0.3], transfer=0.1)
    found = search(costs, Placement.loop(4), micro_batches=8, memory=InFlight(4), exact=True)
    assert found.proven
    assert "CP-SAT's bound" in found.how
    assert "rounded" not in found.how


def test_a_time_limit_ends_it_with_a_gap():
    costs = Costs([7, 9, 8, 6, 9, 7], [9, 7, 8, 9, 6, 8], [5, 6, 4, 5, 6, 7], transfer=2)
    start = perf_counter()
    found = search(costs, Placement.loop(6), micro_batches=18, memory=InFlight(5), exact=True, time_limit=2)
    assert perf_counter() - start < 10
    assert found.lower_bound <= found.value
    assert found.gap == (found.value - found.lower_bound) / found.value


def test_numbers_too_fine_for_the_solver_are_rounded_and_it_says_so():
    """Durations with seventeen digits: the bound stays one, and is as near as the rounding."""
    fine = [0.12345678901234567, 0.11345678901234568, 0.13345678901234565]
    costs = Costs(fine, 0.1, 0.07, transfer=0.01)
    found = search(costs, Placement.loop(3), micro_batches=4, memory=InFlight(2), exact=True)
    assert "rounded down" in found.how
    assert found.lower_bound <= found.makespan
    assert found.gap < 1e-6
