"""The commands that need no torch: what they print, and how they end."""

import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from headrace.cli.exits import Exit
from headrace.cli.main import app
from headrace.schedule import CATALOGUE, build, parse


def run(*arguments, stdin=None):
    return CliRunner().invoke(app, list(arguments), input=stdin)


def simulate_json(*arguments, stdin=None):
    result = run("simulate", "--json", *arguments, stdin=stdin)
    assert result.exit_code == Exit.DONE, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_exit_codes_are_what_scripts_rely_on():
    assert {code.name: code.value for code in Exit} == {
        "DONE": 0,
        "CHECK_FAILED": 1,
        "USAGE": 2,
        "NO_PLAN": 3,
        "WORKER_FAILED": 4,
    }


def test_simulate_prints_chart_and_closed_form():
    result = run("simulate", "--ranks", "3", "--micro-batches", "4", "--width", "64")
    assert result.exit_code == Exit.DONE
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "1f1b: 3 ranks, 4 micro-batches, 24 actions"
    assert lines[2] == "rank 0  F0 F1 F2 ············[B0  ]F3 [B1  ]···[B2  ]···[B3  ]"
    for words in (
        "makespan 18 s 18 s (m+p−1)(F+B)",
        "bubble fraction 33.3 % 33.3 % (p−1)/(m+p−1)",
        "peak in flight 3, 2, 1 3, 2, 1 min(p−r, m)",
        "0 12 s 6 s 33.3 % 3",
    ):
        assert words in re.sub(" +", " ", result.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--recompute", "always"],
        ["--transfer", "0.1"],
        ["--forward", "1,2,1,1"],
        ["--backward", "2,2,2,3"],
        ["--forward", "0", "--backward", "0"],
    ],
)
def test_no_closed_form_where_it_does_not_apply(arguments):
    assert simulate_json(*arguments)["closed_form"] is None
    assert "closed form" not in run("simulate", *arguments).stdout


def test_json_is_the_whole_result():
    found = simulate_json("--schedule", "gpipe", "--ranks", "2", "--micro-batches", "2", "--backward", "3")
    assert found == {
        "schedule": "gpipe",
        "ranks": 2,
        "micro_batches": 2,
        "makespan": 12,
        "bubble_fraction": pytest.approx(1 / 3),
        "peak_in_flight": [2, 2],
        "busy": [8, 8],
        "closed_form": {
            "makespan": 12,
            "bubble_fraction": pytest.approx(1 / 3),
            "peak_in_flight": [2, 2],
            "formulas": ["(m+p−1)(F+B)", "(p−1)/(m+p−1)", "m"],
        },
        "spans": [
            {"rank": rank, "action": action, "start": start, "end": end}
            for rank, action, start, end in [
                (0, "0F0", 0, 1),
                (0, "0F1", 1, 2),
                (0, "0B1", 6, 9),
                (0, "0B0", 9, 12),
                (1, "1F0", 1, 2),
                (1, "1F1", 2, 3),
                (1, "1B1", 3, 6),
                (1, "1B0", 6, 9),
            ]
        ],
    }


def test_options_reach_the_simulation():
    def makespan(*arguments):
        return simulate_json("--ranks", "2", "--micro-batches", "2", *arguments)["makespan"]

    assert makespan() == 3 * (1 + 2)
    assert makespan("--forward", "0.1", "--backward", "0.2") == 0.9  # exactly: decimals are not rounded on the way
    assert makespan("--forward", "1/3", "--backward", "2/3") == 3
    assert makespan("--backward-input", "3", "--backward-weight", "4") == 3 * 8
    assert makespan("--backward-input", "3,0", "--backward-weight", "4,0") == 2 * (1 + 7)
    assert makespan("--forward", "1,5", "--backward", "2") == 1 + 2 * 7 + 2
    assert makespan("--transfer", "2") == 3 * 3 + 2 * 2 * (1 + 0)
    assert makespan("--recompute", "always") == 2 * 4 + 3
    assert makespan("--recompute", "always", "--recompute-cost", "0") == 9
    assert makespan("--schedule", "gpipe", "--recompute", "except_last", "--recompute-cost", "10") == 9 + 10
    spans = simulate_json("--schedule", "gpipe", "--option", "drain=forward", "--ranks", "1", "--micro-batches", "2")[
        "spans"
    ]
    assert [span["action"] for span in spans] == ["0F0", "0F1", "0B0", "0B1"]


def test_text_can_be_checked():
    text = run("simulate", "--text", "--ranks", "3", "--recompute", "always").stdout
    assert text == build("1f1b", ranks=3, micro_batches=8, recompute="always").to_text()
    result = run("schedules", "check", "-", stdin=text)
    assert result.exit_code == Exit.DONE
    assert result.stdout == (
        "stdin: 72 actions on 3 ranks are complete and cannot deadlock; "
        "in flight at most 3, 2, 1; queues of 3 suffice\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "0"], "ranks=0 must be at least 1"),
        (["--micro-batches", "-1"], "micro_batches=-1 must be at least 1"),
        (["--schedule", "zb"], "schedule='zb' is unknown: choose one of gpipe, 1f1b"),
        (["--recompute", "no"], "recompute='no' is unknown: choose one of never, always, except_last"),
        (["--option", "drain=forward"], "schedule '1f1b' has no option 'drain': it takes recompute"),
        (["--schedule", "gpipe", "--option", "drain=up"], "drain='up' is unknown: choose one of reverse, forward"),
        (["--forward", "fast"], "--forward fast: 'fast' is not a number; write seconds: one number, or one per stage"),
        (["--forward", "1,,2"], "--forward 1,,2: '' is not a number"),
        (["--backward", "1/0"], "--backward 1/0: '1/0' is not a number"),
        (["--forward", "nan"], "--forward nan: 'nan' is not a number"),
        (["--forward", "1e999999999"], "--forward 1e999999999: '1e999999999' is out of all range"),
        (["--backward", "1e-999999999"], "--backward 1e-999999999: '1e-999999999' is out of all range"),
        (["--forward", "9" * 101], f"--forward {'9' * 101}: '{'9' * 101}' is out of all range"),
        (["--message", "3"], "--message and --bandwidth go together"),
        (["--bandwidth", "3"], "--message and --bandwidth go together"),
        (["--transfer", "-1"], "--transfer -1: a cost cannot be negative"),
        (["--forward", "1,2"], "forward has 2 numbers, but the schedule has 4 stages"),
        (["--transfer", "1,2"], "transfer has 2 numbers, but the schedule has 3 hops"),
        (["--backward-input", "1"], "--backward-weight is missing"),
        (["--backward-weight", "1"], "--backward-input is missing"),
        (["--backward", "2", "--backward-input", "1"], "--backward is the sum of --backward-input and"),
        (["--width", "5"], "width=5 is too narrow for a chart"),
        (["--text", "--json"], "--text and --json are two forms of output: give one of them"),
    ],
)
def test_misuse_ends_with_two_and_one_line(arguments, message):
    result = run("simulate", *arguments)
    assert result.exit_code == Exit.USAGE
    assert result.stdout == ""
    assert result.stderr.startswith(f"headrace simulate: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["simulate", "--ranks", "x"], ["simulate", "--nope"], ["nope"]])
def test_what_cannot_be_parsed_ends_with_two(arguments):
    result = run(*arguments)
    assert result.exit_code == Exit.USAGE
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_the_catalogue():
    result = run("schedules")
    assert result.exit_code == Exit.DONE
    lines = [re.sub(" +", " ", line) for line in result.stdout.splitlines()]
    assert "gpipe 1 27.3 % 8 48 1 –" in lines
    assert "zb-h1 1 11.1 % 4 48 1 –" in lines
    assert "interleaved 2 15.8 % 5.5 112 1 –" in lines
    assert "dualpipe 1 7.7 % 5 48 2 even p; no running statistics" in lines
    assert "pipedream 1 27.3 % 4 48 4 optimizer=; other mathematics: delayed weights" in lines
    assert any(line.startswith("gpipe: GPipe: all forwards") for line in lines)
    assert {line.split()[0] for line in lines if line} >= set(CATALOGUE)


def test_the_catalogue_says_what_does_not_exist_for_the_numbers():
    result = run("schedules", "--ranks", "3", "--micro-batches", "6")
    assert result.exit_code == Exit.DONE
    assert "not for these numbers: ranks=3 is odd, but dualpipe pairs ranks: use 4, or dualpipe-v" in result.stdout
    entries = json.loads(run("schedules", "--ranks", "3", "--micro-batches", "6", "--json").stdout)["schedules"]
    assert [entry["name"] for entry in entries if "refused" in entry] == ["chimera", "dualpipe"]


def test_the_catalogue_as_json():
    found = json.loads(run("schedules", "--ranks", "3", "--micro-batches", "6", "--json").stdout)
    assert (found["ranks"], found["micro_batches"]) == (3, 6)
    entries = {entry.pop("name"): entry for entry in found["schedules"]}
    assert entries["1f1b"] == {
        "description": entries["1f1b"]["description"],
        "needs": "",
        "stages_per_rank": 1,
        "bubble_fraction": 0.25,
        "peak": 3,
        "peak_in_flight": [3, 2, 1],
        "messages": 24,
        "copies": 1,
    }


def test_the_catalogue_refuses_impossible_sizes():
    result = run("schedules", "--ranks", "0")
    assert (result.exit_code, result.stderr) == (Exit.USAGE, "headrace schedules: ranks=0 must be at least 1\n")


def test_check_proves(tmp_path):
    (tmp_path / "mine.csv").write_text("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n", encoding="utf-8")
    result = run("schedules", "check", str(tmp_path / "mine.csv"))
    assert (result.exit_code, result.stderr) == (Exit.DONE, "")
    assert result.stdout.startswith(
        "mine: 8 actions on 2 ranks are complete and cannot deadlock; in flight at most 2, 1"
    )


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
            Exit.CHECK_FAILED,
            "mine deadlocks: rank 0 waits at 0B0 for 1B0, which rank 1 runs only after 1F1; "
            "rank 1 waits at 1F1 for 0F1, which rank 0 runs only after 0B0",
        ),
        ("0F0", Exit.CHECK_FAILED, "0B0 (or 0I0 and 0W0) is missing: rank 0 never runs the backward"),
        ("0F0\n0B0", Exit.CHECK_FAILED, "row 2, column 1: rank 1 runs 0B0, but rank 0 already holds stage 0"),
        ("0F0,0X0", Exit.USAGE, "FILE {file}: row 1, column 2: '0X0' is not an action"),
        ("", Exit.USAGE, "FILE {file}: there is no row"),
        ("\xff", Exit.USAGE, "{file} is no text: its byte 0 is not UTF-8"),
        (None, Exit.USAGE, "FILE {file}: No such file or directory"),
    ],
)
def test_check_refutes_or_refuses(tmp_path, text, code, message):
    file = tmp_path / "mine.csv"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    result = run("schedules", "check", str(file))
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith(f"headrace schedules check: {message.format(file=file)}")
    assert result.stderr.count("\n") == 1


def test_check_reads_files_with_a_byte_order_mark(tmp_path):
    (tmp_path / "mine.csv").write_text("\ufeff0F0,0B0", encoding="utf-8")
    assert run("schedules", "check", str(tmp_path / "mine.csv")).exit_code == Exit.DONE


def in_a_process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        check=False,
        timeout=60,
        env={k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")} | environment,
    )


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["schedules"], ["schedules", "check", "-"], ["simulate"], ["simulate", "--help"]],
)
def test_no_command_here_imports_torch_or_numpy(arguments):
    program = (
        "import sys\n"
        f"sys.argv = ['headrace', *{arguments!r}]\n"
        "from headrace.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'numpy'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
        "    raise\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=b"0F0,0B0", capture_output=True, check=False, timeout=60
    )
    assert done.returncode == Exit.DONE, done.stderr.decode()


def test_as_a_program_piped_output_is_plain_and_errors_are_one_line():
    done = in_a_process("-m", "headrace", "simulate", "--ranks", "2", TERM="xterm-256color", PYTHONIOENCODING="utf-8")
    assert (done.returncode, done.stderr) == (Exit.DONE, b"")
    assert b"\x1b" not in done.stdout
    assert max(map(len, done.stdout.decode().splitlines())) <= 120
    done = in_a_process("-m", "headrace", "simulate", "--ranks", "0")
    assert (done.returncode, done.stdout) == (Exit.USAGE, b"")
    assert done.stderr.splitlines() == [b"headrace simulate: ranks=0 must be at least 1"]


def test_a_pipe_that_cannot_encode_a_character_does_not_end_the_command():
    done = in_a_process("-m", "headrace", "simulate", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (Exit.DONE, b"")
    assert b"rank 3  ?????????F0 [B0  ]" in done.stdout


def test_every_schedule_of_the_catalogue_can_be_simulated_and_printed():
    for entry in json.loads(run("schedules", "--json").stdout)["schedules"]:
        order = parse(run("simulate", "--schedule", entry["name"], "--text").stdout)
        assert order.micro_batches == 8 * order.segments


def test_a_schedule_from_a_file(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(run("simulate", "--schedule", "zb-v", "--ranks", "2", "--micro-batches", "5", "--text").stdout)
    expected = simulate_json("--schedule", "zb-v", "--ranks", "2", "--micro-batches", "5")
    found = simulate_json("--schedule-file", str(file), "--ranks", "2")
    assert (found.pop("schedule"), found.pop("closed_form")) == ("mine", None)
    assert found.items() <= expected.items()
    assert simulate_json("--schedule-file", "-", stdin=file.read_text()) == found | {
        "schedule": "stdin",
        "closed_form": None,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--micro-batches", "4"], "--micro-batches 4, but the schedule in {file} is for 2: leave --micro-batches out"),
        (["--ranks", "1"], "--ranks 1, but the schedule in {file} is for 2: leave --ranks out"),
        (["--option", "drain=forward"], "--option goes with a schedule's name; a file says all there is"),
    ],
)
def test_a_file_says_all_there_is(tmp_path, arguments, message):
    file = tmp_path / "mine.csv"
    file.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    result = run("simulate", "--schedule-file", str(file), *arguments)
    assert (result.exit_code, result.stderr) == (Exit.USAGE, f"headrace simulate: {message.format(file=file)}\n")


def test_a_file_that_deadlocks_is_refuted(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("0B0,0F0\n")
    result = run("simulate", "--schedule-file", str(file))
    assert result.exit_code != Exit.DONE
    assert "mine deadlocks: rank 0 waits at 0B0 for 0F0" in result.stderr


def test_a_file_and_a_name_are_not_both_taken(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("0F0,0B0\n")
    for command in ("simulate", "train"):
        result = run(command, "--schedule-file", str(file), "--schedule", "1f1b")
        assert result.exit_code == Exit.USAGE
        assert "--schedule goes without --schedule-file" in result.stderr


def test_recompute_by_stage():
    spans = simulate_json("--ranks", "2", "--micro-batches", "2", "--recompute", "1")["spans"]
    assert [span["action"] for span in spans if "R" in span["action"]] == ["1R0", "1R1"]


def test_links_pairs_and_updates_reach_the_simulation():
    def makespan(*arguments):
        return simulate_json("--ranks", "2", "--micro-batches", "2", *arguments)["makespan"]

    assert makespan("--bandwidth", "10", "--message", "5") == makespan("--transfer", "1/2")
    both = ("--schedule", "gpipe", "--forward", "0", "--bandwidth", "1", "--message", "3")
    # the second activation leaves 3 later, the second gradient 1, as it is made 2 after the first
    assert makespan(*both, "--one-at-a-time") == makespan(*both) + 3 + 1
    assert makespan("--update", "2", "--reduce", "1,3") == makespan() + 3
    dualpipe = ("--schedule", "dualpipe", "--micro-batches", "4")
    assert (
        simulate_json("--ranks", "2", *dualpipe, "--pair", "1")["makespan"]
        < simulate_json("--ranks", "2", *dualpipe)["makespan"]
    )
