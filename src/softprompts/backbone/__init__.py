"""Frozen models. `backbone.py` is what they share, `rows.py` what they take and answer with; each family has one file."""

from .backbone import Backbone
from .causal import Causal
from .encoder_decoder import EncoderDecoder
from .load import DEFAULT, examine, load_backbone
from .masked import Masked
from .rows import Losses, Text

__all__ = [
    "DEFAULT",
    "Backbone",
    "Causal",
    "EncoderDecoder",
    "Losses",
    "Masked",
    "Text",
    "examine",
    "load_backbone",
]
