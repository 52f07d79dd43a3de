"""Where pipelines are not equivalent to one device, in numbers: `python -m course.not_equivalent`."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from course.solutions.ex03_accumulate import accumulate


def gradient(model: nn.Module, x: Tensor, y: Tensor, m: int) -> Tensor:
    """All gradients of a batch in m micro-batches, as one vector."""
    copy = deepcopy(model)
    accumulate(copy, nn.functional.mse_loss, x, y, m)
    return torch.cat([p.grad.flatten() for p in copy.parameters()])


def batch_statistics() -> None:
    """Batch normalisation computes mean and variance over the rows that it sees: those of a micro-batch."""
    x, y = torch.randn(64, 8, dtype=torch.float64), torch.randn(64, 1, dtype=torch.float64)
    print("relative distance of the gradient from that of the whole batch of 64 rows")
    print("micro-batches                  2        4        8       16       32")
    for name, layer in (
        ("no normalisation", nn.Identity()),
        ("LayerNorm", nn.LayerNorm(16)),
        ("BatchNorm1d", nn.BatchNorm1d(16)),
    ):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), layer, nn.Tanh(), nn.Linear(16, 1)).double()
        whole = gradient(model, x, y, 1)
        distances = [((gradient(model, x, y, m) - whole).norm() / whole.norm()).item() for m in (2, 4, 8, 16, 32)]
        cells = "".join(f"{distance:9.2f}" if distance > 1e-12 else "  < 1e-12" for distance in distances)
        print(f"{name:22}{cells}")


def delayed(rate: float, delay: int, steps: int) -> float:
    """|w| after some steps of w ← w − rate · gradient of w²/2, taken at the w of `delay` steps ago; w begins at 1."""
    past = [1.0] * (delay + 1)
    for _ in range(steps):
        past.append(past[-1] - rate * past[-1 - delay])
    return max(abs(w) for w in past[-4:])


def asynchronous_updates() -> None:
    """Asynchronous schedules update without a flush: a gradient is taken at weights that are already old."""
    print("largest |w| in the last 4 of 60 steps down w²/2, from w = 1, with gradients that are some updates late")
    print("learning rate                               0.2      0.5      0.9      1.1")
    for delay, name in ((0, "synchronous"), (1, "pipedream-2bw"), (3, "pipedream, first of 4 stages")):
        cells = "".join(f"{delayed(rate, delay, 60):9.0e}" for rate in (0.2, 0.5, 0.9, 1.1))
        print(f"{delay} late: {name:29}{cells}")


if __name__ == "__main__":
    torch.manual_seed(0)
    batch_statistics()
    print()
    asynchronous_updates()
