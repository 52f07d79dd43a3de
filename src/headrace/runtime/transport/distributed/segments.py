"""Blocks of memory that two processes share: a large tensor is written once and read where it lies.

The receiver uses the tensor in the block itself. When its last use is gone, the block goes back to the sender, to be
filled again. Blocks have no names, so nothing is left behind when a process is killed.

    sender     take a free block, or make one ── copy in ──▶ "block 3 holds …"
    receiver   map block 3 once; tensor = view of it … tensor dies ──▶ "block 3 is free"
"""

import os
import weakref
from collections import deque
from typing import Any, Final

import torch

_SMALLEST: Final = 1 << 16


class Segment:
    """A block that this process made.

    Attributes:
        number: its name between the two processes.
        descriptor: to be passed on, once; None afterwards, as each process may have only so many.
    """

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.descriptor: int | None = os.memfd_create(f"headrace-{number}")
        os.ftruncate(self.descriptor, size)
        self.memory = _mapped(self.descriptor, size)

    def passed_on(self) -> None:
        """The other process has it too."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class OwnSegments:
    """The blocks that one sender fills for one receiver."""

    def __init__(self) -> None:
        self._all: list[Segment] = []
        self._free: dict[int, list[Segment]] = {}

    def take(self, size: int) -> Segment:
        """A block of at least `size` bytes."""
        rounded = max(_SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.setdefault(rounded, [])
        if free:
            return free.pop()
        segment = Segment(len(self._all), rounded)
        self._all.append(segment)
        return segment

    def give_back(self, number: int) -> None:
        """The receiver is done with a block."""
        segment = self._all[number]
        self._free[segment.size].append(segment)

    def close(self) -> None:
        """Free the descriptors; the memory goes with its last user."""
        for segment in self._all:
            segment.passed_on()


class TheirSegments:
    """The blocks of one sender, as its receiver sees them.

    Attributes:
        done: numbers of blocks that nobody here uses any more, to be told to the sender.
    """

    def __init__(self) -> None:
        self.done: deque[int] = deque()
        self._mapped: dict[int, memoryview] = {}

    def add(self, number: int, descriptor: int) -> None:
        """Map a block that the sender passes on for the first time."""
        self._mapped[number] = _mapped(descriptor, os.fstat(descriptor).st_size)
        os.close(descriptor)

    def open(self, number: int) -> memoryview:
        """The block's memory; once nothing refers to the result, the block counts as done."""
        view = memoryview(self._mapped[number])
        weakref.finalize(view, self.done.append, number).atexit = False
        return view


def _mapped(descriptor: int, size: int) -> memoryview:
    """The memory behind a descriptor, which may then be closed. (Python's mmap would keep a copy of it.)"""
    storage: Any = torch.UntypedStorage.from_file(f"/proc/self/fd/{descriptor}", shared=True, nbytes=size)
    array: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return memoryview(array)
