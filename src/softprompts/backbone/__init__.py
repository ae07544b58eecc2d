"""Frozen models. `backbone.py` is what they share; each family has one file."""

from .backbone import Backbone, Losses, Text
from .causal import Causal
from .encoder_decoder import EncoderDecoder
from .load import DEFAULT, load_backbone

__all__ = ["DEFAULT", "Backbone", "Causal", "EncoderDecoder", "Losses", "Text", "load_backbone"]
