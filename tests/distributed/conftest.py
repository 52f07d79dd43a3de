"""Crews for the tests of this folder: one for each number of ranks, started when first needed."""

from collections.abc import Callable, Iterator

import pytest
import torch

from distributed.crew import Crew, ForkServer, fork_server


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in the workers, so that kernels cut their work alike."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with fork_server() as server:
        yield server


@pytest.fixture(scope="session")
def crew(server: ForkServer) -> Iterator[Callable[[int], Crew]]:
    """crew(p): p processes that live as long as the session, unless a test hangs in them."""
    crews: dict[int, Crew] = {}

    def of(size: int) -> Crew:
        if size not in crews or not crews[size].usable:
            crews[size] = Crew(size, server)
        return crews[size]

    yield of
    for one in crews.values():
        if one.usable:
            one.close()
        one.clean_up()


@pytest.fixture
def fresh_crew(server: ForkServer) -> Iterator[Callable[[int], Crew]]:
    """fresh_crew(p): p processes of the test's own, to be killed."""
    crews: list[Crew] = []

    def of(size: int) -> Crew:
        crews.append(Crew(size, server))
        return crews[-1]

    yield of
    for one in crews:
        one.clean_up()
