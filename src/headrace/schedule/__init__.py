"""Schedules as plain data: build one, prove it, write it down. Nothing here needs torch."""

from importlib import import_module
from typing import Any

from headrace.schedule.actions import Action, Kind
from headrace.schedule.catalogue import CATALOGUE, build
from headrace.schedule.check import InvalidSchedule, Proof, check
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule
from headrace.schedule.text import parse

__all__ = [
    "CATALOGUE",
    "Action",
    "InvalidSchedule",
    "Kind",
    "Placement",
    "Proof",
    "Schedule",
    "build",
    "check",
    "parse",
]


def __getattr__(name: str) -> Any:
    # `schedule.search` stands beside `schedule.build` for people, but a search plays schedules against costs, so its
    # code lies above this package; by name, at the time of use, nothing here depends on it.
    if name == "search":
        return import_module("headrace.search").search
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
