"""What lives between I and W: the operands of products with weights, and nothing else."""

import gc
from collections.abc import Callable, Collection
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.runtime.stage.boundary import ONE_TENSOR, Parcel
from headrace.runtime.stage.randomness import OwnGenerators
from headrace.runtime.stage.stage import Stage

ROWS, DIM, WIDE = 16, 8, 32
FLOAT: Final = 4


class Memory(TorchDispatchMode):
    """Counts the bytes that operations made and that still live, without those of a stage and its input."""

    def __init__(self, stage: Stage, x: Tensor) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        parameters = [p for layer in stage.layers.values() for p in layer.parameters()]
        there = [x, *parameters, *(p.grad for p in parameters if p.grad is not None)]
        self._there = {t.untyped_storage()._cdata for t in there}
        self._peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._peak = max(self._peak, self.live)
        return result

    def most(self, run: Callable[[], object]) -> int:
        """The most bytes that live while something runs."""
        self._peak = 0
        run()
        return self._peak

    @property
    def live(self) -> int:
        return sum(
            nbytes
            for address, (reference, nbytes) in self._made.items()
            if address not in self._there and not reference.expired()
        )


def stage_of(*layers: nn.Module, recomputes: Collection[str] = ()) -> Stage:
    cpu = torch.device("cpu")
    stage = Stage(0, {str(i): layer for i, layer in enumerate(layers)}, 0, cpu, OwnGenerators(cpu), recomputes)
    stage.prepare(1)
    for layer in layers:
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
    return stage


def levels(stage: Stage, x: Tensor) -> tuple[int, int, int]:
    """Bytes that live after F, I and W of a micro-batch, not counting what is handed on."""
    gc.disable()
    try:
        with Memory(stage, x) as memory:
            result = []
            parcel = stage.forward(0, Parcel((x,), (True,), ONE_TENSOR), seed=0, tail=None, recompute=False, split=True)
            gradient = torch.ones_like(parcel.tensors[0])
            del parcel
            result.append(memory.live - gradient.nbytes)
            gradients = stage.backward_input(0, (gradient,))
            handed_on = 0 if gradients[0] is None else gradients[0].nbytes
            del gradient
            result.append(memory.live - handed_on)
            del gradients
            stage.backward_weight(0)
            result.append(memory.live)
    finally:
        gc.enable()
    return result[0], result[1], result[2]


def test_only_operands_of_products_live_between_i_and_w() -> None:
    stage = stage_of(
        nn.Linear(DIM, WIDE), nn.GELU(), nn.Softmax(-1), nn.Tanh(), nn.LayerNorm(WIDE), nn.Linear(WIDE, DIM), nn.Tanh()
    )
    x = torch.randn(ROWS, DIM)
    levels(stage, x)  # the first forward learns what is written to in place, on copies
    after_forward, between, after = levels(stage, x)
    wide, narrow = ROWS * WIDE * FLOAT, ROWS * DIM * FLOAT
    assert after_forward >= 4 * wide
    # the gradient and the input of each linear (that of the first came from outside), and gradients of the norm
    assert between == (wide + narrow + wide) + 2 * WIDE * FLOAT
    assert after == 0


def test_a_product_shares_its_operand_with_what_comes_before_and_after() -> None:
    """A split forward holds no more than a whole one."""
    stage = stage_of(nn.Linear(DIM, WIDE), nn.GELU(), nn.Linear(WIDE, DIM))
    x = torch.randn(ROWS, DIM)

    def after_forward(split: bool) -> int:
        with Memory(stage, x) as memory:
            stage.forward(0, Parcel((x,), (True,), ONE_TENSOR), seed=0, tail=None, recompute=False, split=split)
            held = memory.live
        stage.forget()
        return held

    after_forward(True)
    assert after_forward(True) == after_forward(False)


def test_the_graph_is_freed_while_i_runs() -> None:
    """Not only in the end: what a layer kept is gone when the layers before it are differentiated."""
    live: list[int] = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:
            live.append(memory.live)
            return gradient

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = Look.apply(x)
            return result

    stage = stage_of(nn.Linear(DIM, DIM), Looks(), *(nn.Sigmoid() for _ in range(9)), Looks())
    x = torch.randn(ROWS, DIM)
    with Memory(stage, x) as memory:
        parcel = stage.forward(0, Parcel((x,), (True,), ONE_TENSOR), seed=0, tail=None, recompute=False, split=True)
        stage.backward_input(0, (torch.ones_like(parcel.tensors[0]),))
    assert live[0] - live[1] >= 8 * ROWS * DIM * FLOAT


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x)[0]
        return result


class LightlyUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) + self.layer.weight.sum()
        return result


@pytest.mark.parametrize(
    "layer", [SelfAttention, LightlyUsed, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(DIM, DIM))]
)
def test_a_micro_batch_leaves_no_garbage_that_only_the_collector_finds(layer: Callable[[], nn.Module]) -> None:
    stage, x = stage_of(layer()), torch.randn(ROWS, 3, DIM)
    levels(stage, x)
    assert levels(stage, x)[2] == 0


def test_forgetting_lets_go_of_what_w_would_have_done() -> None:
    stage = stage_of(nn.Linear(DIM, WIDE), nn.Tanh())
    x = torch.randn(ROWS, DIM)
    with Memory(stage, x) as memory:
        parcel = stage.forward(0, Parcel((x,), (True,), ONE_TENSOR), seed=0, tail=None, recompute=False, split=True)
        gradients = stage.backward_input(0, (torch.ones_like(parcel.tensors[0]),))
        del parcel, gradients
        assert memory.live > 0
        stage.forget()
        assert memory.live == 0


def test_autocast_keeps_no_casts_of_activations() -> None:
    """It keeps casts of leaves for later uses, so the beginning of a product must not look like one."""
    stage, x = stage_of(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM)), torch.randn(ROWS, DIM)
    levels(stage, x)
    with torch.autocast("cpu", torch.bfloat16):
        weights = 2 * (DIM * DIM + DIM) * 2
        assert levels(stage, x)[2] == weights
