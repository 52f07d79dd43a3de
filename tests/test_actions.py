"""Actions and placements: strict to read, plain to write."""

import pytest

from headrace.schedule import Action, Placement
from headrace.schedule.actions import KIND_NAMES


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_every_kind_reads_back(kind):
    action = Action(12, kind, 345)
    assert str(action) == f"12{kind}345"
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize(
    "text",
    ["", "F0", "2F", "2f0", "2X0", "02F0", "2F00", " 2F0", "2F0 ", "2F-1", "-2F0", "2F0.0", "2F0\n", "٢F٠", "2FB0"],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="is not an action: write stage, kind and micro-batch, such as 2F0"):
        Action.parse(text)


def test_loop_placement():
    placement = Placement.loop(3, 2)
    assert placement.rank_of == (0, 1, 2, 0, 1, 2)
    assert (placement.ranks, placement.stages) == (3, 6)
    assert placement.stages_of(1) == (1, 4)
    assert not placement.hop_is_local(2)


def test_v_placement_has_a_local_hop_at_the_turn():
    assert [Placement((0, 1, 1, 0)).hop_is_local(s) for s in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    ("rank_of", "message"),
    [
        ((), "needs at least one stage"),
        ((0, 2), "leaves rank 1 without a stage"),
        ((1, 2), "leaves rank 0 without a stage"),
        ((0, -1), "names rank -1"),
        ((0, 10**12), "leaves rank 1 without a stage"),  # and does not count to 10¹² to find out
    ],
)
def test_impossible_placements(rank_of, message):
    with pytest.raises(ValueError, match=message):
        Placement(rank_of)


@pytest.mark.parametrize(("ranks", "error"), [(0, ValueError), (1.0, TypeError), (True, TypeError)])
def test_loop_wants_a_whole_number_of_ranks(ranks, error):
    with pytest.raises(error, match="ranks="):
        Placement.loop(ranks)
