"""AmoebaNet-D (Real et al., 2019) as one plain `nn.Sequential`: the image model of GPipe, (L, D) = (layers, filters).

    images ─ stem ─ stem_cell0, 1 ─ L/3 normal ─ reduction1 ─ L/3 normal ─ reduction2 ─ L/3 normal ─ classifier
    224²     112²   56², 28²        28²          14²          14²          7²           7²
             32     3·D/4, 3·D/2    4·D          6·D          8·D          12·D         16·D channels

Each cell takes the results of the two cells before it, so a pair passes from layer to layer. A cell is ten operations,
two by two: their sums are states 2 to 6 after the two inputs (0: the cell before, 1: the one before that), and some of
the states side by side are its result.

The evolution paper draws a normal cell that ends in states 4, 5, 6. With 0, 3, 4, 6, as in its authors' published
program, and with that program's auxiliary head, four of the five sizes in GPipe's Table 1 come out to the printed
digits: 82M, 318M, 1.05B and 1.8B; (18, 544) has 541.0M, not 542M.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from headrace.models.operations import (
    Halve,
    avg_pool_3x3,
    conv_1x1,
    conv_1x7_7x1,
    conv_3x3,
    max_pool_2x2,
    max_pool_3x3,
    nothing,
    relu_conv_norm,
)
from headrace.schedule.numbers import at_least

States = tuple[Tensor, ...]
"""The result of the cell before, the one before that, and the auxiliary logits from where there are any."""

_STEM: Final = 32
_AUXILIARY: Final = (51, 307)
"""Channels of the auxiliary head's two convolutions: 0.4 of the 128 and 768 of Inception's."""


class Genotype(NamedTuple):
    """What evolution found: per operation, the state that it takes; and the states that are a cell's result."""

    operations: tuple[tuple[int, Callable[[int, int, int], nn.Module]], ...]
    result: tuple[int, ...]


NORMAL: Final = Genotype(
    operations=(
        (1, conv_1x1), (1, max_pool_3x3),  # state 2
        (1, nothing), (0, conv_1x7_7x1),  # state 3
        (0, conv_1x1), (0, conv_1x7_7x1),  # state 4
        (2, max_pool_3x3), (2, nothing),  # state 5
        (1, avg_pool_3x3), (5, conv_1x1),  # state 6
    ),
    result=(0, 3, 4, 6),
)  # fmt: skip

REDUCTION: Final = Genotype(
    operations=(
        (0, max_pool_2x2), (0, max_pool_3x3),  # state 2
        (2, nothing), (1, conv_3x3),  # state 3
        (2, conv_1x7_7x1), (2, max_pool_3x3),  # state 4
        (3, nothing), (1, max_pool_2x2),  # state 5
        (2, avg_pool_3x3), (3, conv_1x1),  # state 6
    ),
    result=(4, 5, 6),
)  # fmt: skip


def amoebanet(
    layers: int = 18, filters: int = 256, *, classes: int = 1000, auxiliary: bool = False, side: int = 224
) -> nn.Sequential:
    """AmoebaNet-D (layers, filters); build it `with torch.device("meta")` where it need not hold weights.

    Args:
        layers: how many normal cells, L; a multiple of 3.
        filters: D, a multiple of 16; a state has D channels before the first reduction, then 2·D, then 4·D.
        classes: what it tells apart.
        auxiliary: whether a second classifier sits before the second reduction, as in training; its logits travel on
            and come out beside the others.
        side: height and width of an image, a multiple of 32.

    Returns:
        images [batch, 3, side, side] → logits [batch, classes], or two of them.

    Raises:
        TypeError, ValueError: an argument is impossible.
    """
    at_least(1, layers=layers, filters=filters, classes=classes, side=side)
    if layers % 3:
        raise ValueError(f"layers={layers} must be a multiple of 3: as many before, between and after two reductions")
    if filters % 16:
        raise ValueError(
            f"filters={filters} must be a multiple of 16, as the stem divides by 4 and its cells by 4 again"
        )
    if side % 32 or (auxiliary and side < 160):
        raise ValueError(f"side={side} must be a multiple of 32, and at least 160 for the auxiliary head")
    chain: list[tuple[str, nn.Module]] = [("stem", Stem())]
    widths: list[int | None] = [None, _STEM]  # channels of the results of the last two cells

    def add(name: str, genotype: Genotype, channels: int) -> None:
        halved = chain[-1][0].startswith(("stem_cell", "reduction"))
        chain.append((name, Cell(genotype, widths[-1] or 0, widths[-2], channels, halved)))
        widths.append(channels * len(genotype.result))

    add("stem_cell0", REDUCTION, filters // 4)
    add("stem_cell1", REDUCTION, filters // 2)
    for group in range(3):
        channels = filters * 2**group
        if group:
            add(f"reduction{group}", REDUCTION, channels)
        for i in range(layers // 3):
            add(f"cell{group * layers // 3 + i}", NORMAL, channels)
        if group == 1 and auxiliary:
            chain.append(("auxiliary", Auxiliary(4 * channels, classes, side // 16)))
    chain.append(("classifier", Classifier(16 * filters, classes)))
    return nn.Sequential(OrderedDict(chain))


class Stem(nn.Module):
    """The first convolution: images → states, half as high and wide."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, _STEM, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(_STEM)

    def forward(self, images: Tensor) -> States:
        x = self.norm(self.conv(images))
        return x, x


class Cell(nn.Module):
    """(the result before, the one before that) → (its own result, the result before).

    Args:
        genotype: NORMAL, or REDUCTION, which halves height and width.
        before: channels of the result before.
        earlier: channels of the one before that; None for the first cell, which has the stem's twice and takes it as
            it is.
        channels: of each of its states.
        halved: whether the earlier result is twice as high and wide as the one before.
    """

    def __init__(self, genotype: Genotype, before: int, earlier: int | None, channels: int, halved: bool) -> None:
        super().__init__()
        self.before = relu_conv_norm(before, channels)
        self.earlier: nn.Module = nn.Identity()
        if earlier is not None and halved:
            self.earlier = Halve(earlier, channels)
        elif earlier not in (None, channels):
            self.earlier = relu_conv_norm(earlier or 0, channels)
        self.takes = tuple(state for state, _ in genotype.operations)
        self.result = genotype.result
        reduces = genotype is REDUCTION
        raw = before if earlier is None else channels
        self.operations = nn.ModuleList(
            make(raw if state == 1 else channels, channels, 2 if reduces and state < 2 else 1)
            for state, make in genotype.operations
        )

    def forward(self, states: States) -> States:
        before, earlier, *logits = states
        values = [self.before(before), self.earlier(earlier)]
        done = list(zip(self.takes, self.operations, strict=True))
        for (i, one), (j, other) in zip(done[::2], done[1::2], strict=True):
            values.append(one(values[i]) + other(values[j]))
        return torch.cat([values[state] for state in self.result], 1), before, *logits


class Auxiliary(nn.Module):
    """A classifier half-way: states → the same with its logits [batch, classes] behind them.

    Args:
        channels: of the result before.
        classes: what it tells apart.
        side: height and width of that result.
    """

    def __init__(self, channels: int, classes: int, side: int) -> None:
        super().__init__()
        small, wide = _AUXILIARY
        left = (side - 5) // 3 + 1
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.AvgPool2d(5, 3),
            nn.Conv2d(channels, small, 1, bias=False),
            nn.BatchNorm2d(small),
            nn.ReLU(),
            nn.Conv2d(small, wide, left, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(wide, classes),
        )

    def forward(self, states: States) -> States:
        return *states, self.layers(states[0])


class Classifier(nn.Module):
    """ReLU, mean over height and width, then a linear layer: states → logits, or (logits, auxiliary logits)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, states: States) -> Tensor | States:
        before, _, *auxiliary = states
        logits: Tensor = self.linear(before.relu().mean((2, 3)))
        return (logits, *auxiliary) if auxiliary else logits
