"""`headrace simulate --search`."""

import json
import sys

import pytest
from typer.testing import CliRunner

from headrace.cli.exits import Exit
from headrace.cli.main import app

UNEVEN = ("--forward", "2,4,4,2", "--backward-input", "4,5,2,2", "--backward-weight", "2,2,3,1", "--transfer", "1")


def run(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_it_prints_the_schedule_that_it_found_and_how_good_it_is():
    result = run("--search", "--time-limit", "0.2", "--in-flight", "4", "--width", "80", *UNEVEN)
    assert result.exit_code == Exit.DONE, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "searched: 4 ranks, 8 micro-batches, 96 actions"
    assert lines[2].startswith("rank 0  F")  # how wide a column is depends on what was found in time
    assert "lower bound 93 s, gap " in result.stdout
    assert "found in " in result.stdout


def test_an_optimum_is_called_one():
    result = run("--search", "--exact", "--micro-batches", "4", "--ranks", "3", "--width", "60")
    assert result.exit_code == Exit.DONE, result.stderr
    assert "gap none: this is the optimum" in result.stdout


def test_json_has_bound_and_gap_only_if_something_was_searched_for():
    found = json.loads(
        run("--search", "--json", "--time-limit", "0.2", "--schedule", "zb-v", "--in-flight", "6").stdout
    )
    assert found["schedule"] == "searched"
    assert max(found["peak_in_flight"]) <= 6
    assert found["search"]["lower_bound"] <= found["makespan"]
    assert set(found["search"]) == {"lower_bound", "gap", "proven", "seconds", "how"}
    assert "search" not in json.loads(run("--json").stdout)


def test_text_can_be_read_back():
    text = run("--search", "--time-limit", "0.1", "--text", "--ranks", "2", "--micro-batches", "3").stdout
    assert CliRunner().invoke(app, ["schedules", "check", "-"], input=text).exit_code == Exit.DONE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--exact"], "--time-limit, --exact and --in-flight are options of --search"),
        (["--time-limit", "3"], "options of --search"),
        (["--in-flight", "3"], "options of --search"),
        (["--search", "--in-flight", "x"], "--in-flight x: write one whole number, or one per rank"),
        (["--search", "--in-flight", "4,4"], "has 2 limits, but there are 4 ranks"),
        (["--search", "--in-flight", "0"], "the least limit is 1"),
        (["--search", "--recompute", "always"], "--search recomputes nothing"),
        (["--search", "--schedule", "seq1f1b"], "--search cannot better seq1f1b"),
        (["--search", "--schedule", "pipedream"], "--search cannot better pipedream"),
        (["--search", "--schedule", "chimera"], "placement has several lanes"),
        (["--search", "--time-limit", "0"], "time_limit=0.0 must be more than 0"),
    ],
)
def test_usage(arguments, words):
    result = run(*arguments)
    assert result.exit_code == Exit.USAGE
    assert words in result.stderr


def test_exact_without_or_tools(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    result = run("--search", "--exact")
    assert result.exit_code == Exit.USAGE
    assert "pip install headrace[search]" in result.stderr
