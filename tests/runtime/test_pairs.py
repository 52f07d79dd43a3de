"""Overlapped pairs: `overlap` is given both halves and runs them at once; without it one follows the other."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pytest
import torch

import headrace as hr
from headrace.runtime.failure import PipelineFailure
from headrace.schedule import Schedule, build
from headrace.timeline import Span
from runtime.cases import make
from runtime.parity import assert_parity
from runtime.pipes import four_linears

Half = Callable[[], None]
PAIRED: Final = [build("dualpipe", ranks=2, micro_batches=6), build("dualpipe-v", ranks=2, micro_batches=5)]

RECOMPUTED: Final = build("dualpipe", ranks=2, micro_batches=6, recompute="always")


def alternately(forward: Half, backward: Half) -> None:
    """Whichever first: they are independent."""
    backward()
    forward()


def spans_of(schedule: Schedule, **options: Any) -> dict[int, list[Span]]:
    """The spans of a step by rank, in the order of the row."""
    rows = torch.randn(schedule.micro_batches, 6)
    with hr.Pipeline(
        four_linears(),
        torch.nn.functional.mse_loss,
        ranks=schedule.ranks,
        micro_batches=schedule.micro_batches,
        schedule=schedule,
        **options,
    ) as pipe:
        pipe.step(rows, rows)
        spans = pipe.timeline().spans
    return {rank: [span for span in spans if span.rank == rank] for rank in range(schedule.ranks)}


@pytest.mark.parametrize("schedule", PAIRED, ids=lambda s: s.name)
def test_the_spans_of_a_pair_are_equal_and_no_others_overlap(schedule: Schedule) -> None:
    for rank, spans in spans_of(schedule, overlap=alternately).items():
        paired = 0
        for before, after in pairwise(sorted(spans, key=lambda span: (span.start, span.action.kind != "F"))):
            if before.action in schedule.pairs:
                paired += 1
                assert (before.start, before.end) == (after.start, after.end)
                assert (before.action, after.action) in schedule.cells(rank)
            else:
                assert after.start >= before.end
        assert paired == len(schedule.pairs & set(schedule.rows[rank])) > 0


@pytest.mark.parametrize("schedule", PAIRED, ids=lambda s: s.name)
def test_without_overlap_one_follows_the_other(schedule: Schedule) -> None:
    for rank, spans in spans_of(schedule).items():
        assert [span.action for span in spans] == list(schedule.rows[rank])
        assert all(after.start >= before.end for before, after in pairwise(spans))


@pytest.mark.parametrize("overlap", [None, alternately], ids=["one after the other", "at once"])
@pytest.mark.parametrize("case", ["dropout", "skip_connection", "in_place_later"])
@pytest.mark.parametrize("schedule", [*PAIRED, RECOMPUTED], ids=["dualpipe", "dualpipe-v", "dualpipe with recompute"])
def test_gradients_are_the_same_either_way(schedule: Schedule, case: str, overlap: Any) -> None:
    assert_parity(make(case), make(case), schedule, make(case).cut(schedule.stages), overlap=overlap)


def test_overlap_is_called_once_for_each_pair_and_for_nothing_else() -> None:
    calls = []

    def overlap(forward: Half, backward: Half) -> None:
        calls.append((forward, backward))
        alternately(forward, backward)

    spans_of(PAIRED[0], overlap=overlap)
    assert len(calls) == len(PAIRED[0].pairs)


@pytest.mark.parametrize("which", [0, 1], ids=["forward", "backward"])
def test_an_overlap_that_calls_only_one_half_is_a_failure_that_says_so(which: int) -> None:
    with pytest.raises(PipelineFailure, match="overlap must call both functions") as caught:
        spans_of(PAIRED[1], overlap=lambda *halves: halves[which]())
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.action in {action for row in PAIRED[1].rows for action in row}


@pytest.mark.parametrize(("which", "name"), [(0, "first"), (1, "second")])
def test_an_overlap_that_calls_a_half_twice_is_a_failure_that_says_so(which: int, name: str) -> None:
    def overlap(*halves: Half) -> None:
        alternately(*halves)
        halves[which]()

    with pytest.raises(PipelineFailure, match=f"each once, and return when both ran: it called the {name} twice"):
        spans_of(PAIRED[1], overlap=overlap)


def test_an_error_in_overlap_itself_is_the_cause() -> None:
    def overlap(*_: Half) -> None:
        raise OSError("no second stream")

    with pytest.raises(PipelineFailure, match="no second stream") as caught:
        spans_of(PAIRED[0], overlap=overlap)
    assert isinstance(caught.value.__cause__, OSError)
