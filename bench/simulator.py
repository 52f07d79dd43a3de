"""(f) How fast a schedule is built, simulated and read: million actions per second, in one process.

The metrics are makespan, busy and bubble fraction, and micro-batches in flight, none of which needs spans. The cases
take turns; the largest one is as large as schedules get, and takes most of the time and some GB.
"""

import argparse
import time
from collections import defaultdict
from typing import NamedTuple

from measure import opening, spread, table

from headrace import Costs, Timeline, simulate
from headrace.schedule import build


class Case(NamedTuple):
    """A schedule, and whether messages wait for each other."""

    schedule: str
    ranks: int
    micro_batches: int
    one_at_a_time: bool = False

    def __str__(self) -> str:
        links = ", one message at a time" if self.one_at_a_time else ""
        return f"{self.schedule}, p = {self.ranks}, m = {self.micro_batches}{links}"


QUICK = [Case("1f1b", 2, 4), Case("1f1b", 8, 32), Case("1f1b", 64, 512), Case("1f1b", 64, 512, one_at_a_time=True),
         Case("zb-v", 32, 256), Case("dualpipe", 32, 256)]  # fmt: skip
LARGE = [Case("1f1b", 256, 2048), Case("1f1b", 1024, 4096)]
AT_LEAST = 0.05  # seconds: small cases are repeated until it is spent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no large cases, fewer rounds")
    parser.add_argument("--rounds", type=int, help="rounds in which the cases take turns")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 7)
    opening("Building and simulating schedules: million actions per second")
    took: dict[Case, dict[str, list[float]]] = {case: defaultdict(list) for case in QUICK}
    if not options.quick:
        took |= {case: defaultdict(list) for case in LARGE}
    for _ in range(rounds):
        for case, samples in took.items():
            for name, rate in _measured(case).items():
                samples[name].append(rate / 1e6)
    columns = ["build", "simulate", "metrics"]
    print(table(["", *columns], [[str(case), *(spread(s[name]) for name in columns)] for case, s in took.items()]))


def _measured(case: Case) -> dict[str, float]:
    """Actions per second, of one round."""
    spent: dict[str, float] = defaultdict(float)
    actions = 0
    costs = Costs(1.5, 1.25, 0.75, transfer=0.125, message=1.0, bandwidth=8.0, one_at_a_time=case.one_at_a_time)
    while not actions or min(spent.values()) < AT_LEAST:
        marks = [time.perf_counter()]
        schedule = build(case.schedule, ranks=case.ranks, micro_batches=case.micro_batches)
        marks.append(time.perf_counter())
        timeline = simulate(schedule, costs)
        marks.append(time.perf_counter())
        _read(timeline)
        marks.append(time.perf_counter())
        for at, name in enumerate(("build", "simulate", "metrics")):
            spent[name] += marks[at + 1] - marks[at]
        actions += schedule.actions
    return {name: actions / seconds for name, seconds in spent.items()}


def _read(timeline: Timeline) -> None:
    """Everything that the tables print."""
    for name in ("makespan", "busy", "bubble_fraction", "peak_in_flight"):
        getattr(timeline, name)


if __name__ == "__main__":
    main()
