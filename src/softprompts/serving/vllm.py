"""Prompts for vLLM: their vectors, how inputs are built, and a client that sends them.

vLLM does not support soft prompts, but accepts input embeddings instead of text.
"""

from pathlib import Path
from typing import cast

from ..artifacts.card import Card
from ..backbone.chat import Chat
from ..backbone.load import meta_backbone
from ..errors import UserError, setting
from ..files import find_path, write_json, write_text
from ..files.tensors import write_tensors
from ..prompt import Prompt
from ..tuning.evaluate import Predictor
from . import vllm_client
from .vllm_client import SETTINGS, VECTORS

CLIENT = "client.py"
FILES = (SETTINGS, VECTORS, CLIENT)
_MARK = "\ue001"  # stands for the input in a chat template; no template has it


def write_vllm(folder: Path, prompt: Prompt, card: Card, trust_remote_code: bool = False) -> None:
    """Write a folded prompt for vLLM; the model itself is not loaded, only its tokenizer."""
    check_family(card)
    check_vectors(prompt, card)
    model, answering = card.backbone.name, card.answering()
    if card.path is not None:
        model = find_path(model, card.path.parent)
    form = answering.form
    predictor = Predictor(
        meta_backbone(model, trust_remote_code=trust_remote_code),
        prompt,
        form.labels,
        "generate",
        answering.max_length,
        answer_length=answering.answer_length,
        sentinel=form.sentinel,
        chat=answering.chat,
    )
    backbone = predictor.backbone
    opening, closing = backbone.special_token_counts
    # a named task makes its inputs in code: the client gets them ready-made
    template = "{input}" if form.definition is not None else form.template
    template = f"{form.before}{template}{form.after}"
    if answering.chat:
        rendered = cast(Chat, backbone)._render([_MARK])[0]
        template = rendered.replace(_MARK, template)
    write_tensors(folder / VECTORS, {"vectors": prompt.table.detach()[0].float()})
    write_text(folder / CLIENT, Path(vllm_client.__file__).read_text(encoding="utf-8"))
    write_json(
        folder / SETTINGS,
        {
            "model": model,
            "task": card.task.name,
            "labels": form.labels,
            "template": template,
            "columns": ["input"] if form.definition is not None else form.columns,
            "add_special_tokens": not answering.chat,
            "place": prompt.config.place,
            "opening_tokens": opening,
            "closing_tokens": closing,
            "max_text_tokens": predictor.budget,
            "max_tokens": predictor.answer_length,
            "stop_token_ids": sorted(backbone.eos_ids),
        },
    )


def check_family(card: Card) -> None:
    """Refuse a prompt of a model that vLLM has no `prompt_embeds` for."""
    if card.backbone.family != "decoder-only":
        raise UserError(
            f"vLLM takes prompts of decoder-only models, and {card.backbone.name} is "
            f"{card.backbone.family or 'of an unknown family'}; serve the prompt with "
            "`softprompts serve` instead."
        )


def check_vectors(prompt: Prompt, card: Card) -> None:
    """Refuse a prompt that is more than vectors among a model's input embeddings."""
    if prompt.config.count > 1:
        raise UserError(
            f"vLLM cannot route an input among {prompt.config.count} prompts, so a mixture cannot "
            "be exported without texts to average its prompts over; restore the rows it was tuned "
            f"on, or tune with {setting('preset', 'prompt-tuning')}."
        )
    if prompt.head is not None:
        raise UserError(
            "vLLM cannot hold this prompt's linear head, so it cannot be exported; "
            "tune one that answers in words."
        )
    if card.model is not None or prompt.config.length == 0:
        raise UserError("This run tuned the model, or nothing; name a run that tuned a prompt.")
