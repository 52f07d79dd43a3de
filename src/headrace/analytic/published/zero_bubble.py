"""Zero Bubble Pipeline Parallelism (Qi et al., 2024): bubbles and throughput from their measured F, I, W and c."""

from typing import Final, NamedTuple

from headrace.analytic.published.figures import Figure, Reproduction
from headrace.costs import Costs
from headrace.schedule.catalogue import build
from headrace.simulate.simulator import simulate
from headrace.timeline import Timeline


class Setting(NamedTuple):
    """A model as they ran it: what they measured, in ms, and the samples per GPU and second that they got."""

    name: str
    ranks: int
    micro_batches: int
    layers_per_rank: int
    costs: tuple[float, float, float, float]
    samples: dict[str, float]


SETTINGS: Final = (
    Setting(
        "1.5B", 8, 24, 3, (18.522, 18.086, 9.337, 0.601),
        {"1f1b": 11.8, "zb-h1": 12.9, "zb-h2": 14.5, "interleaved": 13.1},
    ),
    Setting(
        "6.2B", 8, 24, 4, (29.718, 29.444, 19.927, 0.527),
        {"1f1b": 3.50, "zb-h1": 3.88, "zb-h2": 4.32, "interleaved": 4.01},
    ),
    Setting(
        "14.6B", 16, 48, 3, (11.347, 11.248, 8.132, 0.377),
        {"1f1b": 1.40, "zb-h1": 1.61, "zb-h2": 1.81, "interleaved": 1.54},
    ),
    Setting(
        "28.3B", 32, 96, 2, (10.419, 10.207, 7.715, 0.408),
        {"1f1b": 0.76, "zb-h1": 0.87, "zb-h2": 0.99, "interleaved": 0.82},
    ),
)  # fmt: skip

_BUBBLE_RATES: Final = {"1f1b": 0.2431, "zb-h1": 0.1585, "zb-h2": 0.1083}
_THEIR_NAMES: Final = {"zb-h1": "ZB-1p", "zb-h2": "ZB-2p", "interleaved": "interleaved"}


def reproduce() -> Reproduction:
    """Simulate each setting; throughput as a ratio to 1F1B's, as our seconds know nothing of their samples."""
    figures = []
    for name, rate in _BUBBLE_RATES.items():
        timeline = _timeline(name, SETTINGS[0])
        span = _span(timeline)
        ours = float((span - max(timeline.busy)) / span)
        figures.append(Figure(f"1.5B, bubble rate of {name}", ours, rate, 0.00005))
    for setting in SETTINGS:
        base = _span(_timeline("1f1b", setting))
        for name, theirs in _THEIR_NAMES.items():
            ours = float(base / _span(_timeline(name, setting)))
            ratio = setting.samples[name] / setting.samples["1f1b"]
            note = _INTERLEAVED if name == "interleaved" else ""
            figures.append(Figure(f"{setting.name}, {theirs} ÷ 1F1B", ours, ratio, 0.05 * ratio, note=note))
    return Reproduction("Zero bubble: bubble rates and throughput (Qi et al., 2024)", tuple(figures), _NOTES)


_INTERLEAVED = "here all its messages, v times as many, overlap with computing: an upper limit"
_NOTES = (
    "ZB-1p and ZB-2p are their automatic schedules for the memory of zb-h1 and zb-h2; ours are those two.",
    "A step takes the longest time from a rank's first start to its last end, as they bypass the barrier at its end.",
    "Interleaved has one layer a chunk. Their 1F1B has losses that no schedule has: 1.5B at 11.8 samples of 6 a "
    "micro-batch took 1.53 s, and F, I, W and c make 1.46 s.",
)


def _timeline(name: str, setting: Setting) -> Timeline:
    chunks = setting.layers_per_rank if name == "interleaved" else 1
    f, i, w, c = setting.costs
    costs = Costs(forward=f / chunks, backward_input=i / chunks, backward_weight=w / chunks, transfer=c)
    options = {"stages_per_rank": chunks} if chunks > 1 else {}
    order = build(name, ranks=setting.ranks, micro_batches=setting.micro_batches, **options)
    return simulate(order, costs)


def _span(timeline: Timeline) -> float:
    return max(max(track.ends) - min(track.starts) for track in timeline.tracks)
