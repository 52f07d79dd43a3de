"""Measure what each layer of a model takes."""

from headrace.profiling.layer_profile import LayerProfile
from headrace.profiling.measure import profile
from headrace.profiling.measured_cut import measured_cut, profile_as_rank

__all__ = ["LayerProfile", "measured_cut", "profile", "profile_as_rank"]
