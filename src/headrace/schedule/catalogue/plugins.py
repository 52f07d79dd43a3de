"""Schedules that other packages bring along: generators registered as entry points.

    [project.entry-points."headrace.schedules"]
    my-schedule = "my_package.schedules:my_schedule"

A generator takes (ranks, micro_batches) and options as keywords, and returns a Schedule. Then its name works wherever
a name of the catalogue does.
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

GROUP: Final = "headrace.schedules"


def plugin_names() -> list[str]:
    """The names that installed packages add to the catalogue."""
    return sorted(entry_points(group=GROUP).names)


def plugin(name: str) -> Callable[..., Any] | None:
    """The generator that an installed package calls `name`; None if there is none.

    Raises:
        ValueError: two packages claim the name, or it cannot be imported.
    """
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        return None
    if len(found) > 1:
        raise ValueError(f"schedule={name!r} is claimed by several packages: {', '.join(map(_whose, found))}")
    try:
        generator: Callable[..., Any] = found[0].load()
    except Exception as error:
        raise ValueError(f"schedule={name!r} of {_whose(found[0])} cannot be imported: {error}") from error
    return generator


def _whose(point: EntryPoint) -> str:
    return f"{point.dist.name} ({point.value})" if point.dist is not None else point.value
