"""Cut a chain of layers into stages."""

from headrace.partition.minmax import partition

__all__ = ["partition"]
