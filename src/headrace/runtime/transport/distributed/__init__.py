"""A process per rank, on one host or many."""
