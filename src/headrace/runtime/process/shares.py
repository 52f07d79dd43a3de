"""How many intra-op threads a rank computes with: its share of what the process may use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headrace.runtime.process.processes import is_distributed


def share_of_threads(ranks: int) -> int:
    """The intra-op threads of each of `ranks` ranks: under torchrun a process is one rank and keeps all of its own."""
    mine = torch.get_num_threads()
    return mine if is_distributed() else max(1, mine // ranks)


@contextmanager
def computing_as_a_rank(ranks: int) -> Iterator[None]:
    """Within it, this thread computes with as many intra-op threads as each of `ranks` ranks does."""
    before = torch.get_num_threads()
    torch.set_num_threads(share_of_threads(ranks))
    try:
        yield
    finally:
        torch.set_num_threads(before)
