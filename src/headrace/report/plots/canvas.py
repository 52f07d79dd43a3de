"""What all pictures share: one look, and files that come out the same whenever the numbers are the same.

matplotlib is an extra, so nothing here imports it before something is drawn.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.files import check_target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HUES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8ab00", "#6a51a3")
"""Those of Okabe and Ito, which most colour-blind people tell apart, the yellow darker, and a violet."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
INK: Final = "#222222"
QUIET: Final = "#8a8a8a"

_STYLE: Final[dict[str, Any]] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    "figure.facecolor": "white",
    "savefig.dpi": 160,
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud, and is a quarter of the bytes
    "svg.hashsalt": "headrace",  # otherwise names in the file are random
}
_METADATA: Final[dict[str, dict[str, Any]]] = {
    ".svg": {"Date": None, "Creator": "headrace"},
    ".png": {"Software": "headrace"},
    ".pdf": {"CreationDate": None, "Creator": "headrace"},
}


def check_file(path: Path) -> None:
    """Whether a picture can be written to `path`, before it is worth computing one.

    Raises:
        ValueError: its ending names no kind of picture, there is no such folder, or matplotlib is not installed.
    """
    check_target(path)
    if path.suffix.lower() not in _METADATA:
        raise ValueError(f"{path} names no kind of picture: let it end with {', '.join(_METADATA)}")
    with styled():
        pass


@contextmanager
def styled() -> Iterator[None]:
    """Within it, what is drawn has the look of our pictures.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
    except ImportError:
        raise ValueError("pictures need matplotlib: pip install headrace[plot]") from None
    with rc_context(_STYLE):  # type: ignore[arg-type]  # typed since 3.11 as a literal of all names
        yield


def save(figure: "Figure", path: Path) -> None:
    """Write `figure`: the same numbers give the same bytes, with one version of matplotlib.

    Raises:
        ValueError: as `check_file`.
        OSError: it cannot be written.
    """
    check_file(path)
    kind = path.suffix.lower()
    with styled():
        figure.savefig(path, format=kind[1:], metadata=_METADATA[kind])


def chart(title: str, x: str, y: str, counts: Sequence[int]) -> "tuple[Figure, Axes]":
    """An empty chart over numbers that double from one to the next, such as 1, 2, 4, … micro-batches."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(6.8, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(counts), labels=list(map(str, sorted(counts))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(True, axis="y")
    return figure, axes
