"""Check your exercises: `python -m course.check 3` for one, `python -m course.check` for an overview.

--solution   check our solution instead of your file
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
LIMIT = 30  # seconds a test; so an endless loop fails its test, and the others still run
PASSED, FAILED, TO_DO = "✓", "✗", "○"
_USAGE = "usage: python -m course.check [1 … 10] [--solution]"


class Result(NamedTuple):
    """What became of one test."""

    mark: str
    title: str
    why: str = ""
    printed: str = ""


class Collector:
    """A pytest plugin that keeps results instead of printing them."""

    def __init__(self) -> None:
        self.results: list[Result] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        report = yield
        title = (item.function.__doc__ or item.name).splitlines()[0]
        if hasattr(item, "callspec"):
            title += f" ({', '.join(f'{key}={value}' for key, value in item.callspec.params.items())})"
        if call.excinfo is not None:
            error = call.excinfo.value
            if isinstance(error, NotImplementedError) and str(error).startswith("TODO "):
                self.results.append(Result(TO_DO, title, str(error)))
            else:
                self.results.append(Result(FAILED, title, _explain(call.excinfo), report.capstdout))
        elif call.when == "call":
            self.results.append(Result(PASSED, title, printed=report.capstdout))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Any:
        if not hasattr(signal, "SIGALRM"):
            return (yield)
        before = signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(LIMIT)
        try:
            return (yield)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            error = [line[2:] for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            self.results.append(Result(FAILED, "The file can be imported", "\n".join(error)))


def _too_long(*_: object) -> None:
    raise TimeoutError(f"this takes more than {LIMIT} seconds: is there a loop that never ends?")


def _explain(excinfo: Any) -> str:
    """The error, and the lines of the course that led to it."""
    lines = []
    for entry in excinfo.traceback:
        path = Path(str(entry.path))
        if path.is_relative_to(HERE) and path.name != "check.py":
            source = str(entry.statement).strip().splitlines()[0]
            lines.append(f"{path.relative_to(HERE.parent)}:{entry.lineno + 1}  {source}")
    error = [line for line in excinfo.exconly().splitlines() if line.strip() and "Use -v" not in line]
    return "\n".join([*dict.fromkeys(lines), *error[:8]])


def check(number: int, folder: str) -> list[Result]:
    """The results of the tests of one exercise, with the files in `folder`."""
    os.environ["COURSE"] = folder
    (tests,) = (HERE / "tests").glob(f"test_ex{number:02d}_*.py")
    collector = Collector()
    options = ["-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "timeout=0"]
    code = pytest.main([*options, f"--rootdir={HERE.parent}", str(tests)], plugins=[collector])
    if code == pytest.ExitCode.INTERRUPTED and not collector.results:
        raise KeyboardInterrupt
    if not collector.results:
        raise RuntimeError(f"pytest ran no test of exercise {number}: {code!r}")
    return collector.results


def heading(number: int) -> str:
    """What an exercise is called: the first line of its file, "Exercise 3: …"."""
    (solution,) = (HERE / "solutions").glob(f"ex{number:02d}_*.py")
    return solution.read_text(encoding="utf-8").splitlines()[0].strip('".')


def show(number: int, folder: str) -> bool:
    """Print the results of one exercise; whether all tests pass."""
    (tests,) = (HERE / "tests").glob(f"test_ex{number:02d}_*.py")
    print(f"{heading(number)}\ncourse/{folder}/{tests.name.removeprefix('test_')}\n")
    results = check(number, folder)
    for result in results:
        waits = f"   ({result.why.partition(':')[0]})" if result.mark == TO_DO else ""
        print(f"  {result.mark} {result.title}{waits}")
        if result.mark == FAILED:
            print(_indented(result.why))
        if result.printed:
            print(_indented("it printed:\n" + result.printed.rstrip()))
    passed = sum(result.mark == PASSED for result in results)
    print(f"\n{passed} of {len(results)} tests pass.")
    to_do = sorted((result.why for result in results if result.mark == TO_DO), key=_number)
    if to_do:
        print(f"Next is {to_do[0]}")
    elif passed == len(results):
        print("Well done." if number == 10 else f"Well done. Next: python -m course.check {number + 1}")
    return passed == len(results)


def overview(folder: str) -> bool:
    """Print one line per exercise; whether all tests pass."""
    done = True
    for number in range(1, 11):
        marks = "".join(result.mark for result in check(number, folder))
        done &= set(marks) == {PASSED}
        print(f"{marks:10}  {heading(number)}", flush=True)
    print(f"\n{PASSED} passes   {FAILED} fails   {TO_DO} waits for a TODO")
    return done


def _number(todo: str) -> tuple[int, ...]:
    return tuple(int(part) for part in todo.removeprefix("TODO ").partition(":")[0].split("."))


def _indented(text: str) -> str:
    return "\n".join(f"      {line}" for line in text.splitlines())


def main(arguments: list[str]) -> int:
    """0 if all tests pass, 1 if not, 2 if the arguments make no sense."""
    folder = "solutions" if "--solution" in arguments else "exercises"
    rest = [argument for argument in arguments if argument != "--solution"]
    if not rest:
        return 0 if overview(folder) else 1
    if len(rest) > 1 or not rest[0].isdecimal() or not 1 <= int(rest[0]) <= 10:
        print(_USAGE)
        return 2
    return 0 if show(int(rest[0]), folder) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
