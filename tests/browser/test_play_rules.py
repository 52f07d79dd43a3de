"""The page's rules in JavaScript against those in Python: orders, simulation, memory, and what is wrong with rows."""

import json
import random
from importlib.resources import files

import naive
import pytest
from hypothesis import given, settings
from test_golden import CASES, generated, written

from headrace.costs import Costs, Memory
from headrace.report.breakdown import breakdown
from headrace.report.play.orders import CHOICES, MOST_MICRO_BATCHES, MOST_RANKS, packed
from headrace.schedule import build, check, parse
from headrace.schedule.catalogue import CATALOGUE
from headrace.simulate.critical_path import critical_path, waits
from headrace.simulate.memory import memory_over_time
from headrace.simulate.simulator import simulate

RULES = ("rows.js", "simulate.js", "versions.js", "check.js", "bytes.js")

SIMULATED = """cases => JSON.stringify(JSON.parse(cases).map(({text, packed, recomputes, costs, memory}) => {
  const schedule = text ? Rows.parse(text) : Rows.unpack(packed, "packed", (stage) => recomputes.includes(stage));
  const timeline = Simulate.simulate(schedule, costs);
  const held = Bytes.overTime(schedule, timeline, memory);
  return {
    actions: timeline.tracks.map(track => track.map(span => span.action.name)),
    starts: timeline.tracks.map(track => track.map(span => span.start)),
    ends: timeline.tracks.map(track => track.map(span => span.end)),
    makespan: timeline.makespan, busy: timeline.busy, bubble: timeline.bubble, peak_in_flight: timeline.inFlight,
    held, peak_held: held.map(Bytes.peak),
  };
}))"""

REFUSED = """texts => texts.map(text => {
  try { Check.check(Rows.parse(text)); return null; } catch (error) { return error.message; }
})"""


def simulated(rules, cases):
    """What JavaScript makes of `cases`; as text, as a tab takes and gives long lists one number at a time."""
    return json.loads(rules.evaluate(SIMULATED, json.dumps(cases)))


@pytest.fixture
def rules(page):
    """A tab that knows the rules and nothing else."""
    page.goto("about:blank")
    assets = files("headrace.report.play") / "assets"
    for name in RULES:
        page.add_script_tag(content=(assets / name).read_text(encoding="utf-8"))
    return page


def by_python(schedule, costs):
    timeline = simulate(schedule, costs)
    held = memory_over_time(timeline, schedule, costs.memory)
    return {
        "actions": [list(map(str, track.actions)) for track in timeline.tracks],
        "starts": [list(track.starts) for track in timeline.tracks],
        "ends": [list(track.ends) for track in timeline.tracks],
        "makespan": timeline.makespan,
        "busy": list(timeline.busy),
        "bubble": pytest.approx(timeline.bubble_fraction, abs=1e-12),  # Python may add up better than naively
        "peak_in_flight": list(timeline.peak_in_flight),
        "held": [[list(step) for step in steps] for steps in held],
        "peak_held": [max(now for _, now in steps) for steps in held],
    }


def as_data(costs, **schedule):
    seconds = ("forward", "backward_input", "backward_weight", "recompute", "transfer", "pair", "update")
    names = (*seconds, "message", "bandwidth", "one_at_a_time")
    held = ("activations", "for_weight", "stage_input", "parameters", "version", "working", "shared")
    return {
        **schedule,
        "costs": {name: getattr(costs, name) for name in names},
        "memory": {name: getattr(costs.memory, name) for name in held},
    }


def test_golden_cases(rules):
    schedules = [written(case) if case["schedule"] == "random" else generated(case) for case in CASES]
    costs = [
        Costs(c["F"], c["B"], c["W"], transfer=c["comm"], pair=c["FB"], memory=Memory(2, 1))
        for c in (case["costs"] for case in CASES)
    ]
    asked = [as_data(c, text=schedule.to_text()) for schedule, c in zip(schedules, costs, strict=True)]
    for case, schedule, of, found in zip(CASES, schedules, costs, simulated(rules, asked), strict=True):
        golden = case["result"]
        assert found == by_python(schedule, of), case["id"]
        assert found["makespan"] == pytest.approx(golden["makespan"], rel=1e-12)
        assert found["busy"] == pytest.approx(golden["busy"], rel=1e-12)
        assert found["bubble"] == pytest.approx(golden["bubble_ratio"], abs=1e-11)
        assert found["peak_in_flight"] == golden["peak_inflight"]
        assert [starts[0] for starts in found["starts"]] == pytest.approx(golden["first_start"], rel=1e-12)
        assert [max(ends) for ends in found["ends"]] == pytest.approx(golden["last_end"], rel=1e-12)


def any_schedule(rng):
    """One of the catalogue for random numbers, and the stages that recompute."""
    name = rng.choice(list(CATALOGUE))
    choice = CHOICES.get(name)
    options = {choice.option: rng.choice(choice.values)} if choice else {}
    ranks = rng.randint(1, MOST_RANKS)
    ranks += name in ("chimera", "dualpipe") and ranks % 2
    numbers = {"ranks": ranks, "micro_batches": rng.randint(1, MOST_MICRO_BATCHES), **options}
    stages = build(name, **numbers).stages
    recomputes = rng.choice([[], list(range(stages)), [s for s in range(stages) if rng.random() < 0.5]])
    return build(name, recompute=set(recomputes), **numbers), build(name, recompute="always", **numbers), recomputes


def any_costs(rng, schedule):
    """With numbers that are not whole, and those that are: many things then happen at one instant."""
    draw = rng.choice([lambda: rng.randint(0, 3), lambda: rng.uniform(0, 3)])

    def several(count):
        return draw() if rng.random() < 0.3 else [draw() for _ in range(count)]

    s = schedule.stages
    seconds = {name: several(s) for name in ("forward", "backward_input", "backward_weight")}
    return Costs(
        **seconds,
        update=rng.choice([0, several(s)]),
        recompute=rng.choice([None, several(s)]),
        pair=rng.choice([None, several(s)]),
        transfer=several(s - 1),
        message=rng.choice([0, several(s - 1)]),
        bandwidth=rng.choice([None, 0.5, rng.uniform(0.5, 9)]),
        one_at_a_time=rng.random() < 0.5,
        memory=Memory(*(several(s) for _ in range(7))),
    )


def test_random_schedules_and_costs(rules):
    rng = random.Random(5)
    schedules = [any_schedule(rng) for _ in range(300)]
    costs = [any_costs(rng, schedule) for schedule, _, _ in schedules]
    asked = [
        as_data(of, packed=packed(always), recomputes=recomputes)
        for (_, always, recomputes), of in zip(schedules, costs, strict=True)
    ]
    for (schedule, _, _), of, found in zip(schedules, costs, simulated(rules, asked), strict=True):
        assert found == by_python(schedule, of), schedule.name


EXPLAINED = """cases => JSON.stringify(JSON.parse(cases).map(({text, costs}) => {
  const timeline = Simulate.simulate(Rows.parse(text), costs);
  return {
    waits: timeline.spans.map(span => span.waits && span.waits.action.name),
    critical: timeline.spans.filter(span => span.critical).map(span => span.action.name),
    parts: timeline.tracks.map((_, rank) => Simulate.parts(timeline, rank)),
  };
}))"""


def test_waits_critical_path_and_parts(rules):
    rng = random.Random(11)
    schedules = [schedule for schedule, _, _ in (any_schedule(rng) for _ in range(120))]
    costs = [
        Costs(
            *(rng.uniform(0.1, 3) for _ in range(3)),
            transfer=rng.uniform(0, 1),
            update=rng.choice([0, rng.uniform(0.1, 2)]),
            message=rng.choice([0, rng.uniform(0, 3)]),
            bandwidth=2.5,
            one_at_a_time=not schedule.pairs and rng.random() < 0.5,  # of two that came, Python takes the one sent last
        )
        for schedule in schedules
    ]
    asked = [as_data(of, text=schedule.to_text()) for schedule, of in zip(schedules, costs, strict=True)]
    answers = json.loads(rules.evaluate(EXPLAINED, json.dumps(asked)))
    for schedule, of, found in zip(schedules, costs, answers, strict=True):
        timeline = simulate(schedule, of)
        waited = waits(timeline, schedule)
        names = [list(map(str, track.actions)) for track in timeline.tracks]
        path = {names[rank][at] for rank, at in critical_path(timeline, waited)}
        assert found["waits"] == [place and names[place.rank][place.at] for of_rank in waited for place in of_rank]
        assert set(found["critical"]) == path, schedule.name
        for ours, theirs in zip(found["parts"], breakdown(timeline, waited), strict=True):
            assert {part: ours.get(part, 0) for part in theirs} == pytest.approx(theirs, abs=1e-9)


def test_recompute_modes_are_those_of_python(rules):
    numbers = [(n, p, m) for n in CATALOGUE for p, m in ((2, 3), (4, 8))]
    orders = [packed(build(name, ranks=p, micro_batches=m, recompute="always")) for name, p, m in numbers]
    found = rules.evaluate(
        """orders => orders.map(packed => ["never", "always", "except_last"].map(mode =>
          Rows.unpack(packed, "", Rows.recomputes(mode, packed)).rows.map(row => row.map(a => a.name).join(" "))))""",
        orders,
    )
    for (name, p, m), modes in zip(numbers, found, strict=True):
        for mode, rows in zip(("never", "always", "except_last"), modes, strict=True):
            schedule = build(name, ranks=p, micro_batches=m, recompute=mode)
            assert rows == [" ".join(map(str, row)) for row in schedule.rows], (name, mode)


def spoiled(rng):
    """The text of a valid schedule of which something was moved, dropped, doubled or changed."""
    schedule = build(
        rng.choice([name for name in CATALOGUE if name not in ("chimera", "dualpipe")]),
        ranks=rng.randint(1, 4),
        micro_batches=rng.randint(1, 5),
        recompute=rng.choice(["never", "always"]),
    )
    lines = [[cell for cell in line.split(",") if cell] for line in schedule.to_text().splitlines()]
    for _ in range(rng.randint(1, 2)):
        row, other = rng.choice(lines), rng.choice(lines)
        if not row:
            continue
        match rng.randrange(6):
            case 0:
                rng.shuffle(row)
            case 1:
                row.pop(rng.randrange(len(row)))
            case 2:
                other.insert(rng.randint(0, len(other)), rng.choice(row))
            case 3:
                at = rng.randrange(len(row))
                row.insert(rng.randint(0, len(row) - 1), row.pop(at))
            case 4:
                row[rng.randrange(len(row))] = rng.choice(["", "0X0", "1F01", "(0F0;0B0)", "9F0", "2B", "# delay=x"])
            case 5:
                lines.insert(0, [rng.choice(["# segments=2", "# delay=1", "# segments=0", "# a remark"])])
    return "\n".join(",".join(line) for line in lines)


def why_not(text):
    try:
        check(parse(text))
    except ValueError as error:
        return str(error)
    return None


def test_what_is_wrong_is_said_as_python_says_it(rules):
    rng = random.Random(7)
    texts = [spoiled(rng) for _ in range(600)]
    expected = list(map(why_not, texts))
    different = [
        (text, theirs, ours)
        for text, theirs, ours in zip(texts, expected, rules.evaluate(REFUSED, texts), strict=True)
        if theirs != ours and not (ours or "").startswith("micro-batch ")  # which only JavaScript looks for
    ]
    assert different == []
    assert sum(message is None for message in expected) > 20
    assert sum("deadlocks" in (message or "") for message in expected) > 60


def test_huge_numbers_are_refused_at_once(rules):
    absurd = ["0F0,0B0,0F999999999999,0B999999999999", "0F0,0B0\n999999999F0,999999999B0"]
    found = rules.evaluate(REFUSED, absurd)
    assert found == [
        "micro-batch 1 is missing: micro-batches are numbered 0…999999999999 and each needs its actions",
        "stage 1 is missing: stages are numbered 0…999999999 and each needs a rank",
    ]


def test_random_orders_are_read_alike(rules):
    """What `naive` makes has uneven stages, neighbours on one rank, pairs, lanes and segments."""
    schedules = []

    @given(naive.schedules())
    @settings(max_examples=40, deadline=None)
    def collect(schedule):
        schedules.append(schedule)

    collect()
    asked = [as_data(Costs(1.5, 0.25, 2, transfer=0.75), text=schedule.to_text()) for schedule in schedules]
    for schedule, found in zip(schedules, simulated(rules, asked), strict=True):
        assert found == by_python(schedule, Costs(1.5, 0.25, 2, transfer=0.75))


def test_the_packed_catalogue_is_small():
    assert len(json.dumps(packed(build("interleaved", ranks=8, micro_batches=16, stages_per_rank=4)))) < 6000
