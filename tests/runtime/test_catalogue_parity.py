"""Every synchronous schedule of the catalogue trains every awkward model as if there were no pipeline, bit by bit."""

import itertools
from functools import cache
from typing import Any, Final, Literal

import pytest
from torch import nn

from headrace.runtime.failure import PipelineFailure
from headrace.runtime.model.warn import BatchStatisticsWarning
from runtime.cases import CASES, Case, make
from runtime.parity import assert_parity, cut_of, with_rows_for
from runtime.reference import Unsplit, differing, everything
from runtime.schedules import EVERY, RECOMPUTES, Numbers, pairwise_covering, schedule_of, two_way

pytestmark = pytest.mark.filterwarnings(f"ignore::{BatchStatisticsWarning.__module__}.BatchStatisticsWarning")

FOR_THREADS: Final = [name for name in CASES if make(name).threads]


def race(name: str, numbers: Numbers) -> Literal["run", "refused"]:
    """Train a case by a schedule, if it should not be refused."""
    schedule = schedule_of(*numbers)
    case, twin = (with_rows_for(make(name), schedule.micro_batches) for _ in range(2))
    cut = cut_of(case, schedule.stages)
    assert cut is not None
    if two_way(schedule) and any(isinstance(m, nn.BatchNorm1d) for m in case.model.modules()):
        with pytest.raises(ValueError, match=r"keep running statistics, but schedule '.*' is two-way"):
            assert_parity(case, twin, schedule, cut)
        return "refused"
    if two_way(schedule) and changes_buffers(twin, schedule.micro_batches):
        # a recompute may be the first to miss what the other lane changed meanwhile
        refusal = r"were changed in a step of a two-way schedule|a buffer was changed that"
        with pytest.raises(PipelineFailure, match=refusal) as caught:
            assert_parity(case, twin, schedule, cut)
        assert isinstance(caught.value.__cause__, (ValueError, RuntimeError))
        return "refused"
    assert_parity(case, twin, schedule, cut)
    return "run"


def changes_buffers(twin: Case, micro_batches: int) -> bool:
    before = everything(twin.model)
    Unsplit(twin, 0).losses(twin.batch(0), micro_batches)
    return differing(before, everything(twin.model)) != []


case_named = cache(make)


def fitting(numbers: Numbers) -> list[str]:
    """The cases that have a layer for each stage."""
    stages = schedule_of(*numbers).stages
    return [name for name in FOR_THREADS if cut_of(case_named(name), stages) is not None]


def chosen() -> list[Any]:
    """A covering part of the matrix, every schedule in it with the case that had the fewest turns so far."""
    turns = dict.fromkeys(FOR_THREADS, 0)
    found = []
    for numbers in pairwise_covering():
        name = min(fitting(numbers), key=turns.__getitem__)
        turns[name] += 1
        found.append(pytest.param(name, numbers, id=f"{name}, {', '.join(map(str, numbers))}"))
    assert min(turns.values()) > 0
    return found


def test_the_chosen_part_of_the_matrix_has_every_pair_of_values() -> None:
    part = pairwise_covering()
    for i, j in itertools.combinations(range(4), 2):
        assert {(n[i], n[j]) for n in part} == {(n[i], n[j]) for n in EVERY}


@pytest.mark.parametrize(("name", "numbers"), chosen())
def test_every_schedule_is_bitwise_the_unsplit_model(name: str, numbers: Numbers) -> None:
    race(name, numbers)


@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
@pytest.mark.parametrize("name", ["batch_norm", "spectral_norm", "counting_buffer", "replaced_buffer"])
def test_two_way_schedules_refuse_layers_whose_replicas_would_drift_apart(
    name: str, schedule: str, recompute: str
) -> None:
    assert race(name, (schedule, 2, "m = p", recompute)) == "refused"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FOR_THREADS)
def test_every_schedule_is_bitwise_the_unsplit_model_for_every_case(name: str) -> None:
    for numbers in EVERY:
        if name in fitting(numbers) and schedule_of(*numbers).ranks == numbers[1]:
            race(name, numbers)
