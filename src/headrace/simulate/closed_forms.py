"""What theory says of the catalogue's schedules when all stages cost the same and messages take no time.

Printed beside the simulation, so that a reader sees the formula and its value at once.
"""

from dataclasses import dataclass


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


def closed_form(name: str, ranks: int, micro_batches: int, forward: float, backward: float) -> ClosedForm | None:
    """The closed form of the schedule `name` without recompute; None if we know none.

    Args:
        name: a name of the catalogue.
        ranks: p.
        micro_batches: m.
        forward: seconds of F on every stage.
        backward: seconds of B on every stage.
    """
    p, m = ranks, micro_batches
    peaks = {
        "gpipe": ((m,) * p, "m"),
        "1f1b": (tuple(min(p - r, m) for r in range(p)), "min(p−r, m)"),
    }
    if name not in peaks:
        return None
    peak, peak_formula = peaks[name]
    return ClosedForm(
        makespan=(m + p - 1) * (forward + backward),
        bubble_fraction=(p - 1) / (m + p - 1),
        peak_in_flight=peak,
        formulas=("(m+p−1)(F+B)", "(p−1)/(m+p−1)", peak_formula),
    )
