"""Text to train on."""

from headrace.data.text import Batches, Text, load

__all__ = ["Batches", "Text", "load"]
