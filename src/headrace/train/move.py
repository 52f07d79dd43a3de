"""Go on with another cut or schedule, between two steps: what was learned moves to where it is needed next.

    old cut   ╭ rank 0: embed b0 b1 b2 ╮╭ rank 1: b3 head ╮       weights, buffers and optimizer state, layer by layer,
                               └──┴─────────▶                     under the names of the unsplit model
    new cut   ╭ rank 0: embed b0 ╮╭ rank 1: b1 b2 b3 head ╮

Ranks that are threads share the model: only the optimizer is made again. Processes hear of every layer from whichever
of them holds it. Random numbers depend on step, layer and micro-batch but not on the cut, so carrying the number of
steps over is enough for the training to be the same, bit by bit, as if the cut had never changed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headrace.runtime.batch.loss import LossFn
from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.cut import named_parameters
from headrace.runtime.pipeline import Pipeline
from headrace.schedule.schedule import Schedule

MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]

_ByName = dict[str, dict[str, Any]]

_PLACES = ("params", "param_names")  # of a group: which parameters it has, not what is done with them


@dataclass(frozen=True)
class _Layer:
    """What moves with one layer; names are those of the unsplit model.

    Attributes:
        state: its state_dict.
        buffers: those that no state_dict has, by their names in the layer.
        training: the mode of each of its modules.
        moments: the optimizer's state of each parameter.
        options: of the optimizer's group that each parameter is in, such as lr.
    """

    state: dict[str, Any]
    buffers: dict[str, Tensor]
    training: list[bool]
    moments: _ByName
    options: _ByName


def moved(
    pipe: Pipeline,
    optimizer: Optimizer,
    model: nn.Sequential,
    loss_fn: LossFn,
    make_optimizer: MakeOptimizer,
    *,
    schedule: Schedule,
    cut: Sequence[int],
    **options: Any,
) -> tuple[Pipeline, Optimizer]:
    """A pipeline with another schedule and cut, and its optimizer, that go on where `pipe` and `optimizer` are.

    `pipe` is closed, unless this raises: then it works as before. Learning-rate schedulers hold on to the optimizer
    that they were made with: make them again. Under torchrun every process must call it.

    Args:
        pipe: between two steps, its gradients zeroed (to None) or never made.
        optimizer: of all parameters of `pipe`.
        model, loss_fn: those that `pipe` was made with; under torchrun `model` is brought up to date in every process.
        make_optimizer: makes an optimizer like `optimizer` from named parameters; options such as lr and all state are
            carried over, so it only says which class, and which parameters make a group.
        schedule: synchronous, for as many ranks.
        cut: layers per stage.
        options: other arguments of `Pipeline`, such as devices and loss_weight; those of `pipe`, as a rule.

    Raises:
        ValueError: an argument does not fit, gradients are there, or a parameter of `pipe` is not in `optimizer`.
    """
    for order in (pipe.schedule, schedule):
        if order.asynchronous:
            raise ValueError(
                f"schedule {order.name!r} is asynchronous: the versions of its weights cannot move. Keep its cut"
            )
    gather = pipe._transport.gather  # which fails where another process has failed, rather than wait for it
    mistakes = [mistake for mistake in gather(_mistake(pipe, optimizer)) if mistake is not None]
    if mistakes:
        raise ValueError(mistakes[0])
    moments, groups = _by_name(pipe, optimizer)
    for name, layer in layers_of(model).items():
        mine = _packed(name, layer, moments, groups) if name in pipe._holding.layers else None
        found = mine if pipe._transport.alone else next(filter(None, gather(mine)))
        if mine is None and found is not None:
            _unpack(layer, found)
            moments.update(found.moments)
            groups.update(found.options)
    new = Pipeline(
        model,
        loss_fn,
        ranks=schedule.ranks,
        micro_batches=schedule.micro_batches // schedule.segments,
        schedule=schedule,
        cut=cut,
        **options,
    )
    try:
        after = _carried_over(make_optimizer(list(new.named_parameters())), new, moments, groups)
    except BaseException:
        new.close()
        raise
    new.steps = pipe.steps
    new._told = pipe._told  # what is said once of a model need not be said again
    pipe.close()
    return new, after


def _mistake(pipe: Pipeline, optimizer: Optimizer) -> str | None:
    """What makes moving impossible in this process."""
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in pipe.named_parameters():
        if parameter.grad is not None:
            return f"{name} has a gradient, which does not move: call optimizer.step() and optimizer.zero_grad() first"
        if parameter.requires_grad and id(parameter) not in known:
            return f"optimizer does not have {name}: make it of pipe.named_parameters()"
    if known - {id(parameter) for parameter in pipe.parameters()}:
        return "optimizer has parameters that are not of pipe: make it of pipe.named_parameters()"
    return None


def _by_name(pipe: Pipeline, optimizer: Optimizer) -> tuple[_ByName, _ByName]:
    """State, and options of the group, of each parameter."""
    names = {id(parameter): name for name, parameter in pipe.named_parameters()}
    moments = {names[id(parameter)]: state for parameter, state in optimizer.state.items()}
    options = {
        names[id(parameter)]: {key: value for key, value in group.items() if key not in _PLACES}
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return moments, options


def _packed(name: str, layer: nn.Module, moments: _ByName, options: _ByName) -> _Layer:
    state = layer.state_dict()
    parameters = [each for each, _ in named_parameters({name: layer})]
    return _Layer(
        state=dict(state),
        buffers={each: buffer for each, buffer in layer.named_buffers() if each not in state},
        training=[module.training for module in layer.modules()],
        moments={each: moments[each] for each in parameters if each in moments},
        options={each: options[each] for each in parameters if each in options},
    )


def _unpack(layer: nn.Module, found: _Layer) -> None:
    """Bring a layer that another process has trained up to date."""
    layer.load_state_dict(found.state)
    with torch.no_grad():
        for name, buffer in layer.named_buffers():
            if name in found.buffers:
                buffer.copy_(found.buffers[name])
    for module, training in zip(layer.modules(), found.training, strict=True):
        module.training = training


def _carried_over(optimizer: Optimizer, pipe: Pipeline, moments: _ByName, options: _ByName) -> Optimizer:
    """`optimizer` with the state and options of each of its parameters.

    torch itself brings state to the device of its parameter.
    """
    names = {id(parameter): name for name, parameter in pipe.named_parameters()}
    saved = optimizer.state_dict()
    order: list[str] = []
    for group, described in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        members = [names[id(parameter)] for parameter in group["params"]]
        order += members
        known = [(name, options[name]) for name in members if name in options]
        for name, theirs in known:
            if theirs != known[0][1]:
                raise ValueError(
                    f"make_optimizer puts {known[0][0]} and {name} into one group, but they had different options "
                    "(such as lr): make the groups that optimizer had"
                )
        described.update(known[0][1] if known else {})
    saved["state"] = {number: moments[name] for number, name in enumerate(order) if name in moments}
    optimizer.load_state_dict(saved)
    return optimizer
