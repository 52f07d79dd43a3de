"""Every example runs, with small numbers, as its README says."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
TORCHRUN = ("-m", "torch.distributed.run")


def start(*arguments: object, folder: Path | None = None) -> subprocess.Popen[str]:
    """`python` and these arguments; a shell script by itself, which finds `headrace` beside python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", "PATH": path}
    program = "bash" if str(arguments[0]).endswith(".sh") else sys.executable
    return subprocess.Popen(
        [program, *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def output(process: subprocess.Popen[str]) -> str:
    """What it printed; it must end well."""
    try:
        printed, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return printed


def test_the_readme_lists_every_example() -> None:
    listed = re.findall(r"^\| \[(.*?)\]\((.*?)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    files = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")]
    assert sorted(listed) == sorted((name, name) for name in files)


def test_train_minimal_says_what_recompute_saves() -> None:
    assert len((EXAMPLES / "train_minimal.py").read_text(encoding="utf-8").splitlines()) < 100
    small = ("--partitions", 2, "--micro-batches", 4, "--layers", 8, "--dim", 32, "--rows", 256, "--steps", 1)
    script = EXAMPLES / "train_minimal.py"
    runs = [start(script, *small), start(script, *small, "--no-checkpoint")]
    peaks = []
    for run in runs:
        lines = [line for line in output(run).splitlines() if line.endswith("iB")]
        assert [line.split(",")[0] for line in lines] == ["one rank", "gpipe", "1f1b"]
        units = {"KiB": 1, "MiB": 1024}
        peaks.append([float(line.split()[-2]) * units[line.split()[-1]] for line in lines])
    (whole, gpipe, one_f_one_b), (_, kept, bounded) = peaks
    assert gpipe < kept < whole
    assert one_f_one_b < bounded < kept


def test_own_sequential_learns() -> None:
    printed = output(start(EXAMPLES / "own_sequential.py", "--steps", 15))
    (right,) = re.findall(r"(\d+)% right", printed)
    assert int(right) > 90
    assert "10 tensors here" in printed


def test_hugging_face_is_equal_unsplit() -> None:
    printed = output(start(EXAMPLES / "hugging_face.py", "--steps", 2))
    assert "53 gradients equal those of the unsplit model" in printed
    (ours, theirs) = re.findall(r"after 2 steps ([\d.]+); .* says ([\d.]+)", printed)[0]
    assert ours == theirs


def test_a_custom_schedule_is_proved_simulated_and_run() -> None:
    printed = output(start(EXAMPLES / "custom_schedule.py"))
    assert "lazy-1f1b: in flight (2, 1, 1), bubble 53.8%" in printed
    assert "refuted: too early deadlocks: rank 0 waits at 0B0 for 1B0" in printed
    first, second = re.findall(r": (loss .*)", printed)
    assert first == second


@pytest.mark.slow
def test_two_hosts_are_two_torchrun_agents() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ("--nnodes", 2, "--nproc-per-node", 1, "--master-addr", "127.0.0.1", "--master-port", port)
    script = EXAMPLES / "two_hosts.py"
    lines = [output(agent) for agent in [start(*TORCHRUN, *where, "--node-rank", n, script) for n in range(2)]]
    found = [re.search(r"node (\d), rank (\d): loss ([\d.]+), (\d+) parameters", line) for line in lines]
    assert [match and match.group(1, 2) for match in found] == [("0", "0"), ("1", "1")]
    assert len({match[3] for match in found if match}) == 1  # one loss
    assert sum(int(match[4]) for match in found if match) == 8 * (64 * 64 + 64) + 65


@pytest.mark.slow
def test_plan_train_report(tmp_path: Path) -> None:
    small = ["--layers", 2, "--dim", 16, "--heads", 2, "--seq", 16, "--batch", 8, "--steps", 5]
    printed = output(start(EXAMPLES / "plan_train_report.sh", "here", *small, folder=tmp_path))
    assert printed.count("above the lower bound") == 2
    assert "held-out loss" in printed
    assert (tmp_path / "here/plan.json").exists()
    assert (tmp_path / "here/run/timeline.json").exists()
