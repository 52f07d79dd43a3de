"""Play a schedule against costs: when does each action start and end, if nothing is slower than declared?

One pass: a rank runs its row until the next action waits for a message that nobody has sent yet; the rank that sends
it wakes it. As the rows fix every order, each end is simply

    end = max(end of the action before it on this rank, arrival of the message it waits for) + cost

so the work is one visit per action, whatever the costs are. What an action waits for is looked up beforehand (see
`steps`), so that the loop knows neither kinds nor lanes, and a million actions take less than a second.
"""

from collections.abc import Collection, Iterable, Iterator

from headrace.costs import Costs, Seconds
from headrace.schedule.actions import Action
from headrace.schedule.check import check
from headrace.schedule.schedule import Schedule
from headrace.simulate.row_order import in_order
from headrace.simulate.steps import NOT_YET, Step, Tables
from headrace.simulate.updates import updates_at_the_end
from headrace.timeline import Timeline, Track


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """The predicted timeline of one step.

    Actions of a rank run one at a time in the order of its row; the two of an overlapped pair start when both may, and
    end together. A result is at once where it is wanted if that is on the same rank. Otherwise it travels without
    occupying either rank: it occupies the link for bytes ÷ bandwidth, then arrives `costs.transfer` later.

        rank 0   [ 0F0 ][ 0F1 ]
        link            ├─ 0F0 ───┤               if it carries one message at a time (otherwise the second bar
                                  ├─ 0F1 ───┤     begins at the end of 0F1)
        rank 1                     ···[ 1F0 ]···[ 1F1 ]     ··· transfer

    A link goes from one rank to another, in one direction, and carries messages in the order in which its sender makes
    them. If `costs` has `update` or `reduce`, the step ends with the update of each stage (see `updates`).

    Raises:
        InvalidSchedule: the schedule deadlocks, or waits for an action that is missing.
        ValueError: `costs` is for another number of stages.
    """
    tables = Tables(schedule, costs)
    try:
        tracks = _play(schedule, tables) if all(map(in_order, schedule.rows)) else None
    except LookupError:
        tracks = None
    if tracks is None:
        check(schedule)
        raise RuntimeError(f"{schedule.name} passes every check, but its simulation got stuck: this is our mistake")
    return Timeline.from_tracks(updates_at_the_end(schedule, costs, tracks))


def _play(schedule: Schedule, tables: Tables) -> list[Track] | None:
    """What each rank does when; None if some rank waits for ever."""
    there = tables.slots.empty()
    starts: list[list[Seconds]] = [[] for _ in schedule.rows]
    ends: list[list[Seconds]] = [[] for _ in schedule.rows]
    ready = list(range(schedule.ranks))
    plays = [
        _run(rank, *tables.steps(row), starts[rank], ends[rank], there, ready) for rank, row in enumerate(schedule.rows)
    ]
    at_their_end = 0
    while ready:
        at_their_end += next(plays[ready.pop()])
    if at_their_end < schedule.ranks:
        return None
    if schedule.pairs:
        starts = [_of_actions(row, schedule.pairs, times) for row, times in zip(schedule.rows, starts, strict=True)]
        ends = [_of_actions(row, schedule.pairs, times) for row, times in zip(schedule.rows, ends, strict=True)]
    return [Track(*columns) for columns in zip(schedule.rows, starts, ends, strict=True)]


def _run(
    rank: int,
    steps: Iterable[Step],
    micro_batches: Iterable[int],
    starts: list[Seconds],
    ends: list[Seconds],
    there: list[Seconds],
    ready: list[int],
) -> Iterator[bool]:
    """One rank; yields False whenever it has to wait, and True at its end.

    Args:
        rank: its number.
        steps: what it does.
        micro_batches: for which micro-batch each of them is.
        starts: gets the start of each.
        ends: gets the end of each.
        there: the moments of all slots; while a rank waits for one, NOT_YET − 1 − rank.
        ready: gets the ranks that may go on.
    """
    now: Seconds = 0
    for (waits, own, fills, seconds, after, link), k in zip(steps, micro_batches, strict=True):
        came = there[waits + k]
        if came < 0:
            there[waits + k] = NOT_YET - 1 - rank
            yield False
            came = there[waits + k]
        if there[own + k] < 0:
            yield False  # what it needs comes later in this very row: nobody will ever wake it
        if came > now:  # noqa: PLR1730 - max() would take twice as long
            now = came
        starts.append(now)
        now = now + seconds
        ends.append(now)
        slot = fills + k
        waiter = there[slot]
        if link is not None:
            there[slot] = link.arrival(now)
        else:
            there[slot] = now + after if after else now
        if waiter < NOT_YET:
            ready.append(int(NOT_YET - 1 - waiter))
    yield True


def _of_actions(row: Iterable[Action], pairs: Collection[Action], of_steps: Iterable[Seconds]) -> list[Seconds]:
    """A moment of each action, out of those of steps: of a pair's three steps, the second is when both run."""
    found: list[Seconds] = []
    actions, moments = iter(row), iter(of_steps)
    for action in actions:
        if action not in pairs:
            found.append(next(moments))
            continue
        next(actions)
        _, both, _ = next(moments), next(moments), next(moments)
        found += (both, both)
    return found
