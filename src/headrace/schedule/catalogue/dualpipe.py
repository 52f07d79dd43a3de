"""DualPipe: micro-batches from both ends, the forward of one overlapping the backward of another (DeepSeek-AI, 2024).

    p = 2, m = 8 (0–3 go down, small letters 4–7 go up; [F&b] is an overlapped pair; F, I and W take one unit each)

    rank 0  F0 f4 F1 [b4  ][f5&B0  ][F2&b5  ][f6&B1  ][F3&b6  ][f7&B2  ][b7  ]I3 W3
    rank 1  f4 F0 f5 [B0  ][F1&b4  ][f6&B1  ][F2&b5  ][f7&B2  ][F3&b6  ][B3  ]i7 w7

Rank r holds stage r for the micro-batches that go down and stage p−1−r for those that go up: twice the parameters, and
the gradients of both copies are summed. An overlapped pair may cost less than its parts, as one computes while the
other communicates. If F = I, W ≤ F and m ≥ 2p, the innermost rank idles (p/2−1)(F&B + B − 3W), with B the whole
backward, and p+1 (stage, micro-batch) are in flight on every rank.

DualPipe-V cuts the model into 2p stages in a V instead, of which each rank holds stages r and 2p−1−r: the same rows as
half of a DualPipe on 2p ranks, with the parameters once and 2p+1 (stage, micro-batch) in flight (Qi et al., 2025).
"""

from operator import itemgetter

from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.catalogue.row_writer import RowWriter
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def dualpipe(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """DualPipe: micro-batches from both ends, forwards overlapping backwards, parameters twice (DeepSeek-AI, 2024).

    Args:
        ranks: p, even.
        micro_batches: m, at least 1. The first ⌈m/2⌉ go down, the others up; fewer than 2p run as the first of each
            way would.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    if ranks % 2:
        raise ValueError(f"ranks={ranks} is odd, but dualpipe pairs ranks: use {ranks + 1}, or dualpipe-v")
    down = (micro_batches + 1) // 2
    ways = range(down), range(down, micro_batches)
    rows, pairs = [], set()
    for rank in range(ranks):
        chunks = [(rank, ways[0]), (ranks - 1 - rank, ways[1])]
        row = _row(sorted(chunks, key=itemgetter(0)), ranks // 2, min(rank, ranks - 1 - rank), max(down, ranks))
        rows.append(tuple(row.row))
        pairs |= row.pairs
    placement = Placement.two_way(ranks, micro_batches)
    schedule = Schedule("dualpipe", tuple(rows), placement, micro_batches, frozenset(pairs))
    return add_recompute(schedule, recompute)


def dualpipe_v(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """DualPipe-V: half of a DualPipe, with two stages a rank in a V instead of two copies (Qi et al., 2025).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1. Fewer than 2p run as the first of 2p would.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    numbers = range(micro_batches)
    rows, pairs = [], set()
    for rank in range(ranks):
        chunks = [(rank, numbers), (2 * ranks - 1 - rank, numbers)]
        row = _row(chunks, ranks, rank, max(micro_batches, 2 * ranks))
        rows.append(tuple(row.row))
        pairs |= row.pairs
    schedule = Schedule("dualpipe-v", tuple(rows), Placement.v(ranks), micro_batches, frozenset(pairs))
    return add_recompute(schedule, recompute)


def _row(chunks: list[tuple[int, range]], depth: int, inward: int, each_way: int) -> RowWriter:
    """One rank's row.

    Args:
        chunks: the rank's two (stage, micro-batches), that of the earlier stage first.
        depth: how many ranks there are from the outer end to the innermost one.
        inward: how far this rank is from the outer end.
        each_way: how many micro-batches pass each chunk, at least 2 · depth; more than there are is fine.
    """
    row = RowWriter(*chunks)
    outward = depth - 1 - inward
    # In: forwards until the other chunk's first micro-batch comes, then its backwards between them.
    row.write("F0", times=2 * outward)
    row.write("F0 F1", times=inward + 1)
    row.write("I1 W F1", times=outward)
    # Steady: every forward beside a backward, but for the innermost rank's first, which its neighbour waits for.
    overlapped = each_way - 2 * depth + inward + 1
    row.write("F0 B1 F1&B0" if outward == 0 else "F0&B1 F1&B0")
    row.write("F0&B1 F1&B0", times=overlapped - 1)
    # Out: backwards without new micro-batches. The second half of them is split, so that others get their I early.
    row.write("B1 F1&B0", times=outward)
    row.write("B1 B0", times=(inward + 1) // 2)
    row.write("B1 I0", times=(inward + 1) % 2)
    row.write("I1 I0", times=(inward + 1) // 2)
    row.write("W I0", times=outward)
    row.write("W", times=inward + 1)
    return row
