"""A figure of ours beside a published one, and whether they agree."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One number.

    Attributes:
        name: what it is.
        ours, theirs: in the same unit.
        within: how far they may be apart.
        unit: behind the number.
        note: why it need not agree, if so: then it is shown, but nothing is claimed.
    """

    name: str
    ours: float
    theirs: float
    within: float
    unit: str = ""
    note: str = ""

    @property
    def deviation(self) -> float:
        """(ours − theirs) ÷ theirs."""
        return self.ours / self.theirs - 1

    @property
    def agrees(self) -> bool:
        """Whether they are no further apart than `within`, but for the rounding of floats."""
        return abs(self.ours - self.theirs) <= self.within * (1 + 1e-9)


@dataclass(frozen=True)
class Reproduction:
    """A table.

    Attributes:
        title: which, and of which paper.
        figures: all of it.
        notes: how ours were computed, and what the paper does not say or says in two ways.
    """

    title: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
