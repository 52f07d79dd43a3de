"""Every synchronous schedule of the catalogue between processes: the same bits as no pipeline, replicas alike."""

import itertools
import random
from typing import Final

import pytest
import torch
from runtime.cases import CASES, make
from runtime.parity import cut_of, stages_of_parameters
from runtime.reference import Unsplit, everything, gradients
from runtime.schedules import EVERY, RECOMPUTES, SYNCHRONOUS, schedule_of, two_way

from distributed.test_parity_distributed import CREWS, LINKS, assert_same, train_all
from distributed.work import SEED, STEPS, Setting, Trained, together
from headrace.schedule import Schedule
from headrace.schedule.messages import channels, wanted_by

KEEPING_STATE: Final = ("batch_norm", "spectral_norm", "counting_buffer", "replaced_buffer")
BATCHES: Final = ("everywhere", "where needed", "garbage")


def unsplit(setting: Setting, schedule: Schedule) -> Trained:
    """The same without any pipeline, gradients added up in the order of each stage."""
    case = setting.make()
    cut = cut_of(case, schedule.stages)
    assert cut is not None
    stage_of = stages_of_parameters(case.model, cut)
    reference = Unsplit(case, seed=SEED)
    optimizer = torch.optim.SGD(case.model.parameters(), 0.1, momentum=0.9)
    losses, grads = [], []
    for step in range(STEPS):
        losses.append(reference.step_by_stages(case.batch(step), schedule, stage_of))
        grads.append(gradients(case.model))
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, grads, everything(case.model))


def race(crew: CREWS, ranks: int, settings: list[Setting]) -> None:
    parts = crew(ranks).run(train_all, settings, deadline=300)
    for setting, of_ranks in zip(settings, zip(*parts, strict=True), strict=True):
        schedule = setting.schedule
        assert isinstance(schedule, Schedule)
        ours = together(of_ranks, replicas=two_way(schedule))
        what = f"{schedule.name} with {setting.case}, {setting.links}, {setting.batch}"
        assert_same(what, ours, unsplit(setting, schedule))


def fits(name: str, schedule: Schedule) -> bool:
    return cut_of(make(name), schedule.stages) is not None and not (two_way(schedule) and name in KEEPING_STATE)


def settings_for(ranks: int) -> list[Setting]:
    """Each schedule once, with other numbers, another case, and mostly over shared memory."""
    choose = random.Random(ranks)
    settings = []
    for i, name in enumerate(SYNCHRONOUS):
        how_many = ("m < p", "m = p", "m = 2p + 1")[(i + ranks) % 3]
        schedule = schedule_of(name, ranks, how_many, RECOMPUTES[(i // 3 + ranks) % 2])
        case = choose.choice([case for case in CASES if fits(case, schedule)])
        links = LINKS[i % 5 == ranks]
        if schedule.ranks == ranks:
            settings.append(
                Setting(case, ranks, schedule.micro_batches, schedule, links=links, batch=BATCHES[i % len(BATCHES)])
            )
    return settings


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_schedule_is_bitwise_the_unsplit_model(crew: CREWS, ranks: int) -> None:
    race(crew, ranks, settings_for(ranks))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_every_schedule_is_bitwise_the_unsplit_model_for_every_case(crew: CREWS, name: str, ranks: int) -> None:
    batches = itertools.cycle(BATCHES)
    links = itertools.cycle(["shared_memory", "shared_memory", "process_group", "shared_memory"])
    schedules = [schedule_of(*numbers) for numbers in EVERY if numbers[:2] == (name, ranks)]
    if schedules[0].ranks != ranks:
        pytest.skip(f"{name} refuses {ranks} ranks")
    for case in CASES:
        fitting = [schedule for schedule in schedules if fits(case, schedule)]
        race(
            crew,
            ranks,
            [Setting(case, ranks, s.micro_batches, s, links=next(links), batch=next(batches)) for s in fitting],
        )


@pytest.mark.parametrize(("name", "ranks"), [("zb-v", 2), ("interleaved-zb", 2), ("hanayo", 2), ("dualpipe-v", 3)])
def test_messages_wanted_in_another_order_than_sent_are_not_mixed_up(crew: CREWS, name: str, ranks: int) -> None:
    schedule = schedule_of(name, ranks, "m = 2p + 1", "never")
    mixed_up = [
        channel
        for channel, sent in channels(schedule).items()
        if [out.message for out in sent] != wanted_on(schedule, channel.source, channel.destination)
    ]
    assert mixed_up, "its messages are wanted in the order in which they are sent: it shows nothing"
    race(crew, ranks, [Setting("in_place_later", ranks, schedule.micro_batches, schedule, links=x) for x in LINKS])


def wanted_on(schedule: Schedule, source: int, destination: int) -> list[object]:
    """What `destination` wants from `source`, in the order in which it uses it."""
    wanted = [wanted_by(action, schedule.stages) for action in schedule.rows[destination]]
    from_stage = {"activation": -1, "gradient": 1}
    holder = schedule.placement.rank
    return [m for m in wanted if m and holder(m.stage + from_stage[m.what], m.micro_batch) == source]
