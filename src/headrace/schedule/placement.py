"""Which rank holds which stage.

loop, 2 ranks, 4 stages        rank 0: stages 0 2
                               rank 1: stages 1 3
"""

from dataclasses import dataclass

from headrace.schedule.numbers import at_least


@dataclass(frozen=True)
class Placement:
    """`rank_of[s]` is the rank that holds stage s.

    Raises:
        ValueError: there is no stage, a rank is negative, or some rank below the highest one holds no stage.
    """

    rank_of: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.rank_of:
            raise ValueError("a placement needs at least one stage")
        if min(self.rank_of) < 0:
            raise ValueError(f"rank_of={self.rank_of} names rank {min(self.rank_of)}: number the ranks 0, 1, 2 …")
        ranks = set(self.rank_of)
        missing = next(rank for rank in range(len(ranks) + 1) if rank not in ranks)
        if missing < max(ranks):
            raise ValueError(
                f"rank_of={self.rank_of} leaves rank {missing} without a stage: "
                "number the ranks 0, 1, 2 … and give each at least one stage"
            )

    @classmethod
    def loop(cls, ranks: int, stages_per_rank: int = 1) -> "Placement":
        """Stage s on rank s mod `ranks`: 0, 1, …, p−1, 0, 1, …, p−1, …"""
        at_least(1, ranks=ranks, stages_per_rank=stages_per_rank)
        return cls(tuple(range(ranks)) * stages_per_rank)

    @property
    def ranks(self) -> int:
        """How many ranks there are (p)."""
        return max(self.rank_of) + 1

    @property
    def stages(self) -> int:
        """How many stages there are (S)."""
        return len(self.rank_of)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that `rank` holds, in model order."""
        return tuple(stage for stage, holder in enumerate(self.rank_of) if holder == rank)

    def hop_is_local(self, stage: int) -> bool:
        """Whether stages `stage` and `stage + 1` share a rank, so that nothing travels between them."""
        return self.rank_of[stage] == self.rank_of[stage + 1]
