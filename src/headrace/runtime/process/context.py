"""What the caller's thread has switched on reaches the threads that work for it.

autocast, grad mode, inference mode, the default device and context variables belong to a thread in PyTorch; a worker
thread that ignored them would compute in another precision than the user asked for, or keep graphs that nobody needs.
(The default dtype belongs to the process.)
"""

import contextvars
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class _Autocast:
    device_type: str
    dtype: torch.dtype


class CallerContext:
    """The state of the thread that makes it, for other threads to work in."""

    def __init__(self, device_types: Collection[str]) -> None:
        self._variables = contextvars.copy_context()
        self._inference = torch.is_inference_mode_enabled()
        self._grad = torch.is_grad_enabled()
        self._cache = torch.is_autocast_cache_enabled()
        self._default_device = torch.get_default_device()
        self._autocast = tuple(
            _Autocast(kind, torch.get_autocast_dtype(kind))
            for kind in sorted({*device_types, "cpu"})
            if torch.is_autocast_enabled(kind)
        )

    def run(self, work: Callable[[], T]) -> T:
        """Do `work` in this thread as if it were the caller's."""
        return self._variables.copy().run(self._run, work)

    def _run(self, work: Callable[[], T]) -> T:
        with ExitStack() as stack:
            for autocast in self._autocast:
                stack.enter_context(_autocasting(autocast, self._cache))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            if self._inference:
                stack.enter_context(torch.inference_mode())
            if self._default_device.type != "cpu":
                stack.enter_context(self._default_device)
            return work()


@contextmanager
def _autocasting(autocast: _Autocast, cache: bool) -> Iterator[None]:
    """As torch.autocast, but it leaves the cache of cast weights alone, which all threads share.

    torch.autocast would empty it when the first rank is done, under the feet of the others: a weight that is used twice
    would be cast twice, and its gradients be added up in another precision. The caller's autocast empties it.
    """
    kind = autocast.device_type
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
    _set_autocast(kind, True, autocast.dtype, cache)
    torch.autocast_increment_nesting()  # or an autocast inside a layer would think that it is the outermost one
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        _set_autocast(kind, *before)


def _set_autocast(kind: str, enabled: bool, dtype: torch.dtype, cache: bool) -> None:
    torch.set_autocast_enabled(kind, enabled)
    torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(cache)
