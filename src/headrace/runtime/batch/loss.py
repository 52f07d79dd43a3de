"""The end of the last stage: from the model's output to the loss of a micro-batch, or to metrics."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from headrace.runtime.stage.boundary import Value, take_apart

LossFn = Callable[[Any, Any], Tensor]


def loss_tail(loss_fn: LossFn, target: Value, weight: float) -> Callable[[Value], Tensor]:
    """The function from output to loss, for one target.

    Where nothing of the target counts, a mean over nothing would be NaN and so would its gradient: such a
    micro-batch has the loss 0 and gradients of 0.
    """

    def tail(output: Value) -> Tensor:
        if weight == 0:
            outputs, _ = take_apart(output, "the model's output")
            zero: Tensor = _NothingCounts.apply(*outputs)  # type: ignore[no-untyped-call]
            return zero
        return scalar("loss_fn", loss_fn(output, target))

    return tail


def metrics_tail(metrics: Mapping[str, LossFn], target: Value, weight: float) -> Callable[[Value], dict[str, Tensor]]:
    """The function from output to metrics, for one target; all 0 where nothing of it counts."""

    def tail(output: Value) -> dict[str, Tensor]:
        if weight == 0:
            outputs, _ = take_apart(output, "the model's output")
            return {name: torch.zeros((), device=outputs[0].device) for name in metrics}
        values = {name: scalar(name, torch.as_tensor(metric(output, target))) for name, metric in metrics.items()}
        # counts are averaged too, so whole numbers are not kept as such
        return {name: v if v.is_floating_point() else v.to(torch.get_default_dtype()) for name, v in values.items()}

    return tail


def scalar(name: str, value: Any) -> Tensor:
    """`value`, if it is a tensor with one number.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{name} must return one number as a tensor, such as a mean over the rows, not {shown}")
    return value.reshape(())


class _NothingCounts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        ctx.save_for_backward(*outputs)
        return outputs[0].new_zeros((), dtype=torch.get_default_dtype())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ARG004 - it is 0 whatever comes
        return tuple(torch.zeros_like(t) if t.is_floating_point() else None for t in ctx.saved_tensors)
