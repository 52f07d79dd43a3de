"""Your own nn.Sequential in a pipeline: cut by measurement, trained, evaluated, saved under its own names.

python examples/own_sequential.py                                   every rank is a thread
torchrun --nproc-per-node 2 examples/own_sequential.py --ranks 2    every rank is a process
"""

import argparse

import torch
from torch import nn

import headrace as hr


def build() -> nn.Sequential:
    """Convolutions first, where the arithmetic is, and a cheap end: layers of very different cost."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten()),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 2),
    )


def images(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a bright bar, upright (1) or lying (0)."""
    x, y = 0.3 * torch.randn(rows, 1, 16, 16), torch.arange(rows) % 2
    x[y == 1, :, :, 6:9] += 1
    x[y == 0, :, 6:9, :] += 1
    return x, y


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--steps", type=int, default=20)
    o = options.parse_args()
    if o.steps < 1:
        options.error("--steps must be at least 1")

    torch.manual_seed(0)  # under torchrun all processes need the same model and the same batches
    model = build()
    sample, _ = images(8)
    cut = hr.measured_cut(model, sample, ranks=o.ranks)
    with hr.Pipeline(model, nn.CrossEntropyLoss(), ranks=o.ranks, micro_batches=8, schedule="1f1b", cut=cut) as pipe:
        optimizer = torch.optim.AdamW(pipe.named_parameters(), lr=3e-3)
        for _ in range(o.steps):
            loss = pipe.step(*images(64))
            optimizer.step()
            optimizer.zero_grad()
        right = {"right": lambda output, target: (output.argmax(1) == target).float().mean()}
        held_out = pipe.evaluate(*images(64), metrics=right)
        keys = len(pipe.state_dict())  # the names of the unsplit model; under torchrun those of this process's stages
    print(f"cut {pipe.cut}: loss {float(loss):.3f}, held out {float(held_out['right']):.0%} right, {keys} tensors here")


if __name__ == "__main__":
    main()
