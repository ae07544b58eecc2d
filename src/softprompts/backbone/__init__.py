"""Frozen models. `backbone.py` is what they share; each family has one file."""

from .backbone import Backbone, Losses, Text
from .causal import Causal
from .encoder_decoder import EncoderDecoder
from .load import DEFAULT, load_backbone
from .masked import Masked

__all__ = ["DEFAULT", "Backbone", "Causal", "EncoderDecoder", "Losses", "Masked", "Text", "load_backbone"]
