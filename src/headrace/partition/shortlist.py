"""The best cuts that a search has seen."""

from headrace.partition.objective import Value
from headrace.partition.result import Cut


class Shortlist:
    """The `count` best different cuts that were seen, by a value that less is better of."""

    def __init__(self, count: int) -> None:
        self._held: list[tuple[Value, Cut]] = []
        self._count = count
        self._seen: set[tuple[int, ...]] = set()

    @property
    def cuts(self) -> list[Cut]:
        """The best first."""
        return [cut for _, cut in self._held]

    def add(self, cut: Cut, value: Value | None = None) -> None:
        """Take it in, if it is new and good enough; by its own value, if no other is given."""
        value = cut.value if value is None else value
        if cut.layers not in self._seen and self.wants(value):
            self._seen.add(cut.layers)
            self._held.append((value, cut))
            self._held.sort(key=lambda held: held[0])
            del self._held[self._count :]

    def wants(self, value: Value) -> bool:
        """Whether a cut that is at best this good may still come in."""
        return len(self._held) < self._count or value < self._held[-1][0]
