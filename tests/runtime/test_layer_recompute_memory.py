"""Layers that recompute one by one hold their inputs until the backward, then the activations of one at a time."""

import gc
from typing import Final

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.models import gpt, next_byte_loss
from headrace.profiling.rank_bytes import bytes_of_step
from headrace.runtime.stage.boundary import ONE_TENSOR, Parcel
from headrace.runtime.stage.stage import Stage
from runtime.test_split_memory import DIM, FLOAT, ROWS, WIDE, Memory, levels, stage_of

NARROW, BROAD = ROWS * DIM * FLOAT, ROWS * WIDE * FLOAT
BLOCKS: Final = 4
ACTIVATIONS: Final = 2 * BROAD
"""Of a block, its input not counted."""


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, DIM))


def warm(*, drops: str, blocks: int = BLOCKS) -> tuple[Stage, Tensor]:
    """A stage of blocks that has learned what there is to learn."""
    stage, x = stage_of(*(block() for _ in range(blocks)), recomputes=drops), torch.randn(ROWS, DIM)
    held(stage, x)
    return stage, x


def held(stage: Stage, x: Tensor) -> tuple[int, int]:
    """Bytes after F, and the most during the backward, what is handed on not counted."""
    gc.disable()
    try:
        with Memory(stage, x) as memory:
            parcel = stage.forward(
                0, Parcel((x,), (True,), ONE_TENSOR), seed=0, tail=None, recompute=False, split=False
            )
            gradient = torch.ones_like(parcel.tensors[0])
            del parcel
            after = memory.live - gradient.nbytes
            most = memory.most(lambda: stage.backward(0, (gradient,)))
        return after, most
    finally:
        gc.enable()


def test_what_is_dropped_keeps_its_input_only() -> None:
    for drops in ("", "0", "2", "123", "0123"):
        stage, x = warm(drops=drops)
        after, _ = held(stage, x)
        kept = BLOCKS - len(drops)
        # the input of the first came from outside; that of any other is its own or the one before's output
        assert after == kept * ACTIVATIONS + (BLOCKS - 1) * NARROW


def test_activations_come_back_one_layer_at_a_time() -> None:
    more = []
    for blocks in (1, 2, BLOCKS):
        stage, x = warm(drops="0123", blocks=blocks)
        after, most = held(stage, x)
        more.append(most - after)
    assert more[1] == more[2] <= more[0] + NARROW
    stage, x = warm(drops="")
    assert most < held(stage, x)[1]


@pytest.mark.parametrize("drops", ["0123", "02"])
def test_between_i_and_w_lives_what_lives_without_recompute(drops: str) -> None:
    found = []
    for which in ("", drops):
        stage, x = stage_of(*(block() for _ in range(BLOCKS)), recomputes=which), torch.randn(ROWS, DIM)
        levels(stage, x)
        found.append(levels(stage, x))
    (kept, between_kept, end_kept), (dropped, between, end) = found
    assert kept - dropped == len(drops) * ACTIVATIONS
    assert between == between_kept
    assert end == end_kept == 0


def test_a_failed_step_keeps_nothing() -> None:
    stage, x = warm(drops="0123")
    gc.disable()
    try:
        with Memory(stage, x) as memory:
            stage.forward(0, Parcel((x,), (True,), ONE_TENSOR), seed=0, tail=None, recompute=False)
            assert memory.live > 0
            stage.forget()
            assert memory.live == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_ranks_hold_less(schedule: str) -> None:
    torch.manual_seed(0)
    model = gpt(layers=4, dim=64, heads=2, sequence=32)
    x, y = torch.randint(256, (2, 16, 32)).unbind()
    found = {}
    for recompute in ("never", ("block0", "block1"), "layer"):
        model.zero_grad()
        with hr.Pipeline(
            model, next_byte_loss, ranks=2, micro_batches=4, schedule=schedule, recompute=recompute
        ) as pipe:
            found[recompute] = bytes_of_step(pipe, x, y)
    never, two, layer = found["never"], found["block0", "block1"], found["layer"]
    assert two[0] < 0.75 * never[0]
    assert layer[0] < 0.6 * never[0]
    assert layer[1] <= never[1]
