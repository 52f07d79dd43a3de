"""The refusal: no cut fits, why not, and what would help."""

from headrace.costs import Bytes


class NoCutFits(ValueError):
    """No cut respects the memory of the ranks, the pins and what must stay together.

    Attributes:
        constraint: what is in the way: "memory", "layers" (too few of them, or of groups that stay together) or "pins".
        rank: the rank that needs more memory, if one alone is too small.
        missing: bytes that it needs more; if no rank alone is too small, bytes that each of them needs more.
        ways_out: what would fit, in words; each was tried.
    """

    def __init__(
        self,
        message: str,
        constraint: str,
        rank: int | None = None,
        missing: Bytes | None = None,
        ways_out: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.constraint = constraint
        self.rank = rank
        self.missing = missing
        self.ways_out = ways_out
