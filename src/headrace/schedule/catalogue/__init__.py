"""The catalogue: every schedule that we know by name, and `build`, which makes one."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from headrace.schedule.catalogue.chimera import chimera
from headrace.schedule.catalogue.dualpipe import dualpipe, dualpipe_v
from headrace.schedule.catalogue.gpipe import gpipe
from headrace.schedule.catalogue.hanayo import hanayo
from headrace.schedule.catalogue.interleaved import interleaved, interleaved_zb
from headrace.schedule.catalogue.looped_bfs import looped_bfs
from headrace.schedule.catalogue.one_f_one_b import eager_1f1b, one_f_one_b
from headrace.schedule.catalogue.pipedream import pipedream, pipedream_2bw
from headrace.schedule.catalogue.plugins import plugin, plugin_names
from headrace.schedule.catalogue.seq1f1b import seq1f1b
from headrace.schedule.catalogue.v_memory import v_half, v_min
from headrace.schedule.catalogue.zb_v import zb_v
from headrace.schedule.catalogue.zero_bubble import zb_h1, zb_h2
from headrace.schedule.garbage import no_collection
from headrace.schedule.schedule import Schedule

CATALOGUE: Final[Mapping[str, Callable[..., Schedule]]] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "eager-1f1b": eager_1f1b,
        "interleaved": interleaved,
        "looped-bfs": looped_bfs,
        "zb-h1": zb_h1,
        "zb-h2": zb_h2,
        "interleaved-zb": interleaved_zb,
        "zb-v": zb_v,
        "v-min": v_min,
        "v-half": v_half,
        "hanayo": hanayo,
        "seq1f1b": seq1f1b,
        "chimera": chimera,
        "dualpipe": dualpipe,
        "dualpipe-v": dualpipe_v,
        "pipedream": pipedream,
        "pipedream-2bw": pipedream_2bw,
    }
)

NEEDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "seq1f1b": "causal layers that carry keys and values (hr.carry)",
        "chimera": "even p; no running statistics",
        "dualpipe": "even p; no running statistics",
        "pipedream": "optimizer=; other mathematics: delayed weights",
        "pipedream-2bw": "optimizer=; other mathematics: delayed weights",
    }
)
"""What a schedule asks for that the others do not."""


def build(name: str, *, ranks: int, micro_batches: int, **options: Any) -> Schedule:
    """The schedule called `name` for p = `ranks` and m = `micro_batches`.

    Options are those of its generator, such as `recompute="always"` or, for gpipe, `drain="forward"`. Installed
    packages may add names (see `plugins`).

    Raises:
        ValueError: there is no such schedule or option, or a number is out of range.
        TypeError: a package's generator returned something else than a Schedule.
    """
    if not isinstance(name, str):
        raise TypeError(f"schedule={name!r} must be a name of the catalogue")
    generator = CATALOGUE.get(name) or plugin(name)
    if generator is None:
        raise ValueError(f"schedule={name!r} is unknown: choose one of {', '.join([*CATALOGUE, *plugin_names()])}")
    known = [p for p in inspect.signature(generator).parameters if p not in ("ranks", "micro_batches")]
    for option in options:
        if option not in known:
            raise ValueError(f"schedule {name!r} has no option {option!r}: it takes {', '.join(known)}")
    with no_collection():
        schedule = generator(ranks, micro_batches, **options)
    if not isinstance(schedule, Schedule):
        raise TypeError(f"the generator of schedule={name!r} returned {schedule!r}: it must return a headrace Schedule")
    return schedule


def describe(name: str) -> str:
    """The one line that says what the schedule `name` is, from its generator's docstring."""
    return (inspect.getdoc(CATALOGUE[name]) or "").splitlines()[0]
