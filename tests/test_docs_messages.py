"""Every message that docs/troubleshooting.md quotes is one that the code can print."""

import ast
import re
from functools import cache

import pytest
from test_docs import DOCS

SOURCE = DOCS.parent / "src"
FENCE = re.compile(r"^```text\n(.*?)^```$", re.M | re.S)
QUOTED = [
    line for block in FENCE.findall((DOCS / "troubleshooting.md").read_text("utf-8")) for line in block.splitlines()
]


@cache
def written() -> tuple[str, ...]:
    """All strings of the source, with … where a value is put in."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
    return tuple(found)


def occurs(quoted: str) -> bool:
    """Whether one string of the source has all that is quoted, in order, with anything for each …"""
    pattern = re.compile(".*".join(map(re.escape, quoted.split("…"))), re.S)
    return any(map(pattern.search, written()))


def test_messages_are_quoted() -> None:
    assert len(QUOTED) > 50
    assert not occurs("model is a …, but a pipeline cuts a ring of layers")
    assert not occurs("pipeline cuts a chain … model is a")


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_message_is_one_of_the_code(quoted: str) -> None:
    assert occurs(quoted)
