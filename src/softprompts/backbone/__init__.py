"""Frozen models. `backbone.py` is what they share; each family has one file."""

from .backbone import DEFAULT, Backbone, Losses, Text, load_backbone
from .encoder_decoder import EncoderDecoder

__all__ = ["DEFAULT", "Backbone", "EncoderDecoder", "Losses", "Text", "load_backbone"]
