"""Small pieces of HTML. Every text that comes in is escaped here, and nowhere else."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


class Fact(NamedTuple):
    """A figure that matters: its name, its value, and something to compare it with."""

    name: str
    value: str
    beside: str = ""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is a class of style.css, such as "note"."""
    return f'<p class="{escape(kind)}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def facts(found: Iterable[Fact]) -> str:
    """Figures side by side."""
    cards = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(beside)}</small></dd></div>"
        for name, value, beside in found
    )
    return f'<dl class="facts">{"".join(cards)}</dl>'


def settings(found: Iterable[tuple[str, str]]) -> str:
    """Names and values, in as many columns as there is room for."""
    pairs = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in found)
    return f'<dl class="settings">{"".join(pairs)}</dl>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "", words: Sequence[int] = ()) -> str:
    """A table that scrolls by itself where it is too wide; the first column names its rows.

    Args:
        head, rows: texts.
        caption: what it is about.
        words: numbers of the columns that hold sentences, which are left-aligned and wrapped.
    """
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = "".join(f'<th scope="col"{_kind(i, words)}>{escape(name)}</th>' for i, name in enumerate(head))
    body = "".join(f"<tr>{''.join(_cell(i, str(text), words) for i, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table>{named}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(column: int, text: str, words: Sequence[int]) -> str:
    kind = _kind(column, words)
    return f"<td{kind}>{escape(text)}</td>" if column else f'<th scope="row"{kind}>{escape(text)}</th>'


def _kind(column: int, words: Sequence[int]) -> str:
    return ' class="words"' if column in words else ""
