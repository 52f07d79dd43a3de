"""One HTML file that needs nothing else: style and scripts are inlined, data stands in it as JSON.

    <head>  policy: no network, only these scripts │ style.css
    <body>  skip link │ header: title, lead │ main: the sections │ footer
            <script type="application/json">data</script>  scripts of `assets/`, in order

What comes from a run is text: it is escaped in the sections, and in the JSON no `<` is left, so that nothing in it
can end the script. The policy names each script by its hash, so a browser runs nothing else even if something slips.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, Final

COMPONENTS: Final = (
    "units.js",
    "tables.js",
    "kinds.js",
    "picture.js",
    "view.js",
    "gantt_paint.js",
    "gantt_input.js",
    "gantt.js",
    "memory.js",
    "breakdown.js",
    "curve.js",
)
"""Scripts that draw; each defines one global and says in its first comment how it is called."""

DATA: Final = "data"
"""The id of the element with the JSON."""


def page(
    title: str,
    lead: str,
    sections: Iterable[str],
    data: Any,
    scripts: Sequence[str],
    footer: str = "",
    style: str = "",
) -> str:
    """The text of the page.

    Args:
        title: plain text.
        lead: what stands under the title, as HTML.
        sections: HTML, see `section`.
        data: plain data for the scripts: `JSON.parse(document.getElementById("data").textContent)`.
        scripts: what runs after COMPONENTS, as JavaScript text, see `asset`.
        footer: HTML.
        style: CSS behind that of all pages.
    """
    code = [*map(asset, COMPONENTS), *scripts]
    allowed = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in code)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        '<link rel="icon" href="data:,">',  # so that no browser asks a server for one
        f"<style>{asset('style.css')}{style}</style>",
        "</head>",
        "<body>",
        '<a class="skip" href="#main">Skip to the charts</a>',
        f"<header><h1>{escape(title)}</h1>{lead}</header>",
        f'<main id="main" tabindex="-1">{"".join(sections)}</main>',
        f"<footer><noscript><p>The charts need JavaScript; the tables do not.</p></noscript>{footer}</footer>",
        f'<script type="application/json" id="{DATA}">{as_json(data)}</script>',
        *(f"<script>{text}</script>" for text in code),
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(parts)


def section(name: str, heading: str, *content: str) -> str:
    """One section of a page: a heading and HTML.

    Args:
        name: letters and dashes; the element `name` is for scripts to draw in, the heading is `name-heading`.
        heading: plain text.
        content: HTML that stands between the heading and that element.
    """
    return (
        f'<section aria-labelledby="{name}-heading"><h2 id="{name}-heading">{escape(heading)}</h2>'
        f'{"".join(content)}<div id="{name}"></div></section>'
    )


def asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def as_json(data: Any) -> str:
    """JSON that is safe within a script element: `<` is written as an escape, and so is what ends a line in scripts."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
