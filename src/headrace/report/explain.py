"""Why a step took longer than planned: whose fault it was, and how much of the makespan each was to blame for.

    predicted ──── measured seconds of each action ────▶ ──── measured latency ────▶ ──── the rest ────▶ measured
               compute slower                        messages slower        waiting that no cost explains

A slow action need not cost anything, as others may wait longer anyway. So the schedule is simulated again with one
measured cost at a time: what that adds to the makespan is what it costs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, get_type_hints

from rich.table import Table

from headrace.costs import Costs, Seconds
from headrace.planner.strict import typed
from headrace.report.tables import table
from headrace.schedule.actions import KIND_NAMES, Kind
from headrace.schedule.schedule import Schedule
from headrace.simulate import simulate, simulate_as_run
from headrace.simulate.measured import MeasuredCosts, as_it_ran, latency_of, seconds_of
from headrace.timeline import Timeline
from headrace.units import seconds

VERSION: Final = 1
HEAD: Final = ("action", "predicted", "measured", "ratio", "adds to the step", "to the bubble")
"""Of a table of differences."""

_MATTERS = 0.01  # of the predicted makespan
_MOST_ROWS = 6


@dataclass(frozen=True)
class Difference:
    """One kind of action of one stage.

    Attributes:
        stage, kind: whose.
        predicted, measured: seconds of one action; the median.
        makespan: seconds that it alone adds to the predicted makespan; negative if it was faster than predicted.
        bubble: what it alone adds to the predicted bubble fraction.
    """

    stage: int
    kind: Kind
    predicted: Seconds
    measured: Seconds
    makespan: Seconds
    bubble: float

    @property
    def ratio(self) -> float | None:
        """Measured ÷ predicted; None if nothing was predicted to take no time."""
        return self.measured / self.predicted if self.predicted else None


@dataclass(frozen=True)
class Explanation:
    """A predicted step beside a measured one.

    Attributes:
        differences: of each (stage, kind), what costs most first.
        predicted, measured: makespans in seconds.
        with_compute: the makespan that the measured seconds of all actions lead to.
        with_messages: the same with the measured latency as well.
        predicted_bubble, measured_bubble: fractions.
        latency: seconds that a message took.
    """

    differences: tuple[Difference, ...]
    predicted: Seconds
    with_compute: Seconds
    with_messages: Seconds
    measured: Seconds
    predicted_bubble: float
    measured_bubble: float
    latency: Seconds

    @property
    def compute(self) -> Seconds:
        """What slower compute adds; negative if it was faster."""
        return self.with_compute - self.predicted

    @property
    def messages(self) -> Seconds:
        """What slower messages add to that."""
        return self.with_messages - self.with_compute

    @property
    def waiting(self) -> Seconds:
        """The rest: actions that were slower than their median, and what goes on between actions."""
        return self.measured - self.with_messages

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "version": VERSION,
            "makespan": {"predicted": self.predicted, "measured": self.measured},
            "bubble_fraction": {"predicted": self.predicted_bubble, "measured": self.measured_bubble},
            "adds": {"compute": self.compute, "messages": self.messages, "waiting": self.waiting},
            "latency": self.latency,
            "actions": [{**asdict(each), "ratio": each.ratio} for each in self.differences],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Explanation":
        """What `as_data` wrote, but for what rounding does to sums.

        Raises:
            ValueError: it is of another version, or something else altogether.
        """
        if data.get("version") != VERSION:
            raise ValueError(
                f"version is {data.get('version')!r}, but this headrace reads explanations of version {VERSION}: "
                "train again"
            )
        read = typed(data, _SHAPE, "the explanation", signed=True)
        makespan, bubble, adds = read["makespan"], read["bubble_fraction"], read["adds"]
        names = [item.name for item in fields(Difference)]
        return cls(
            differences=tuple(Difference(**{name: each[name] for name in names}) for each in read["actions"]),
            predicted=makespan["predicted"],
            with_compute=makespan["predicted"] + adds["compute"],
            with_messages=makespan["predicted"] + adds["compute"] + adds["messages"],
            measured=makespan["measured"],
            predicted_bubble=bubble["predicted"],
            measured_bubble=bubble["measured"],
            latency=read["latency"],
        )


_SHAPE: Final = {
    "version": int,
    "makespan": {"predicted": float, "measured": float},
    "bubble_fraction": {"predicted": float, "measured": float},
    "adds": {"compute": float, "messages": float, "waiting": float},
    "latency": float,
    "actions": [{**get_type_hints(Difference), "ratio": float | None}],
}


def explain(schedule: Schedule, costs: Costs, measured: Timeline) -> Explanation:
    """What makes `measured` differ from the step that `costs` predict.

    Args:
        schedule: of both.
        costs: the prediction; updates at the end of a synchronous step are left out, as no span measures them.
        measured: one real step, without an overlap function: of two actions that ran at once, no span says what each
            of them took.

    Raises:
        ValueError: `measured` is a step of another schedule, or `costs` is for another number of stages.
    """
    _refuse_another(schedule, measured)
    if not schedule.asynchronous:
        costs = replace(costs, update=0, reduce=0)
    expected = costs.per_stage(schedule.stages)
    predicted = simulate_as_run(schedule, costs)
    ran, measured = as_it_ran(schedule, measured)
    found = seconds_of(measured)
    latency = latency_of(ran, measured)
    base = simulate(ran, costs)
    slower = MeasuredCosts.of(costs, found)
    differences = []
    for (stage, kind), each in found.items():
        alone = simulate(ran, MeasuredCosts.of(costs, {(stage, kind): each}))
        differences.append(
            Difference(
                stage,
                kind,
                predicted=expected[kind][stage],
                measured=each,
                makespan=alone.makespan - base.makespan,
                bubble=alone.bubble_fraction - base.bubble_fraction,
            )
        )
    return Explanation(
        differences=tuple(sorted(differences, key=lambda each: -each.makespan)),
        predicted=predicted.makespan,
        with_compute=simulate(ran, slower).makespan,
        with_messages=simulate(ran, replace(slower, transfer=latency, bandwidth=None)).makespan,
        measured=measured.makespan,
        predicted_bubble=predicted.bubble_fraction,
        measured_bubble=measured.bubble_fraction,
        latency=latency,
    )


def differences_table(explanation: Explanation) -> Table | None:
    """`differences_rows` for the terminal; None if there are none."""
    rows = differences_rows(explanation)
    return table(HEAD, rows) if rows else None


def differences_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    """The actions that matter, at most six: they move the makespan by a hundredth or more. See `HEAD`."""
    least = _MATTERS * explanation.predicted
    matter = [each for each in explanation.differences if abs(each.makespan) >= least]
    matter = sorted(matter, key=lambda each: -abs(each.makespan))[:_MOST_ROWS]
    return [
        (
            f"stage {each.stage}: {KIND_NAMES[each.kind]}",
            seconds(each.predicted),
            seconds(each.measured),
            "–" if each.ratio is None else f"× {each.ratio:.2f}",
            _signed(each.makespan),
            f"{100 * each.bubble:+.1f} points".replace("-", "−"),
        )
        for each in sorted(matter, key=lambda each: -each.makespan)
    ]


def in_a_sentence(explanation: Explanation) -> str:
    """From the predicted makespan to the measured one, part by part."""
    return (
        f"predicted {seconds(explanation.predicted)}, {_part('compute', explanation.compute)}, "
        f"{_part('messages', explanation.messages)}, waiting that no cost explains {_signed(explanation.waiting)}: "
        f"measured {seconds(explanation.measured)}"
    )


def _part(what: str, adds: Seconds) -> str:
    return f"{what} {'faster' if adds < 0 else 'slower'} {_signed(adds)}"


def _signed(value: Seconds) -> str:
    return f"{'−' if value < 0 else '+'}{seconds(abs(value))}"


def _refuse_another(schedule: Schedule, measured: Timeline) -> None:
    """Refuse a timeline whose ranks did not do what the schedule says."""
    for rank, row in enumerate(schedule.rows):
        done = measured.tracks[rank].actions if rank < measured.ranks else ()
        _refuse_difference(schedule.name, rank, set(row) - set(done), "lacks")
        _refuse_difference(schedule.name, rank, set(done) - set(row), "has")
    if measured.ranks != schedule.ranks:
        raise ValueError(f"measured has {measured.ranks} ranks, but {schedule.name} has {schedule.ranks}")


def _refuse_difference(name: str, rank: int, actions: Iterable[Any], verb: str) -> None:
    first = next(iter(sorted(actions)), None)
    if first is not None:
        raise ValueError(
            f"measured is a step of another schedule than {name}: rank {rank} {verb} {first}. "
            "Take the schedule that the run had"
        )
