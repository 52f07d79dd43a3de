"""Whatever the schedule, `predict` and `evaluate` give what the unsplit model gives, between steps too."""

from typing import Any

import pytest
import torch
from torch import nn

from headrace.schedule import CATALOGUE
from runtime.cases import make
from runtime.delays import OPTIMIZERS
from runtime.parity import cut_of
from runtime.pipes import pipe_of
from runtime.schedules import ASYNCHRONOUS, schedule_of


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("name", CATALOGUE)
def test_outputs_and_losses_are_those_of_the_unsplit_model(name: str, rows: int) -> None:
    case = make("dropout")
    schedule = schedule_of(name, 2, "m = 2p + 1", "always")
    options: dict[str, Any] = {"optimizer": OPTIMIZERS["sgd"]} if name in ASYNCHRONOUS else {}
    cut = cut_of(case, schedule.stages)
    x, y = case.batch(0)
    with pipe_of(case, 2, schedule.micro_batches, schedule=schedule, cut=cut, **options) as pipe:
        for step in range(2):
            output, found = pipe.predict(x[:rows]), pipe.evaluate(x[:rows], y[:rows])
            case.model.eval()
            with torch.no_grad():
                expected = case.model(x[:rows])
            case.model.train()
            torch.testing.assert_close(output, expected)
            torch.testing.assert_close(found["loss"], nn.functional.mse_loss(expected, y[:rows]))
            pipe.step(*case.batch(step))
            for parameter in () if name in ASYNCHRONOUS else pipe.parameters():
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
