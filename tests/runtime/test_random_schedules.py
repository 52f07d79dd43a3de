"""Valid schedules without rhyme or reason: whatever is split, recomputed or overlapped, the same bits come out."""

from collections.abc import Callable
from typing import Final

import naive
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.executor import Overlap
from headrace.schedule import Schedule
from runtime.cases import CASES, make
from runtime.delays import OPTIMIZERS
from runtime.interpreted import Interpreted, summed
from runtime.parity import assert_parity, cut_of, with_rows_for
from runtime.pipes import SEED, pipe_of
from runtime.reference import differing, everything, same
from runtime.sequences import assert_loop_parity, tiny_gpt

Half = Callable[[], None]
KEEPS_NO_STATE: Final = [
    name
    for name in CASES
    if make(name).threads and name not in ("batch_norm", "spectral_norm", "counting_buffer", "replaced_buffer")
]


def forward_first(forward: Half, backward: Half) -> None:
    forward()
    backward()


def backward_first(forward: Half, backward: Half) -> None:
    backward()
    forward()


OVERLAPS: Final[tuple[Overlap | None, ...]] = (None, forward_first, backward_first)


@given(
    name=st.sampled_from(KEEPS_NO_STATE),
    schedule=naive.rich_schedules(max_segments=1, updates=False),
    overlap=st.sampled_from(OVERLAPS),
)
@settings(max_examples=40, deadline=None)
def test_of_whole_sequences(name: str, schedule: Schedule, overlap: Overlap | None) -> None:
    case, twin = (with_rows_for(make(name), schedule.micro_batches) for _ in range(2))
    cut = cut_of(case, schedule.stages)
    assert cut is not None
    assert_parity(case, twin, schedule, cut, overlap=overlap)


@given(
    schedule=naive.rich_schedules(updates=False),
    overlap=st.sampled_from(OVERLAPS),
    dropout=st.sampled_from([0.0, 0.3]),
    length=st.integers(3, 7),
)
@settings(max_examples=12, deadline=None)
def test_of_sequences_in_segments(schedule: Schedule, overlap: Overlap | None, dropout: float, length: int) -> None:
    case, twin = (tiny_gpt(5, length, dropout=dropout) for _ in range(2))
    assert_loop_parity(case, twin, schedule, overlap=overlap)


@given(
    name=st.sampled_from(["plain", "dropout", "layer_norm", "used_twice_in_a_layer"]),
    schedule=naive.rich_schedules(max_segments=1, updates=True),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
)
@settings(max_examples=20, deadline=None)
def test_with_updates(name: str, schedule: Schedule, optimizer: str) -> None:
    case, twin = (summed(make(name)) for _ in range(2))
    cut = cut_of(case, schedule.stages)
    assert cut is not None
    interpreted = Interpreted(twin, cut, schedule, OPTIMIZERS[optimizer], SEED)
    with pipe_of(
        case, schedule.ranks, schedule.micro_batches, schedule=schedule, cut=cut, optimizer=OPTIMIZERS[optimizer]
    ) as pipe:
        for step in range(2):
            assert same(pipe.step(*case.batch(step)), interpreted.step(twin.batch(step)))
            assert differing(everything(case.model), everything(twin.model)) == [], f"after step {step}"
