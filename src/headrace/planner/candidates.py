"""Everything that could be chosen, cut or not: schedule × micro-batches × replicas."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from headrace.planner.request import Request
from headrace.schedule.catalogue import build
from headrace.schedule.schedule import Schedule

_MOST_STAGES = 128  # more of them cost a planner seconds, and a pipeline messages
_SEVERAL_STAGES = {
    "interleaved": "stages_per_rank",
    "looped-bfs": "stages_per_rank",
    "interleaved-zb": "stages_per_rank",
}


@dataclass(frozen=True)
class Candidate:
    """One choice of what does not depend on the cut.

    Attributes:
        name, options: of the schedule.
        ranks: of one pipeline.
        micro_batches: m.
        replicas: pipelines side by side.
        rows: of the largest micro-batch.
    """

    name: str
    ranks: int
    micro_batches: int
    replicas: int
    rows: int
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Schedule:
        """The schedule, without recompute.

        Raises:
            ValueError: there is none for these numbers.
        """
        return _built(self.name, self.ranks, self.micro_batches, tuple(self.options.items()))

    def __str__(self) -> str:
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"{self.name} with m={self.micro_batches}{options}"


@lru_cache(maxsize=32)
def _built(name: str, ranks: int, micro_batches: int, options: tuple[tuple[str, Any], ...]) -> Schedule:
    return build(name, ranks=ranks, micro_batches=micro_batches, **dict(options))


def candidates(request: Request) -> Iterator[Candidate]:
    """All of them."""
    for replicas in request.replicas:
        ranks, rows = request.ranks // replicas, request.batch // replicas
        for name in request.names:
            for options in _options(name, ranks, request.layers):
                for m in request.micro_batches or usual_numbers(ranks, rows):
                    if m > rows:
                        continue
                    yield Candidate(name, ranks, m, replicas, -(-rows // m), options)


def usual_numbers(ranks: int, rows: int) -> list[int]:
    """The numbers of micro-batches to choose from where none are given: from p to 8p, or what the batch allows.

    Fewer mean more bubble, more of them smaller ones.
    """
    found = {ranks, 2 * ranks, 4 * ranks, 8 * ranks} if ranks > 1 else {1, 2, 4}
    fitting = sorted(m for m in found if m <= rows)
    return fitting or [rows]


def _options(name: str, ranks: int, layers: int) -> list[dict[str, Any]]:
    option = _SEVERAL_STAGES.get(name)
    if option is None or ranks == 1:
        return [{}]
    return [{option: v} for v in (2, 4) if v * ranks <= layers and v * ranks <= _MOST_STAGES] or [{}]
