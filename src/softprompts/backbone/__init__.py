"""Frozen models: `backbone.py` and `tokens.py` hold what they share, `batch.py` their inputs and
losses.

Each model family is one class in one file, registered with `register_family`.
"""

from .backbone import Backbone
from .batch import Losses, Place, Text, to_device
from .causal import Causal
from .chat import Conversation, chats_by_default, has_chat_template, with_chat
from .encoder_decoder import EncoderDecoder
from .families import register_family
from .generative import Generative
from .kv_cache import PromptCache
from .load import inspect_model, load_backbone
from .masked import Masked

__all__ = [
    "Backbone",
    "Causal",
    "Conversation",
    "EncoderDecoder",
    "Generative",
    "Losses",
    "Masked",
    "Place",
    "PromptCache",
    "Text",
    "chats_by_default",
    "has_chat_template",
    "inspect_model",
    "load_backbone",
    "register_family",
    "to_device",
    "with_chat",
]
