"""Hooks on gradients are refused where they would see something else than in the unsplit model."""

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.runtime.failure import PipelineFailure
from runtime.pipes import four_linears


@pytest.mark.parametrize("how", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize(
    ("schedule", "why"), [("chimera", "one lane"), ("dualpipe", "one lane"), ("pipedream", "asynchronous")]
)
def test_hooks_that_would_see_something_else_are_refused(schedule: str, why: str, how: str) -> None:
    model = four_linears()
    getattr(model[1].weight, how)(lambda _: None)
    factory = (lambda named: torch.optim.SGD(named, lr=0.1)) if schedule == "pipedream" else None
    with (
        hr.Pipeline(
            model, nn.functional.mse_loss, ranks=2, micro_batches=4, schedule=schedule, optimizer=factory
        ) as pipe,
        pytest.raises((PipelineFailure, ValueError), match=f"1.weight have hooks on their gradients, .*{why}"),
    ):
        pipe.step(torch.ones(8, 6), torch.ones(8, 6))


def test_a_factory_that_forgets_its_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"optimizer= returned None: it must return a torch\.optim\.Optimizer"):
        hr.Pipeline(
            four_linears(), nn.functional.mse_loss, ranks=2, micro_batches=4, schedule="pipedream",
            optimizer=lambda _: None,  # type: ignore[arg-type, return-value]
        )  # fmt: skip
