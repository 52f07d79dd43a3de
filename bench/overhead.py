"""(c) What the runtime itself costs: processor microseconds per action with `Linear(8, 8)` stages, where there is
next to nothing to compute.

Processor time of all threads of all processes, divided by the number of forwards and backwards.
"""

from cases import Case
from contestants import CONTESTANTS
from measure import arguments, compare, opening, spread, table, worlds_of


def main() -> None:
    """Print the table."""
    options = arguments(__doc__, ["stages", "torch", "hand", "local", "distributed"], ranks={"type": int, "default": 2})
    rounds, steps = options.rounds or (3 if options.quick else 7), options.steps or (5 if options.quick else 20)
    case = Case("linear", options.ranks, 64)
    opening(f"Linear(8, 8) stages, p = {case.ranks}, m = {case.micro_batches}, 1F1B")
    with worlds_of(options.only, case.ranks) as worlds:
        samples = compare(worlds, case, rounds=rounds, steps=steps, warm_up=5)
    rows = [
        [CONTESTANTS[name].title, spread(s.cpu, 1e6 / case.actions, 0), spread(s.seconds, 1e6 / case.actions, 0)]
        for name, s in samples.items()
    ]
    print(table(["", "CPU µs per action", "wall µs per action"], rows))


if __name__ == "__main__":
    main()
