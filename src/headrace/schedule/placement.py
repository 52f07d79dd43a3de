"""Which rank holds which stage.

    loop, 2 ranks, 4 stages     rank 0: stages 0 2          zigzag (V), 2 ranks      rank 0: stages 0 3
                                rank 1: stages 1 3          4 stages                 rank 1: stages 1 2

In a two-way schedule a micro-batch travels in one of several lanes. Each lane has its own placement, and a stage has a
replica on each rank that holds it in some lane.

    two ways, 2 ranks, 2 stages     lane 0, down:  rank 0 ──▶ rank 1     rank 0: stage 0 of lane 0, stage 1 of lane 1
                                    lane 1, up:    rank 1 ──▶ rank 0     rank 1: stage 1 of lane 0, stage 0 of lane 1
"""

from dataclasses import dataclass

from headrace.schedule.numbers import at_least


@dataclass(frozen=True)
class Placement:
    """Where the stages live.

    Attributes:
        rank_of: `rank_of[s]` is the rank that holds stage s (in lane 0).
        other_lanes: the same for lane 1, 2, …
        lane_of: the lane of each micro-batch; empty if all travel in lane 0.

    Raises:
        ValueError: there is no stage, a rank is negative, some rank below the highest one holds no stage, or the lanes
            do not fit together.
    """

    rank_of: tuple[int, ...]
    other_lanes: tuple[tuple[int, ...], ...] = ()
    lane_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.rank_of:
            raise ValueError("a placement needs at least one stage")
        named = self.rank_of if not self.other_lanes else self.lanes
        ranks = {rank for lane in self.lanes for rank in lane}
        if min(ranks) < 0:
            raise ValueError(f"rank_of={named} names rank {min(ranks)}: number the ranks 0, 1, 2 …")
        missing = next(rank for rank in range(len(ranks) + 1) if rank not in ranks)
        if missing < max(ranks):
            raise ValueError(
                f"rank_of={named} leaves rank {missing} without a stage: "
                "number the ranks 0, 1, 2 … and give each at least one stage"
            )
        for number, lane in enumerate(self.other_lanes, 1):
            if len(lane) != len(self.rank_of):
                raise ValueError(f"lane {number} has {len(lane)} stages, but lane 0 has {len(self.rank_of)}")
        stranger = next((lane for lane in self.lane_of if not 0 <= lane < len(self.lanes)), None)
        if stranger is not None:
            raise ValueError(f"lane_of names lane {stranger}, but there are only lanes 0…{len(self.lanes) - 1}")

    @classmethod
    def loop(cls, ranks: int, stages_per_rank: int = 1) -> "Placement":
        """Stage s on rank s mod `ranks`: 0, 1, …, p−1, 0, 1, …, p−1, …"""
        at_least(1, ranks=ranks, stages_per_rank=stages_per_rank)
        return cls(tuple(range(ranks)) * stages_per_rank)

    @classmethod
    def zigzag(cls, ranks: int, stages_per_rank: int = 2) -> "Placement":
        """Down and up in turn: 0, 1, …, p−1, p−1, …, 1, 0, 0, 1, …"""
        at_least(1, ranks=ranks, stages_per_rank=stages_per_rank)
        down = tuple(range(ranks))
        return cls(tuple(rank for turn in range(stages_per_rank) for rank in (down if turn % 2 == 0 else down[::-1])))

    @classmethod
    def v(cls, ranks: int) -> "Placement":
        """Two stages a rank, down and up: rank r holds stages r and 2p−1−r, so rank 0 has the first and the last."""
        return cls.zigzag(ranks, 2)

    @classmethod
    def two_way(cls, ranks: int, micro_batches: int) -> "Placement":
        """The first half of the micro-batches goes down from rank 0, the other half up from rank p−1."""
        at_least(1, ranks=ranks, micro_batches=micro_batches)
        down = tuple(range(ranks))
        first = (micro_batches + 1) // 2
        return cls(down, (down[::-1],), (0,) * first + (1,) * (micro_batches - first))

    @property
    def lanes(self) -> tuple[tuple[int, ...], ...]:
        """For each lane, the rank of each stage."""
        return (self.rank_of, *self.other_lanes)

    @property
    def ranks(self) -> int:
        """How many ranks there are (p)."""
        return 1 + max(map(max, self.lanes))

    @property
    def stages(self) -> int:
        """How many stages there are (S)."""
        return len(self.rank_of)

    def lane(self, micro_batch: int) -> int:
        """The lane in which `micro_batch` travels."""
        return self.lane_of[micro_batch] if self.lane_of else 0

    def rank(self, stage: int, micro_batch: int) -> int:
        """The rank that runs `stage` for `micro_batch`."""
        return self.lanes[self.lane(micro_batch)][stage] if self.lane_of else self.rank_of[stage]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that `rank` holds, in any lane, in model order."""
        return tuple(s for s, holders in enumerate(zip(*self.lanes, strict=True)) if rank in holders)

    def replicas_of(self, stage: int) -> tuple[int, ...]:
        """The ranks that hold a copy of `stage`, that of lane 0 first; one rank unless the schedule is two-way."""
        return tuple(dict.fromkeys(lane[stage] for lane in self.lanes))

    def hop_is_local(self, stage: int, lane: int = 0) -> bool:
        """Whether stages `stage` and `stage + 1` of a lane share a rank, so that nothing travels between them."""
        holders = self.lanes[lane]
        return holders[stage] == holders[stage + 1]
