"""The page of `headrace play`: the report's shell and charts, a form, the packed catalogue, and the rules of the game.

    controls ──▶ settings.js ──▶ model.js ──▶ rows.js, simulate.js, bytes.js ──▶ play.js ──▶ Gantt, memory, breakdown
    (form.js)        │                            │ what cannot run: check.js         └────▶ words.js
       ▲             │                            │
    #address ◀───────┘                            └ orders: looked up in what Python has made (see orders.py)

Whatever moves, all of it runs again: the largest setting takes some hundredths of a second.
"""

import json
import zlib
from base64 import b64encode
from importlib.resources import files
from typing import Final

from headrace.report.page.page import page, section
from headrace.report.play.controls import form
from headrace.report.play.orders import catalogue

RULES: Final = ("rows.js", "simulate.js", "versions.js", "check.js", "bytes.js")
"""What Python knows as well, in the browser's language; the tests hold one against the other."""

_SCRIPTS: Final = (*RULES, "settings.js", "model.js", "words.js", "form.js", "play.js")
_TITLE: Final = "Headrace play"


def play_page() -> str:
    """One HTML file that works without a network."""
    entries = catalogue()
    squeezed = zlib.compress(json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode(), 9)
    bench = (
        asset("facts.html"),
        '<div class="bench">',
        form([entry["name"] for entry in entries]),
        "<div>",
        asset("refused.html"),
        '<div id="shown">',
        '<p id="words" class="lead"></p>',
        section("gantt", "What each rank does when", asset("gantt_note.html")),
        section("memory", "Memory over time", '<p class="note" id="memory-note"></p>'),
        section("breakdown", "Where each rank’s time goes", asset("breakdown_note.html")),
        "</div></div></div>",
        asset("words.html"),
    )
    return page(
        _TITLE,
        '<p class="lead">Move a slider and see what a pipeline of ranks does with its time and its memory.</p>',
        bench,
        b64encode(squeezed).decode(),
        [asset(name) for name in _SCRIPTS],
        footer="<p>Simulated in this page, by the rules of <code>headrace simulate</code>; nothing leaves it.</p>",
        style=asset("play.css"),
    )


def asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")
