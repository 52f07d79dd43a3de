"""One process, no pipeline: the same micro-batches one after the other, and what the arithmetic alone costs."""

import torch
from cases import Case
from contestants import Step


def prepare(case: Case, rank: int, ranks: int) -> Step:  # noqa: ARG001 - every contestant has this signature
    """A step of the unsplit model that accumulates the gradients of the same micro-batches."""
    model, m = case.model(), case.micro_batches
    x, y = (part.chunk(m) for part in case.batch())

    def step() -> float | None:
        model.zero_grad()
        total = 0.0
        for inputs, target in zip(x, y, strict=True):
            loss = case.loss(model(inputs), target) / m
            loss.backward()
            total += loss.item()
        return total

    return step


def prepare_whole(case: Case, rank: int, ranks: int) -> Step:  # noqa: ARG001
    """A step of the unsplit model on the whole batch at once."""
    model = case.model()
    x, y = case.batch()

    def step() -> float | None:
        model.zero_grad()
        loss = case.loss(model(x), y)
        loss.backward()
        return loss.item()

    return step


def prepare_stages(case: Case, rank: int, ranks: int) -> Step:  # noqa: ARG001
    """The same actions as in the pipeline, in one process: what they cost when nothing is handed over."""
    stages = [case.stage(index) for index in range(case.ranks)]
    m = case.micro_batches
    x, y = (part.chunk(m) for part in case.batch())

    def step() -> float | None:
        total = 0.0
        for stage in stages:
            stage.zero_grad()
        for inputs, target in zip(x, y, strict=True):
            edges: list[tuple[torch.Tensor, torch.Tensor]] = []
            here = inputs
            for stage in stages:
                out = stage(here)
                edges.append((here, out))
                here = out.detach().requires_grad_()
            loss = case.loss(edges[-1][1], target) / m
            loss.backward()
            for (_, out), (after, _) in zip(reversed(edges[:-1]), reversed(edges[1:]), strict=True):
                out.backward(after.grad)
            total += loss.item()
        return total

    return step
