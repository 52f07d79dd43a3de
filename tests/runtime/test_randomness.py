"""Streams of random numbers, by themselves."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from headrace.runtime.stage.randomness import OwnGenerators, SharedGenerators, drawing_watched, stream
from runtime.cases import Do

CPU = torch.device("cpu")
numbers = st.integers(0, 2**63 - 1)


def test_streams_are_what_they_always_were() -> None:
    """A run that is resumed with a later version draws the same numbers."""
    assert stream(0) == 8147104208329303767
    assert stream(1, 2, 3) == 3851293329796251419


@given(st.lists(numbers, min_size=1, max_size=4), st.lists(numbers, min_size=1, max_size=4))
def test_streams_differ(one: list[int], other: list[int]) -> None:
    assert (stream(*one) == stream(*other)) == (one == other)
    assert 0 <= stream(*one) < 2**63


def test_neighbouring_streams_do_not_collide() -> None:
    seeds = {
        stream(seed, step, layer, k) for seed in range(8) for step in range(8) for layer in range(8) for k in range(8)
    }
    assert len(seeds) == 8**4


DRAWS: list[Callable[[], Tensor]] = [
    lambda: torch.rand(3),
    lambda: torch.empty(3).normal_(),
    lambda: nn.functional.dropout(torch.ones(64), 0.5, training=True),
    lambda: torch.randperm(9),
    lambda: torch.randint(0, 99, (4,)),
    lambda: torch.bernoulli(torch.full((20,), 0.5)),
    lambda: torch.multinomial(torch.ones(9), 5),
    lambda: nn.functional.rrelu(-torch.ones(9), training=True),
    lambda: torch.empty(3).exponential_(),
    lambda: torch.nn.init.trunc_normal_(torch.empty(5)),
    lambda: nn.functional.gumbel_softmax(torch.zeros(5)),
    lambda: torch.distributions.Gamma(2.0, 1.0).sample((3,)),
]


TAKES_NO_GENERATOR: list[Callable[[], Tensor]] = [
    lambda: torch.native_dropout(torch.ones(64), 0.5, True)[0],
    lambda: torch.rand(3) + torch.native_dropout(torch.ones(3), 0.5, True)[0] + torch.rand(3),
]


@pytest.mark.parametrize("draw", DRAWS + TAKES_NO_GENERATOR)
@pytest.mark.parametrize("kind", [OwnGenerators, SharedGenerators])
def test_every_draw_comes_from_the_stream(
    kind: Callable[[torch.device], OwnGenerators], draw: Callable[[], Tensor]
) -> None:
    torch.manual_seed(11)
    expected = [draw(), draw()]
    torch.manual_seed(12)
    before = torch.get_rng_state()
    draws = kind(CPU)
    layer = nn.Identity()
    for _ in range(2):
        with draws.action(), draws.layer(layer, 0, 11):
            drawn = [draw(), draw()]
        assert all(map(torch.equal, drawn, expected))
    assert torch.equal(torch.get_rng_state(), before)


class Looks(TorchDispatchMode):
    """Sees in which state the shared generator is when operations run."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.states.append(torch.get_rng_state())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("draw", DRAWS)
def test_the_shared_generator_rests_while_ranks_draw(draw: Callable[[], Tensor]) -> None:
    """Others may save it and put it back at any time, as torch.utils.checkpoint does in a backward."""
    before = torch.get_rng_state()
    with Looks() as looks, SharedGenerators(CPU).layer(nn.Identity(), 0, 11):
        draw()
    assert looks.states
    assert all(torch.equal(state, before) for state in looks.states)


def test_a_generator_of_the_users_own_is_left_to_him() -> None:
    draws = SharedGenerators(CPU)
    generator = torch.Generator().manual_seed(3)
    with draws.action(), draws.layer(nn.Identity(), 0, 11):
        drawn = torch.rand(3, generator=generator)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(3)))


def test_streams_of_threads_that_draw_at_once() -> None:
    expected = []
    for seed in range(3):
        torch.manual_seed(seed)
        expected.append(torch.stack([torch.rand(2) for _ in range(200)]))
    before = torch.get_rng_state()
    barrier = threading.Barrier(3)
    drawn: dict[int, Tensor] = {}

    def draw(seed: int) -> None:
        draws = SharedGenerators(CPU)
        barrier.wait(10)
        with draws.action(), draws.layer(nn.Identity(), 0, seed):
            drawn[seed] = torch.stack([torch.rand(2) for _ in range(200)])

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert all(torch.equal(drawn[seed], expected[seed]) for seed in range(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_watching_for_draws_does_not_mistake_another_pipelines_draw_for_one() -> None:
    """An operation that takes no generator runs with the shared one, for as long as it lasts."""
    barrier = threading.Barrier(2)

    def draw() -> None:
        barrier.wait(10)
        with SharedGenerators(CPU).layer(nn.Identity(), 0, 3):
            for _ in range(300):
                torch.native_dropout(torch.ones(20_000), 0.5, True)

    thread = threading.Thread(target=draw)
    thread.start()
    barrier.wait(10)
    while thread.is_alive():
        with drawing_watched([SharedGenerators(CPU)], recomputes=True):
            torch.ones(30_000).exp()  # so that the other thread gets on
    thread.join()


def test_what_draws_in_one_mode_only_is_caught_in_that_mode() -> None:
    draws = SharedGenerators(CPU)
    layer = nn.Dropout()
    for mode, training in enumerate((False, True, True)):
        layer.train(training)
        with drawing_watched([draws], recomputes=True), draws.layer(layer, min(mode, 1), 5):
            layer(torch.ones(4))


def test_attention_that_drops_nothing_is_caught_only_once() -> None:
    """It is tagged as an operation that may draw; to be caught costs a transformer a third of its time."""
    query = torch.ones(1, 1, 4, 8)
    for dropout, caught in ((0.0, False), (0.5, True)):
        draws, layer = SharedGenerators(CPU), nn.Identity()
        for _ in range(2):
            with draws.layer(layer, 0, 5):
                mode = _get_current_dispatch_mode()
                nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=dropout)
        assert (mode is not None) == caught


def test_drawing_watched_sees_a_draw_outside_of_a_stream() -> None:
    draws = SharedGenerators(CPU)
    quiet = Do(lambda x: x)
    with draws.layer(quiet, 0, 5):
        quiet(torch.ones(1))

    def draw() -> None:
        with drawing_watched([draws], recomputes=False), draws.layer(quiet, 0, 5):
            torch.rand(1)

    with pytest.warns(UserWarning, match="random numbers were drawn outside of their streams"):
        draw()
    draw()  # now that it is known to draw
