"""Predict a step without running it: schedule + costs → Timeline."""

from headrace.simulate.closed_forms import ClosedForm, closed_form
from headrace.simulate.simulator import simulate

__all__ = ["ClosedForm", "closed_form", "simulate"]
