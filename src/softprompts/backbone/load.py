"""Loading backbones by name: included models, model folders, Hugging Face Hub ids."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import get_balanced_memory
from transformers.utils import logging

from ..config import DEFAULT_MODEL, load_plugins
from ..config.run import SPREADS, device_error, model_error
from ..errors import UserError, setting
from ..files.hub import offline_reason, prepare_hub
from .backbone import DTYPES, Backbone
from .families import FAMILIES, family_for
from .quantized import QUANTIZED, quantize_model

MIXES_PADS = frozenset(
    {"convbert", "fnet", "funnel", "mobilebert", "nystromformer", "prophetnet", "yoso"}
)
"""Model types in which a row's output depends on its pads."""
CACHELESS = frozenset(
    {"falcon_mamba", "mamba", "mamba2", "openai-gpt", "recurrent_gemma", "rwkv", "xlnet", "xlstm"}
)
"""Model types without a key-value cache."""
SCALES_IDS = frozenset({"blenderbot-small", "marian", "mvp", "pegasus"})
"""Model types whose encoders may scale the embeddings of ids, but not embeddings they are given."""
BUNDLED_MODELS = {"t5-tiny": Path(__file__).parent / "t5-tiny"}


def load_backbone(
    name: str = DEFAULT_MODEL,
    dtype: str = "auto",
    device: str | Mapping[str, int | str] = "auto",
    trust_remote_code: bool = False,
) -> Backbone:
    """A backbone by the name of an included model, a folder, or a Hugging Face Hub id.

    With a dtype of int8 or int4, the matrices of its layers are quantised (`quantized.py`). With a
    device of balanced, balanced_low_0 or sequential, or a mapping from module names to devices, its
    layers are spread over several devices, as by transformers' `device_map`.
    """
    spread = not isinstance(device, str) or device in SPREADS
    target_device = resolve_device(device if isinstance(device, str) else _first_device(device))
    dtype = resolve_dtype(dtype, target_device)
    quantized = dtype in QUANTIZED
    family, config, tokenizer = inspect_model(name, trust_remote_code)
    with load_errors(name), quiet_transformers():
        model, info = getattr(transformers, family.auto_class(config)).from_pretrained(
            model_path(name),
            dtype=compute_dtype(dtype, target_device),
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            device_map=device if spread and not quantized else None,
        )
        check_missing_weights(name, info["missing_keys"])
    if quantized:
        exact = family(model, tokenizer, name)
        known = exact.fingerprint, exact.unit  # of the exact weights, so that prompts fit both
        quantize_model(model, QUANTIZED[dtype], torch.device("cpu") if spread else target_device)
        if spread:
            with load_errors(name):
                model = spread_layers(model, device)
    backbone = family(model if spread else model.to(target_device), tokenizer, name)
    if quantized:
        backbone.fingerprint, backbone.unit = known
        backbone.quantized = dtype
    if backbone.is_spread:
        backbone.disable_packing()  # accelerate moves states where the model calls its own layers
    return backbone


def spread_layers(model: Any, device_map: str | Mapping[str, int | str]) -> Any:
    """A model that is in memory, with its layers on several devices."""
    devices: Any = device_map
    if isinstance(device_map, str):
        whole, memory = list(model._no_split_modules or ()), None
        if device_map != "sequential":
            first_low = device_map == "balanced_low_0"
            memory = get_balanced_memory(model, no_split_module_classes=whole, low_zero=first_low)
        devices = infer_auto_device_map(model, memory, no_split_module_classes=whole)
    skip = model._skip_keys_device_placement
    return dispatch_model(model, dict(devices), skip_keys=skip, force_hooks=True)


def _first_device(device_map: Mapping[str, int | str]) -> str:
    """The device that inputs are put on."""
    first = next(iter(device_map.values()), "cpu")
    return "cpu" if first in ("cpu", "disk") else str(torch.device(first))


class _WithoutWeights:
    """Overrides what a backbone computes from its weights: on the meta device there are none."""

    unit = 1.0
    fingerprint = ""

    def input_embeddings(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, self.hidden)  # type: ignore[attr-defined]


def meta_backbone(
    name: str = DEFAULT_MODEL, dtype: str = "fp32", trust_remote_code: bool = False
) -> Backbone:
    """A backbone on the meta device, without weights, to check in a moment whether a run on it is
    possible: its sizes, tokenizer and limits are the real ones."""
    family, config, tokenizer = inspect_model(name, trust_remote_code)
    with load_errors(name), quiet_transformers(), torch.device("meta"):
        model = getattr(transformers, family.auto_class(config)).from_config(
            config,
            dtype=compute_dtype(dtype, torch.device("cpu")),
            trust_remote_code=trust_remote_code,
        )
    meta_family: type[Backbone] = type(f"Meta{family.__name__}", (_WithoutWeights, family), {})
    return meta_family(model, tokenizer, name)


def inspect_model(name: str, trust_remote_code: bool = False) -> tuple[type[Backbone], Any, Any]:
    """A model's family, config and tokenizer, without its weights; a clear error if it cannot be a
    backbone."""
    family, config = inspect_config(name, trust_remote_code)
    with load_errors(name):
        tokenizer = load_tokenizer(name, trust_remote_code=trust_remote_code)
    return family, config, tokenizer


def inspect_config(name: str, trust_remote_code: bool = False) -> tuple[type[Backbone], Any]:
    """The same without the tokenizer."""
    prepare_hub(model_path(name))
    load_config = partial(
        transformers.AutoConfig.from_pretrained,
        model_path(name),
        trust_remote_code=trust_remote_code,
    )
    with load_errors(name):
        try:
            config = load_config()
        except ValueError:  # transformers does not know the model type, but a plugin may
            load_plugins()
            config = load_config()
        family = family_for(config)
        if family is None:
            raise UserError(
                f"{name} has the unsupported model type {config.model_type}; "
                f"supported families: {', '.join(sorted(FAMILIES))}."
            )
        reason = unsupported_reason(config)
        if reason is not None:
            raise UserError(
                f"{name} has the unsupported model type {config.model_type}, {reason}; "
                "choose another model."
            )
    return family, config


def unsupported_reason(config: Any) -> str | None:
    """Why a model of a known family cannot be a backbone; None if it can."""
    if config.model_type in MIXES_PADS:
        return "whose output depends on padding"
    if config.model_type in CACHELESS:
        return "which has no key-value cache to decode with"
    if config.model_type in SCALES_IDS and config.scale_embedding:
        return "which scales embeddings only if it looks them up itself"
    text_config = config if config.is_encoder_decoder else config.get_text_config()
    if getattr(text_config, "hidden_size_per_layer_input", None):  # Gemma 3n, some of Gemma 4
        return "whose layers look up the token at every position, and a prompt has none"
    return None


@contextmanager
def load_errors(name: str) -> Iterator[None]:
    """A clear error for whatever goes wrong while a model is loaded."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # transformers has a dozen for missing, damaged, unknown models
        raise load_error(name, error) from None


def model_path(name: str) -> str:
    """What transformers loads: an included model's folder, or the name itself."""
    return str(BUNDLED_MODELS.get(name, name))


def load_tokenizer(name: str, **options: Any) -> Any:
    """A model's own tokenizer. For a folder without one, transformers fails in many ways, or
    creates one with an empty vocabulary."""
    path, advice = model_path(name), "use a copy of the model with its tokenizer files"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **options)
    except Exception as error:
        if not Path(path).is_dir():
            raise
        raise UserError(
            f"{name} has no readable tokenizer ({_first_line(error)}); {advice}."
        ) from None
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    if not any(
        word not in special and any(map(str.isalnum, word)) for word in tokenizer.get_vocab()
    ):
        raise UserError(f"The tokenizer of {name} has an empty vocabulary; {advice}.")
    return tokenizer


def check_missing_weights(name: str, missing: Iterable[str]) -> None:
    """Transformers would initialise at random what a checkpoint lacks."""
    lacking = sorted(weight for weight in missing if not weight.startswith("pooler."))  # unused
    if lacking:
        raise UserError(
            f"The checkpoint of {name} lacks {len(lacking)} weights, such as {lacking[0]}; "
            "copy it again."
        )


def load_error(name: str, error: Exception) -> UserError:
    """The error for a model that is missing, damaged or unknown."""
    is_path = name.startswith(("/", ".", "~"))  # no Hub id starts like this
    why = _first_line(error)
    if is_path and not os.path.exists(name):
        why = "no such folder"
    elif isinstance(error, OSError):
        why = offline_reason(model_path(name), "model") or why
    return model_error(name, why)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")


def resolve_dtype(name: str, device: torch.device) -> str:
    """fp32, bf16, int8 or int4; auto: bf16 on a GPU."""
    if name == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    if name not in {**DTYPES, **QUANTIZED}:
        why = "T5 overflows in it" if name == "fp16" else "it is not supported"
        raise UserError(
            f"A backbone cannot be loaded as {name}, because {why}; "
            f"set {setting('dtype')} to fp32, bf16, int8 or int4."
        )
    return name


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """What a backbone computes in; a quantised one as by default."""
    return DTYPES[resolve_dtype("auto" if name in QUANTIZED else name, device)]


def resolve_device(name: str) -> torch.device:
    """cpu, cuda or another available device; auto: a GPU, NVIDIA's or Apple's, if there is one. Of
    several devices, the first."""
    if name in ("auto", *SPREADS):
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        torch.empty(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise device_error(name) from None
    return torch.device(name)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hides transformers' progress bars of loading and saving, and its warnings, unless its
    verbosity was changed.

    Its warnings are about things done on purpose (T5 v1.1's separate output matrix); what matters
    is checked here.
    """
    progress_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    if verbosity == logging.WARNING:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress_bars:
            logging.enable_progress_bar()
