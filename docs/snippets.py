"""What the pages show is what happens: their blocks, read as a reader would type them, and run.

A page is a session in a folder of its own. In the order of the page,

* a ```python block runs, all of a page in one namespace; a ```text block right below it is what it prints;
* a ```console block has commands (`$ headrace …`, `$ python …`, `$ torchrun …`), each followed by what it prints;
* a comment before a block says what is different about it:

    <!-- file: NAME -->       it is not run but written to this file
    <!-- measured -->         it is run, but its numbers differ from run to run: only lines without digits must be there
    <!-- slow -->             it is run only with the slow tests
    <!-- exit code N -->      its commands end with this code rather than with 0
    <!-- not run: WHY -->     not at all
"""

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parent
GENERATED: Final = ("schedules.md", "planning.md")  # have scripts and tests of their own
_RUN: Final = ("python", "console", "text")
_WIDTH: Final = 96
_FENCE: Final = re.compile(r"(?P<marks>(?:^<!--[^\n]*-->\n)*)^```(?P<language>[a-z]+)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: behind the fence.
        text: between the fences.
        line: of the opening fence, from 1.
        marks: the comments before it.
        start, end: where `text` is in the page.
        follows: whether only blank lines are between it and the block before.
    """

    language: str
    text: str
    line: int
    marks: tuple[str, ...]
    start: int
    end: int
    follows: bool

    def mark(self, name: str) -> str | None:
        """What follows `name` in a mark; None if there is no such mark."""
        return next((mark[len(name) :].lstrip(": ") for mark in self.marks if mark.startswith(name)), None)


@dataclass(frozen=True)
class Output:
    """What a block shows, and what came.

    Attributes:
        line: where it stands.
        shown: in the page.
        printed: when it was run.
        measured: whether numbers may differ.
        start, end: where `shown` is in the page.
    """

    line: int
    shown: str
    printed: str
    measured: bool
    start: int
    end: int

    @property
    def as_shown(self) -> bool:
        """Whether the page tells the truth."""
        if not self.measured:
            return self.shown == self.printed
        printed = {_spaced(line) for line in self.printed.splitlines()}
        return all(_spaced(line) in printed for line in self.shown.splitlines() if not re.search(r"\d|…", line))


def pages() -> list[Path]:
    """All that are written by hand."""
    return sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts and p.name not in GENERATED)


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, but for Sphinx's directives."""
    found: list[Block] = []
    for match in _FENCE.finditer(text):
        marks = tuple(line.removeprefix("<!--").removesuffix("-->").strip() for line in match["marks"].splitlines())
        between = text[_after_fence(found[-1]) : match.start()] if found else "…"
        start, end = match.span("text")
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(match["language"], match["text"], line, marks, start, end, not between.strip()))
    return found


def run(page: str, *, slow: bool = False) -> list[Output]:
    """Do what `page` says, in a folder of its own, of which nothing is left in this process afterwards.

    Args:
        page: its text.
        slow: whether slow blocks are run too.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        before, path = set(sys.modules), list(sys.path)
        sys.path.insert(0, folder)
        try:
            return list(_outputs(page, slow=slow))
        finally:
            sys.path[:] = path
            for module in set(sys.modules) - before:
                if str(getattr(sys.modules[module], "__file__", "")).startswith(folder):
                    del sys.modules[module]


def _outputs(page: str, *, slow: bool) -> Iterator[Output]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None  # by the Python right above
    for block in blocks(page):
        name = block.mark("file")
        if name is not None:
            Path(name).write_text(block.text, encoding="utf-8")
            printed = None
        elif block.language not in _RUN or block.mark("not run") is not None or (block.mark("slow") == "" and not slow):
            printed = None
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, f"line {block.line} of the page", "exec"), namespace)
            printed = _tidy(out.getvalue())
        elif block.language == "text" and block.follows and printed is not None:
            measured = block.mark("measured") is not None
            yield Output(block.line, block.text, printed, measured, block.start, block.end)
        elif block.language == "console":
            yield from _console(block)
            printed = None


def _console(block: Block) -> Iterator[Output]:
    parts = re.split(r"^\$ (.*(?:\\\n.*)*)\n", block.text, flags=re.M)
    if parts[0].strip():
        raise ValueError(f"line {block.line}: a console block begins with a command")
    at = block.start + len(parts[0])
    for command, shown in zip(parts[1::2], parts[2::2], strict=True):
        at += len(command) + 3
        code, text = _executed(shlex.split(command.replace("\\\n", " ")))
        if code != int(block.mark("exit code") or 0):
            raise RuntimeError(f"line {block.line}: {command} ended with {code}:\n{text}")
        printed = _tidy(text)
        # a blank line between the output of one command and the next command is the page's
        body = shown.rstrip("\n") + "\n" if shown.strip() else ""
        yield Output(block.line, body, printed, block.mark("measured") is not None, at, at + len(body))
        at += len(shown)


def _executed(command: list[str]) -> tuple[int, str]:
    """The exit code of a command, and what it prints; those of headrace and python scripts run in this process."""
    program, *arguments = command
    if program == "headrace":
        from typer.testing import CliRunner

        from headrace.cli.main import app

        result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(_WIDTH)}, prog_name="headrace")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output
    if program == "python" and arguments[0].endswith(".py"):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(arguments[0], run_name="__main__")
        return 0, out.getvalue()
    if program == "torchrun":
        run_module = [sys.executable, "-m", "torch.distributed.run", *arguments]
        done = subprocess.run(run_module, capture_output=True, text=True, check=False, timeout=110)
        return done.returncode, done.stdout + (done.stderr if done.returncode else "")
    raise ValueError(f"{shlex.join(command)}: only headrace, python SCRIPT and torchrun are run; mark it `not run`")


def _tidy(text: str) -> str:
    """As a page shows it: where Python lives is nobody's business."""
    lines = [line.rstrip() for line in text.replace(sys.base_prefix, "…").strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


def _spaced(line: str) -> str:
    return " ".join(line.replace("─", "").split())


def _after_fence(block: Block) -> int:
    return block.end + len("```\n")
