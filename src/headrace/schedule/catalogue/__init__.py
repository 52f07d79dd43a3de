"""The catalogue: every schedule that we know by name, and `build`, which makes one."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from headrace.schedule.catalogue.gpipe import gpipe
from headrace.schedule.catalogue.one_f_one_b import one_f_one_b
from headrace.schedule.schedule import Schedule

CATALOGUE: Final[Mapping[str, Callable[..., Schedule]]] = MappingProxyType({"gpipe": gpipe, "1f1b": one_f_one_b})


def build(name: str, *, ranks: int, micro_batches: int, **options: Any) -> Schedule:
    """The schedule called `name` for p = `ranks` and m = `micro_batches`.

    Options are those of its generator, such as `recompute="always"` or, for gpipe, `drain="forward"`.

    Raises:
        ValueError: there is no such schedule or option, or a number is out of range.
    """
    generator = CATALOGUE.get(name)
    if generator is None:
        raise ValueError(f"schedule={name!r} is unknown: choose one of {', '.join(CATALOGUE)}")
    known = [p for p in inspect.signature(generator).parameters if p not in ("ranks", "micro_batches")]
    for option in options:
        if option not in known:
            raise ValueError(f"schedule {name!r} has no option {option!r}: it takes {', '.join(known)}")
    return generator(ranks, micro_batches, **options)


def describe(name: str) -> str:
    """The one line that says what the schedule `name` is, from its module's docstring."""
    module = inspect.getmodule(CATALOGUE[name])
    return (inspect.getdoc(module) or "").splitlines()[0]
