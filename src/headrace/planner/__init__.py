"""Plan a training step: which cut, which schedule, how many micro-batches, what to recompute."""

from headrace.planner.build_plan import make_plan
from headrace.planner.choose import NoPlanFits
from headrace.planner.plan import Alternative, Plan, Predicted, read_plan
from headrace.planner.request import Request

__all__ = ["Alternative", "NoPlanFits", "Plan", "Predicted", "Request", "make_plan", "read_plan"]
