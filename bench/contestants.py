"""Who takes part: each contestant prepares a step for a case, in one process or in one process a rank."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from cases import Case

Step = Callable[[], float | None]
"""Runs one step (forward, loss, backward; gradients cleared before); the loss, on processes that know it."""


@dataclass(frozen=True)
class Contestant:
    """One way to run a step.

    Attributes:
        title: what tables call it.
        module: where it is; imported only in its workers.
        function: `(case, rank, ranks) -> Step` in that module.
        distributed: one process a rank, with the environment variables of torchrun; otherwise one process.
        threads: intra-op threads per process.
    """

    title: str
    module: str
    function: str = "prepare"
    distributed: bool = False
    threads: int = 1

    def prepare(self, case: Case, rank: int, ranks: int) -> Step:
        """The step of one process of this contestant."""
        step: Step = getattr(import_module(self.module), self.function)(case, rank, ranks)
        return step


CONTESTANTS: Final[dict[str, Contestant]] = {
    "unsplit1": Contestant("unsplit, 1 thread", "unsplit"),
    "unsplit2": Contestant("unsplit, 2 threads", "unsplit", threads=2),
    "whole1": Contestant("unsplit, whole batch, 1 thread", "unsplit", "prepare_whole"),
    "whole2": Contestant("unsplit, whole batch, 2 threads", "unsplit", "prepare_whole", threads=2),
    "stages": Contestant("arithmetic alone", "unsplit", "prepare_stages"),
    "torch": Contestant("torch", "with_torch", distributed=True),
    "hand": Contestant("by hand", "by_hand", distributed=True),
    "local": Contestant("headrace local", "with_headrace"),
    "distributed": Contestant("headrace distributed", "with_headrace", distributed=True),
    "gloo": Contestant("headrace over gloo", "with_headrace", "prepare_process_group", distributed=True),
}
