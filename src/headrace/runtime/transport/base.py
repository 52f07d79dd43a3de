"""What a pipeline needs of a transport."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from headrace.runtime.work import Endpoint
from headrace.timeline import ClockOffset

T = TypeVar("T")


class Transport(Protocol):
    """Runs ranks and carries their messages.

    Attributes:
        held_ranks: the ranks that this process runs.
        alone: whether those are all.
    """

    @property
    def held_ranks(self) -> tuple[int, ...]: ...

    @property
    def alone(self) -> bool: ...

    def close(self) -> None:
        """End threads and connections; called again, it does nothing."""

    def run(self, task: Callable[[int, Endpoint], T]) -> dict[int, T]:
        """Do `task(rank, endpoint)` on every rank at once; the results of the ranks that this process runs.

        Raises:
            PipelineFailure: a rank failed, here or elsewhere; the others have stopped.
        """

    def guarded(self, work: Callable[[], T]) -> T:
        """Do `work`; if it raises, the ranks of other processes stop with that cause."""

    def interrupted(self, error: BaseException) -> None:
        """Let the ranks of other processes know of an interrupt that came outside of `guarded`."""

    def agree(self, **settings: Any) -> None:
        """Compare settings between processes.

        Raises:
            ValueError: one differs; the message names it, and who has what.
        """

    def share(self, value: Any, rank: int) -> Any:
        """In every process the `value` that the process of `rank` has. Every process must call it."""

    def gather(self, value: T) -> list[T]:
        """The `value` of every process, in the order of their ranks. Every process must call it."""

    def clock_offset(self, begin: float) -> ClockOffset:
        """What moves this process's moments from `begin` until now to the clock of rank 0, in seconds.

        Raises:
            PipelineFailure: rank 0 is gone.
        """
