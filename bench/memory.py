"""(d) Exact peak bytes of live tensors per rank in one GPT step at p = 2: m = 8 under GPipe and 1F1B, and whether
1F1B's peak is independent of m when the rows of a micro-batch stay the same.

Parameters, gradients, the batch and received tensors are included: everything that an operation touches.
"""

from cases import GPT_BATCH, MIB, Case
from contestants import CONTESTANTS
from measure import arguments, opening, table, worlds_of

RANKS = 2
ROWS = GPT_BATCH // 8


def main() -> None:
    """Print the table."""
    options = arguments(__doc__, ["torch", "hand", "local", "distributed"], micro_batches={"type": int, "nargs": "+"})
    cases = [Case("gpt", RANKS, 8, "gpipe")] if options.micro_batches is None else []
    counts = options.micro_batches or ([8] if options.quick else [4, 8, 16])
    cases += [Case("gpt", RANKS, m, batch_rows=ROWS * m) for m in counts]
    opening(f"GPT, p = {RANKS}, {ROWS} rows a micro-batch: peak MiB of live tensors on each rank")
    rows = []
    for case in cases:
        names = [name for name in options.only if case.schedule == "1f1b" or name != "hand"]
        for name in names:
            with worlds_of([name], RANKS) as worlds:
                answers = worlds[name].ask("memory", case)
            peaks, others, shared = _per_rank(answers, CONTESTANTS[name].distributed)
            rows.append(
                [
                    CONTESTANTS[name].title,
                    case.schedule,
                    str(case.micro_batches),
                    *(f"{peak / MIB:.1f}" for peak in peaks),
                    f"{others / MIB:.1f}",
                    f"{shared / MIB:.1f}",
                ]
            )
    header = ["", "schedule", "m", *(f"rank {rank}" for rank in range(RANKS)), "other threads", "shared memory mapped"]
    print(table(header, rows))


def _per_rank(answers: list[tuple[dict[str, int], int]], distributed: bool) -> tuple[list[int], int, int]:
    """Peak of each rank, peaks of the threads that are none (or too many to tell), and shared memory."""
    shared = max(mapped for _, mapped in answers)
    if distributed:
        peaks = [max(peak.values()) for peak, _ in answers]
        return peaks, sum(sum(peak.values()) for peak, _ in answers) - sum(peaks), shared
    ((threads, _),) = answers
    largest = sorted(sorted(threads, key=lambda name: -threads[name])[:RANKS])
    return [threads[name] for name in largest], sum(threads.values()) - sum(threads[name] for name in largest), shared


if __name__ == "__main__":
    main()
