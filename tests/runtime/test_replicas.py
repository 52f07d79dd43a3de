"""A stage with replicas in several lanes: each adds up its own gradients, and the sum of these goes to `.grad`."""

import random
from typing import Final

import naive
import pytest

from headrace.schedule import Placement, Schedule, build
from runtime.cases import make
from runtime.parity import assert_parity, cut_of, with_rows_for

LANES: Final = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1))


def in_lanes(lanes: int) -> Schedule:
    """Two micro-batches in each lane, so that there is something to add up in it; rank 0 has stage 0 in two lanes."""
    placement = Placement(LANES[0], LANES[1:lanes], tuple(range(lanes)) * 2)
    return naive.any_order(random.Random(lanes), placement, 2 * lanes, 1, naive.EVERY_BACKWARD)


@pytest.mark.parametrize("lanes", [2, 3, 4])
@pytest.mark.parametrize("name", ["plain", "dropout", "tied_in_a_stage"])
def test_sums_of_lanes_are_added_in_the_order_of_lanes(name: str, lanes: int) -> None:
    schedule = in_lanes(lanes)
    case, twin = (with_rows_for(make(name), 20) for _ in range(2))
    assert_parity(case, twin, schedule, cut_of(case, 3))


@pytest.mark.parametrize("name", ["chimera", "dualpipe", "gpipe"])
@pytest.mark.parametrize("case_name", ["plain", "unused_output", "frozen_layers"])
def test_gradients_accumulate_over_steps(name: str, case_name: str) -> None:
    schedule = build(name, ranks=4, micro_batches=5)
    case, twin = (make(case_name) for _ in range(2))
    assert_parity(case, twin, schedule, cut_of(case, 4), accumulate=3)
