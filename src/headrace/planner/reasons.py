"""Why one choice is better than another, in words and numbers."""

from headrace.costs import Seconds
from headrace.planner.appraised import Appraised
from headrace.schedule.actions import GIVES_INPUT_GRADIENT, RECOMPUTE, UPDATE
from headrace.units import seconds


def why_not(other: Appraised, best: Appraised) -> str:
    """What makes `other` slower than `best`: the parts of its step that are longer, the longest first."""
    parts = {
        name: (theirs - ours) for (name, theirs), ours in zip(_parts(other).items(), _parts(best).values(), strict=True)
    }
    slower = other.seconds - best.seconds
    more = sorted(((gain, name) for name, gain in parts.items() if gain > 0.05 * max(slower, 1e-12)), reverse=True)
    less = sorted(((-gain, name) for name, gain in parts.items() if gain < -0.05 * max(slower, 1e-12)), reverse=True)
    if not more:
        return "as fast" if slower <= 0 else f"{seconds(slower)} slower"
    words = " and ".join(f"{seconds(gain)} more {name}" for gain, name in more[:2])
    return words + (f", for {seconds(less[0][0])} less {less[0][1]}" if less else "")


def _parts(found: Appraised) -> dict[str, Seconds]:
    """The makespan as the work of its busiest rank, and what that rank waits, with and without messages in the way."""
    timeline = found.timeline
    busiest = max(range(timeline.ranks), key=lambda rank: timeline.busy[rank])
    track = timeline.tracks[busiest]
    again, update = 0.0, 0.0
    for action, start, end in zip(track.actions, track.starts, track.ends, strict=True):
        if action.kind == RECOMPUTE:
            again += end - start
        elif action.kind == UPDATE:
            update += end - start
        elif action.kind in GIVES_INPUT_GRADIENT and found.twice:
            again += found.twice[action.stage]
    idle = timeline.makespan - timeline.busy[busiest]
    return {
        "compute on the busiest rank": timeline.busy[busiest] - again - update,
        "recompute": again,
        "reduction and update": update,
        "bubble": min(idle, found.bubble_without_messages),
        "waiting for messages": max(0.0, idle - found.bubble_without_messages),
    }
