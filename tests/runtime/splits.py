"""Schedules with split backwards, pipelines with them raced against the unsplit model, and a look at what W does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.runtime.split.halves import Halves
from headrace.runtime.split.operation import Operation
from headrace.schedule import Action, Placement, Schedule
from runtime.cases import DIM, Case
from runtime.pipes import SEED
from runtime.reference import Unsplit, differing, everything, flat_layers, gradients, order_of, same

WEIGHT: Final = (DIM, DIM)

ONE_RANK: Final = "0F0 0F1 0F2 0I1 0I0 0I2 0W0 0W2 0W1"
"""A row whose W come in another order than its I, none right after its own."""


def row(text: str) -> Schedule:
    """The schedule of one rank with one stage."""
    actions = tuple(Action.parse(action) for action in text.split())
    return Schedule("by hand", (actions,), Placement((0,)), 1 + max(a.micro_batch for a in actions))


def two_stages(text: str = ONE_RANK) -> Schedule:
    """The same for one rank with two stages, one after the other."""
    actions = []
    for action in (Action.parse(action) for action in text.split()):
        actions += [action._replace(stage=stage) for stage in ((0, 1) if action.kind == "F" else (1, 0))]
    micro_batches = 1 + max(a.micro_batch for a in actions)
    return Schedule("by hand", (tuple(actions),), Placement((0, 0)), micro_batches)


def split(schedule: Schedule, lag: int = 1) -> Schedule:
    """Each B as an I, and as a W after `lag` further ones of the rank."""
    rows = []
    for actions in schedule.rows:
        done: list[Action] = []
        waiting: list[Action] = []
        for action in actions:
            if action.kind == "B":
                done.append(action._replace(kind="I"))
                waiting.append(action._replace(kind="W"))
                if len(waiting) > lag:
                    done.append(waiting.pop(0))
            else:
                done.append(action)
        rows.append((*done, *waiting))
    return Schedule(f"split {schedule.name}", tuple(rows), schedule.placement, schedule.micro_batches)


def unsplit(schedule: Schedule) -> Schedule:
    """What the reference follows: the same with a B at the place of each W, where gradients are accumulated."""
    rows = tuple(
        tuple(a._replace(kind="B") if a.kind == "W" else a for a in actions if a.kind != "I")
        for actions in schedule.rows
    )
    return Schedule(schedule.name, rows, schedule.placement, schedule.micro_batches)


def assert_parity(
    make_case: Callable[[], Case], schedule: Schedule, steps: int = 3, context: Callable[[], Any] | None = None
) -> None:
    """Train a case through a pipeline and its twin unsplit, and compare losses and gradients bit by bit."""
    case, twin = make_case(), make_case()
    torch.manual_seed(SEED)
    reference, followed = Unsplit(twin, SEED), unsplit(schedule)
    cut = case.cut(schedule.stages)
    with hr.Pipeline(
        case.model,
        case.loss_fn,
        ranks=schedule.ranks,
        micro_batches=schedule.micro_batches,
        schedule=schedule,
        cut=cut,
        **case.options,
    ) as pipe:
        stage_of = stages_of_parameters(case.model, pipe.cut)
        ours = torch.optim.SGD(case.model.parameters(), lr=0.05, momentum=0.9)
        theirs = torch.optim.SGD(twin.model.parameters(), lr=0.05, momentum=0.9)
        orders = [order_of(followed, stage, "B") for stage in range(schedule.stages)]
        for step in range(steps):
            with context() if context else nothing():
                loss = pipe.step(*case.batch(step))
            with context() if context else nothing():
                if all(order == orders[0] for order in orders):
                    expected = reference.step(twin.batch(step), orders[0])
                else:
                    expected = reference.step_by_stages(twin.batch(step), followed, stage_of)
            assert same(loss, expected), f"loss of step {step}: {loss} is not {expected}"
            assert differing(gradients(case.model), gradients(twin.model)) == [], f"gradients of step {step}"
            ours.step()
            theirs.step()
            ours.zero_grad()
            theirs.zero_grad()
    assert differing(everything(case.model), everything(twin.model)) == []


def stages_of_parameters(model: nn.Sequential, cut: tuple[int, ...]) -> dict[str, int]:
    """Each parameter's stage, by the names of the unsplit model."""
    stages = [stage for stage, count in enumerate(cut) for _ in range(count)]
    owner = {id(p): stage for layer, stage in zip(flat_layers(model), stages, strict=True) for p in layer.parameters()}
    return {name: owner[id(p)] for name, p in model.named_parameters()}


@contextmanager
def nothing() -> Iterator[None]:
    yield


def one_layer(*layers: Callable[[], nn.Module], x: Any, seed: int = 0) -> Callable[[], Case]:
    """Cases whose model is a layer or a few, with a loss to which all of the output matters."""

    def made() -> Case:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            rows = len(x[0] if isinstance(x, tuple) else x)
            model = nn.Sequential(*(layer() for layer in layers))
            return Case(model, x, torch.zeros(rows), _all_matters, {"loss_weight": "sum"})

    return made


def _all_matters(output: Any, _: Tensor) -> Tensor:
    return torch.sin(output.double() * 1.7 + 0.3).sum()


class Layer(nn.Module):
    """A linear and a function of it and its input."""

    def __init__(self, function: Callable[[nn.Linear, Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer, x)


def race(*layers: Callable[[], nn.Module], x: Any = None, context: Any = None, order: str = ONE_RANK) -> None:
    """The layers as the second stage of two, against the unsplit model."""
    x = torch.randn(7, DIM) if x is None else x
    cases = one_layer(nn.PReLU, lambda: Join(*(layer() for layer in layers)), x=x)
    assert_parity(cases, two_stages(order), context=context)


class Join(nn.Module):
    """Layers as one, after a light one with a parameter, so that what comes in needs a gradient."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return x


def of_function(function: Callable[[nn.Linear, Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: Layer(function)


@dataclass
class Seen:
    """What was left to W.

    Attributes:
        products: how many in each W.
        leaves: the shapes of the leaves whose gradients each W computed by products.
        forwards: how many forwards were prepared for a split.
    """

    products: list[int] = field(default_factory=list)
    leaves: list[list[tuple[int, ...]]] = field(default_factory=list)
    forwards: int = 0
    operations: int = 0


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Look on while W is performed."""
    result = Seen()
    weight_gradients, init, operation = Halves.weight_gradients, Halves.__init__, Operation.__init__

    def look(halves: Halves) -> None:
        result.products.append(len(halves._products))
        result.leaves.append(sorted(tuple(leaf.shape) for leaf in halves._waiting.values()))
        weight_gradients(halves)

    def count(halves: Halves) -> None:
        result.forwards += 1
        init(halves)

    def count_operation(self: Operation, *args: Any) -> None:
        result.operations += 1
        operation(self, *args)

    monkeypatch.setattr(Halves, "weight_gradients", look)
    monkeypatch.setattr(Halves, "__init__", count)
    monkeypatch.setattr(Operation, "__init__", count_operation)
    return result


def left(seen: Seen) -> list[tuple[int, ...]]:
    """What the first W computed of the stage that has weights; the others must have done the same."""
    (first, *others) = seen.leaves[::2]
    assert all(other == first for other in others)
    return first
