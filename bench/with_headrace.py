"""Our runtime: the local transport (one process, a thread a rank) and the distributed one (a process a rank).

Which of the two runs is decided, as for every user, by whether the process was started with the environment variables
of torchrun.
"""

from cases import Case
from contestants import Step

import headrace as hr
from headrace.runtime.transport.distributed.transport import Links


def prepare(case: Case, rank: int, ranks: int) -> Step:  # noqa: ARG001 - every contestant has this signature
    """The step of this process, with the links that users get."""
    return _step(case, "auto")


def prepare_process_group(case: Case, rank: int, ranks: int) -> Step:  # noqa: ARG001
    """The same with gloo in place of shared memory, as between hosts."""
    return _step(case, "process_group")


def _step(case: Case, links: Links) -> Step:
    pipe = hr.Pipeline(
        case.model(),
        case.loss,
        ranks=case.ranks,
        micro_batches=case.micro_batches,
        schedule=case.schedule,
        recompute="never",
        cut=case.cut,
        links=links,
    )
    x, y = case.batch()

    def step() -> float | None:
        for parameter in pipe.parameters():
            parameter.grad = None
        return float(pipe.step(x, y))

    step.close = pipe.close  # type: ignore[attr-defined]  # asked for by the worker when the case is done
    return step
