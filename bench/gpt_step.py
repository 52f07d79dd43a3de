"""(a) One training step of a GPT (8 blocks, d 256, 4 heads, sequence 128, batch 32) at p = 2: wall-clock seconds and
processor seconds per step, one intra-op thread a rank.
"""

from statistics import median

from cases import Case
from contestants import CONTESTANTS
from measure import arguments, compare, opening, spread, table, worlds_of

RANKS = 2


def main() -> None:
    """Print the table."""
    options = arguments(
        __doc__,
        ["unsplit1", "unsplit2", "torch", "hand", "local", "distributed"],
        micro_batches={"type": int, "nargs": "+"},
        schedule={"choices": ["1f1b", "gpipe"], "default": "1f1b"},
    )
    rounds, steps = options.rounds or (2 if options.quick else 5), options.steps or (2 if options.quick else 4)
    opening(f"GPT step, p = {RANKS}, {options.schedule}")
    print("× is the step divided by that of the first line with the same m.\n")
    rows = []
    with worlds_of(options.only, RANKS) as worlds:
        for m in options.micro_batches or ([8] if options.quick else [4, 8, 16]):
            samples = compare(worlds, Case("gpt", RANKS, m, options.schedule), rounds=rounds, steps=steps)
            base = None
            for name, s in samples.items():
                middle = median(s.seconds)
                base = base or middle
                rows.append(
                    [
                        CONTESTANTS[name].title,
                        str(m),
                        spread(s.seconds, 1, 3),
                        f"{middle / base:.2f}",
                        spread(s.cpu, 1, 3),
                    ]
                )
    print(table(["", "m", "seconds per step", "×", "CPU seconds per step"], rows))


if __name__ == "__main__":
    main()
