"""Docstrings as this project writes them, for autodoc, which takes them for reStructuredText.

* Drawings and examples stand indented, and short tables in columns, without a `::` before: Sphinx would run their lines
  together.
* "ranks: p." is a short description, but `p.` alone on its line would be item p of a list.
"""

import re
from typing import Any, Final

from sphinx.application import Sphinx

_ITEM: Final = re.compile(r"^(\s*:[^:]*: )(?=\w+\.)")
_COLUMNS: Final = re.compile(r"\S {3,}\S")


def _as_sphinx_reads_them(*event: Any) -> None:
    lines: list[str] = event[-1]
    written: list[str] = []
    in_field = False
    in_block = False
    for before, line in zip(["", *lines], lines, strict=False):
        indented = line.startswith("    ")
        if line.strip() and not before.strip():  # a paragraph begins
            in_field = line.startswith((":", ".. ")) or (in_field and indented)
            was_in_block, in_block = in_block, not in_field and (indented or bool(_COLUMNS.search(line)))
            if in_block and not was_in_block:
                written += ["::", ""]
        written.append(f"    {line}" if in_block else _ITEM.sub(r"\1\\", line))
    lines[:] = written


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _as_sphinx_reads_them)
    return {"parallel_read_safe": True}
