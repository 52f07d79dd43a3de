"""A catalogue of awkward chains: models that pipelines tend to get wrong, each with data and a loss.

    case = make("dropout")                        # the same numbers each time, in the default dtype
    pipe = hr.Pipeline(case.model, case.loss_fn, ranks=2, micro_batches=4, cut=case.cut(2), **case.options)
    pipe.step(*case.batch(0))

Every chain has at least four layers, so that one to four stages can be cut from it, and seven rows, so that
micro-batches differ in size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

ROWS: Final = 7
DIM: Final = 6


@dataclass(frozen=True)
class Case:
    """One chain with a batch.

    Attributes:
        model: the chain.
        x, y: one batch.
        loss_fn: as for Pipeline.
        options: further arguments for Pipeline.
        cuts: the cut for some numbers of stages; for others equally many layers.
        by_rows: whether rows are independent, so that the whole batch at once gives the same to rounding.
        threads: whether it works when ranks are threads of one process.
    """

    model: nn.Sequential
    x: Any
    y: Any
    loss_fn: Callable[[Any, Any], Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)
    cuts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    by_rows: bool = True
    threads: bool = True

    def batch(self, step: int) -> tuple[Any, Any]:
        """The batch of a step, a fresh copy: the rows of x and y in another order for each step."""

        def turned(value: Any) -> Any:
            return value.roll(step, 0) if isinstance(value, Tensor) else value

        return pytree.tree_map(turned, self.x), pytree.tree_map(turned, self.y)

    def cut(self, stages: int) -> tuple[int, ...] | None:
        """The cut that this chain needs for so many stages, if any will not do."""
        return self.cuts.get(stages)


# -- layers --------------------------------------------------------------------------------------------------------


class Do(nn.Module):
    """A layer without parameters, made of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, value: Any) -> Any:
        return self.function(value)


class On(nn.Module):
    """`layer` applied to one member of a tuple, list or dict; the others pass through."""

    def __init__(self, key: Any, layer: nn.Module) -> None:
        super().__init__()
        self.key = key
        self.layer = layer

    def forward(self, value: Any) -> Any:
        items = dict(value) if isinstance(value, dict) else list(value)
        items[self.key] = self.layer(items[self.key])
        return tuple(items) if isinstance(value, tuple) else items


@dataclass
class Pair:
    """A user's own dataclass at a boundary."""

    hidden: Tensor
    kept: Tensor
    label: str = "pair"


class OnPair(nn.Module):
    """A layer that changes one member of a Pair."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, pair: Pair) -> Pair:
        return Pair(self.layer(pair.hidden).tanh(), pair.kept, pair.label + "!")


class TwoHeads(nn.Module):
    """Two outputs from one input."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(DIM, DIM)
        self.other = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.other(x)


class UsesTwice(nn.Module):
    """A weight used twice in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(torch.tanh(self.layer(x)))
        return result


class Residual(nn.Module):
    """A pre-norm block."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), *layers, _linear(2 * DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Checkpointed(nn.Module):
    """A block that recomputes itself."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.block = Residual(*layers)

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.block, x, use_reentrant=False)


class Blind(nn.Module):
    """Its output depends on its input, but not differentiably, and it has nothing to learn."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.detach() > 0).to(x.dtype)


class InPlaceSkip(nn.Module):
    """Writes to one member of what comes in, and uses the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, skip = value
        return self.layer(x.mul_(0.5).add_(skip)), skip


class Counter(nn.Module):
    """A buffer that is not a statistic, but feeds into the output: a recompute must see what the first run saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        result: Tensor = self.layer(x) * (1 + self.count / 10)
        return result


class Replaced(nn.Module):
    """A buffer that is replaced by a new tensor in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale = self.scale * 0.9
        result: Tensor = self.layer(x) * self.scale
        return result


def _linear(inputs: int = DIM, outputs: int = DIM) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def _frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def _x() -> Tensor:
    return torch.randn(ROWS, DIM)


def _y() -> Tensor:
    return torch.randn(ROWS, DIM)


def _chain(*layers: nn.Module, **more: Any) -> Case:
    arguments: dict[str, Any] = {"x": _x(), "y": _y(), "loss_fn": nn.functional.mse_loss}
    return Case(nn.Sequential(*layers), **{**arguments, **more})


# -- the catalogue -------------------------------------------------------------------------------------------------


def plain() -> Case:
    return _chain(_linear(), nn.Tanh(), _linear(), nn.Sigmoid(), _linear())


def in_place_first() -> Case:
    """An in-place layer begins every stage, the first one included."""
    relus = [layer for _ in range(4) for layer in (nn.ReLU(inplace=True), _linear())]
    return _chain(*relus, cuts={2: (2, 6), 3: (2, 2, 4), 4: (2, 2, 2, 2)})


def in_place_later() -> Case:
    """In-place layers inside stages, and as the last layer of one."""
    relus = [layer for _ in range(4) for layer in (_linear(), nn.ReLU(inplace=True))]
    return _chain(*relus, _linear(), cuts={2: (3, 6), 3: (3, 2, 4), 4: (3, 2, 2, 2)})


def in_place_on_a_member() -> Case:
    return _chain(TwoHeads(), InPlaceSkip(), InPlaceSkip(), InPlaceSkip(), Do(_sum))


def view_output() -> Case:
    return _chain(
        _linear(),
        Do(lambda x: x.view(len(x), 2, DIM // 2)),
        _linear(DIM // 2, DIM // 2),
        Do(lambda x: x.flatten(1)),
        _linear(),
        cuts={2: (2, 3), 3: (2, 1, 2), 4: (1, 1, 1, 2)},
    )


def expanded_output() -> Case:
    return _chain(
        _linear(),
        Do(lambda x: x[:, None].expand(-1, 3, -1)),
        _linear(),
        Do(lambda x: x.sum(1, keepdim=True).expand(-1, 5, -1)),
        Do(lambda x: x.mean(1)),
        _linear(),
        cuts={2: (2, 4), 3: (2, 2, 2), 4: (2, 1, 1, 2)},
    )


def transposed_output() -> Case:
    return _chain(
        _linear(DIM, DIM * 4),
        Do(lambda x: x.view(len(x), 4, DIM).transpose(1, 2)),
        _linear(4, 4),
        Do(lambda x: x.transpose(1, 2)),
        Do(lambda x: x.mean(1)),
        cuts={2: (2, 3), 3: (2, 2, 1), 4: (2, 1, 1, 1)},
    )


def strided_output() -> Case:
    return _chain(
        _linear(DIM, 4 * DIM),
        Do(lambda x: x[:, ::2]),
        _linear(2 * DIM, 2 * DIM),
        Do(lambda x: x[:, 1::2].flip(1)),
        _linear(),
        cuts={2: (2, 3), 3: (2, 2, 1), 4: (2, 1, 1, 1)},
    )


def overlapping_output() -> Case:
    """A view whose elements share memory with each other."""
    return _chain(
        _linear(),
        Do(lambda x: x.unfold(1, 4, 1)),
        _linear(4, 4),
        Do(lambda x: x.sum(1)),
        _linear(4, DIM),
        cuts={2: (2, 3), 3: (2, 1, 2), 4: (2, 1, 1, 1)},
    )


def unused_output() -> Case:
    """Two heads, one of which nobody uses; its parameters get no gradient."""
    return _chain(_linear(), TwoHeads(), On(0, _linear()), On(0, nn.Tanh()), Do(lambda v: v[0]), _linear())


def same_output_twice() -> Case:
    return _chain(_linear(), Do(lambda x: (x, x)), On(0, _linear()), On(1, _linear()), Do(_sum))


def views_of_one_tensor() -> Case:
    return _chain(_linear(DIM, 2 * DIM), Do(lambda x: x.chunk(2, 1)), On(0, _linear()), On(1, _linear()), Do(_sum))


def passed_through() -> Case:
    """Stages that hand on what they got."""
    return _chain(_linear(), nn.Identity(), nn.Identity(), _linear())


def token_ids() -> Case:
    """Token ids enter, and pass several stages beside the activation."""
    table = nn.Embedding(11, DIM)
    return _chain(
        Do(lambda ids: ids + 1),
        Do(lambda ids: (ids, ids % 3)),
        _Embed(table),
        On(0, _linear()),
        _AddIds(),
        _linear(DIM, 11),
        x=torch.randint(0, 10, (ROWS, 3)),
        y=torch.randint(0, 11, (ROWS, 3)),
        loss_fn=_token_loss,
    )


def mask_through() -> Case:
    return _chain(
        On(0, _linear()), On(0, nn.Tanh()), On(0, _linear()), Do(lambda v: v[0] * v[1]), _linear(),
        x=(torch.randn(ROWS, DIM), torch.rand(ROWS, DIM) > 0.5),
    )  # fmt: skip


def none_and_numbers() -> Case:
    return _chain(
        Do(lambda x: (x, None, 3, "text", True, 0.5)),
        On(0, _linear()),
        On(0, nn.Tanh()),
        On(0, _linear()),
        Do(lambda v: v[0] * v[2] * v[5] if v[1] is None and v[3:5] == ("text", True) else None),
    )


def dict_through() -> Case:
    return _chain(
        Do(lambda x: {"b": x, "a": {"skip": x * 2, "n": 2}}),
        On("b", _linear()),
        On("b", nn.Tanh()),
        On("b", _linear()),
        Do(lambda v: v["b"] + v["a"]["skip"] / v["a"]["n"]),
    )


def list_through() -> Case:
    return _chain(
        _linear(), Do(lambda x: [x, [x * 2]]), On(0, _linear()), On(0, nn.Tanh()), Do(lambda v: v[0] + v[1][0])
    )


def dataclass_through() -> Case:
    return _chain(
        _linear(),
        Do(lambda x: Pair(x, 2 * x)),
        OnPair(),
        OnPair(),
        Do(lambda pair: pair.hidden + pair.kept * len(pair.label)),
        _linear(),
    )


def skip_connection() -> Case:
    return _chain(
        Do(lambda x: (x, x)), On(0, _linear()), On(0, nn.Tanh()), On(0, _linear()), Do(_sum), _linear(),
        x=_x(),
    )  # fmt: skip


def deep_skip() -> Case:
    """A tensor that three stages use: its gradient comes from three places."""
    return _chain(
        _linear(),
        Do(lambda x: (x, x)),
        Do(lambda v: (torch.tanh(v[0]) * v[1], v[1])),
        On(0, _linear()),
        Do(lambda v: (torch.sigmoid(v[0]) * v[1] + v[1].exp(), v[1])),
        Do(_sum),
        cuts={4: (2, 1, 1, 2)},
    )


def scalar_and_empty_through() -> Case:
    """A 0-dim tensor, an empty one, and a gradient that comes back for the former."""
    return _chain(
        _linear(),
        Do(lambda x: (x, x.mean(), x[:0])),
        On(0, _linear()),
        On(0, nn.Tanh()),
        Do(lambda v: v[0] * v[1] + v[2].sum()),
        by_rows=False,
    )


def no_parameters() -> Case:
    return _chain(nn.Tanh(), _linear(), nn.Sigmoid(), nn.Tanh(), _linear(), nn.Softplus())


def frozen_layers() -> Case:
    return _chain(_linear(), _frozen(_linear()), nn.Tanh(), _linear(), _frozen(_linear()))


def frozen_first_stage() -> Case:
    return _chain(_frozen(_linear()), nn.Tanh(), _frozen(_linear()), _linear(), _linear())


def frozen_last_stage() -> Case:
    return _chain(_linear(), nn.Tanh(), _linear(), _frozen(_linear()))


def only_last_learns() -> Case:
    return _chain(_frozen(_linear()), _frozen(_linear()), _frozen(_linear()), _linear())


def used_twice_in_a_layer() -> Case:
    return _chain(_linear(), UsesTwice(), nn.Tanh(), UsesTwice(), _linear())


def tied_in_a_stage() -> Case:
    """Two layers with one weight, in one stage whatever the cut."""
    one, other = _linear(), _linear()
    other.weight = one.weight
    return _chain(
        _linear(), one, nn.Tanh(), other, _linear(), _linear(), cuts={2: (4, 2), 3: (1, 3, 2), 4: (1, 3, 1, 1)}
    )


def layer_occurs_twice() -> Case:
    """The same layer object at two places of the chain."""
    again = _linear()
    return _chain(
        _linear(), again, nn.Tanh(), again, _linear(), _linear(), cuts={2: (4, 2), 3: (1, 3, 2), 4: (1, 3, 1, 1)}
    )


def output_without_grad() -> Case:
    """A layer in the middle through which no gradient flows: what is before it learns nothing."""
    return _chain(_linear(), nn.Tanh(), Blind(), _linear(), nn.Tanh(), _linear(), cuts={4: (2, 1, 1, 2)})


def partly_without_grad() -> Case:
    return _chain(_linear(), Do(lambda x: (x.detach(), x)), On(0, _linear()), On(1, nn.Tanh()), Do(_sum), _linear())


def double() -> Case:
    case = plain()
    return Case(case.model.double(), case.x.double(), case.y.double(), case.loss_fn)


def dropout() -> Case:
    return _chain(
        _linear(), nn.Dropout(0.5), Residual(nn.Dropout(0.25)), nn.Dropout(0.1), Residual(nn.Dropout(0.5)), _linear(),
        by_rows=False,
    )  # fmt: skip


def noise() -> Case:
    """Draws that are no dropout, several in one layer."""
    return _chain(
        _linear(),
        Do(lambda x: x + torch.randn_like(x) * torch.rand(())),
        nn.RReLU(),
        Do(lambda x: x[torch.randperm(len(x))]),
        _linear(),
        by_rows=False,
    )


def batch_norm() -> Case:
    return _chain(
        _linear(), nn.BatchNorm1d(DIM), nn.Tanh(), _linear(), nn.BatchNorm1d(DIM), nn.BatchNorm1d(DIM, momentum=None),
        x=torch.randn(2 * ROWS, DIM), y=torch.randn(2 * ROWS, DIM), by_rows=False,
    )  # fmt: skip


def layer_norm() -> Case:
    return _chain(_linear(), nn.LayerNorm(DIM), Residual(), Residual(), _linear())


def conv_net() -> Case:
    return _chain(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Linear(64, 10),
        x=torch.randn(ROWS, 1, 8, 8),
        y=torch.randint(0, 10, (ROWS,)),
        loss_fn=nn.functional.cross_entropy,
    )


def nested() -> Case:
    return _chain(
        nn.Sequential(_linear(), nn.Sequential(nn.Tanh(), _linear())),
        Residual(),
        nn.Sequential(nn.Sequential(_linear())),
    )


def named_layers() -> Case:
    case = _chain(_linear(), nn.Tanh(), _linear(), _linear())
    model = nn.Sequential()
    for name, layer in zip(("first", "act", "second", "head"), case.model, strict=True):
        model.add_module(name, layer)
    return Case(model, case.x, case.y, case.loss_fn)


def spectral_norm() -> Case:
    """Buffers that a forward changes and that its output depends on."""
    spectral = nn.utils.parametrizations.spectral_norm
    return _chain(_linear(), spectral(_linear()), nn.Tanh(), spectral(_linear()), _linear(), by_rows=False)


def counting_buffer() -> Case:
    return _chain(_linear(), Counter(), nn.Tanh(), Counter(), by_rows=False)


def replaced_buffer() -> Case:
    return _chain(_linear(), Replaced(), nn.Tanh(), Replaced(), by_rows=False)


def checkpointed() -> Case:
    return _chain(_linear(), Checkpointed(), Checkpointed(), Checkpointed(), _linear())


def checkpointed_dropout() -> Case:
    return _chain(
        _linear(), Checkpointed(nn.Dropout(0.5)), Checkpointed(nn.Dropout(0.5)), _linear(),
        by_rows=False, threads=False,
    )  # fmt: skip


def token_weights() -> Case:
    """A mean over valid tokens, whose counts differ much: micro-batches count what they hold."""
    valid = torch.tensor([4, 0, 0, 0, 3, 1, 4])  # of the seven rows
    ids = torch.randint(0, 11, (ROWS, 4))
    y = torch.where(torch.arange(4) < valid[:, None], torch.randint(0, 11, (ROWS, 4)), -100)
    return _chain(
        nn.Embedding(11, DIM), Residual(), Residual(), _linear(DIM, 11), x=ids, y=y, loss_fn=_token_loss,
        options={"loss_weight": _valid_tokens},
    )  # fmt: skip


def summed_loss() -> Case:
    case = plain()
    return Case(case.model, case.x, case.y, _summed, {"loss_weight": "sum"})


class _Embed(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return (self.table(value[0]), *value)


class _AddIds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, DIM)

    def forward(self, value: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        result: Tensor = value[0] + self.table(value[2])
        return result


def _sum(value: Any) -> Any:
    return value[0] + value[1]


def _token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def _valid_tokens(target: Tensor) -> Tensor:
    return (target != -100).sum()


def _summed(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum()


CASES: Final[Mapping[str, Callable[[], Case]]] = {
    make.__name__: make
    for make in (
        plain, in_place_first, in_place_later, in_place_on_a_member, view_output, expanded_output,
        transposed_output, strided_output, overlapping_output, unused_output, same_output_twice, views_of_one_tensor,
        passed_through, token_ids, mask_through, none_and_numbers, dict_through, list_through, dataclass_through,
        skip_connection, deep_skip, scalar_and_empty_through, no_parameters, frozen_layers, frozen_first_stage,
        frozen_last_stage, only_last_learns, used_twice_in_a_layer, tied_in_a_stage, layer_occurs_twice,
        output_without_grad, partly_without_grad, double, dropout, noise, batch_norm, layer_norm, conv_net, nested,
        named_layers, spectral_norm, counting_buffer, replaced_buffer, checkpointed, checkpointed_dropout,
        token_weights, summed_loss,
    )
}  # fmt: skip


def make(name: str) -> Case:
    """The case called `name`: each time the same numbers, and torch's generator is left alone."""
    with torch.random.fork_rng():
        torch.manual_seed(sorted(CASES).index(name))
        return CASES[name]()
