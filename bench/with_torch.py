"""The contestant to beat: `torch.distributed.pipelining` over gloo, one process a rank."""

import torch
import torch.distributed as dist
from cases import Case
from contestants import Step
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def prepare(case: Case, rank: int, ranks: int) -> Step:
    """The step of `rank`; it returns the loss on the last rank."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    first, last = rank == 0, rank == ranks - 1
    module = case.stage(rank)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    make = Schedule1F1B if case.schedule == "1f1b" else ScheduleGPipe
    schedule = make(stage, case.micro_batches, loss_fn=case.loss)
    x, y = case.batch()

    def step() -> float | None:
        module.zero_grad()
        losses: list[torch.Tensor] = []
        args = (x,) if first else ()
        if last:
            schedule.step(*args, target=y, losses=losses, return_outputs=False)
        else:
            schedule.step(*args, return_outputs=False)
        return torch.stack(losses).mean().item() if losses else None

    return step
