"""The report in a real browser: it shows what it should, lets itself be zoomed and read, and never complains."""

import random
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page
from run_folders import leave, shaken

from headrace.costs import Costs
from headrace.layer_costs import LayerCosts
from headrace.planner import Request, make_plan
from headrace.report.page import write_report
from headrace.report.page.charts import gantt_chart
from headrace.report.page.page import page as html_page
from headrace.report.page.page import section
from headrace.schedule import build
from headrace.simulate import simulate
from headrace.simulate.critical_path import waits

DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
COLOURS = """canvas => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
    const found = {};
    for (let i = 0; i < data.length; i += 4)
        if (data[i + 3] === 255) {
            const colour = "#" + [0, 1, 2].map(j => data[i + j].toString(16).padStart(2, "0")).join("");
            found[colour] = (found[colour] || 0) + 1;
        }
    return found;
}"""
VIEW = "() => { const {from, to, end} = Gantt.of(document.getElementById('timeline')).view; return [from, to, end]; }"
FORWARD, BACKWARD = "#56b4e9", "#e69f00"


def opened(page: Page, path: Path) -> Page:
    page.goto(path.as_uri())
    page.evaluate(DRAWN)
    return page


def report(folder: Path, name: str = "1f1b", ranks: int = 2, micro_batches: int = 4, **more: Any) -> Path:
    return write_report(leave(folder, build(name, ranks=ranks, micro_batches=micro_batches), **more))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(tmp_path_factory.mktemp("run"))


def middle_of(page: Page, chart: int, action: str) -> tuple[float, float]:
    """Where on the screen an action of a chart is drawn."""
    x, y = page.evaluate(
        """([chart, action]) => {
            const {frame, canvas, chart: data} = Gantt.of(document.getElementById("timeline")).panes[chart];
            const rank = data.tracks.findIndex(track => track.actions.includes(action));
            const i = data.tracks[rank].actions.indexOf(action);
            const {starts, ends} = data.tracks[rank];
            const box = canvas.getBoundingClientRect();
            return [box.left + frame.x((starts[i] + ends[i]) / 2), box.top + frame.y(rank) + frame.row / 2];
        }""",
        [chart, action],
    )
    return x, y


def test_both_steps_are_drawn_on_one_axis(page: Page, run: Path) -> None:
    opened(page, run)
    charts = page.locator("#timeline canvas")
    assert charts.count() == 2
    assert page.locator("#timeline figcaption").all_text_contents()[1].startswith("measured: ")
    widths = []
    for at in range(2):
        colours = charts.nth(at).evaluate(COLOURS)
        assert colours[BACKWARD] > 1.5 * colours[FORWARD] > 1000
        widths.append(colours[FORWARD])
    assert 1.1 < widths[1] / widths[0] < 1.4  # forwards took longer than predicted, on the same axis
    for name in ("memory", "loss"):
        assert len(page.locator(f"#{name} canvas").evaluate(COLOURS)) > 3
    assert page.locator("#breakdown .bar").count() == 4


def test_pointing_says_what_an_action_was_and_waited_for(page: Page, run: Path) -> None:
    opened(page, run)
    page.mouse.move(*middle_of(page, 0, "1F0"))
    tip = page.locator(".tip")
    assert tip.is_visible()
    lines = tip.locator("> *").all_text_contents()
    assert lines[0] == "1F0: forward of micro-batch 0 on stage 1"
    assert lines[1] == "rank 1, 4.4 ms, from 4.2 ms to 8.6 ms"
    assert lines[2:] == ["waited 4.2 ms for 0F0 of rank 0", "on the critical path"]
    page.mouse.move(*middle_of(page, 0, "0F1"))
    assert tip.locator("> *").all_text_contents()[2:] == ["waited for 0F0, before it on this rank"]
    page.mouse.move(5, 5)
    assert tip.is_hidden()


def test_the_wheel_zooms_where_it_is_and_back(page: Page, run: Path) -> None:
    opened(page, run)
    x, y = middle_of(page, 1, "1B1")
    page.mouse.move(x, y)
    page.mouse.wheel(0, -500)
    page.wait_for_function("() => !Gantt.of(document.getElementById('timeline')).view.whole")
    page.evaluate(DRAWN)
    assert middle_of(page, 1, "1B1")[0] == pytest.approx(x, abs=2)
    assert page.evaluate("scrollY") == 0
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=4)
    page.mouse.up()
    page.evaluate(DRAWN)
    assert middle_of(page, 1, "1B1")[0] == pytest.approx(x + 100, abs=3)
    page.get_by_role("button", name="Show the whole step").click()
    start, to, end = page.evaluate(VIEW)
    assert (start, to) == (0, end)
    page.mouse.move(x, y)
    page.mouse.wheel(0, 300)  # nothing to zoom out of: the page scrolls
    page.wait_for_function("() => scrollY > 0")


def test_keys_walk_from_action_to_action_and_zoom(page: Page, run: Path) -> None:
    opened(page, run)
    chart = page.locator("#timeline canvas").first
    chart.focus()
    said = page.locator("#timeline [aria-live]")
    for key, action in (
        ("ArrowRight", "0F0"), ("ArrowRight", "0F1"), ("ArrowDown", "1F0"), ("Enter", "0F0"), ("End", "0B3"),
        ("Enter", "1B3"), ("ArrowLeft", "1F3"), ("Home", "1F0"), ("ArrowUp", "0F1"),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert said.text_content().startswith(f"{action}: "), key  # type: ignore[union-attr]
    page.keyboard.press("+")
    start, to, end = page.evaluate(VIEW)
    assert to - start == pytest.approx(end / 2)
    page.keyboard.press("Shift+ArrowLeft")
    assert page.evaluate(VIEW)[0] < start
    page.keyboard.press("0")
    assert page.evaluate(VIEW)[:2] == [0, end]
    page.keyboard.press("Escape")
    assert page.locator(".tip").is_hidden()


def test_what_a_canvas_shows_is_in_a_table_too(page: Page, run: Path) -> None:
    opened(page, run)
    for canvas in page.locator("canvas").all():
        assert len(canvas.get_attribute("aria-label") or "") > 20
    page.locator("#timeline summary").first.click()
    page.locator("#timeline tbody tr").first.wait_for()
    rows = page.locator("#timeline table").first.locator("tbody tr")
    assert rows.count() == 16
    assert rows.nth(1).locator("th, td").all_text_contents() == [
        "0F1", "rank 0", "forward of micro-batch 1 on stage 0", "4.2 ms", "4.2 ms", "0F0", "",
    ]  # fmt: skip
    for name in ("memory", "breakdown", "cut", "alternatives"):
        section_ = page.locator(f"section[aria-labelledby={name}-heading]")
        assert section_.locator("table tbody tr").count() >= 2


def test_landmarks_headings_and_a_way_past_the_header(page: Page, run: Path) -> None:
    opened(page, run)
    for landmark in ("banner", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1  # type: ignore[arg-type]
    assert page.locator("h1").count() == 1
    assert page.get_by_role("region").count() == page.locator("h2").count() == 8
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Zoom out"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("width", [320, 390, 768])
def test_no_screen_is_too_narrow(page: Page, run: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    opened(page, run)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#timeline canvas").first.evaluate(COLOURS)[FORWARD] > 100


def test_two_fingers_zoom(page: Page, run: Path) -> None:
    opened(page, run)
    x, y = middle_of(page, 1, "1B1")
    page.evaluate(
        """([x, y]) => {
            const canvas = Gantt.of(document.getElementById("timeline")).panes[1].canvas;
            canvas.setPointerCapture = () => {};  // there is no real finger to capture
            const touch = (type, pointerId, clientX) => canvas.dispatchEvent(
                new PointerEvent(type, {pointerId, clientX, clientY: y, pointerType: "touch", bubbles: true}));
            touch("pointerdown", 1, x - 40);
            touch("pointerdown", 2, x + 40);
            touch("pointermove", 1, x - 80);
            touch("pointermove", 2, x + 80);
            touch("pointerup", 1, x - 80);
            touch("pointerup", 2, x + 80);
        }""",
        [x, y],
    )
    start, to, end = page.evaluate(VIEW)
    assert to - start == pytest.approx(end / 2, rel=0.05)


def brightness(page: Page, element: str, what: str) -> float:
    found = page.locator(element).first.evaluate(f"e => getComputedStyle(e).{what}")
    return sum(map(float, found.removeprefix("rgb(").removesuffix(")").split(",")[:3])) / 765


def test_dark_where_the_reader_wants_it(page: Page, run: Path) -> None:
    opened(page, run)
    light = page.locator("#timeline canvas").first.evaluate(COLOURS)
    assert brightness(page, "body", "backgroundColor") == 1
    page.emulate_media(color_scheme="dark")
    page.evaluate(DRAWN)
    dark = page.locator("#timeline canvas").first.evaluate(COLOURS)
    assert brightness(page, "body", "backgroundColor") < 0.15
    assert brightness(page, "body", "color") > 0.8
    assert max(light, key=light.__getitem__) != max(dark, key=dark.__getitem__)  # the rows behind the actions


def test_paper_gets_light_and_sharp_charts_without_buttons(page: Page, run: Path) -> None:
    page.emulate_media(color_scheme="dark")
    opened(page, run)
    chart = page.locator("#timeline canvas").first
    before = chart.evaluate("c => c.width / c.clientWidth")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate(DRAWN)
    assert brightness(page, "body", "backgroundColor") == 1
    assert chart.evaluate("c => c.width / c.clientWidth") == pytest.approx(3 * before, rel=0.01)
    assert page.locator(".toolbar").is_hidden()
    assert page.locator("#timeline table").count() == 0 or page.locator("#timeline table").first.is_hidden()
    assert page.pdf()[:4] == b"%PDF"


def test_names_of_a_run_are_text_whatever_they_say(page: Page, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=\"document.title='broken'\"><!--"
    schedule = build("1f1b", ranks=2, micro_batches=4)
    named = leave(tmp_path / "run<b>&amp;", schedule, names=evil, config={evil: evil})
    opened(page, write_report(named, tmp_path / "report.html"))
    assert page.title() == "1f1b: 2 ranks, 4 micro-batches"
    assert page.locator("img").count() == 0
    assert evil in page.locator("section[aria-labelledby=cut-heading]").text_content()  # type: ignore[operator]
    assert page.locator(".settings").text_content().count(evil) == 2  # type: ignore[union-attr]
    assert "run<b>&amp;" in page.locator("header").text_content()  # type: ignore[operator]
    assert page.locator("#timeline canvas").first.evaluate(COLOURS)[FORWARD] > 1000


def test_the_limit_of_a_plan_is_drawn_and_its_alternatives_are_listed(page: Page, tmp_path: Path) -> None:
    costs = LayerCosts(("a", "b", "c", "d"), 4, *[(1.0,) * 4] * 3, *[(2.0**20,) * 4] * 6)  # type: ignore[arg-type]
    plan = make_plan(Request([costs], batch=16, ranks=2, memory=2.0**26, micro_batches=[4]))
    opened(page, report(tmp_path, plan=plan))
    assert page.locator("#memory tbody tr").first.text_content().endswith("%")  # type: ignore[union-attr]
    assert page.locator("#memory canvas").evaluate(COLOURS).get("#c43e00", 0) > 100
    assert "of 64 MiB" in page.locator(".facts").text_content()  # type: ignore[operator]
    chosen = page.get_by_role("table", name="What the plan chose over").locator("tbody tr")
    assert chosen.count() == 1 + len(plan.alternatives)
    assert plan.alternatives[0].reason in chosen.nth(1).text_content()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches"),
    [("pipedream", 3, 5), ("dualpipe", 2, 4), ("1f1b", 1, 1), ("zb-h2", 3, 6), ("seq1f1b", 2, 2), ("zb-v", 2, 4)],
)
def test_every_kind_of_run_is_shown(page: Page, tmp_path: Path, name: str, ranks: int, micro_batches: int) -> None:
    opened(page, report(tmp_path, name, ranks, micro_batches))
    actions = page.evaluate(
        """() => Gantt.of(document.getElementById("timeline")).panes.map(pane => {
            for (let at = 0; at < pane.chart.count; at++) pane.chart.lines(at);
            return pane.chart.count;
        })"""
    )
    schedule = build(name, ranks=ranks, micro_batches=micro_batches)
    assert actions == [schedule.actions, schedule.actions]
    assert len(page.locator("#timeline canvas").nth(1).evaluate(COLOURS)) > 4


def test_a_hundred_thousand_spans_open_and_zoom(page: Page, tmp_path: Path) -> None:
    schedule = build("zb-h1", ranks=16, micro_batches=2100)
    rng = random.Random(1)
    costs = Costs(*([rng.randint(5, 9) for _ in range(16)] for _ in range(3)))
    timeline = shaken(simulate(schedule, costs))
    assert schedule.actions > 100_000
    data = {"charts": [gantt_chart("measured", timeline, schedule, waits(timeline, schedule, 1e-3))]}
    draw = "Gantt.draw(document.getElementById('timeline'), JSON.parse(document.getElementById('data').textContent))"
    file = tmp_path / "large.html"
    file.write_text(html_page("large", "", [section("timeline", "Timeline")], data, [draw]), encoding="utf-8")
    opened(page, file)
    canvas = page.locator("#timeline canvas")
    whole = canvas.evaluate(COLOURS)
    assert min(whole["#56b4e9"], whole["#2fb98f"], whole["#d98bb5"]) > 10_000  # all kinds, as far as each has time
    canvas.focus()
    for _ in range(10):
        page.keyboard.press("+")
    page.evaluate(DRAWN)
    page.keyboard.press("ArrowRight")
    start, to, _ = page.evaluate(VIEW)
    chosen = page.evaluate("Gantt.of(document.getElementById('timeline')).panes[0].at")
    span = timeline.spans[chosen]
    assert start <= span.end
    assert span.start <= to
    page.locator("summary").click()
    page.locator("#timeline tbody tr").first.wait_for()
    assert 10 < page.locator("#timeline tbody tr").count() <= 400


def test_drawing_again_keeps_the_elements_and_the_view(page: Page, run: Path) -> None:
    opened(page, run)
    page.evaluate(
        """() => {
            const place = document.getElementById("timeline");
            const data = JSON.parse(document.getElementById("data").textContent).timeline;
            Gantt.of(place).view.show(0.01, 0.02);
            place.querySelector("canvas").id = "same";
            for (const chart of data.charts) chart.title = "again";
            Gantt.draw(place, {charts: data.charts.slice(0, 1)});
        }"""
    )
    assert page.locator("#timeline canvas").count() == page.locator("#same").count() == 1
    assert page.locator("#timeline figcaption").text_content().startswith("again: ")  # type: ignore[union-attr]
    assert page.evaluate(VIEW)[:2] == pytest.approx([0.01, 0.02])
