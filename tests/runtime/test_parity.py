"""The same mathematics: losses, gradients and trained parameters are those of the unsplit model, bit by bit."""

import itertools
import random
from typing import Final

import naive
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import headrace as hr
from headrace.runtime.model.warn import BatchStatisticsWarning
from headrace.schedule import Action, Placement, Schedule
from runtime.cases import CASES, DIM, Blind, Case, Do, Residual, UsesTwice, make
from runtime.parity import assert_parity
from runtime.reference import flat_layers, gradients

pytestmark = pytest.mark.filterwarnings(f"ignore::{BatchStatisticsWarning.__module__}.BatchStatisticsWarning")

SCHEDULES: Final = ("gpipe", "gpipe forward", "1f1b")
RECOMPUTE: Final = ("never", "always", "except_last")
FEW: Final = [  # every pair of values of two of (ranks, micro-batches, schedule, recompute) that matters is in here
    (1, 3, "1f1b", "never"),
    (2, 4, "1f1b", "always"),
    (3, 3, "gpipe", "except_last"),
    (4, 7, "1f1b", "never"),
    (4, 3, "gpipe forward", "always"),
    (3, 1, "gpipe", "always"),
]
ALL: Final = [*itertools.product((1, 2, 3, 4), (1, 3, 4, 7), SCHEDULES, RECOMPUTE)]
REST: Final = [combination for combination in ALL if combination not in FEW]
FOR_THREADS: Final = [name for name in CASES if make(name).threads]
KEEPS_NO_STATE: Final = [
    n for n in FOR_THREADS if n not in ("batch_norm", "spectral_norm", "counting_buffer", "replaced_buffer")
]


def schedule_named(name: str, ranks: int, micro_batches: int, recompute: str) -> Schedule:
    base, _, drain = name.partition(" ")
    options = {"drain": drain} if drain else {}
    return hr.schedule.build(base, ranks=ranks, micro_batches=micro_batches, recompute=recompute, **options)


@pytest.mark.parametrize(("ranks", "micro_batches", "schedule", "recompute"), FEW)
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_bitwise_the_unsplit_model(
    name: str, ranks: int, micro_batches: int, schedule: str, recompute: str
) -> None:
    case = make(name)
    if not case.threads and ranks > 1:
        pytest.skip("refused when ranks are threads; see test_survives")
    assert_parity(case, make(name), schedule_named(schedule, ranks, micro_batches, recompute), case.cut(ranks))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.timeout(300)
def test_every_case_is_bitwise_the_unsplit_model_in_all_combinations(name: str) -> None:
    for ranks, micro_batches, schedule, recompute in REST:
        case = make(name)
        if case.threads or ranks == 1:
            assert_parity(case, make(name), schedule_named(schedule, ranks, micro_batches, recompute), case.cut(ranks))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", [name for name in FOR_THREADS if make(name).by_rows])
def test_every_case_equals_the_whole_batch_at_once(name: str) -> None:
    case, whole = make(name), make(name)
    with hr.Pipeline(case.model, case.loss_fn, ranks=3, micro_batches=4, cut=case.cut(3), **case.options) as pipe:
        loss = pipe.step(*case.batch(0))
    x, y = whole.batch(0)
    expected = whole.loss_fn(whole.model(x), y)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-14)
    for parameter, ours in gradients(case.model).items():
        theirs = gradients(whole.model)[parameter]
        assert (ours is None) == (theirs is None), parameter
        if ours is not None:
            scale = float(theirs.abs().max())  # rounding is relative to the terms of a sum, not to what is left of it
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * scale)


def interleaved(ranks: int, stages_per_rank: int, micro_batches: int, recompute: bool) -> Schedule:
    """A schedule with several stages a rank, backwards and early micro-batches first."""
    placement = Placement.loop(ranks, stages_per_rank)
    todo = [Action(s, kind, k) for s in range(placement.stages) for kind in "FB" for k in range(micro_batches)]
    whole = Schedule("all", (tuple(todo),), Placement((0,) * placement.stages), micro_batches)
    wanted, done = naive.needs(whole), set[Action]()
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    while todo:
        chosen = []
        for rank in range(ranks):
            able = [a for a in todo if placement.rank_of[a.stage] == rank and all(d in done for d in wanted[a])]
            if able:
                chosen.append(min(able, key=lambda a: (a.kind != "B", a.micro_batch, a.stage)))
        for action in chosen:
            todo.remove(action)
            done.add(action)
            if action.kind == "B" and recompute:
                rows[placement.rank_of[action.stage]].append(action._replace(kind="R"))
            rows[placement.rank_of[action.stage]].append(action)
    return Schedule("interleaved", tuple(map(tuple, rows)), placement, micro_batches)


@pytest.mark.parametrize(("name", "recompute"), [("dropout", False), *((name, True) for name in FOR_THREADS)])
def test_several_stages_on_a_rank(name: str, recompute: bool) -> None:
    case = make(name)
    assert_parity(case, make(name), interleaved(2, 2, 3, recompute), case.cut(4))


@pytest.mark.parametrize("recompute", [False, True])
def test_neighbouring_stages_on_one_rank(recompute: bool) -> None:
    rng = random.Random(3)
    schedule = naive.random_schedule(rng, 4, 1, 3, ["RB" if recompute else "B"])
    case = make("dropout")
    assert_parity(case, make("dropout"), schedule, case.cut(4))


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(KEEPS_NO_STATE),
    stages=st.integers(1, 4),
    ranks=st.integers(1, 4),
    micro_batches=st.integers(1, 4),
    rng=st.randoms(use_true_random=False),
)
def test_random_schedules(name: str, stages: int, ranks: int, micro_batches: int, rng: random.Random) -> None:
    schedule = naive.random_schedule(rng, stages, min(ranks, stages), micro_batches, ["B", "RB"])
    case = make(name)
    assert_parity(case, make(name), schedule, case.cut(stages))


# -- random chains ---------------------------------------------------------------------------------------------------

KINDS: Final = {
    "linear": lambda: nn.Linear(DIM, DIM),
    "frozen": lambda: nn.Linear(DIM, DIM).requires_grad_(False),
    "relu": lambda: nn.ReLU(inplace=True),
    "gelu": nn.GELU,
    "dropout": lambda: nn.Dropout(0.3),
    "residual": lambda: Residual(nn.Dropout(0.2)),
    "twice": UsesTwice,
    "blind": Blind,
    "identity": nn.Identity,
    "view": lambda: Do(_folded),
    "stride": lambda: Do(_turned),
    "nested": lambda: nn.Sequential(nn.Linear(DIM, DIM), nn.Sequential(nn.Tanh())),
    "noise": lambda: Do(_noisy),
}


def _folded(x: Tensor) -> Tensor:
    return x.view(len(x), 2, -1).transpose(1, 2).flatten(1)


def _turned(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def _noisy(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def chain(kinds: list[str], rows: int) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(rows)
        # a last Linear, so that there is something to learn, and no in-place layer right after what it would spoil
        layers = [KINDS[kind]() for kind in kinds]
        model = nn.Sequential(*(part for layer in layers for part in (layer, Do(_plus_one))), nn.Linear(DIM, DIM))
        return Case(model, torch.randn(rows, DIM), torch.randn(rows, DIM), nn.functional.mse_loss)


def _plus_one(x: Tensor) -> Tensor:
    return x + 1


@settings(max_examples=50, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6),
    ranks=st.integers(1, 4),
    micro_batches=st.integers(1, 6),
    more_rows=st.integers(0, 7),
    schedule=st.sampled_from(SCHEDULES),
    recompute=st.sampled_from(RECOMPUTE),
    rng=st.randoms(use_true_random=False),
)
@example(["relu", "dropout", "blind"], 3, 4, 3, "1f1b", "always", random.Random(0))
def test_random_chains(
    kinds: list[str],
    ranks: int,
    micro_batches: int,
    more_rows: int,
    schedule: str,
    recompute: str,
    rng: random.Random,
) -> None:
    case, twin = (chain(kinds, micro_batches + more_rows) for _ in range(2))
    layers = len(flat_layers(case.model))
    ranks = min(ranks, layers)
    borders = [0, *sorted(rng.sample(range(1, layers), ranks - 1)), layers]
    cut = tuple(after - before for before, after in itertools.pairwise(borders))
    assert_parity(case, twin, schedule_named(schedule, ranks, micro_batches, recompute), cut)
