"""Docstrings as this project writes them, for autodoc, which takes them for reStructuredText.

* Drawings and examples stand indented, without a `::` before: Sphinx would take such a block for a quotation and run
  its lines together.
* "ranks: p." is a short description, but `p.` alone on its line would be item p of a list.
"""

import re
from typing import Any, Final

from sphinx.application import Sphinx

_LOOKS_LIKE_AN_ITEM: Final = re.compile(r"^(\s*:[^:]*: )(?=\w+\.)")


def _as_sphinx_reads_them(app: Sphinx, what: str, name: str, object_: Any, options: Any, lines: list[str]) -> None:
    written: list[str] = []
    in_block = in_field = False
    for line in lines:
        indented = line.startswith("    ")
        in_field = line.startswith((":", ".. ")) or (in_field and (indented or not line.strip()))
        if line.strip() and not indented:
            in_block = False
        elif indented and not in_block and not in_field and written and not written[-1].strip():
            written += ["::", ""]
            in_block = True
        written.append(_LOOKS_LIKE_AN_ITEM.sub(r"\1\\", line))
    lines[:] = written


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _as_sphinx_reads_them)
    return {"parallel_read_safe": True}
