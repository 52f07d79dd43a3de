"""Predict a step without running it: schedule + costs → Timeline."""

from headrace.simulate.as_run import simulate_as_run
from headrace.simulate.closed_forms import ClosedForm, closed_form
from headrace.simulate.memory import memory_over_time, peak_memory, peak_memory_of
from headrace.simulate.simulator import simulate
from headrace.simulate.transfers import transfers

__all__ = [
    "ClosedForm",
    "closed_form",
    "memory_over_time",
    "peak_memory",
    "peak_memory_of",
    "simulate",
    "simulate_as_run",
    "transfers",
]
