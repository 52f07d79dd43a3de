"""Valid schedules with one thing wrong: `check` refuses every one of them, and says why."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import naive
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.schedule import Action, InvalidSchedule, Schedule, check


@dataclass
class Place:
    """Somewhere in a valid schedule."""

    schedule: Schedule
    rank: int
    index: int
    rng: random.Random

    @property
    def row(self) -> tuple[Action, ...]:
        return self.schedule.rows[self.rank]

    @property
    def action(self) -> Action:
        return self.row[self.index]

    @property
    def after(self) -> Action | None:
        return self.row[self.index + 1] if self.index + 1 < len(self.row) else None

    def without(self) -> Schedule:
        return _with_row(self.schedule, self.rank, self.row[: self.index] + self.row[self.index + 1 :])

    def with_more(self, *actions: Action) -> Schedule:
        """These actions behind the one that is here."""
        row = self.row[: self.index + 1] + actions + self.row[self.index + 1 :]
        return _with_row(self.schedule, self.rank, row)


def _with_row(schedule: Schedule, rank: int, row: tuple[Action, ...]) -> Schedule:
    return replace(schedule, rows=(*schedule.rows[:rank], row, *schedule.rows[rank + 1 :]))


def lacks_an_action(at: Place) -> Schedule | None:
    return at.without() if at.action.kind in "FBIW" else None


def has_one_twice(at: Place) -> Schedule | None:
    place = at.rng.randrange(len(at.row) + 1)
    return _with_row(at.schedule, at.rank, (*at.row[:place], at.action, *at.row[place:]))


def has_one_on_another_rank(at: Place) -> Schedule | None:
    if at.schedule.ranks == 1:
        return None
    other = at.rng.choice([rank for rank in range(at.schedule.ranks) if rank != at.rank])
    row = list(at.schedule.rows[other])
    row.insert(at.rng.randrange(len(row) + 1), at.action)
    return _with_row(at.without(), other, tuple(row))


def names_a_stage_that_is_not_there(at: Place) -> Schedule | None:
    return at.with_more(Action(at.schedule.stages, "F", 0))


def names_a_micro_batch_that_is_not_there(at: Place) -> Schedule | None:
    return at.with_more(at.action._replace(micro_batch=at.schedule.micro_batches))


def has_a_backward_both_whole_and_split(at: Place) -> Schedule | None:
    return at.with_more(at.action._replace(kind="I"), at.action._replace(kind="W")) if at.action.kind == "B" else None


def pairs_what_cannot_overlap(at: Place) -> Schedule | None:
    after = at.after
    fine = at.action.kind == "F" and after and after.kind in "BI" and after.micro_batch != at.action.micro_batch
    return replace(at.schedule, pairs=at.schedule.pairs | {at.action}) if not fine else None


def has_segments_that_do_not_come_out_even(at: Place) -> Schedule | None:
    return replace(at.schedule, segments=at.schedule.micro_batches + 1)


def has_lanes_for_other_micro_batches(at: Place) -> Schedule | None:
    if not at.schedule.placement.other_lanes:
        return None
    placement = replace(at.schedule.placement, lane_of=at.schedule.placement.lane_of[1:])
    return replace(at.schedule, placement=placement)


def is_delayed_without_updates(at: Place) -> Schedule | None:
    return replace(at.schedule, delay=1) if not at.schedule.asynchronous else None


def loses_an_update_that_gradients_wait_for(at: Place) -> Schedule | None:
    """The last one of a stage; without any update at all it would be a synchronous schedule."""
    kinds = "".join(a.kind for a in at.row[: at.index + 1] if a.stage == at.action.stage and a.kind in "BWU")
    later = [a for a in at.row[at.index + 1 :] if (a.stage, a.kind) == (at.action.stage, "U")]
    needed = kinds.endswith(("BU", "WU")) and not later
    return at.without() if at.action.kind == "U" and needed and at.without().asynchronous else None


def reads_weights_before_they_are_there(at: Place) -> Schedule | None:
    """With delay=0 each reads what all updates before its own have left; here its forward is before one of those."""
    stage, kind, k = at.action
    updates = [i for i, a in enumerate(at.row) if (a.stage, a.kind) == (stage, "U")]
    end = next(i for i, a in enumerate(at.row) if a.stage == stage and a.kind in "BW" and a.micro_batch == k)
    too_early = kind == "F" and any(at.index < i < end for i in updates)
    return replace(at.schedule, delay=0) if too_early else None


Mutation = Callable[[Place], Schedule | None]
MUTATIONS: list[Mutation] = [
    lacks_an_action,
    has_one_twice,
    has_one_on_another_rank,
    names_a_stage_that_is_not_there,
    names_a_micro_batch_that_is_not_there,
    has_a_backward_both_whole_and_split,
    pairs_what_cannot_overlap,
    has_segments_that_do_not_come_out_even,
    has_lanes_for_other_micro_batches,
    is_delayed_without_updates,
    loses_an_update_that_gradients_wait_for,
    reads_weights_before_they_are_there,
]


NEEDS_UPDATES = (loses_an_update_that_gradients_wait_for, reads_weights_before_they_are_there)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
@given(data=st.data(), rng=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_a_schedule_is_refused_that(mutate: Mutation, data: st.DataObject, rng: random.Random) -> None:
    schedule = data.draw(naive.rich_schedules(updates=True if mutate in NEEDS_UPDATES else None))
    places = [Place(schedule, rank, i, rng) for rank, row in enumerate(schedule.rows) for i in range(len(row))]
    rng.shuffle(places)
    wrong = next((found for place in places if (found := mutate(place))), None)
    assume(wrong is not None)
    with pytest.raises(InvalidSchedule) as caught:
        check(wrong)
    assert len(str(caught.value)) > 20
