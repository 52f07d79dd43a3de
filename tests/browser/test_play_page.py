"""The page of `headrace play` in Chromium: every control moves what is shown, to what Python's simulator says."""

import json
import random
from fractions import Fraction
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from headrace import units
from headrace.cli.main import app
from headrace.costs import Costs, Memory
from headrace.report.play.controls import MEMORY, SCHEDULE, SECONDS, UNEVEN, Select, Slider
from headrace.report.play.orders import CHOICES
from headrace.schedule import build, parse
from headrace.schedule.catalogue import CATALOGUE
from headrace.simulate.closed_forms import closed_form
from headrace.simulate.memory import peak_memory_of
from headrace.simulate.simulator import simulate

CONTROLS = {control.name: control for control in (*SCHEDULE, *SECONDS, *UNEVEN, *MEMORY)}
START = {
    "schedule": "gpipe",
    "beside": "",
    **{
        name: c.start if isinstance(c, Slider) else c.values[0][0] if isinstance(c, Select) else ""
        for name, c in CONTROLS.items()
    },
}

SHOWN = """() => Gantt.of(document.getElementById("gantt")).charts.map(({title, end, tracks}) => ({
  title, end, tracks: tracks.map(({actions, starts, ends}) => ({actions, starts, ends})),
}))"""

NAMES_ARE_CONTROLS = """() =>
  [...new URLSearchParams(location.hash.slice(1)).keys()].every(name => document.getElementById(name))"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """What the command writes."""
    path = tmp_path_factory.mktemp("play") / "play.html"
    done = CliRunner().invoke(app, ["play", "-o", str(path), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"page": str(path), "bytes": path.stat().st_size}
    return path


@pytest.fixture
def play(page, file):
    """Opens the page with an address."""

    def open_it(**settings):
        page.goto("about:blank")  # otherwise another address is no other page
        page.goto(f"{file.as_uri()}#{urlencode(settings)}")
        page.wait_for_selector("html[data-ready]")
        return page

    return open_it


def scheduled(s):
    if s["schedule"] == "custom":
        return parse(s["rows"])
    choice = CHOICES.get(s["schedule"])
    options = {choice.option: s["choice"]} if choice else {}
    numbers = {"ranks": s["ranks"], "micro_batches": s["micro_batches"], **options}
    return build(s["schedule"], recompute=s["recompute"], **numbers)


def costs(s, schedule):
    """As the page's words have it: a rank's share of seconds and bytes, split over its stages and segments."""
    stages, ranks = schedule.stages, schedule.ranks
    share = ranks / (stages * schedule.segments)
    heavy = {"first": 0, "middle": stages // 2, "last": stages - 1}
    if s["heavy"] == "own":
        factors = [float(factor) for factor in s["factors"].split(",")]
    elif s["heavy"] == "rising":
        factors = [1 + (s["factor"] - 1) * i / (stages - 1) if stages > 1 else 1 for i in range(stages)]
    else:
        factors = [s["factor"] if i == heavy[s["heavy"]] else 1 for i in range(stages)]
    each = {
        name: [s[name] * share * factor for factor in factors]
        for name in ("forward", "backward_input", "backward_weight", "recompute_cost")
    }
    parts = zip(each["forward"], each["backward_input"], each["backward_weight"], strict=True)
    activations = s["activations"] * ranks / stages * 2**30 / schedule.segments
    return Costs(
        forward=each["forward"],
        backward_input=each["backward_input"],
        backward_weight=each["backward_weight"],
        recompute=each["recompute_cost"],
        update=s["update"] * ranks / stages,
        transfer=s["latency"],
        message=s["message"] * 2**30 / schedule.segments,
        bandwidth=s["bandwidth"] * 2**30,
        one_at_a_time=s["link"] == "one",
        pair=None if s["pair"] == 100 else [(f + i + w) * (s["pair"] / 100) for f, i, w in parts],
        memory=Memory(
            activations=activations,
            for_weight=activations * s["for_weight"] / 100,
            stage_input=activations * s["stage_input"] / 100,
            parameters=s["parameters"] * ranks / stages * 2**30,
            version=s["parameters"] * ranks / stages * 2**30 / 4,
        ),
    )


def alike(shown, expected):
    """Whether two numbers with a unit are the same, but for the last digit of halves that either may round up."""
    (number, unit), (other, wanted) = shown.split(), expected.split()
    return unit == wanted and float(number.replace(",", "")) == pytest.approx(float(other.replace(",", "")), rel=2e-3)


def compare(page, changed):
    """What the page shows, against Python's simulation of the same setting."""
    s = {**START, **changed}
    schedule = scheduled(s)
    of = costs(s, schedule)
    timeline = simulate(schedule, of)
    shown = page.evaluate(SHOWN)[0]
    assert shown["tracks"] == [
        {
            "actions": list(map(str, track.actions)),
            "starts": pytest.approx(track.starts, rel=1e-12, abs=1e-12),
            "ends": pytest.approx(track.ends, rel=1e-12, abs=1e-12),
        }
        for track in timeline.tracks
    ]
    most = max(peak_memory_of(schedule, of.memory))
    assert alike(page.inner_text("#step"), units.seconds(timeline.makespan))
    assert alike(page.inner_text("#bubble"), units.percent(timeline.bubble_fraction))
    assert page.inner_text("#in-flight") == str(max(timeline.peak_in_flight))
    assert page.inner_text("#in-flight-note") == f"per rank {', '.join(map(str, timeline.peak_in_flight))}"
    assert alike(page.inner_text("#most"), units.size(most))
    fits = not s["cap"] or most <= s["cap"] * 2**30
    assert ("does not fit" in page.inner_text("#most-note")) == (not fits)
    assert ("does not fit" in page.inner_text("#words")) == (not fits)


def test_every_control_moves_what_is_shown(play):
    page = play()
    compare(page, {})
    settings = {}
    moves = [
        *({"ranks": 5}, {"micro_batches": 12}, {"schedule": "interleaved"}, {"choice": 3}, {"recompute": "always"}),
        *({"recompute_cost": 0.5}, {"recompute": "except_last"}, {"forward": 1.25}, {"latency": 0.15}),
        *({"message": 1.5}, {"bandwidth": 2}, {"link": "one"}, {"update": 0.75}),
        *({"backward_input": 0.75}, {"backward_weight": 1.5}, {"factor": 1.7}, {"heavy": "first"}, {"heavy": "middle"}),
        *({"heavy": "rising"}, {"cap": 10}, {"parameters": 3}, {"activations": 4.5}, {"stage_input": 25}),
        *({"schedule": "zb-h1"}, {"for_weight": 80}, {"cap": 0}, {"recompute": "never"}, {"schedule": "dualpipe-v"}),
        *({"pair": 70}, {"schedule": "pipedream"}, {"schedule": "seq1f1b"}, {"ranks": 1}, {"micro_batches": 1}),
        *({"ranks": 3, "schedule": "1f1b"}, {"heavy": "own", "factors": "1, 2,0.5"}),
    ]
    for move in moves:
        for name, value in move.items():
            field = page.locator(f"#{name}")
            assert field.is_visible(), name
            if field.evaluate("field => field.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(str(value))
        settings.update(move)
        compare(page, settings)


def test_any_setting_agrees_with_python(play):
    rng = random.Random(3)
    page = play()
    for _ in range(40):
        name = rng.choice(list(CATALOGUE))
        settings = {"schedule": name}
        for control in CONTROLS.values():
            if isinstance(control, Slider) and rng.random() < 0.6:
                steps = round((control.most - control.least) / control.step)
                value = control.least + control.step * rng.randint(0, steps)
                settings[control.name] = int(value) if control.step == 1 else round(value, 2)
        settings |= {"recompute": rng.choice(["never", "always", "except_last"])}
        settings |= {"heavy": rng.choice(["first", "middle", "last", "rising"]), "link": rng.choice(["freely", "one"])}
        if name in CHOICES:
            settings["choice"] = rng.choice(CHOICES[name].values)
        if name in ("chimera", "dualpipe"):
            settings["ranks"] = rng.choice([2, 4, 6, 8])
        page.evaluate("hash => { location.hash = hash; }", urlencode(settings))
        page.wait_for_function("name => document.getElementById('schedule').value === name", arg=name)
        compare(page, settings)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b", "interleaved", "looped-bfs", "seq1f1b"])
def test_closed_forms_on_the_page_hold_for_any_cost(name):
    """The page shows a value that was worked out for F = 1 and B = 2."""

    def bubble(forward, backward):
        form = closed_form(name, 4, 8, forward, backward, stages_per_rank=2, segments=2)
        return form and form.bubble_fraction

    assert len({round(bubble(*c), 12) for c in ((1, 2), (1, 1), (Fraction(1, 3), 7))}) == 1


def test_theory_stands_beside_where_it_holds(play):
    page = play(schedule="1f1b")
    expect(page.locator("#bubble-note")).to_have_text("closed form: (p−1)/(m+p−1) = 27.3 %")
    expect(page.locator("#words")).to_contain_text("27.3 % of all ranks’ time, as theory says: (p−1)/(m+p−1)")
    page.locator("#latency").fill("0.5")
    expect(page.locator("#bubble-note")).to_contain_text("27.3 % if stages are equal")
    for other in ("message", "update"):
        page = play(schedule="1f1b", **{other: 1})
        expect(page.locator("#bubble-note")).to_contain_text("27.3 % if stages are equal")
    page.locator("#schedule").select_option("zb-v")
    expect(page.locator("#bubble-note")).to_have_text("of all ranks’ time")


def test_numbers_without_a_schedule_are_refused_in_python_s_words(play):
    page = play(schedule="chimera", ranks=3)
    expect(page.locator("#refused")).to_contain_text(
        "ranks=3 is odd, but chimera's two pipelines only fit an even number: use 4"
    )
    assert page.locator("#refused-ways button").all_inner_texts() == ["2 ranks", "4 ranks", "6 ranks", "8 ranks"]
    expect(page.locator("#shown")).to_be_hidden()
    page.get_by_role("button", name="4 ranks").click()
    expect(page.locator("#refused")).to_be_hidden()
    compare(page, {"schedule": "chimera", "ranks": 4})


def test_own_rows_begin_with_those_that_were_shown(play):
    page = play(schedule="dualpipe", recompute="always")
    page.locator("#schedule").select_option("custom")
    rows = page.input_value("#rows")
    assert parse(rows).rows == build("dualpipe", ranks=4, micro_batches=8, recompute="always").rows
    compare(page, {"schedule": "custom", "rows": rows})
    page.locator("#rows").fill("0F0,0F1,0B0,,0B1\n1F1,1F0,1B0,1B1")
    compare(page, {"schedule": "custom", "rows": "0F0,0F1,0B0,,0B1\n1F1,1F0,1B0,1B1"})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1",
            "This order deadlocks: rank 0 waits at 0B0 for 1B0, which rank 1 runs only after 1F1\n"
            "Rank 1 waits at 1F1 for 0F1, which rank 0 runs only after 0B0",
        ),
        ("0F0,0B0\n1F0", "1B0 (or 1I0 and 1W0) is missing: rank 1 never runs the backward"),
        ("0F0,<b>", "row 1, column 2: '<b>' is not an action"),
        (" ", "there is no row: write one line per rank, such as 0F0,0B0"),
    ],
)
def test_own_rows_that_cannot_run_say_why(play, rows, message):
    page = play(schedule="custom", rows=rows)
    expect(page.locator("#refused-heading")).to_have_text("These rows cannot run")
    assert page.inner_text("#refused-why").startswith(message)
    page.locator("#rows").fill("0F0,0B0")
    expect(page.locator("#refused")).to_be_hidden()
    compare(page, {"schedule": "custom", "rows": "0F0,0B0"})


def test_factors_that_do_not_fit_say_so(play):
    page = play(heavy="own", factors="1,2")
    expect(page.locator("#refused-why")).to_have_text(
        "factors: there are 4 stages, so write 4 numbers with commas between"
    )
    page.locator("#factors").fill("1,2,x,1")
    expect(page.locator("#refused-why")).to_have_text("factors: 'x' is not a number of 0 or more")


def test_another_schedule_stands_beside(play):
    page = play(schedule="zb-h1", beside="1f1b")
    ours, theirs = page.evaluate(SHOWN)
    assert (ours["title"], ours["end"], theirs["title"], theirs["end"]) == ("zb-h1", 27, "1f1b", 33)
    expect(page.locator("#words")).to_contain_text("A step of 1f1b takes 33 s, 22.2 % longer, with a bubble of 27.3 %")
    page.locator("#ranks").fill("3")
    page.locator("#beside").select_option("chimera")
    assert len(page.evaluate(SHOWN)) == 1
    expect(page.locator("#words")).to_contain_text("Chimera cannot stand beside it: ranks=3 is odd")


def test_the_address_holds_the_setting(play, page):
    play(schedule="gpipe")
    page.locator("#schedule").select_option("custom")
    page.locator("#rows").fill("0F0,0B0\n1F0,1B0")
    page.locator("#latency").fill("0.5")
    page.wait_for_function("() => location.hash.includes('latency=0.5')")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    compare(page, {"schedule": "custom", "rows": "0F0,0B0\n1F0,1B0", "latency": 0.5})
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("() => location.hash === ''")
    compare(page, {})


def test_nonsense_in_the_address_does_no_harm(play):
    compare(play(schedule="nope", ranks="many", micro_batches=99, no="thing"), {"ranks": 4, "micro_batches": 16})


def test_what_the_text_offers_is_there(play):
    page = play()
    links = page.locator(".tries a")
    assert links.count() >= 8
    for link in links.all():
        link.click()
        page.wait_for_function("hash => location.hash === hash", arg=link.get_attribute("href"))
        assert page.locator("#refused").is_visible() == ("deadlock" in link.inner_text())
        assert page.evaluate(NAMES_ARE_CONTROLS)


def test_without_a_mouse_or_a_screen(play):
    page = play()
    page.locator("#ranks").focus()
    page.keyboard.press("ArrowRight")
    compare(page, {"ranks": 5})
    assert page.locator("#ranks").get_attribute("aria-valuetext") == "5"
    expect(page.get_by_role("status")).to_contain_text("With gpipe on 5 ranks and 8 micro-batches, a step takes 36 s")
    for field in page.locator("form :is(input, select, textarea)").all():
        assert field.evaluate("field => field.labels.length") == 1


@pytest.mark.parametrize("settings", [{}, {"schedule": "interleaved-zb", "ranks": 8, "micro_batches": 16, "choice": 4}])
def test_nothing_scrolls_sideways_on_a_phone(play, page, settings):
    page.set_viewport_size({"width": 320, "height": 640})
    play(**settings)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_the_page_is_small(file):
    assert file.stat().st_size < 500_000


def test_a_page_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.report.play.play_page", lambda: "a page")
    done = CliRunner().invoke(app, ["play", "-o", str(tmp_path / "nowhere" / "play.html")])
    assert done.exit_code == 2
    assert "No such file or directory" in done.stderr
