"""The course holds: solutions pass, exercises fail at their TODOs only, and its READMEs show what happens.

All of it runs in a copy with fresh exercises, so whoever solves them in this checkout sees one test fail: the first.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
COURSE = ROOT / "course"
README, CHINESE = [(COURSE / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the course in it, unsolved."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(COURSE, folder / "course", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    run("python -m course.unsolved all", folder)
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a README, such as `COURSE=exercises pytest course`."""
    words = command.split()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    environment.pop("COURSE", None)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if words[0] == "python":
        words.pop(0)
    else:
        words.insert(0, "-m")
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )


def blocks(text: str, language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for of, block in found if of == language]


def commands(text: str) -> list[str]:
    return [line.partition("#")[0].strip() for block in blocks(text, "sh") for line in block.splitlines()]


def test_exercises_are_solutions_without_their_lines(copy: Path) -> None:
    names = [path.name for path in sorted((COURSE / "solutions").glob("*.py"))]
    assert len(names) == 11
    for name in names:
        repair = "run `python -m course.unsolved all`, which deletes what you have solved"
        fresh = (copy / "course/exercises" / name).read_text(encoding="utf-8")
        assert (COURSE / "exercises" / name).read_text(encoding="utf-8") == fresh, repair


def test_solutions_pass(copy: Path) -> None:
    done = run("pytest course", copy)
    assert done.returncode == 0, done.stdout
    assert "tested the files in course/solutions" in done.stdout


@pytest.mark.parametrize("parts", ["exercises", pytest.param("solutions", marks=pytest.mark.slow)])
def test_exercises_fail_at_their_todos(copy: Path, tmp_path: Path, parts: str) -> None:
    """As they are, and with the parts that they import from earlier exercises solved: then each at its own TODOs."""
    shutil.copytree(copy, tmp_path / "it")
    files = sorted((tmp_path / "it/course/exercises").glob("ex*.py"))
    for path in files:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("\nfrom .ex", f"\nfrom course.{parts}.ex"), encoding="utf-8")
    assert run("COURSE=exercises pytest course --junitxml=report.xml", tmp_path / "it").returncode == 1
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    todos = set(re.findall(r"NotImplementedError\(\s*[\"'](TODO \d+\.\d+: .*)[\"']", text))
    assert len(todos) == text.count("NotImplementedError")
    cases = ElementTree.parse(tmp_path / "it/report.xml").getroot().findall(".//testcase")
    assert len(cases) > 60
    for case in cases:
        (outcome,) = [child for child in case if child.tag in ("failure", "error", "skipped")]
        kind, _, sentence = outcome.get("message", "").partition(": ")
        assert (outcome.tag, kind) == ("failure", "NotImplementedError"), case.get("name")
        assert sentence in todos, case.get("name")
        if parts == "solutions":
            (number,) = re.findall(r"test_ex(\d+)", case.get("classname", ""))
            assert sentence.startswith(f"TODO {int(number)}."), case.get("name")


@pytest.mark.slow
def test_exercises_are_solved_one_by_one(copy: Path, tmp_path: Path) -> None:
    """With the first five solved their tests pass: they need no later one."""
    shutil.copytree(copy, tmp_path / "some")
    for path in sorted((COURSE / "solutions").glob("ex0[1-5]*.py")):
        shutil.copy(path, tmp_path / "some/course/exercises")
    shown = run("python -m course.check", tmp_path / "some")
    assert shown.returncode == 1
    lines = shown.stdout.splitlines()
    assert lines[0] == "✓✓✓✓✓✓✓     Exercise 1: cut a batch into micro-batches"
    assert ["○" in line for line in lines[:10]] == [False] * 5 + [True] * 5
    assert not any("✗" in line for line in lines[:10])


def test_commands_do_what_the_readme_says(copy: Path) -> None:
    assert commands(README) == commands(CHINESE)
    assert blocks(README) == blocks(CHINESE)
    first, numbers = blocks(README)
    check, overview, solution, exercises, solutions, unsolved, not_equivalent = commands(README)
    assert run(check, copy).stdout == first
    assert run(solution, copy).returncode == 0
    assert run(unsolved, copy).returncode == 0
    assert run(not_equivalent, copy).stdout == numbers
    elsewhere = ["python -m course.check", "COURSE=exercises pytest course", "pytest course"]
    assert [overview, exercises, solutions] == elsewhere  # the tests above run these


@pytest.mark.slow
def test_check_says_what_is_wrong(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "wrong")
    path = tmp_path / "wrong/course/exercises/ex01_micro_batches.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace("    raise", '    print("here I am")\n    return [rows // m] * m\n    raise', 1), "utf-8"
    )
    shown = run("python -m course.check 1", tmp_path / "wrong")
    assert shown.returncode == 1
    assert "  ✗ Sizes differ by at most one row, the larger ones first\n" in shown.stdout
    assert "AssertionError: assert [2, 2, 2, 2] == [3, 3, 2, 2]" in shown.stdout
    assert "here I am" in shown.stdout
    assert "Next is TODO 1.2" in shown.stdout
    path.write_text(text + "\ndef f(:\n", "utf-8")
    shown = run("python -m course.check 1", tmp_path / "wrong")
    assert "SyntaxError: invalid syntax" in shown.stdout
    assert run("python -m course.check eleven", copy).returncode == 2


@pytest.mark.parametrize("name", ["README.md", "README.zh.md", "theory.zh.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = (COURSE / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (COURSE / target).exists(), target


def test_theory_is_complete_in_chinese() -> None:
    """Ten sections, with the pictures of the exercises."""
    theory = (COURSE / "theory.zh.md").read_text(encoding="utf-8")
    assert [int(n) for n in re.findall(r"^## (\d+) ", theory, re.MULTILINE)] == list(range(1, 11))
    assert len(blocks(theory)) >= 10
