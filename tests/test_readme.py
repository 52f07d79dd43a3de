"""What the README shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def printed(command: list[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_runs_alone_and_under_torchrun(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "script.py"
    script.write_text(example, encoding="utf-8")
    # a log for each process, as lines that two processes print at once may come out mixed
    logs = ["--redirects", "3", "--log-dir", str(tmp_path / "logs")]
    printed(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *logs, str(script)])
    processes = [path.read_text() for path in (tmp_path / "logs").rglob("stdout.log")]
    assert len(processes) == 2
    lines = [printed([str(script)]), *processes]
    assert all("torch.Size([32, 10])" in line for line in lines)
    assert len({tuple(line.split()[:2]) for line in lines}) == 1


def test_commands_print_what_is_shown_below_them() -> None:
    """The plan is that of docs/planning.md, of which another test knows that the command prints it."""
    text = README.read_text(encoding="utf-8")
    shown = {command: dedent(output) for command, output in re.findall(r"^    \$ (.*)\n((?:    .*\n|\n)*)", text, re.M)}
    (plan,) = [command for command in shown if command.startswith("headrace plan ")]
    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    assert f"    $ {plan}\n\n```\n{shown.pop(plan).rstrip()}\n```\n" in page
    assert list(shown) == ["headrace simulate --ranks 3 --micro-batches 4"]
    for command, output in shown.items():
        lines = printed(["-m", *command.split()]).splitlines()
        assert [line.rstrip() for line in lines] == output.rstrip().splitlines()
