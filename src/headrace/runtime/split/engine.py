"""PyTorch's backward, called as torch.autograd.grad and torch.autograd.backward call it.

Each half asks for the gradients of one product after the other; checking arguments that we have just made would take
as long as a small product does.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward


def gradients_of(
    inputs: Sequence[Tensor | GradientEdge],
    roots: Sequence[GradientEdge],
    arrived: Sequence[Tensor],
    *,
    again: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of `inputs` for those that have `arrived` at `roots`; the graph is kept if it will run `again`."""
    found: tuple[Tensor | None, ...] = _engine_run_backward(
        tuple(roots), tuple(arrived), again, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
    return found


def accumulate(leaves: Sequence[Tensor], roots: Sequence[GradientEdge], arrived: Sequence[Tensor]) -> None:
    """The same, but into the `.grad` of `leaves`, which are not looked for anywhere but in these."""
    _engine_run_backward(
        tuple(roots), tuple(arrived), False, False, tuple(leaves), allow_unreachable=True, accumulate_grad=True
    )
