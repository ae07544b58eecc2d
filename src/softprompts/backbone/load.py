"""Backbones by name: the embedded ones, model folders, hub ids."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from ..files.hub import silence_hub
from .backbone import DTYPES, Backbone
from .causal import Causal
from .encoder_decoder import EncoderDecoder
from .masked import Masked

FAMILIES: tuple[type[Backbone], ...] = (EncoderDecoder, Causal, Masked)
MIXES_PADS = frozenset({"convbert", "fnet", "prophetnet"})
"""Models whose answer to a row depends on the pads beside it."""
EMBEDDED = {"t5-tiny": Path(__file__).parent / "t5-tiny"}
DEFAULT = "t5-tiny"


def load_backbone(
    name: str = DEFAULT, dtype: str = "auto", device: str = "auto", trust_remote_code: bool = False
) -> Backbone:
    """A backbone by the name of an embedded model, a folder, or a Hugging Face hub id."""
    import transformers

    place, dtype = placed(device, dtype)
    family, config, tokenizer = examine(name, trust_remote_code)
    with _told(name), quiet():
        loader = getattr(transformers, family.auto_class(config))
        options: dict[str, Any] = {
            "output_loading_info": True,
            "trust_remote_code": trust_remote_code,
        }
        model, told = loader.from_pretrained(located(name), dtype=DTYPES[dtype], **options)
        check_whole(name, told["missing_keys"])
    return family(model.to(place), tokenizer, name)


class _Hollow:
    """Of a backbone without weights: every vector is zero, so its scale is one's own to choose, and it is nobody's."""

    unit = 1.0
    fingerprint = ""

    def vectors(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, self.hidden)  # type: ignore[attr-defined]


def hollow_backbone(
    name: str = DEFAULT, dtype: str = "fp32", trust_remote_code: bool = False
) -> Backbone:
    """A backbone without its weights, to see in a moment whether a run on it could be: its sizes, words and rules are the real one's."""
    import transformers

    family, config, tokenizer = examine(name, trust_remote_code)
    with _told(name), quiet(), torch.device("meta"):
        loader = getattr(transformers, family.auto_class(config))
        model = loader.from_config(config, dtype=DTYPES[dtype], trust_remote_code=trust_remote_code)
    made: Backbone = type(f"Hollow{family.__name__}", (_Hollow, family), {})(model, tokenizer, name)
    return made


def examine(name: str, trust_remote_code: bool = False) -> tuple[type[Backbone], Any, Any]:
    """All of a backbone but its weights: its family, config and tokenizer. What could not be a backbone is refused."""
    import transformers

    silence_hub()
    with _told(name):
        config = transformers.AutoConfig.from_pretrained(
            located(name), trust_remote_code=trust_remote_code
        )
        family = next((f for f in FAMILIES if f.fits(config)), None)
        if family is None:
            raise UserError(
                f"{name} is a {config.model_type} model, which is of no family we know: {', '.join(f.family for f in FAMILIES)}."
            )
        if config.model_type in MIXES_PADS:
            raise UserError(
                f"{name} is a {config.model_type} model, which lets pads change an answer; take another model."
            )
        tokenizer = read_tokenizer(name, trust_remote_code=trust_remote_code)
    return family, config, tokenizer


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Whatever goes wrong while a model is loaded, as one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # transformers raises a dozen kinds for a model that is not there, damaged or unknown
        raise unloadable(name, error) from None


def placed(device: str, dtype: str) -> tuple[torch.device, str]:
    """Where a backbone goes and as what, autos settled."""
    place = named_device(device)
    return place, named_dtype(dtype, place)


def located(name: str) -> str:
    """Where transformers finds a model: an embedded one's folder, or the name itself, a folder or a hub id."""
    return str(EMBEDDED.get(name, name))


def read_tokenizer(name: str, **options: Any) -> Any:
    """A model's own tokenizer. Of a folder without one, transformers fails in many ways, or makes one up that knows no words."""
    import transformers

    where, mend = located(name), "take a copy of the model with its tokenizer files"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
    except Exception as error:
        if not Path(where).is_dir():
            raise
        raise UserError(
            f"{name} holds no tokenizer that can be read ({_first_line(error)}); {mend}."
        ) from None
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    if not any(
        word not in special and any(map(str.isalnum, word)) for word in tokenizer.get_vocab()
    ):
        raise UserError(f"The tokenizer of {name} knows no words; {mend}.")
    return tokenizer


def check_whole(name: str, missing: Iterable[str]) -> None:
    """transformers draws at random what a checkpoint lacks."""
    lacks = sorted(
        weight for weight in missing if not weight.startswith("pooler.")
    )  # nothing we ask for reads a pooler
    if lacks:
        raise UserError(
            f"The checkpoint of {name} lacks {len(lacks)} weights, the first {lacks[0]}; take a whole copy of it."
        )


def unloadable(name: str, error: Exception) -> UserError:
    """The sentence for a model that is not there, damaged or unknown."""
    gone = name.startswith(("/", ".", "~")) and not os.path.exists(name)  # no hub id begins so
    why = "there is no such folder" if gone else _first_line(error)
    return UserError(
        f"The model {name!r} cannot be loaded ({why}); name {', '.join(EMBEDDED)}, a model folder, or a hub id in reach."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")


def default_dtype(device: torch.device) -> str:
    return "bf16" if device.type == "cuda" else "fp32"


def named_dtype(name: str, device: torch.device) -> str:
    """fp32 or bf16; auto: the device's own."""
    if name == "auto":
        return default_dtype(device)
    if name not in DTYPES:
        why = "T5 overflows in it" if name == "fp16" else "it is no type we run"
        raise UserError(
            f"A backbone cannot be loaded as {name}, because {why}; choose fp32 or bf16."
        )
    return name


def named_device(name: str) -> torch.device:
    """cpu, cuda or another device that is here; auto: a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"There is no device {name!r} here; choose cpu, or auto.") from None
    return torch.device(name)


@contextmanager
def quiet() -> Iterator[None]:
    """transformers shows a bar for every load and save, and warns of what it does rightly (that T5 v1.1's output is a matrix of its own);
    ours are progress bars of work a person waits for, and what is amiss we check. Who asked it to tell more is told."""
    from transformers.utils import logging

    shown, told = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    if told == logging.WARNING:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(told)
        if shown:
            logging.enable_progress_bar()
