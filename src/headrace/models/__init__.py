"""Models that come with headrace."""

from headrace.models.gpt import gpt, next_byte_loss

__all__ = ["gpt", "next_byte_loss"]
