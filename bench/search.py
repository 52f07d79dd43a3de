"""How good are searched schedules? Their gap to a lower bound, beside 1F1B, ZB-H1 and proven optima.

    gap = (makespan − lower bound) ÷ lower bound      an upper limit of what an optimal schedule would save

Instances are uneven: each stage has its own F, I and W, each hop a latency, and memory is for p … 2p micro-batches in
flight (or none), as 1F1B needs. They come from a seed, so that numbers can be compared from one day to the next.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

from headrace import Bytes, Costs, InFlight, search, simulate
from headrace.costs import Memory
from headrace.schedule import Placement, build
from headrace.search import Found, lower_bound

GOLDEN = Path(__file__).parent.parent / "tests" / "data" / "golden.json"


def main() -> None:
    """Print two Markdown tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--instances", type=int, default=500, help="how many random instances")
    options.add_argument("--seconds", type=float, default=None, help="time limit of each search; about a second if not")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    proven_optima(given.seconds)
    random_instances(given.instances, given.seconds, Random(given.seed))


def proven_optima(seconds: float | None) -> None:
    """The heuristic beside optima that exact solvers have proven."""
    print("| proven optimum of | optimum | heuristic | bound | seconds |\n| --- | ---: | ---: | ---: | ---: |")
    for case in json.loads(GOLDEN.read_text(encoding="utf-8"))["optimal"]["cases"]:
        costs = Costs(case["F"], case["B"], case["W"], transfer=case["comm"], memory=Memory(case["MB"], case["MW"]))
        place = Placement.loop if case["placement"] == "loop" else Placement.v
        found = search(
            costs,
            place(case["p"]),
            micro_batches=case["m"],
            memory=Bytes(case["mem_cap"]),
            time_limit=seconds,
            objective=case["objective"],
        )
        name = "{placement} p={p} m={m} {F}/{B}/{W} {objective}".format_map(case)
        print(f"| {name} | {case['value']} | {found.value} | {found.lower_bound} | {found.seconds:.2f} |")


def random_instances(count: int, seconds: float | None, random: Random) -> None:
    """Medians and worst gaps over random uneven instances."""
    gaps: dict[str, list[float]] = {"searched": [], "zb-h1": [], "1f1b": []}
    proven, took = 0, []
    for costs, ranks, micro_batches, memory in instances(count, random):
        placement = Placement.loop(ranks)
        bound = lower_bound(costs, placement, micro_batches=micro_batches, memory=memory)
        found: Found = search(costs, placement, micro_batches=micro_batches, memory=memory, time_limit=seconds)
        proven += found.proven
        took.append(found.seconds)
        for name, values in gaps.items():
            known = name != "searched" and simulate(build(name, ranks=ranks, micro_batches=micro_batches), costs)
            values.append((known.makespan if known else found.makespan) / bound - 1)
    print(f"\n{count} uneven instances, {proven} of them at the bound; median {median(took):.2f} s a search\n")
    print("| schedule | median gap | 90 % below | worst |\n| --- | ---: | ---: | ---: |")
    for name, values in gaps.items():
        ninety = sorted(values)[int(0.9 * (len(values) - 1))]
        print(f"| {name} | {100 * median(values):.1f} % | {100 * ninety:.1f} % | {100 * max(values):.1f} % |")


def instances(count: int, random: Random) -> Iterator[tuple[Costs, int, int, InFlight | None]]:
    """Costs, p ≤ 8, m ≤ 32 and memory."""
    for _ in range(count):
        ranks = random.randint(2, 8)
        spread = random.choice((1.2, 1.5, 3.0))
        forward, inputs, weights = (
            [round(base * random.uniform(1, spread)) for _ in range(ranks)] for base in (100, 110, 70)
        )
        costs = Costs(forward, inputs, weights, transfer=[random.randint(0, 30) for _ in range(ranks - 1)])
        memory = None if random.random() < 0.25 else InFlight(random.randint(ranks, 2 * ranks))
        yield costs, ranks, random.randint(2, 32), memory


if __name__ == "__main__":
    main()
