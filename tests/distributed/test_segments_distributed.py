"""Sequences in segments between processes: the plain loop's bits; and outputs whole again, in every process."""

from typing import Any, Final

import pytest
import torch
from runtime.parity import cut_of, stages_of_parameters
from runtime.reference import everything, gradients
from runtime.sequences import InSegments
from torch import Tensor

from distributed.test_parity_distributed import CREWS, assert_same, train_all
from distributed.work import SEED, STEPS, Setting, Trained, same_bits, together
from headrace.schedule import Schedule, build

NUMBERS: Final = [(2, 2, 3, "always"), (3, 3, 2, "never"), (4, 1, 3, "never")]


def looped(setting: Setting, schedule: Schedule) -> Trained:
    """The same by a plain loop over segments."""
    case = setting.make()
    cut = cut_of(case, schedule.stages)
    assert cut is not None
    stage_of = stages_of_parameters(case.model, cut)
    loop = InSegments(case, SEED)
    optimizer = torch.optim.SGD(case.model.parameters(), 0.1, momentum=0.9)
    losses, grads = [], []
    for step in range(STEPS):
        losses.append(loop.step(case.batch(step), schedule, stage_of))
        grads.append(gradients(case.model))
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, grads, everything(case.model))


@pytest.mark.parametrize(("ranks", "m", "segments", "recompute"), NUMBERS)
def test_segments_are_bitwise_a_plain_loop(crew: CREWS, ranks: int, m: int, segments: int, recompute: str) -> None:
    schedule = build("seq1f1b", ranks=ranks, micro_batches=m, segments=segments, recompute=recompute)
    settings = [
        Setting(case, ranks, m, schedule, links=links, batch=batch)
        for case, links, batch in [
            ("gpt", "shared_memory", "everywhere"),
            ("gpt with dropout", "shared_memory", "garbage"),
            ("gpt", "process_group", "where needed"),
        ]
    ]
    parts = crew(ranks).run(train_all, settings)
    for setting, of_ranks in zip(settings, zip(*parts, strict=True), strict=True):
        assert_same(f"{setting.case} over {setting.links}", together(of_ranks), looped(setting, schedule))


def look(setting: Setting, rows: int) -> tuple[Tensor, dict[str, Tensor]]:
    """In a worker: the outputs and the loss of some rows."""
    case = setting.make()
    x, y = case.batch(0)
    with setting.pipeline(case) as pipe:
        return pipe.predict(x[:rows]), pipe.evaluate(x[:rows], y[:rows])


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize(
    ("case", "name", "options"), [("gpt with dropout", "seq1f1b", {"segments": 3}), ("gpt", "chimera", {})]
)
def test_evaluate_and_predict_see_whole_sequences(
    crew: CREWS, case: str, name: str, options: dict[str, Any], rows: int
) -> None:
    schedule = build(name, ranks=2, micro_batches=3, **options)
    setting = Setting(case, 2, 3, schedule)
    (outputs, found), (also_outputs, also_found) = crew(2).run(look, setting, rows)
    assert same_bits(outputs, also_outputs)
    assert same_bits(found["loss"], also_found["loss"])
    plain = setting.make()
    x, y = plain.batch(0)
    with torch.no_grad():
        expected = plain.model.eval()(x[:rows])
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(found["loss"], plain.loss_fn(expected, y[:rows]))
