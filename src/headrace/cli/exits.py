"""What the exit code of `headrace` says; the same for every command, so that scripts can rely on it."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    NO_PLAN = 3
    WORKER_FAILED = 4
