"""What theory says of the catalogue's schedules when all stages cost the same.

Each formula is a function of a few numbers, exact for ints and Fractions. F, I and W (with B = I + W) are costs of one
stage, of which a rank holds v; p ranks, m micro-batches, c seconds for a hop between ranks. `closed_form` chooses among
them for the command line, which prints formula and value beside the simulation.
"""

from dataclasses import dataclass
from fractions import Fraction


def gpipe_makespan(p: int, m: int, f: float, b: float, c: float = 0) -> float:
    """Huang et al., 2019."""
    return (m + p - 1) * (f + b) + 2 * (p - 1) * c


def one_f_one_b_makespan(p: int, m: int, f: float, b: float, c: float = 0) -> float:
    """Narayanan et al., 2019: as GPipe's, but a message is waited for in almost every round."""
    return (m + p - 1) * (f + b) + 2 * c * (p - 1 + (p - 1) * (m - 1) // p)


def eager_1f1b_makespan(p: int, m: int, f: float, b: float, c: float = 0) -> float:
    """Zhuang et al., 2023; for 2c ≤ F + B, so that messages arrive behind other work."""
    return gpipe_makespan(p, m, f, b, c)


def interleaved_makespan(p: int, m: int, v: int, f: float, b: float, c: float = 0) -> float:
    """Narayanan et al., 2021; for groups of p ≥ 2 micro-batches, p a divisor of m, and c ≤ min(F, B)."""
    return (m * v + p - 1) * (f + b) + (2 * v * p - 2) * c


def looped_bfs_makespan(p: int, m: int, v: int, f: float, b: float, c: float = 0) -> float:
    """Lamy-Poirier, 2023; for p ≥ 2. Between two stages of a rank, p − m forwards are missing if m < p."""
    turn = max(0, (p - m) * f + p * c) + max(0, (p - m) * b + p * c)
    return (m * v + p - 1) * (f + b) + 2 * (p - 1) * c + (v - 1) * turn


def seq1f1b_makespan(p: int, m: int, segments: int, f: float, b: float) -> float:
    """Ao et al., 2024; F and B are costs of one segment, all of which cost the same."""
    return (m * segments + p - 1) * (f + b)


def zb_h1_makespan(p: int, m: int, f: float, i: float, w: float) -> float:
    """Qi et al., 2024; for m ≥ p and W ≤ min(F, I)."""
    return m * (f + i + w) + (p - 1) * (f + i - w)


def zb_h2_span(p: int, m: int, f: float, i: float, w: float) -> float:
    """Qi et al., 2024: from the first start to the last end of a rank, at most; for m ≥ 2p−1 and F ≥ min(I, W)."""
    return m * (f + i + w) + max(0, (p - 1) * (f + i - 2 * w))


def zb_v_makespan(p: int, m: int, f: float, i: float, w: float) -> float:
    """Qi et al., 2024; for m ≥ 2p−1 and W ≤ F ≤ I."""
    return 2 * m * (f + i + w) + (p - 1) * max(i, 2 * (i - w))


def v_min_idle(p: int) -> int:
    """Qi et al., 2024: makespan less a rank's work, for F = I = W = 1, m ≥ 2p and p ≥ 2."""
    return 4 * p - 7 if p % 3 == 0 else 4 * p - 5


def v_half_idle(p: int) -> int:
    """Qi et al., 2024: makespan less a rank's work, for F = I = W = 1, m ≥ 2p and p ≥ 3."""
    return 3 * p - 7 if p % 2 == 0 else 3 * p - 4


def dualpipe_idle(p: int, pair: float, b: float, w: float) -> float:
    """DeepSeek-AI, 2024: makespan less the innermost rank's work, for m ≥ 2p and F = I ≥ W; `pair` is F&B."""
    return (p // 2 - 1) * (pair + b - 3 * w)


def chimera_bubble_fraction(p: int, m: int, twice: bool) -> Fraction:
    """Li and Hoefler, 2021: for B = 2F if `twice`, else B = F.

    Holds at m = p; for B = F at any multiple of p.
    """
    return (p - 2) / (m * (Fraction(3, 2) if twice else Fraction(2)) + p - 2)


def hanayo_bubble_bound(p: int, waves: int) -> Fraction:
    """Liu et al., 2023: the bubble fraction at most, for m = p and B = 2F."""
    return Fraction(2 * p - 2, 3 * p * waves + p - 1)


def one_stage_lower_bound(p: int, m: int, memory: int, f: float, i: float, w: float, c: float = 0) -> float:
    """One stage a rank, at most `memory` micro-batches in flight on each: no schedule has a smaller makespan."""
    return m * (f + i + w) + max((p - 1) * (f + c), (p - 1) * (i + 2 * c) + (p - memory) * f)


@dataclass(frozen=True)
class ClosedForm:
    """Formulas and their values for equal stages.

    Attributes:
        makespan: seconds.
        bubble_fraction: idle time ÷ (ranks × makespan).
        peak_in_flight: per rank.
        formulas: the same three as text.
    """

    makespan: float
    bubble_fraction: float
    peak_in_flight: tuple[int, ...]
    formulas: tuple[str, str, str]


def closed_form(
    name: str,
    ranks: int,
    micro_batches: int,
    forward: float,
    backward: float,
    *,
    weight: float | None = None,
    stages_per_rank: int | None = None,
    segments: int | None = None,
) -> ClosedForm | None:
    """The closed form of the schedule `name` without recompute and with messages that take no time.

    Args:
        name: a name of the catalogue.
        ranks: p.
        micro_batches: m, as the schedule counts them: for seq1f1b these are segments.
        forward: seconds of F on every stage.
        backward: seconds of B (I and W together) on every stage.
        weight: the seconds of W among those of B, if known; schedules that split backwards need it.
        stages_per_rank: v, if known; interleaved and looped-bfs need it.
        segments: into how many each sequence is cut, if known; seq1f1b needs it.

    Returns:
        None if we know no closed form, or it does not hold for these numbers, or one that it needs is not given.
    """
    p, m, f, b = ranks, micro_batches, forward, backward
    v = stages_per_rank or 1
    found: tuple[float, tuple[int, ...]] | None = None
    match name:
        case "gpipe":
            found = gpipe_makespan(p, m, f, b), (m,) * p
        case "1f1b":
            found = one_f_one_b_makespan(p, m, f, b), tuple(min(p - r, m) for r in range(p))
        case "eager-1f1b":
            found = eager_1f1b_makespan(p, m, f, b), tuple(min(2 * (p - r) - 1, m) for r in range(p))
        case "interleaved" if stages_per_rank is not None and m % p == 0:
            peak = tuple(min((v - 1) * p + 2 * (p - 1 - r) + 1, m * v) for r in range(p))
            found = interleaved_makespan(p, m, v, f, b), peak
        case "looped-bfs" if stages_per_rank is not None and m >= p:
            found = looped_bfs_makespan(p, m, v, f, b), (m * v,) * p
        case "seq1f1b" if segments is not None:
            peak = tuple(min(p - 1 - r + segments, m) for r in range(p))
            found = seq1f1b_makespan(p, m // segments, segments, f, b), peak
        case "zb-h1" if weight is not None and m >= p and weight <= min(f, b - weight):
            found = zb_h1_makespan(p, m, f, b - weight, weight), (p,) * p
        case "zb-v" if weight is not None and m >= 2 * p - 1 and weight <= f <= b - weight:
            v = 2
            found = zb_v_makespan(p, m, f, b - weight, weight), (2 * p,) * p
    if found is None:
        return None
    makespan, peak_in_flight = found
    idle = makespan - m * v * (f + b)
    return ClosedForm(makespan, float(idle / makespan), peak_in_flight, _FORMULAS[name])


# Makespan, bubble fraction and peak in flight of rank r.
_FORMULAS = {
    "gpipe": ("(m+p−1)(F+B)", "(p−1)/(m+p−1)", "m"),
    "1f1b": ("(m+p−1)(F+B)", "(p−1)/(m+p−1)", "min(p−r, m)"),
    "eager-1f1b": ("(m+p−1)(F+B)", "(p−1)/(m+p−1)", "min(2(p−r)−1, m)"),
    "interleaved": ("(mv+p−1)(F+B)", "(p−1)/(mv+p−1)", "min((v−1)p+2(p−1−r)+1, mv)"),
    "looped-bfs": ("(mv+p−1)(F+B)", "(p−1)/(mv+p−1)", "mv"),
    "seq1f1b": ("(m+p−1)(F+B)", "(p−1)/(m+p−1)", "min(p−1−r+S, m)"),
    "zb-h1": ("m(F+B)+(p−1)(F+I−W)", "(p−1)(F+I−W) ÷ makespan", "p"),
    "zb-v": ("2m(F+B)+(p−1)·max(I, 2(I−W))", "(p−1)·max(I, 2(I−W)) ÷ makespan", "2p"),
}
