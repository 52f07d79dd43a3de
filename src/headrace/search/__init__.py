"""Search for schedules where the catalogue's do not fit: uneven stages, slow links, tight memory."""

from headrace.search.bounds import lower_bound
from headrace.search.found import Found
from headrace.search.limits import Bytes, InFlight
from headrace.search.search import search

__all__ = ["Bytes", "Found", "InFlight", "lower_bound", "search"]
