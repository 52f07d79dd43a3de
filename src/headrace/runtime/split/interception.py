"""While a stage's forward runs, products with weights are caught on their way to PyTorch.

    layer(x) ──▶ F.linear(x, w, b) ──▶ caught? ──▶ as an Operation, whose gradients can be asked for one by one
                 F.gelu(x)         ──▶ not      ──▶ as ever

Users' modules stay as they are. What is not caught is differentiated as a whole in I, which is right, if not as lazy:
operations without heavy weights (norms, scales), and products where cutting them out could change anything.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from headrace.runtime.split.ancestry import leaves_of_weight
from headrace.runtime.split.halves import Halves
from headrace.runtime.split.operation import Operation

F: Final = nn.functional

PRODUCTS: Final = frozenset(
    {
        F.linear, F.bilinear, F.embedding, F.embedding_bag,
        torch.conv1d, torch.conv2d, torch.conv3d,
        torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
        torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.linalg.matmul,
        torch.mm, Tensor.mm, torch.bmm, Tensor.bmm, torch.mv, Tensor.mv,
        torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm, torch.einsum,
    }
)  # fmt: skip

BY_LAYERS: Final = frozenset(
    {F.linear, torch.conv1d, torch.conv2d, torch.conv3d}
    | {torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d}
)
"""Those whose first operand is no weight."""

OPENED: Final = frozenset({F.multi_head_attention_forward})
"""Functions of torch that are caught as a whole, but have products inside."""

_PLAIN: Final = frozenset({Tensor, nn.Parameter})


class Interception(TorchFunctionMode):
    """Makes operations of the products in a forward of one micro-batch.

    Args:
        halves: collects them.
        pack: the hook for saved tensors of a layer that drops its activations: they may be asked for twice.
    """

    def __init__(self, halves: Halves, pack: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self._halves = halves
        self._pack = pack
        self._open: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # a function that is compiled within a layer: nothing but this is traced
            return func(*args, **kwargs)
        if func in PRODUCTS and _PLAIN.issuperset(types) and _can_split(self._pack):
            result = self._split(func, args, kwargs)
            if result is not None:
                return result
        elif func in OPENED and func not in self._open:
            with self._opening(func), self:
                return _unguarded(func)(*args, **kwargs)
        return func(*args, **kwargs)

    @contextmanager
    def _opening(self, func: Any) -> Iterator[None]:
        self._open.add(func)
        try:
            yield
        finally:
            self._open.discard(func)

    def _split(self, func: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
        """The result of an operation; None if it had better run as ever."""
        operands = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.requires_grad]
        activation = args[0] if args and func in BY_LAYERS else None
        leaves = [None if t is activation else leaves_of_weight(t) for t in operands]
        if not any(leaves) or "out" in kwargs or len({id(t) for t in operands}) < len(operands):
            return None
        begin = _beginning if self._pack is None else self._dropped_beginning
        own = {id(t): t if of is not None else begin(t) for t, of in zip(operands, leaves, strict=True)}
        result = func(
            *(own.get(id(a), a) for a in args),
            **{name: own.get(id(a), a) for name, a in kwargs.items()},
        )
        wanted = [t if t.is_leaf or self._pack is None else get_gradient_edge(t) for t in own.values()]
        operation = Operation(self._halves, wanted, leaves, result)
        return operation.join(self._halves.anchor, operands)

    def _dropped_beginning(self, activation: Tensor) -> Tensor:
        """The same as `_beginning`, but nothing of the graph holds its memory."""
        beginning: Tensor = _Beginning.apply(self._halves.anchor, activation.detach())  # type: ignore[no-untyped-call]
        return beginning


class _Beginning(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, _anchor: Tensor, activation: Tensor) -> Tensor:
        return activation.detach()

    @staticmethod
    def backward(_ctx: Any, *_: Any) -> tuple[None, None]:
        return None, None  # never called: the gradient is asked for here


def _beginning(activation: Tensor) -> Tensor:
    """The same memory as the start of a graph."""
    beginning = activation.detach().requires_grad_()
    if torch.is_autocast_enabled(activation.device.type):  # it would keep casts of leaves, taking them for weights
        beginning = torch.ops.aten.alias.default(beginning)
    return beginning


def _can_split(pack: Callable[..., Any] | None) -> bool:
    """Whether nothing is under way that needs to see the product as it is.

    Without gradients there is nothing to split. Hooks for saved tensors (torch.utils.checkpoint) may compute what was
    saved when the graph asks for it, and two halves would ask twice; only `pack` is known not to. Transforms of
    torch.func and forward-mode differentiation have their own idea of a graph.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return (
        torch.is_grad_enabled()
        and (hooks is None or (pack is not None and hooks[0] == pack))
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
    )


def _unguarded(func: Any) -> Any:
    """A function of torch.nn.functional that does not hand itself over to a mode, so what it calls is caught."""
    seen = {**func.__globals__, "has_torch_function": lambda _: False}
    opened = FunctionType(func.__code__, seen, func.__name__, func.__defaults__, func.__closure__)
    opened.__kwdefaults__ = func.__kwdefaults__
    return opened
