"""The same script runs plainly and under a real torchrun, and computes the same bits."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
from torch import nn
import headrace as hr

torch.set_num_threads(1)
torch.manual_seed(0)
layers = [nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]
pipe = hr.Pipeline(
    nn.Sequential(*layers), nn.functional.cross_entropy, ranks=2, micro_batches=4, recompute=sys.argv[1]
)
optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
for step in range(5):
    x, y = torch.randn(10, 16), torch.randint(0, 4, (10,))
    loss = pipe.step(x, y)
    pipe.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else "alone"
    with open(f"{sys.argv[2]}/{rank}", "a") as file:
        print(step, loss.item().hex(), file=file)
"""

KILLED = """
import os, signal, sys, time
import torch
from torch import nn
import headrace as hr

pipe = hr.Pipeline(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.functional.mse_loss, ranks=2, micro_batches=2)
for step in range(1000):
    if step == 3 and torch.distributed.get_rank() == 1:
        print("killed at", time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    pipe.step(torch.ones(4, 4), torch.zeros(4, 4))
"""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(*command: str) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "localhost:0", *command,
    ]  # fmt: skip


def succeed(command: list[str]) -> None:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "terminate" not in done.stderr
    assert "Error" not in done.stderr


@pytest.mark.parametrize("recompute", ["always"])
def test_a_script_prints_the_same_losses_plainly_and_under_torchrun(tmp_path: Path, recompute: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    succeed([sys.executable, str(script), recompute, str(tmp_path)])
    succeed(torchrun(str(script), recompute, str(tmp_path)))
    alone, rank_0, rank_1 = ((tmp_path / name).read_text() for name in ("alone", "0", "1"))
    assert len(alone.splitlines()) == 5
    assert rank_0 == rank_1 == alone


def test_a_killed_process_ends_the_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(KILLED)
    done = subprocess.run(
        torchrun(str(script)), env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    killed_at = float(done.stdout.split("killed at ")[1])
    assert time.time() - killed_at < 10  # torchrun itself takes a while to see it and to stop
    assert done.returncode != 0
    assert "exitcode  : -9" in done.stderr
    assert "terminate called" not in done.stderr
