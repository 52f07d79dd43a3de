"""Exercise 6. The first line of each test is what `python -m course.check 6` prints."""

import pytest

import headrace as hr
from course.chosen import load

ex = load("ex06_one_f_one_b")
SIZES = [(1, 1), (2, 1), (2, 5), (3, 4), (4, 2), (4, 12), (12, 13)]  # (p, m)


def words(text: str) -> list[str]:
    return text.split()


def rows(p: int, m: int) -> list[list[str]]:
    return [ex.row(rank, p, m) for rank in range(p)]


def gpipe(p: int, m: int) -> list[list[str]]:
    return [[str(action) for action in row] for row in hr.schedule.build("gpipe", ranks=p, micro_batches=m).rows]


def test_rows_of_the_picture() -> None:
    """The rows are those of the picture"""
    assert ex.row(0, 3, 4) == words("0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3")
    assert ex.row(1, 3, 4) == words("1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3")
    assert ex.row(2, 3, 4) == words("2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3")


def test_rows_of_any_size() -> None:
    """For any p and m, m < p too, they are the catalogue's 1f1b"""
    for p, m in SIZES:
        expected = hr.schedule.build("1f1b", ranks=p, micro_batches=m).rows
        assert rows(p, m) == [[str(action) for action in row] for row in expected]


def test_peak() -> None:
    """You count what is in flight: 3 in this row"""
    assert ex.peak(words("0F0 0F1 0B0 0F2 0F3 0B1 0B2 0B3")) == 3


def test_memory_is_bounded() -> None:
    """Rank r holds min(p − r, m) micro-batches; headrace proves the same"""
    for p, m in SIZES:
        expected = [min(p - r, m) for r in range(p)]
        assert [ex.peak(row) for row in rows(p, m)] == expected
        assert list(ex.prove(rows(p, m)).peak_in_flight) == expected


def test_needs() -> None:
    """You know what each action waits for, on twelve ranks too"""
    assert ex.needs("0F3", 12) is None
    assert ex.needs("11F3", 12) == "10F3"
    assert ex.needs("11B3", 12) is None
    assert ex.needs("9B10", 12) == "10B10"


def test_simulation() -> None:
    """Your simulation ends when headrace's does, for 1f1b and gpipe"""
    costs = hr.Costs(forward=1, backward_input=1, backward_weight=1)
    for p, m in SIZES:
        for name, these in (("1f1b", rows(p, m)), ("gpipe", gpipe(p, m))):
            timeline = hr.simulate(hr.schedule.build(name, ranks=p, micro_batches=m), costs)
            ends = ex.simulate(these, forward=1, backward=2)
            assert ends == {str(span.action): span.end for span in timeline.spans}


def test_the_same_bubble() -> None:
    """1F1B takes as long as GPipe: (m + p − 1)(F + B)"""
    for p, m in SIZES:
        ends = [max(ex.simulate(these, 1, 2).values()) for these in (rows(p, m), gpipe(p, m))]
        assert ends == [3 * (m + p - 1)] * 2


def test_deadlock() -> None:
    """You find a deadlock, and headrace names the circle of waits"""
    stuck = [words("0F0 0B0 0F1 0B1"), words("1F0 1F1 1B0 1B1")]
    with pytest.raises(ValueError, match="deadlock"):
        ex.simulate(stuck, 1, 2)
    with pytest.raises(hr.schedule.InvalidSchedule, match="rank 0 waits at 0B0 for 1B0"):
        ex.prove(stuck)
