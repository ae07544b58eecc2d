"""Decoding: a decoder-only model writes a fixed number of tokens. Ours remembers the prompt's keys and values; PEFT reads it every time.

Texts of a batch are of one length, because PEFT counts pads as positions, and so computes something else than ours where there are any.
No token ends a text, on either side, so that both write the same number.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..backbone import Backbone, Causal
from ..errors import UserError
from .learners import by_regions, untouched, ways_of
from .measure import Common, Say, Turns, beside, in_turn, peft, surroundings, tell
from .models import load

AGREE = {"fp32": 1.0, "bf16": 0.0}
"""The least share of tokens that must agree: in bf16 a near tie can turn, and all after it with it, so there it is only told."""


@dataclass(frozen=True)
class Settings(Common):
    """What to measure."""

    model: str = "llama-135m"
    """llama-135m (SmolLM2-135M's shape with random weights), or a folder of a decoder-only model."""

    prompt: int = 100
    """Prompt tokens."""

    text: int = 32
    """Text tokens of each row."""

    new_tokens: int = 32
    """Tokens to write."""

    batches: str = "1,16,64"
    """Rows of a batch; several sizes joined with commas."""

    peers: str = "auto"
    """How PEFT is run: eager, regions (its layers compiled, which takes minutes) or both with a comma; auto: eager, on a GPU both."""

    rounds: int = 10
    """Times that each batch is written."""

    warmup: int = 2
    """Times before them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = all(part.isdecimal() and int(part) for part in self.batches.split(","))
        if min(self.prompt, self.text, self.new_tokens, self.rounds) < 1 or not sizes:
            raise UserError(
                "Tokens and rounds must be at least 1, and --batches numbers such as 1,16,64."
            )


def measure(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """The benchmark's result."""
    backbone = load(settings.model, settings.dtype, settings.device, settings.seed)
    if not isinstance(backbone, Causal):
        raise UserError(
            "This benchmark is for decoder-only models; take llama-135m, or a folder of one."
        )
    backbone.model.generation_config.eos_token_id = backbone.tokenizer.eos_token = None
    rng = np.random.default_rng(settings.seed)
    start = backbone.vectors(torch.tensor(rng.integers(100, backbone.vocabulary, settings.prompt)))
    peers = {way: _peer(backbone, start, way) for way in ways_of(settings.peers, backbone)}
    batches = []
    warnings.filterwarnings(
        "ignore", "Position ids are not supported"
    )  # PEFT says so at every token; without pads it does not matter
    for size in [int(part) for part in settings.batches.split(",")]:
        rows: list[list[int]] = rng.integers(
            100, backbone.vocabulary, (size, settings.text)
        ).tolist()
        batches.append({"batch": size, **_timed(settings, backbone, peers, start, rows, say)})
        tell(say, f"batch {size}", batches[-1]["peft"], "tokens")
        yield {
            **surroundings(backbone.device, backbone.dtype),
            "settings": asdict(settings),
            "batches": batches,
        }


def _peer(backbone: Backbone, start: Tensor, way: str) -> Any:
    """PEFT with the same prompt."""
    library = peft()
    config = library.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=len(start))
    model = library.get_peft_model(untouched(backbone.model), config).eval()
    model.prompt_encoder["default"].embedding.weight.data.copy_(start)
    return by_regions(model) if way == "regions" else model


@torch.no_grad()
def _timed(
    settings: Settings,
    backbone: Causal,
    peers: Mapping[str, Any],
    start: Tensor,
    rows: list[list[int]],
    say: Say,
) -> dict[str, Any]:
    """All sides in turn, round by round."""
    vectors = start.to(backbone.device)[None]
    memory = backbone.remember(vectors, torch.tensor([len(start)], device=backbone.device))
    if memory is None:
        raise UserError(f"{backbone.name} cannot remember a prompt; take another model.")
    first = torch.zeros(len(rows), dtype=torch.long, device=backbone.device)

    def theirs(peer: Any) -> Tensor:
        ids = torch.tensor(rows, device=backbone.device)
        asked = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": settings.new_tokens,
        }
        written: Tensor = peer.generate(**asked, do_sample=False, num_beams=1)
        return written[:, -settings.new_tokens :]

    def read() -> Tensor:
        return backbone.generate(
            vectors.expand(len(rows), -1, -1), backbone.embed_rows(rows), settings.new_tokens
        )

    def remembered() -> Tensor:
        return backbone.generate(
            memory.rows(first, len(start)), backbone.embed_rows(rows), settings.new_tokens
        )

    works: dict[str, Callable[[], Tensor]] = {
        "read": read,
        "remembered": remembered,
        **{way: partial(theirs, peer) for way, peer in peers.items()},
    }
    turns = in_turn(
        works, backbone.device, settings.warmup, settings.rounds, say, fragile=["regions"]
    )
    tokens = {name: written.flatten().tolist() for name, written in turns.first.items()}
    return beside(Turns(tokens, turns.seconds, turns.left_out), AGREE[backbone.dtype], "tokens")
