"""What everybody hears when something goes wrong on one rank: the first cause, and where it happened."""

import traceback

from headrace.schedule.actions import KIND_NAMES, Action


class PipelineFailure(RuntimeError):
    """A rank failed, so the step was given up on every rank.

    The first line of the message says where and what, then comes the traceback of the cause. In the process where it
    happened, the cause is also `__cause__`.

    Attributes:
        rank: the rank that failed first.
        action: what it was doing; None between actions.
    """

    def __init__(self, rank: int, action: Action | None, what: str) -> None:
        self.rank = rank
        self.action = action
        self.what = what
        doing, summary = "", _last_error(what)
        if action is not None:
            stage, kind, micro_batch = action
            doing = f" at {action} ({KIND_NAMES[kind]} of stage {stage}, micro-batch {micro_batch})"
        super().__init__(f"rank {rank} failed{doing}: {summary}" + ("" if summary == what else f"\n{what}"))

    def __eq__(self, other: object) -> bool:
        """Whether it is the same failure, perhaps heard of in another process."""
        return isinstance(other, PipelineFailure) and self.__reduce__() == other.__reduce__()

    __hash__ = RuntimeError.__hash__

    def __reduce__(self) -> tuple[type["PipelineFailure"], tuple[int, Action | None, str]]:
        return PipelineFailure, (self.rank, self.action, self.what)

    @classmethod
    def of(cls, rank: int, action: Action | None, error: BaseException) -> "PipelineFailure":
        """The failure that `error` is, with the user's part of the traceback."""
        failure = cls(rank, action, "".join(traceback.format_exception(error)).rstrip())
        failure.__cause__ = error
        return failure


def _last_error(what: str) -> str:
    """The line of a traceback that names the error; all of a text that is no traceback."""
    if "Traceback (most recent call last)" not in what:
        return what
    after_frames = what.rpartition("\n  ")[2].splitlines()[1:]
    return " – ".join(after_frames[:1] + [line for line in after_frames[1:] if line.startswith("raised by layer")])


class Stopped(Exception):
    """This rank stopped because another one failed: never the first cause."""
