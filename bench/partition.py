"""How long do exact cuts take, and how much is memory, a slow device or a simulation worth?

Two kinds of chain: a language model (embedding, equal blocks, heavy head) and a convolutional one (log-normal costs).
They come from a seed, so that numbers can be compared from one day to the next.
"""

import argparse
from random import Random
from time import perf_counter
from typing import Any

from headrace.layer_costs import LayerCosts
from headrace.partition import NoCutFits, Problem, best_cuts
from headrace.schedule import Placement

SIZES = ((24, 4), (100, 8), (400, 64), (1000, 16))


def main() -> None:
    """Print a Markdown table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=16, help="how many cuts to ask for")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    random = Random(given.seed)
    print("| layers | stages | chain | what | objective | slowest ÷ mean | proven | seconds |")
    print("| ---: | ---: | --- | --- | --- | ---: | --- | ---: |")
    for layers, stages in SIZES:
        for kind in ("language", "convolutional"):
            costs = chain(kind, layers, random)
            for what, problem in problems(costs, stages, random).items():
                for objective in ("slowest", "step"):
                    row = measured(problem, objective, given.count)
                    print(f"| {layers} | {stages} | {kind} | {what} | {objective} | {row} |", flush=True)


def problems(costs: LayerCosts, stages: int, random: Random) -> dict[str, Problem]:
    """The same chain, with more and more to respect."""
    plain: dict[str, Any] = {
        "costs": costs,
        "placement": Placement.loop(stages),
        "micro_batches": 4 * stages,
        "in_flight": [stages - stage for stage in range(stages)],
    }
    links = {"latency": 1e-4, "bandwidth": 1e10, "hidden": False}
    memory = max(best_cuts(Problem(**plain)).best.bytes) * 0.6
    return {
        "plain": Problem(**plain),
        "messages": Problem(**plain, **links),
        "slow devices": Problem(**plain, **links, slowness=[random.choice((1, 1.5, 2)) for _ in range(stages)]),
        "stages recomputed": Problem(**plain, memory=memory, recompute="stage"),
        "layers recomputed": Problem(**plain, memory=memory, recompute="layer"),
        "V": Problem(**{**plain, "placement": Placement.v(stages // 2), "in_flight": 2}),
    }


def measured(problem: Problem, objective: Any, count: int) -> str:
    """The slowest rank beside the mean, what is proven, and the seconds it took."""
    start = perf_counter()
    try:
        found = best_cuts(problem, objective, count=count)
    except NoCutFits as refused:
        return f"{refused.constraint} | nothing fits | {perf_counter() - start:.2f}"
    seconds = perf_counter() - start
    mean = sum(problem.costs.seconds) / problem.ranks
    return f"{found.best.slowest / mean:.3f} | {found.proven} of {len(found.cuts)}, {found.method} | {seconds:.2f}"


def chain(kind: str, layers: int, random: Random) -> LayerCosts:
    """Layers that cost as those of such models do."""
    if kind == "language":
        forward = [1e-4, *[1e-3] * (layers - 2), 4e-3]
        kept = [2e6, *[3e7] * (layers - 2), 2e8]
        weights = [2e8, *[5e7] * (layers - 2), 2e8]
        output = [2e6] * layers
    else:
        forward = [1e-3 * random.lognormvariate(0, 1) for _ in range(layers)]
        kept = [1e7 * random.lognormvariate(0, 1) for _ in range(layers)]
        weights = [1e6 * random.lognormvariate(0, 1.5) for _ in range(layers)]
        output = [1e6 * random.lognormvariate(0, 1) for _ in range(layers)]
    return LayerCosts(
        names=tuple(map(str, range(layers))),
        rows=1,
        forward=tuple(forward),
        backward_input=tuple(forward),
        backward_weight=tuple(forward),
        parameters=tuple(weights),
        trained=tuple(3 * size for size in weights),
        activations=tuple(kept),
        for_weight=tuple(size / 2 for size in kept),
        output=tuple(output),
        transient=(0,) * layers,
    )


if __name__ == "__main__":
    main()
