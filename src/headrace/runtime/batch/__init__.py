"""Batches: cut into micro-batches, weighed, compared with targets."""
