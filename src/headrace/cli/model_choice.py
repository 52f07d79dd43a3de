"""Which model a command is about: one that comes with headrace, or a function of the user's."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from headrace.cli.chosen import refuse_typed

KNOWN: Final = ("gpt", "transformer-6b", "module:function")


@dataclass(frozen=True)
class Chosen:
    """A model, and what it is trained with.

    Attributes:
        model: a chain of layers.
        loss_fn: of output and target.
        x, y: one mini-batch.
    """

    model: Any
    loss_fn: Any
    x: Any
    y: Any


_OF_GPT: Final = ("layers", "dim", "heads")


def chosen_model(
    context: typer.Context,
    name: str,
    *,
    meta: bool,
    batch: int,
    layers: int,
    dim: int,
    heads: int,
    sequence: int,
) -> Chosen:
    """The model called `name`; without memory if `meta`.

    Args:
        context: says which options were typed.
        name: one of KNOWN. A `module:function` is called without arguments and returns a model, a loss function and a
            pair of input and target of one mini-batch.
        meta: for hardware that is not here.
        batch: rows of the mini-batch, but for a function's.
        layers, dim, heads, sequence: of the GPT.

    Raises:
        ValueError, TypeError: there is no such model, a size was typed that it does not ask for, or the function
            returns something else.
    """
    import torch

    from headrace.models.gpt import gpt, next_byte_loss
    from headrace.models.translation import transformer_6b

    with torch.device("meta" if meta else "cpu"):
        if name == "gpt":
            tokens = torch.zeros(batch, sequence, dtype=torch.long)
            return Chosen(gpt(layers, dim, heads=heads, sequence=sequence), next_byte_loss, tokens, tokens)
        if name == "transformer-6b":
            if not meta:
                raise ValueError("transformer-6b is planned for a description of hardware: say which with --hardware")
            refuse_typed(context, _OF_GPT, f"is of gpt: {name} has the sizes of its paper")
            tokens = torch.zeros(batch, sequence, dtype=torch.long)
            return Chosen(transformer_6b(), next_byte_loss, (tokens, tokens), tokens)
        built = _of_user(name)
        refuse_typed(context, (*_OF_GPT, "seq", "batch"), f"is of gpt: {name} brings its own model and batch")
        return built


def _of_user(name: str) -> Chosen:
    module, found, function = name.partition(":")
    if not found:
        raise ValueError(f"--model {name} is unknown: write one of {', '.join(KNOWN)}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        build = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--model {name} cannot be imported: {error}") from error
    if not callable(build):
        raise TypeError(f"--model {name} is {type(build).__name__}: it must be a function without arguments")
    made = build()
    if not isinstance(made, tuple) or len(made) != 3 or not isinstance(made[2], tuple) or len(made[2]) != 2:
        raise TypeError(
            f"--model {name} returned {type(made).__name__}: it must return a model, a loss function and a pair (x, y) "
            "of one mini-batch"
        )
    model, loss_fn, (x, y) = made
    return Chosen(model, loss_fn, x, y)
