"""Measure what each layer of a model takes."""

from headrace.profiling.by_rank import RankProfiles, profile_as_rank, profile_by_rank
from headrace.profiling.layer_profile import LayerProfile
from headrace.profiling.measure import profile
from headrace.profiling.measured_cut import measured_cut

__all__ = ["LayerProfile", "RankProfiles", "measured_cut", "profile", "profile_as_rank", "profile_by_rank"]
