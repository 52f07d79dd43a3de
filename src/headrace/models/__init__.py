"""Models that come with headrace."""

from headrace.models.amoebanet import amoebanet
from headrace.models.gpt import gpt, next_byte_loss
from headrace.models.transformer import transformer
from headrace.models.translation import transformer_6b, translation

__all__ = ["amoebanet", "gpt", "next_byte_loss", "transformer", "transformer_6b", "translation"]
