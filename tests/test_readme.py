"""What the README shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize(
    "launcher",
    [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]],
    ids=["python", "torchrun"],
)
def test_the_example_runs_alone_and_under_torchrun(launcher: list[str], tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "script.py"
    script.write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *launcher, str(script)],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == (2 if launcher else 1)
    assert all("torch.Size([32, 10])" in line for line in lines)
    assert len({tuple(line.split()[:2]) for line in lines}) == 1
