"""Measure what each layer of a model takes."""

from headrace.profiling.layer_profile import LayerProfile
from headrace.profiling.measure import profile

__all__ = ["LayerProfile", "profile"]
