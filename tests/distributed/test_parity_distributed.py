"""Whatever the case, schedule, recompute and link: processes compute the same bits as threads and as no pipeline."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from runtime.cases import CASES, make
from runtime.reference import Unsplit, backward_order, everything, gradients, orders_agree

from distributed.crew import Crew
from distributed.work import SEED, STEPS, Setting, Trained, same_bits, together, train
from headrace.schedule import Placement, Schedule, build, check, parse

LINKS = ("shared_memory", "process_group")
RECOMPUTES = ("never", "always", "except_last")
CREWS = Callable[[int], Crew]


def schedule_of(setting: Setting) -> Schedule:
    if isinstance(setting.schedule, Schedule):
        return setting.schedule
    return build(
        setting.schedule, ranks=setting.ranks, micro_batches=setting.micro_batches, recompute=setting.recompute
    )


@lru_cache(maxsize=4)
def in_threads(setting: Setting) -> Trained:
    """The same over the local transport, if that can do it."""
    return train(setting)


@lru_cache(maxsize=16)
def unsplit(case_name: str, order: tuple[int, ...]) -> Trained:
    """The same without any pipeline."""
    case = make(case_name)
    reference = Unsplit(case, seed=SEED)
    parameters = list(case.model.parameters())
    optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9) if parameters else None
    losses, grads = [], []
    for step in range(STEPS):
        losses.append(reference.step(case.batch(step), order))
        grads.append(gradients(case.model))
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    return Trained(losses, grads, everything(case.model))


def assert_same(what: str, ours: Trained, theirs: Trained) -> None:
    """Bit for bit, by name."""

    def different(one: dict[str, torch.Tensor | None], other: dict[str, torch.Tensor | None]) -> list[str]:
        assert one.keys() == other.keys(), what
        return [name for name in one if not same_bits(one[name], other[name])]

    for step, (one, other) in enumerate(zip(ours.losses, theirs.losses, strict=True)):
        assert same_bits(one, other), f"{what}: the loss of step {step} is {one!r}, not {other!r}"
    for step, (grads, other_grads) in enumerate(zip(ours.gradients, theirs.gradients, strict=True)):
        assert different(grads, other_grads) == [], f"{what}: gradients of step {step}"
    assert different(dict(ours.state), dict(theirs.state)) == [], f"{what}: parameters and buffers after {STEPS} steps"


def check_all(crew: Crew, settings: list[Setting]) -> None:
    for setting, parts in zip(settings, zip(*crew.run(train_all, settings, deadline=300), strict=True), strict=True):
        ours = together(parts)
        schedule = schedule_of(setting)
        assert_same(f"{setting} against no pipeline", ours, unsplit(setting.case, tuple(backward_order(schedule))))
        if make(setting.case).threads:
            assert_same(
                f"{setting} against threads", ours, in_threads(replace(setting, links="auto", batch="everywhere"))
            )


def train_all(settings: list[Setting]) -> list[Trained]:
    return [train(setting) for setting in settings]


def every_setting(case: str, ranks: int) -> Iterator[Setting]:
    batches = itertools.cycle(["everywhere", "where needed", "garbage"])
    for schedule, m, recompute, links in itertools.product(("gpipe", "1f1b"), (1, 2, 4, 7), RECOMPUTES, LINKS):
        yield Setting(case, ranks, m, schedule, recompute, links, next(batches))


def slow_unless(quick: bool, *values: Any) -> Any:
    """Parameters of a test that always runs if `quick`, and of one among the slow ones otherwise."""
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)


EACH_CASE = [slow_unless(i % 3 == ranks - 2, case, ranks) for i, case in enumerate(CASES) for ranks in (2, 3, 4)]


@pytest.mark.parametrize(("case", "ranks"), EACH_CASE)
def test_processes_compute_the_same_bits(crew: CREWS, case: str, ranks: int) -> None:
    choose = random.Random(f"{case} {ranks}")
    settings = [
        Setting(
            case,
            ranks,
            choose.choice([1, 2, 4, 5, 7]),
            choose.choice(["gpipe", "1f1b"]),
            choose.choice(RECOMPUTES),
            links,
            choose.choice(["everywhere", "where needed", "garbage"]),
        )
        for links in LINKS
    ]
    check_all(crew(ranks), settings)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_processes_compute_the_same_bits_in_every_setting(crew: CREWS, case: str, ranks: int) -> None:
    check_all(crew(ranks), list(every_setting(case, ranks)))


# -- schedules made by hand, most of them with several stages on a rank -----------------------------------------------

LOOP = parse(
    "0F0,0F1,2F0,2F1,0F2,2F2,2B0,2B1,0B0,2B2,0B1,0B2\n"
    "1F0,1F1,3F0,3B0,3F1,3B1,1F2,3F2,3B2,1B0,1B1,1B2\n",
    "loop",
)  # fmt: skip
V = parse(
    "0F0,0F1,3F0,3B0,0F2,3F1,3B1,0B0,3F2,3B2,0B1,0B2\n"
    "1F0,2F0,1F1,2F1,2B0,1B0,1F2,2F2,2B1,1B1,2B2,1B2\n",
    "v",
)  # fmt: skip
OUT_OF_ORDER = parse(
    "0F0,0F1,3F1,3F0,3B1,3B0,0B1,0B0\n"
    "1F0,2F0,1F1,2F1,2R1,2B1,1B1,2R0,2B0,1R0,1B0\n",
    "messages are wanted in another order than they are sent in",
)  # fmt: skip

FORWARD_DRAIN = build("gpipe", ranks=3, micro_batches=4, drain="forward", recompute="except_last")


def test_these_schedules_are_what_they_are_meant_to_be() -> None:
    assert LOOP.placement == Placement.loop(2, 2)
    assert V.placement == OUT_OF_ORDER.placement == Placement((0, 1, 1, 0))
    for schedule in (LOOP, V, OUT_OF_ORDER):
        check(schedule)
    assert orders_agree(LOOP)
    assert orders_agree(V)
    assert not orders_agree(OUT_OF_ORDER)


STATELESS = [
    name for name in CASES if name not in ("batch_norm", "spectral_norm", "counting_buffer", "replaced_buffer")
]


SCHEDULES = {"loop": LOOP, "v": V, "out of order": OUT_OF_ORDER, "forward drain": FORWARD_DRAIN}
BY_HAND = [
    slow_unless((i + j) % 4 == part, name, links, part)
    for part in range(4)
    for i, name in enumerate(SCHEDULES)
    for j, links in enumerate(LINKS)
]


@pytest.mark.parametrize(("name", "links", "part"), BY_HAND)
def test_schedules_made_by_hand(crew: CREWS, name: str, links: str, part: int) -> None:
    schedule = SCHEDULES[name]
    cases = list(CASES) if orders_agree(schedule) else STATELESS
    settings = [
        Setting(case, schedule.ranks, schedule.micro_batches, schedule, links=links, batch=batch)
        for case, batch in zip(cases[part::4], itertools.cycle(["everywhere", "where needed", "garbage"]))
    ]
    check_all(crew(schedule.ranks), settings)
