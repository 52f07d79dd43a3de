"""Asynchronous schedules between processes: the delays of the plain emulation, bit by bit."""

from typing import Any, Final

import pytest
from runtime.delays import OPTIMIZERS, Emulation, newest, one_group_behind
from runtime.parity import cut_of
from runtime.reference import everything

from distributed.test_parity_distributed import CREWS, assert_same, train_all
from distributed.work import SEED, STEPS, Setting, Trained, together
from headrace.schedule import Schedule, build

CASES: Final = ("plain", "dropout", "token_weights", "no_parameters")


def emulated(setting: Setting, schedule: Schedule) -> Trained:
    case = setting.make()
    cut = cut_of(case, schedule.stages)
    assert cut is not None
    assert setting.optimizer is not None
    accumulate = 1 if schedule.delay is None else schedule.ranks
    version = newest(schedule.ranks) if schedule.delay is None else one_group_behind(accumulate)
    emulation = Emulation(case, cut, version, accumulate, OPTIMIZERS[setting.optimizer], SEED)
    losses = [emulation.step(case.batch(step), schedule.micro_batches) for step in range(STEPS)]
    nothing: dict[str, Any] = {name: None for name, _ in case.model.named_parameters()}
    return Trained(losses, [nothing] * STEPS, everything(case.model))


@pytest.mark.parametrize(("ranks", "m", "recompute"), [(2, 5, "always"), (3, 2, "never"), (4, 9, "never")])
@pytest.mark.parametrize("name", ["pipedream", "pipedream-2bw"])
def test_the_delays_are_exact(crew: CREWS, name: str, ranks: int, m: int, recompute: str) -> None:
    schedule = build(name, ranks=ranks, micro_batches=m, recompute=recompute)
    settings = [
        Setting(case, ranks, m, schedule, links=links, batch=batch, optimizer=optimizer)
        for case, links, batch, optimizer in zip(
            CASES,
            ("shared_memory", "process_group", "shared_memory", "shared_memory"),
            ("everywhere", "where needed", "garbage", "everywhere"),
            ("adamw", "sgd", "sgd", "adamw"),
            strict=True,
        )
    ]
    parts = crew(ranks).run(train_all, settings)
    for setting, of_ranks in zip(settings, zip(*parts, strict=True), strict=True):
        assert_same(f"{name} with {setting.case}", together(of_ranks), emulated(setting, schedule))
