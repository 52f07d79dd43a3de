"""What can be said of each schedule of the catalogue for given p and m, for tables and pages."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from headrace.costs import Costs
from headrace.schedule.catalogue import CATALOGUE, NEEDS, build, describe
from headrace.schedule.check import Proof, check
from headrace.schedule.messages import channels
from headrace.schedule.schedule import Schedule
from headrace.simulate.simulator import simulate
from headrace.timeline import Timeline


@dataclass(frozen=True)
class Entry:
    """One schedule, proven and simulated; a rank takes one second for each of F, I and W of a micro-batch.

    Attributes:
        name, description, needs: what it is, and what it asks for.
        schedule: the schedule.
        proof: that it runs.
        timeline: of one step.
    """

    name: str
    description: str
    needs: str
    schedule: Schedule
    proof: Proof
    timeline: Timeline

    @property
    def stages_per_rank(self) -> int:
        """How many stages a rank holds of one lane."""
        return self.schedule.stages // self.schedule.ranks

    @property
    def peak(self) -> Fraction:
        """The most that any rank holds, in activations of one micro-batch for a p-th of the model."""
        return Fraction(max(self.proof.peak_in_flight), self.stages_per_rank * self.schedule.segments)

    @property
    def messages(self) -> int:
        """How many messages pass between ranks in one step."""
        return sum(map(len, channels(self.schedule).values()))

    @property
    def copies(self) -> int:
        """How often the parameters are held: replicas of two-way schedules, versions of asynchronous ones."""
        return max(len(self.schedule.placement.lanes), *self.proof.weight_versions)


@dataclass(frozen=True)
class Refused:
    """A schedule that does not exist for these numbers, and why."""

    name: str
    description: str
    reason: str


def entries(ranks: int, micro_batches: int) -> Iterator[Entry | Refused]:
    """Every schedule of the catalogue, in its order."""
    for name in CATALOGUE:
        try:
            schedule = build(name, ranks=ranks, micro_batches=micro_batches)
        except ValueError as error:
            yield Refused(name, describe(name), str(error))
            continue
        share: Any = Fraction(ranks, schedule.stages * schedule.segments)
        timeline = simulate(schedule, Costs(share, share, share))
        yield Entry(name, describe(name), NEEDS.get(name, ""), schedule, check(schedule), timeline)
