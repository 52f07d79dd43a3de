"""What the steps of a job took, the first ones left out."""

from statistics import median
from typing import Final

from headrace.costs import Seconds
from headrace.timeline import Timeline

_WARM_STEPS: Final = 3
"""The first steps allocate memory and start threads: they are not what a step takes."""


class StepClock:
    """Collects steps.

    Attributes:
        total: seconds of all of them.
    """

    def __init__(self) -> None:
        self.total: Seconds = 0.0
        self._seconds: list[Seconds] = []
        self._timelines: list[Timeline] = []

    def add(self, seconds: Seconds, timeline: Timeline) -> None:
        """A step that took `seconds`, of which the pipeline's part is `timeline`."""
        self.total += seconds
        self._seconds.append(seconds)
        self._timelines.append(timeline)

    def begin_again(self) -> None:
        """What follows is another pipeline, to be looked at by itself."""
        self._seconds.clear()
        self._timelines.clear()

    @property
    def step_seconds(self) -> Seconds:
        """The median of whole steps."""
        return median(self._seconds[self._first :])

    @property
    def makespan(self) -> Seconds:
        """The median of the pipeline's part."""
        return median(timeline.makespan for timeline in self._timelines[self._first :])

    @property
    def bubble_fraction(self) -> float:
        """The median."""
        return median(timeline.bubble_fraction for timeline in self._timelines[self._first :])

    @property
    def latest(self) -> tuple[Seconds, Timeline]:
        """Of the last step, what was added."""
        return self._seconds[-1], self._timelines[-1]

    def typical(self) -> Timeline:
        """The step of median makespan."""
        by_makespan = sorted(self._timelines[self._first :], key=lambda timeline: timeline.makespan)
        return by_makespan[len(by_makespan) // 2]

    @property
    def _first(self) -> int:
        """Of the steps that count."""
        return min(_WARM_STEPS, len(self._seconds) - 1)
