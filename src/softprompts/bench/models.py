"""Models to measure: real ones by folder, and known architectures with random weights."""

import torch
import transformers

from ..backbone import Backbone, Masked, load_backbone
from ..backbone.families import family_for
from ..backbone.load import BUNDLED_MODELS, compute_dtype, resolve_device, resolve_dtype
from ..backbone.quantized import QUANTIZED, quantize_model
from ..config.model_shapes import SHAPES

MASK = 99  # any token that random texts do not have


def load_model(name: str, dtype: str, device: str, seed: int, threads: int = 0) -> Backbone:
    """An architecture with random weights from the seed, or any model of `load_backbone`.

    On a CPU, torch uses `threads` from now on; 0: its default.
    """
    if threads:
        torch.set_num_threads(threads)
    if name not in SHAPES:
        return load_backbone(name, dtype, device)
    target = resolve_device(device)
    dtype = resolve_dtype(dtype, target)
    torch.manual_seed(seed)
    with target:
        backbone = _random_backbone(name, compute_dtype(dtype, target))
    if dtype in QUANTIZED:
        quantize_model(backbone.model, QUANTIZED[dtype], target)
        backbone.quantized = dtype
    return backbone


def _random_backbone(name: str, dtype: torch.dtype) -> Backbone:
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUNDLED_MODELS["t5-tiny"])
    config = transformers.AutoConfig.for_model(**SHAPES[name])
    family = family_for(config)
    assert family is not None
    model = getattr(transformers, family.auto_class(config)).from_config(config, dtype=dtype)
    if family is Masked:
        tokenizer.mask_token = tokenizer.convert_ids_to_tokens(MASK)
    if config.model_type == "t5" and not config.scale_decoder_outputs:
        # transformers ties the head unless a checkpoint unties it
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return family(model, tokenizer, name)
