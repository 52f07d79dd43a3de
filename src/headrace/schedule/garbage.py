"""Millions of actions are millions of small tuples, none of them in a cycle.

Python's collector of cycles would look through all of them again and again while they are made, which takes longer
than making them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Within it, cycles are not looked for; what nobody refers to is freed as ever."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
