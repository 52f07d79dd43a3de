"""Layers that recompute one by one: the bits of a run without, whatever the model, the schedule and the layers."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.warn import BatchStatisticsWarning
from headrace.schedule import Schedule, build
from runtime.cases import CASES, DIM, Case, make
from runtime.parity import assert_parity, cut_of, with_rows_for
from runtime.pipes import SEED, Race, pipe_of
from runtime.reference import differing, everything, gradients, same
from runtime.schedules import SYNCHRONOUS, schedule_of
from runtime.sequences import assert_loop_parity, tiny_gpt

pytestmark = pytest.mark.filterwarnings(f"ignore::{BatchStatisticsWarning.__module__}.BatchStatisticsWarning")

mse = nn.functional.mse_loss
FOR_THREADS: Final = [name for name in CASES if make(name).threads]
FEW: Final = [("gpipe", 1, 3), ("1f1b", 3, 4), ("zb-h1", 2, 3), ("zb-h2", 4, 7)]


def recomputing(case: Case, which: Any = "layer") -> Case:
    """The case with an argument for its pipeline."""
    return replace(case, options={**case.options, "recompute": which})


@pytest.mark.parametrize(("schedule", "ranks", "micro_batches"), FEW)
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_bitwise_the_unsplit_model(name: str, schedule: str, ranks: int, micro_batches: int) -> None:
    case = make(name)
    if not case.threads and ranks > 1:
        pytest.skip("refused where ranks are threads")
    order = build(schedule, ranks=ranks, micro_batches=micro_batches)
    assert_parity(recomputing(case), make(name), order, case.cut(ranks))


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", FOR_THREADS)
def test_any_layers_may_be_chosen(name: str, number: int) -> None:
    case = make(name)
    choose = random.Random(f"{name} {number}")
    layers = [layer for layer in layers_of(case.model) if choose.random() < 0.5]
    order = build(("1f1b", "zb-h1", "gpipe")[number], ranks=2, micro_batches=3)
    assert_parity(recomputing(case, layers), make(name), order, case.cut(2))


@pytest.mark.parametrize("schedule", [name for name in SYNCHRONOUS if name != "seq1f1b"])
@pytest.mark.parametrize("name", ["dropout", "deep_skip", "tied_in_a_stage"])
def test_every_schedule(name: str, schedule: str) -> None:
    order = schedule_of(schedule, 2, "m = 2p + 1", "never")
    case, twin = (with_rows_for(make(name), order.micro_batches) for _ in range(2))
    cut = cut_of(case, order.stages)
    if cut is None:
        pytest.skip("too few layers")
    assert_parity(recomputing(case), twin, order, cut)


@pytest.mark.parametrize("segments", [2, 3])
def test_what_segments_carry_is_there_again(segments: int) -> None:
    case, twin = (tiny_gpt(4, 6, dropout=0.3) for _ in range(2))
    order = build("seq1f1b", ranks=2, micro_batches=4, segments=segments)
    assert_loop_parity(recomputing(case), twin, order)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["plain", "dropout", "layer_norm", "tied_in_a_stage"])
def test_autocast(name: str, ranks: int) -> None:
    race = Race(name, ranks, 3, recompute="layer")
    with torch.autocast("cpu", torch.bfloat16):
        for step in range(2):
            race.step(*race.case.batch(step))
    race.step(*race.case.batch(2))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["plain", "dropout", "layer_norm"])
def test_compiled_layers(name: str, backend: str) -> None:
    torch._dynamo.reset()
    race = Race(name, 2, 3, recompute="layer")
    never = pipe_of(make(name), 2, 3)
    for case in (race.case, ):
        for layer in case.model:
            layer.compile(backend=backend)
    for step in range(3):
        race.step(*race.case.batch(step))
