"""Schedules as plain data: build one, prove it, write it down. Nothing here needs torch."""

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
