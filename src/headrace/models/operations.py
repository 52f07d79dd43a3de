"""The operations that AmoebaNet's cells are made of: each takes channels in, channels out and a stride.

A convolution is always ReLU, convolution without bias, batch norm. Only in the first cell does an operation get other
channels than it gives; pooling then needs a 1×1 convolution behind it.
"""

from typing import Any

import torch
from torch import Tensor, nn


def relu_conv_norm(inputs: int, outputs: int, size: Any = 1, stride: Any = 1, padding: Any = 0) -> nn.Sequential:
    """ReLU, convolution without bias, batch norm."""
    return nn.Sequential(nn.ReLU(), *conv_norm(inputs, outputs, size, stride, padding))


def conv_norm(inputs: int, outputs: int, size: Any = 1, stride: Any = 1, padding: Any = 0) -> nn.Sequential:
    """Convolution without bias, batch norm."""
    conv = nn.Conv2d(inputs, outputs, size, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def nothing(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Hand on what comes, if it has the size of what is wanted."""
    return nn.Identity() if stride == 1 and inputs == outputs else relu_conv_norm(inputs, outputs, 1, stride)


def conv_1x1(inputs: int, outputs: int, stride: int) -> nn.Module:
    """One 1×1 convolution."""
    return relu_conv_norm(inputs, outputs, 1, stride)


def conv_3x3(inputs: int, outputs: int, stride: int) -> nn.Module:
    """A 3×3 convolution between two 1×1 ones, in a quarter of the channels."""
    inside = outputs // 4
    return nn.Sequential(
        relu_conv_norm(inputs, inside),
        relu_conv_norm(inside, inside, 3, stride, 1),
        relu_conv_norm(inside, outputs),
    )


def conv_1x7_7x1(inputs: int, outputs: int, stride: int) -> nn.Module:
    """A 1×7 and a 7×1 convolution between two 1×1 ones, in a quarter of the channels."""
    inside = outputs // 4
    return nn.Sequential(
        relu_conv_norm(inputs, inside),
        relu_conv_norm(inside, inside, (1, 7), (1, stride), (0, 3)),
        relu_conv_norm(inside, inside, (7, 1), (stride, 1), (3, 0)),
        relu_conv_norm(inside, outputs),
    )


def max_pool_2x2(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The largest of four."""
    return _fitted(nn.MaxPool2d(2, stride), inputs, outputs)


def max_pool_3x3(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The largest of nine."""
    return _fitted(nn.MaxPool2d(3, stride, padding=1), inputs, outputs)


def avg_pool_3x3(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The mean of nine; of fewer at the border."""
    return _fitted(nn.AvgPool2d(3, stride, padding=1, count_include_pad=False), inputs, outputs)


def _fitted(pool: nn.Module, inputs: int, outputs: int) -> nn.Module:
    return pool if inputs == outputs else nn.Sequential(pool, *conv_norm(inputs, outputs))


class Halve(nn.Module):
    """Half the height and width: even and odd places by a 1×1 convolution each, side by side, then batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        shifted = nn.functional.pad(x[:, :, 1:, 1:], (0, 1, 0, 1))
        result: Tensor = self.norm(torch.cat([self.even(x), self.odd(shifted)], 1))
        return result
