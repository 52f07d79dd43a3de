"""Where a rank finds what the others sent it: a queue in the order of arrival, and a shelf for what came early.

A receiver may want messages in another order than they were sent in; it puts what it does not want yet on the shelf,
so no order of receives can deadlock what `check` has proved.
"""

from queue import SimpleQueue
from typing import Any, Final

from headrace.runtime.failure import Stopped
from headrace.schedule.messages import Message

_STOP: Final = object()


class Mailbox:
    """One rank's incoming messages of one step; written by other threads, read by one."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        self._shelf: dict[Message, Any] = {}
        self._stopped = False

    def put(self, message: Message, payload: Any) -> None:
        """Leave a message; never waits."""
        self._queue.put((message, payload))

    def stop(self) -> None:
        """Let the reader know that nothing more is worth doing, even if its messages are there."""
        self._stopped = True
        self._queue.put((_STOP, None))

    def get(self, message: Message) -> Any:
        """Wait for `message`.

        Raises:
            Stopped: `stop` was called.
        """
        self.raise_if_stopped()
        while message not in self._shelf:
            came, payload = self._queue.get()
            self.raise_if_stopped()
            self._shelf[came] = payload
        return self._shelf.pop(message)

    def raise_if_stopped(self) -> None:
        """Raise Stopped if `stop` was called."""
        if self._stopped:
            raise Stopped
