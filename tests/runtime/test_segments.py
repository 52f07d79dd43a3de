"""Sequences in segments: the mathematics of whole sequences, and bit by bit that of a plain loop over segments."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
import torch
from torch import Tensor, nn

from headrace.runtime.stage import carry
from headrace.schedule import Schedule, build
from runtime.cases import Case
from runtime.reference import gradients
from runtime.sequences import VOCABULARY, assert_loop_parity, pipe_of, tiny_gpt, token_loss, whole

NUMBERS: Final = [  # p, m, S, tokens: S divides them or does not
    (1, 2, 2, 7),
    (2, 1, 3, 8),
    (2, 3, 2, 6),
    (3, 2, 3, 7),
    (4, 2, 1, 5),
    (4, 5, 2, 7),
]


def schedule_of(ranks: int, m: int, segments: int, recompute: str = "never") -> Schedule:
    return build("seq1f1b", ranks=ranks, micro_batches=m, segments=segments, recompute=recompute)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * float(theirs.abs().max()))


def assert_close_gradients(case: Case, twin: Case) -> None:
    for (name, ours), theirs in zip(gradients(case.model).items(), gradients(twin.model).values(), strict=True):
        assert ours is not None, name
        assert theirs is not None, name
        assert_close(ours, theirs)


@pytest.mark.parametrize(("recompute", "dropout"), [("never", 0.0), ("always", 0.3)])
@pytest.mark.parametrize(("ranks", "m", "segments", "length"), NUMBERS)
def test_segments_are_bitwise_a_plain_loop(
    ranks: int, m: int, segments: int, length: int, recompute: str, dropout: float
) -> None:
    case, twin = (tiny_gpt(7, length, dropout=dropout) for _ in range(2))
    assert_loop_parity(case, twin, schedule_of(ranks, m, segments, recompute))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_segments_are_bitwise_a_plain_loop_in_all_combinations(ranks: int) -> None:
    every = itertools.product((1, ranks, 2 * ranks + 1), (1, 2, 3, 4), ("never", "always", "except_last"), (0.0, 0.3))
    for m, segments, recompute, dropout in every:
        for length in (segments, 8, 9):
            case, twin = (tiny_gpt(2 * ranks + 2, length, dropout=dropout) for _ in range(2))
            assert_loop_parity(case, twin, schedule_of(ranks, m, segments, recompute))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize(("ranks", "m", "segments", "length"), NUMBERS)
def test_segments_give_the_gradients_of_whole_sequences(
    ranks: int, m: int, segments: int, length: int, recompute: str
) -> None:
    case, twin = (tiny_gpt(7, length) for _ in range(2))
    with pipe_of(case, schedule_of(ranks, m, segments, recompute)) as pipe:
        loss = pipe.step(*case.batch(0))
    assert_close(loss, whole(twin, twin.batch(0)))
    assert_close_gradients(case, twin)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("ranks", "m", "segments", "length"), NUMBERS)
def test_evaluate_and_predict_see_whole_sequences(ranks: int, m: int, segments: int, length: int) -> None:
    case = tiny_gpt(7, length, dropout=0.5)
    x, y = case.batch(0)
    with pipe_of(case, schedule_of(ranks, m, segments)) as pipe:
        outputs = pipe.predict(x)
        found = pipe.evaluate(x, y, {"largest share": lambda logits, _: (logits.argmax(-1) == 0).double().mean()})
        few = pipe.predict(x[:1])
    model = case.model.eval()
    with torch.no_grad():
        expected = model(x)
    assert_close(outputs, expected)
    assert_close(few, expected[:1])
    assert_close(found["loss"], token_loss(expected, y))
    assert_close(found["largest share"], (expected.argmax(-1) == 0).double().mean())


def after_embedding(*layers: Callable[[], nn.Module]) -> Case:
    """A chain for tokens, the same each time."""
    case = tiny_gpt(5, 8, layers=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        chain = nn.Sequential(case.model[0].token, *(layer() for layer in layers), nn.Linear(8, VOCABULARY))
    return replace(case, model=chain)


@pytest.mark.filterwarnings("ignore::headrace.runtime.model.warn.NothingCarriedWarning")
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_layers_may_carry_nothing(recompute: str) -> None:
    case, twin = (after_embedding(lambda: nn.Linear(8, 8), nn.Tanh) for _ in range(2))
    assert_loop_parity(case, twin, schedule_of(3, 2, 3, recompute))


class Sums(nn.Module):
    """Adds up what came before, called twice in one forward; its number goes along, and a tensor without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self._once(self._once(x))

    def _once(self, x: Tensor) -> Tensor:
        past = carry.take(self)
        before, count, seen = (0, 0, torch.zeros(())) if past is None else (past["sum"], past["count"], past["seen"])
        sums = before + (x * self.weight).cumsum(1)
        carry.put(self, {"sum": sums[:, -1:], "count": count + x.shape[1], "seen": seen + x.detach().abs().sum()})
        places = torch.arange(1, x.shape[1] + 1) + count
        return sums / places[:, None]


@pytest.mark.usefixtures("double")
def test_a_layer_called_twice_carries_twice() -> None:
    case, twin = (after_embedding(Sums, lambda: nn.Linear(8, 8), Sums) for _ in range(2))
    with pipe_of(case, schedule_of(2, 2, 3)) as pipe:
        loss = pipe.step(*case.batch(0))
    assert_close(loss, whole(twin, twin.batch(0)))
    assert_close_gradients(case, twin)
