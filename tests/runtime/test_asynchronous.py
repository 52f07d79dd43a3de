"""Asynchronous schedules: exactly the delays that they promise, bit by bit, and no more versions of the weights."""

import weakref
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.schedule import Schedule, build, check, parse
from runtime.cases import CASES, Case, make
from runtime.delays import OPTIMIZERS, Emulation, Version, newest, one_group_behind
from runtime.parity import cut_of, with_rows_for
from runtime.pipes import SEED
from runtime.reference import differing, everything, same

STEPS: Final = 3
FEW: Final = [
    (1, 3, "sgd", "never"),
    (2, 1, "adamw", "always"),
    (2, 5, "adamw", "never"),
    (3, 7, "sgd", "always"),
    (4, 3, "sgd", "never"),
    (4, 9, "adamw", "always"),
]
FOR_THREADS: Final = [n for n in CASES if make(n).threads]
TELLING: Final = ("plain", "dropout", "token_weights", "tied_in_a_stage", "summed_loss", "batch_norm", "checkpointed")
CHOSEN: Final = [(name, *FEW[(i + j) % len(FEW)]) for i, name in enumerate(TELLING) for j in (0, 3)]
WITH_BATCH_NORM: Final = pytest.mark.filterwarnings("ignore:.*batch normalisation sees each")


def delayed(schedule: Schedule, accumulate: int) -> Version:
    return newest(schedule.ranks) if schedule.delay is None else one_group_behind(accumulate)


def race(name: str, schedule: Schedule, optimizer: str, accumulate: int) -> None:
    """Train a case by an asynchronous schedule, and its twin with the same delays by hand."""
    case, twin = (with_rows_for(make(name), schedule.micro_batches) for _ in range(2))
    cut = cut_of(case, schedule.stages)
    assert cut is not None
    make_optimizer = OPTIMIZERS[optimizer]
    emulation = Emulation(twin, cut, delayed(schedule, accumulate), accumulate, make_optimizer, SEED)
    with pipe_of(case, schedule, optimizer=make_optimizer, cut=cut) as pipe:
        for step in range(STEPS):
            loss = pipe.step(*case.batch(step))
            expected = emulation.step(twin.batch(step), schedule.micro_batches)
            assert same(loss, expected), f"loss of step {step}: {loss} is not {expected}"
            assert differing(everything(case.model), everything(twin.model)) == [], f"after step {step}"


def pipe_of(case: Case, schedule: Schedule, **options: Any) -> hr.Pipeline:
    torch.manual_seed(SEED)
    return hr.Pipeline(
        case.model,
        case.loss_fn,
        ranks=schedule.ranks,
        micro_batches=schedule.micro_batches,
        schedule=schedule,
        **case.options,
        **options,
    )


@WITH_BATCH_NORM
@pytest.mark.parametrize(("name", "ranks", "m", "optimizer", "recompute"), CHOSEN)
def test_pipedream_reads_the_newest_weights_of_each_rank(
    name: str, ranks: int, m: int, optimizer: str, recompute: str
) -> None:
    race(name, build("pipedream", ranks=ranks, micro_batches=m, recompute=recompute), optimizer, 1)


@WITH_BATCH_NORM
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(("name", "ranks", "m", "optimizer", "recompute"), CHOSEN)
def test_pipedream_2bw_reads_the_weights_of_one_group_before(
    name: str, ranks: int, m: int, optimizer: str, recompute: str, more: int
) -> None:
    options = {"accumulate": ranks + more, "recompute": recompute}
    race(name, build("pipedream-2bw", ranks=ranks, micro_batches=m, **options), optimizer, ranks + more)


@pytest.mark.slow
@pytest.mark.timeout(600)
@WITH_BATCH_NORM
@pytest.mark.parametrize("name", FOR_THREADS)
def test_the_delays_are_exact_for_every_case(name: str) -> None:
    for ranks, m in [(p, m) for p in (1, 2, 3, 4) for m in (1, p, 2 * p + 1)]:
        for recompute in ("never", "always", "except_last"):
            for optimizer in OPTIMIZERS:
                numbers = {"ranks": ranks, "micro_batches": m, "recompute": recompute}
                race(name, build("pipedream", **numbers), optimizer, 1)
                race(name, build("pipedream-2bw", **numbers), optimizer, ranks)


class Weighed(nn.Module):
    """A layer that notes how many versions of its weight are in memory whenever it runs forwards or backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.seen: list[weakref.ref[Tensor]] = []
        self.most = 0
        self._master = weakref.ref(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(weakref.ref(self.weight))
        output = x @ self.weight
        self.count()
        if output.requires_grad:
            output.register_hook(lambda _: self.count())
        return output

    def count(self) -> None:
        alive = [tensor for ref in (self._master, *self.seen) if (tensor := ref()) is not None]
        self.most = max(self.most, len({tensor.untyped_storage().data_ptr() for tensor in alive}))


@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", ["pipedream", "pipedream-2bw"])
def test_no_more_versions_of_the_weights_live_than_are_proved(name: str, ranks: int, recompute: str) -> None:
    schedule = build(name, ranks=ranks, micro_batches=3 * ranks + 1, recompute=recompute)
    layers = [Weighed() for _ in range(ranks)]
    rows = torch.randn(3 * ranks + 1, 3)
    case = Case(nn.Sequential(*layers), rows, rows, nn.functional.mse_loss)
    with pipe_of(case, schedule, optimizer=OPTIMIZERS["sgd"]) as pipe:
        for _ in range(2):
            pipe.step(rows, rows)
    assert tuple(layer.most for layer in layers) == check(schedule).weight_versions
    for layer in layers:
        assert {ref() for ref in layer.seen} <= {None, layer.weight}


def test_a_mean_needs_the_same_groups_on_all_stages() -> None:
    uneven = parse("0F0,0F1,0B0,0B1,0U1\n1F0,1B0,1U0,1F1,1B1,1U1\n")
    with (
        pipe_of(make("plain"), uneven, optimizer=OPTIMIZERS["sgd"]) as pipe,
        pytest.raises(ValueError, match="in update 0 of stage 0, but in update 1 of the last stage"),
    ):
        pipe.step(*make("plain").batch(0))
