"""Notations of others: what is written there is read here, and the other way round."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import _Action

from headrace.planner.exchange import MEGATRON, from_megatron, from_module_names, to_megatron, to_torch_csv
from headrace.schedule import CATALOGUE, build, parse


def test_megatrons_own_example() -> None:
    stages = from_megatron("Et*3|(tt|)*29,m|L")
    assert len(stages) == 32
    assert stages[0] == "Ettt"
    assert set(stages[1:30]) == {"tt"}
    assert stages[30:] == ("m", "L")
    kinds = "".join(stages)
    assert to_megatron([len(stage) for stage in stages], kinds) == "Et*3|(tt|)*29m|L"


@given(st.lists(st.text(MEGATRON, min_size=1, max_size=5), min_size=1, max_size=9))
def test_what_is_written_is_read(stages: list[str]) -> None:
    assert from_megatron(to_megatron([len(stage) for stage in stages], "".join(stages))) == tuple(stages)


def test_a_language_model_needs_no_letters() -> None:
    assert to_megatron((2, 2, 2, 3)) == "Et|(tt|)*2ttL"
    assert from_megatron("(t*2|)*2 t , L") == ("tt", "tt", "tL")


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("E||t|L", "leaves stage 1 empty"),
        ("Et|x|L", "has 'x' where a layer"),
        ("Et|(tt|L", r"has '\(' where a layer"),
        ("t*999999999", "more than 100000 layers"),
        ("", "leaves stage 0 empty"),
    ],
)
def test_what_cannot_run_here_is_refused(layout: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_megatron(layout)


def test_letters_must_fit_the_layers() -> None:
    with pytest.raises(ValueError, match="one letter of EtmL for each of 3 layers"):
        to_megatron((1, 2), "Et")


def test_module_names_per_stage() -> None:
    layers = ("embedding", "block0", "block1", "head")
    assert from_module_names(layers, [["embedding"], ["block0", "block1", "head"]]) == (1, 3)
    for stages, message in (
        ([["embedding"], ["block1", "block0", "head"]], "another order"),
        ([["embedding", "block0"], ["block1"]], "'head' is missing"),
        ([["embedding", "block0", "norm"], ["block1", "head"]], "'norm' is no layer"),
        ([[], list(layers)], "a stage names no layer"),
    ):
        with pytest.raises(ValueError, match=message):
            from_module_names(layers, stages)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"])
def test_torch_reads_what_is_written_for_it(name: str) -> None:
    schedule = build(name, ranks=2, micro_batches=4)
    text = to_torch_csv(schedule)
    for rank, row in enumerate(csv.reader(io.StringIO(text))):
        read = [action for cell in row for action in _actions(_Action.from_str(cell))]
        assert read == [str(action) for action in schedule.rows[rank]]
    assert parse(text, name=name) == schedule


def _actions(action: _Action) -> list[str]:
    return [repr(part) for part in action.sub_actions] if action.sub_actions else [repr(action)]


@pytest.mark.parametrize(
    ("name", "what"), [("chimera", "two lanes"), ("seq1f1b", "segments"), ("pipedream", "U actions")]
)
def test_what_torch_cannot_say_is_refused(name: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"has {what}, which PyTorch's compute-only rows cannot say"):
        to_torch_csv(build(name, ranks=2, micro_batches=4))
    assert name in CATALOGUE
