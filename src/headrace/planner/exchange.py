"""Plans in the notations of others, so that what was planned here can run there, and the other way round.

Megatron     "Et*3|(tt|)*29,m|L"     E embedding, t transformer layer, m multi-token prediction, L loss;
                                     | ends a stage, x*3 is xxx, (…)*2 repeats, commas mean nothing
torchtitan   [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]     the modules of each stage
PyTorch      rows of 2F0, 2I0, (0F3;3B1)OVERLAP_F_B                               compute-only schedules as CSV
"""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from headrace.schedule.schedule import Schedule

MEGATRON: Final = "EtmL"
_TORCH: Final = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
_MOST: Final = 100_000  # layers: a typing error such as t*999999999 must not fill the memory


def to_megatron(cut: Sequence[int], kinds: str | None = None) -> str:
    """A cut as Megatron's --pipeline-model-parallel-layout.

    Args:
        cut: layers per stage.
        kinds: one letter of "EtmL" per layer; None for a language model: an embedding, transformer layers, the loss.

    Raises:
        ValueError: `kinds` has another length than the cut, or another letter.
    """
    layers = sum(cut)
    letters = kinds if kinds is not None else ("E" + "t" * (layers - 2) + "L" if layers > 1 else "t")
    if len(letters) != layers or set(letters) - set(MEGATRON):
        raise ValueError(f"kinds={kinds!r} must have one letter of {MEGATRON} for each of {layers} layers")
    rest = iter(letters)
    stages = ["".join(next(rest) for _ in range(count)) for count in cut]
    written = []
    for stage, same in groupby(stages[:-1]):
        times = len(list(same))
        written.append(f"({_short(stage)}|)*{times}" if times > 1 else f"{_short(stage)}|")
    return "".join(written) + _short(stages[-1])


def from_megatron(layout: str) -> tuple[str, ...]:
    """The letters of each stage; their lengths are the cut.

    Raises:
        ValueError: it is malformed, or a stage is empty, which a pipeline here cannot have.
    """
    text = layout.replace(",", "").replace(" ", "")
    while True:
        opened = re.search(r"\(([^()]*)\)\*([0-9]+)", text)
        if opened is None:
            break
        text = text[: opened.start()] + _repeated(opened[1], opened[2], layout) + text[opened.end() :]
    text = re.sub(r"([EtmL])\*([0-9]+)", lambda match: _repeated(match[1], match[2], layout), text)
    stages = tuple(text.split("|"))
    stranger = next((letter for letter in text if letter not in MEGATRON + "|"), None)
    if stranger is not None:
        raise ValueError(f"layout={layout!r} has {stranger!r} where a layer ({', '.join(MEGATRON)}) or | must stand")
    if "" in stages:
        raise ValueError(
            f"layout={layout!r} leaves stage {stages.index('')} empty: give every stage a layer, or leave it out"
        )
    return stages


def from_module_names(layers: Sequence[str], stages: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """The cut that lists of module names per stage describe, as torchtitan takes them.

    Args:
        layers: the names of the model's layers, in order.
        stages: the names of each stage's.

    Raises:
        ValueError: they are not these layers, each once and in order.
    """
    named = [name for stage in stages for name in stage]
    if named != list(layers):
        wrong = next((name for name in named if name not in layers), None)
        missing = next((name for name in layers if name not in named), None)
        why = f"{wrong!r} is no layer" if wrong else f"{missing!r} is missing" if missing else "another order"
        raise ValueError(f"stages do not name the layers {', '.join(layers)}, each once and in order: {why}")
    if not all(stages):
        raise ValueError("a stage names no layer: every stage needs one")
    return tuple(map(len, stages))


def to_torch_csv(schedule: Schedule) -> str:
    """The schedule as PyTorch's pipelining loads it: rows of compute actions.

    Raises:
        ValueError: it has something that these rows cannot say: recompute, updates, segments or lanes.
    """
    kinds = {action.kind for row in schedule.rows for action in row}
    other = next((kind for kind in sorted(kinds) if kind not in _TORCH), None)
    if other is not None or schedule.segments > 1 or len(schedule.placement.lanes) > 1:
        what = f"{other} actions" if other else "segments" if schedule.segments > 1 else "two lanes"
        raise ValueError(f"schedule {schedule.name!r} has {what}, which PyTorch's compute-only rows cannot say")
    lines = []
    for rank in range(schedule.ranks):
        cells = schedule.cells(rank)
        lines.append(",".join(str(c[0]) if len(c) == 1 else f"({c[0]};{c[1]})OVERLAP_F_B" for c in cells) + "\n")
    return "".join(lines)


def _short(stage: str) -> str:
    runs = ((letter, len(list(same))) for letter, same in groupby(stage))
    return "".join(letter if count == 1 else f"{letter}*{count}" if count > 2 else letter * 2 for letter, count in runs)


def _repeated(what: str, times: str, layout: str) -> str:
    if len(what) * int(times) > _MOST:
        raise ValueError(f"layout={layout!r} repeats {what!r} {times} times, which is more than {_MOST} layers")
    return what * int(times)
