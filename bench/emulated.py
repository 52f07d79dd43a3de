"""(b) Emulated accelerators: stages that hold their rank for 5 ms forward and 10 ms backward, with activations of
16 KiB, 1 MiB and 16 MiB. The ideal makespan of 1F1B is known exactly, (m+p−1) · 15 ms; what is above it is exposed
transport and runtime.
"""

from cases import EMULATED_BACKWARD, EMULATED_FORWARD, KIB, MIB, Case
from contestants import CONTESTANTS
from measure import Samples, arguments, compare, opening, spread, table, worlds_of

SIZES = {"16KiB": 16 * KIB, "1MiB": MIB, "16MiB": 16 * MIB}
QUICK = {("16KiB", 2, 4), ("16KiB", 4, 8), ("16KiB", 8, 16), ("1MiB", 4, 8), ("16MiB", 4, 8)}


def main() -> None:
    """Print the table."""
    options = arguments(
        __doc__,
        ["torch", "hand", "local", "distributed"],
        ranks={"type": int, "nargs": "+", "default": [2, 4, 8]},
        sizes={"nargs": "+", "choices": list(SIZES), "default": list(SIZES)},
        factors={"type": int, "nargs": "+", "default": [1, 2, 4], "help": "m ÷ p"},
    )
    rounds, steps = options.rounds or (2 if options.quick else 3), options.steps or (3 if options.quick else 5)
    opening("Emulated accelerators: step ÷ ideal makespan of 1F1B")
    print(f"The floor, all actions in one process with nothing handed over ÷ their holds: {_floor(rounds, steps)}\n")
    header = ["activation", "p", "m", *(CONTESTANTS[name].title for name in options.only)]
    rows: dict[tuple[str, int, int], list[str]] = {}
    cpu: dict[tuple[str, int, int], list[str]] = {}
    for p in options.ranks:
        points = [(size, p, factor * p) for size in options.sizes for factor in options.factors]
        points = [point for point in points if not options.quick or point in QUICK]
        if not points:
            continue
        with worlds_of(options.only, p) as worlds:
            for size, _, m in points:
                case = Case("emulated", p, m, bytes_per_activation=SIZES[size])
                samples = compare(worlds, case, rounds=rounds, steps=steps)
                rows[size, p, m] = [_ratio(s, case) for s in samples.values()]
                cpu[size, p, m] = [spread(s.cpu, 1e6 / case.actions, 0) for s in samples.values()]
    order = sorted(rows, key=lambda point: (SIZES[point[0]], point[1], point[2]))
    print(table(header, ([size, str(p), str(m), *rows[size, p, m]] for size, p, m in order)))
    print("\nProcessor µs per action, the spinning at the end of each hold (150 µs) included:\n")
    print(table(header, ([size, str(p), str(m), *cpu[size, p, m]] for size, p, m in order)))


def _floor(rounds: int, steps: int) -> str:
    """What autograd and the module call cost outside the holds, on a processor that has just slept."""
    case = Case("emulated", 2, 4, bytes_per_activation=SIZES["16KiB"])
    with worlds_of(["stages"], 1) as worlds:
        samples = compare(worlds, case, rounds=rounds, steps=steps)["stages"]
    holds = case.ranks * case.micro_batches * (EMULATED_FORWARD + EMULATED_BACKWARD)
    return spread(samples.seconds, 1 / holds, 3)


def _ratio(samples: Samples, case: Case) -> str:
    return spread(samples.seconds, 1 / case.ideal, 3)


if __name__ == "__main__":
    main()
