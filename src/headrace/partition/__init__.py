"""Cut a chain of layers into stages: `partition` by one number a layer, `best_cuts` with memory, devices and links."""

from headrace.partition.errors import NoCutFits
from headrace.partition.minmax import partition
from headrace.partition.problem import Problem
from headrace.partition.rerank import rerank
from headrace.partition.result import Cut, Found
from headrace.partition.search import best_cuts
from headrace.partition.staged import one_by_one, peaks, problem_for, recomputing, stage_costs, waiting

__all__ = [
    "Cut",
    "Found",
    "NoCutFits",
    "Problem",
    "best_cuts",
    "one_by_one",
    "partition",
    "peaks",
    "problem_for",
    "recomputing",
    "rerank",
    "stage_costs",
    "waiting",
]
