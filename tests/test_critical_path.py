"""What actions waited for, and the chain that makes the step as long as it is, against all chains there are."""

from fractions import Fraction
from itertools import pairwise
from typing import Any

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.costs import Costs
from headrace.report.breakdown import breakdown
from headrace.schedule import CATALOGUE, build, parse
from headrace.schedule.schedule import Schedule
from headrace.simulate import simulate
from headrace.simulate.critical_path import Place, critical_path, waits
from headrace.timeline import Span, Timeline

NAMES = sorted(CATALOGUE)


def some(data: st.DataObject, count: int) -> list[Any]:
    numbers = st.sampled_from([0, 1, 2, 3, Fraction(1, 3), Fraction(5, 2)])
    return data.draw(st.lists(numbers, min_size=count, max_size=count))


def longest_chain(schedule: Schedule, timeline: Timeline, hop: Any) -> Any:
    """The most seconds of work and messages along any chain of units, each of which must come before the next."""
    needs = naive.needs(schedule)
    length: dict[Any, Any] = {span.action: span.end - span.start for span in timeline.spans}
    units = {action: unit for row in schedule.rows for unit in naive.units(row, schedule.pairs) for action in unit}
    before: dict[Any, Any] = {}
    for row in schedule.rows:
        before.update({unit: earlier for earlier, unit in pairwise(naive.units(row, schedule.pairs))})
    rank = {action: rank for rank, row in enumerate(schedule.rows) for action in row}
    known: dict[Any, Any] = {}

    def up_to(unit: Any) -> Any:
        if unit not in known:
            chains = [0] + ([up_to(before[unit])] if unit in before else [])
            for action in unit:
                chains += [up_to(units[n]) + (hop if rank[n] != rank[action] else 0) for n in needs[action]]
            known[unit] = max(chains) + length[unit[0]]
        return known[unit]

    return max(up_to(unit) for unit in set(units.values()))


@given(st.sampled_from(NAMES), st.integers(1, 4), st.integers(1, 6), st.sampled_from([0, Fraction(1, 2), 2]), st.data())
@settings(max_examples=120, deadline=None)
def test_the_critical_path_is_the_longest_of_all_chains(name: str, ranks: int, m: int, hop: Any, data: Any) -> None:
    try:
        schedule = naive.built(name, ranks, m)
    except ValueError:
        return
    s = schedule.stages
    timeline = simulate(schedule, Costs(some(data, s), some(data, s), some(data, s), transfer=hop))
    chain = critical_path(timeline, waits(timeline, schedule))
    spans = [timeline.tracks[place.rank] for place in chain]
    moments = [(track.starts[place.at], track.ends[place.at]) for track, place in zip(spans, chain, strict=True)]
    assert moments[0][0] == 0
    assert moments[-1][1] == timeline.makespan == longest_chain(schedule, timeline, hop)
    for (a, (_, end)), (b, (start, _)) in pairwise(zip(chain, moments, strict=True)):
        assert start - end == (hop if a.rank != b.rank else 0)


@given(st.sampled_from(NAMES), st.integers(1, 4), st.integers(1, 6), st.data())
@settings(max_examples=120, deadline=None)
def test_the_parts_of_a_rank_add_up_to_the_step(name: str, ranks: int, m: int, data: Any) -> None:
    try:
        schedule = naive.built(name, ranks, m)
    except ValueError:
        return
    s = schedule.stages
    forward, inputs, weights, update = (list(map(Fraction, some(data, s))) for _ in range(4))
    costs = Costs(forward, inputs, weights, update=update, reduce=1, transfer=Fraction(1, 3))
    timeline = simulate(schedule, costs)
    found = breakdown(timeline, waits(timeline, schedule))
    for rank, parts in enumerate(found):
        assert sum(parts.values()) == timeline.makespan
        assert timeline.makespan - parts["waiting"] - parts["idle"] == timeline.busy[rank]
        assert min(parts.values()) >= 0
    if not schedule.pairs:
        done = dict.fromkeys("FBIWRU", 0)
        for span in timeline.spans:
            done[span.action.kind] += span.end - span.start
        total = {part: sum(parts[part] for parts in found) for part in found[0]}
        assert (total["forward"], total["backward"]) == (done["F"], done["B"] + done["I"])
        assert (total["weight"], total["recompute"], total["optimizer"]) == (done["W"], done["R"], done["U"])


def named(schedule: Schedule, timeline: Timeline, slack: float = 0) -> dict[str, str]:
    """ "0B0" → "1B0": what it waited for."""
    tracks = timeline.tracks
    return {
        str(tracks[rank].actions[i]): "" if place is None else str(tracks[place.rank].actions[place.at])
        for rank, row in enumerate(waits(timeline, schedule, slack))
        for i, place in enumerate(row)
    }


def test_each_action_waits_for_a_message_or_for_its_rank() -> None:
    schedule = build("1f1b", ranks=2, micro_batches=2)
    timeline = simulate(schedule, Costs(1, 1, 1))
    assert named(schedule, timeline) == {
        "0F0": "", "0F1": "0F0", "0B0": "1B0", "0B1": "1B1",
        "1F0": "0F0", "1B0": "1F0", "1F1": "1B0", "1B1": "1F1",
    }  # fmt: skip
    path = critical_path(timeline, waits(timeline, schedule))
    assert path == (Place(0, 0), Place(1, 0), Place(1, 1), Place(1, 2), Place(1, 3), Place(0, 3))
    assert breakdown(timeline, waits(timeline, schedule))[0] == {
        "forward": 2, "backward": 4, "weight": 0, "recompute": 0, "optimizer": 0, "waiting": 3, "idle": 0,
    }  # fmt: skip


def test_a_short_pause_is_no_wait_for_what_was_there_long_before() -> None:
    schedule = parse("0F0,0F1\n,1F0,1F1\n")
    spans = [(0, 0, 1), (0, 1, 2), (1, 1.1, 5), (1, 5.1, 6)]
    actions = [action for row in schedule.rows for action in row]
    timeline = Timeline(2, [Span(r, a, x, y) for (r, x, y), a in zip(spans, actions, strict=True)])
    assert named(schedule, timeline, slack=0.2) == {"0F0": "", "0F1": "0F0", "1F0": "0F0", "1F1": "1F0"}
    assert named(schedule, timeline, slack=0.05)["1F1"] == "0F1"
    pauses = [parts["waiting"] for parts in breakdown(timeline, waits(timeline, schedule, 0.2))]
    assert pauses == pytest.approx([0, 1.1])


def test_replicas_wait_for_each_other_before_they_update() -> None:
    schedule = build("chimera", ranks=2, micro_batches=3)
    timeline = simulate(schedule, Costs([1, 3], 1, 1, reduce=1))
    waited = waits(timeline, schedule)
    updates = [(r, i) for r, track in enumerate(timeline.tracks) for i, a in enumerate(track.actions) if a.kind == "U"]
    assert any(waited[r][i] is not None and waited[r][i].rank != r for r, i in updates)  # type: ignore[union-attr]
    path = critical_path(timeline, waited)
    assert sum(timeline.tracks[r].ends[i] - timeline.tracks[r].starts[i] for r, i in path) == timeline.makespan


def test_nothing_has_no_critical_path() -> None:
    assert critical_path(Timeline(2), ((), ())) == ()
