"""A step as the runtime will perform it: an I with its W right behind it runs as one whole backward.

    schedule   … 0I2 0W2 …       simulated as … 0B2 …       shown as … [0I2 ][] …: all in the I, an empty W behind it

The runtime shows such backwards in the same way, so predicted and measured spans stand side by side.
"""

from headrace.costs import Costs, Seconds
from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, Action
from headrace.schedule.joined import joined
from headrace.schedule.schedule import Schedule
from headrace.simulate.simulator import simulate
from headrace.timeline import Timeline, Track


def simulate_as_run(schedule: Schedule, costs: Costs) -> Timeline:
    """`simulate`, with what is not split as whole backwards; the spans are of the actions of `schedule`."""
    ran = joined(schedule)
    timeline = simulate(ran, costs)
    if ran is schedule:
        return timeline
    return Timeline.from_tracks(_apart(track, row) for track, row in zip(timeline.tracks, schedule.rows, strict=True))


def _apart(track: Track, row: tuple[Action, ...]) -> Track:
    """The spans of the actions of `row`, out of those of what it was joined to."""
    spans = {action: (start, end) for action, start, end in zip(*track, strict=True)}
    starts: list[Seconds] = []
    ends: list[Seconds] = []
    for action in row:
        whole = spans.get(action._replace(kind=BACKWARD)) if action.kind in (BACKWARD_INPUT, BACKWARD_WEIGHT) else None
        start, end = whole or spans[action]
        starts.append(end if whole and action.kind == BACKWARD_WEIGHT else start)
        ends.append(end)
    return Track(row, starts, ends)
