"""Decoding: a decoder-only model writes a fixed number of tokens. Ours remembers the prompt's keys and values; PEFT reads it every time.

Texts of a batch are of one length, because PEFT counts pads as positions, and so computes something else than ours where there are any.
No token ends a text, on either side, so that both write the same number.
"""

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..backbone import Backbone, Causal
from ..errors import UserError
from .measure import Clock, Common, Progress, Say, check_share, peft, ratio, spread, surroundings
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

    rounds: int = 10
    """Times that each batch is written."""

    warmup: int = 2
    """Times before them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = all(part.isdecimal() and int(part) for part in self.batches.split(","))
        if min(self.prompt, self.text, self.new_tokens, self.rounds) < 1 or not sizes:
            raise UserError("Tokens and rounds must be at least 1, and --batches numbers such as 1,16,64.")


def measure(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """The benchmark's result."""
    backbone = load(settings.model, settings.dtype, settings.device, settings.seed)
    if not isinstance(backbone, Causal):
        raise UserError("This benchmark is for decoder-only models; take llama-135m, or a folder of one.")
    backbone.model.generation_config.eos_token_id = backbone.tokenizer.eos_token = None
    rng = np.random.default_rng(settings.seed)
    start = backbone.vectors(torch.tensor(rng.integers(100, backbone.vocabulary, settings.prompt)))
    peer = _peer(backbone, start)
    batches = []
    warnings.filterwarnings("ignore", "Position ids are not supported")  # PEFT says so at every token; without pads it does not matter
    for size in [int(part) for part in settings.batches.split(",")]:
        rows: list[list[int]] = rng.integers(100, backbone.vocabulary, (size, settings.text)).tolist()
        batches.append({"batch": size, **_timed(settings, backbone, peer, start, rows, say)})
        say(f"batch {size}: PEFT takes {batches[-1]['ratio']['median']:.2f} times as long, {batches[-1]['agreement']:.1%} of tokens agree")
        yield {**surroundings(backbone.device, backbone.dtype), "settings": asdict(settings), "batches": batches}


def _peer(backbone: Backbone, start: Tensor) -> Any:
    """PEFT with the same prompt."""
    library = peft()
    config = library.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=len(start))
    model = library.get_peft_model(backbone.model, config).eval()
    model.prompt_encoder["default"].embedding.weight.data.copy_(start)
    return model


@torch.no_grad()
def _timed(settings: Settings, backbone: Causal, peer: Any, start: Tensor, rows: list[list[int]], say: Say) -> dict[str, Any]:
    """All sides in turn, round by round."""
    vectors = start.to(backbone.device)[None]
    memory = backbone.remember(vectors, torch.tensor([len(start)], device=backbone.device))
    if memory is None:
        raise UserError(f"{backbone.name} cannot remember a prompt; take another model.")
    first = torch.zeros(len(rows), dtype=torch.long, device=backbone.device)

    def theirs() -> Tensor:
        ids = torch.tensor(rows, device=backbone.device)
        asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": settings.new_tokens}
        written: Tensor = peer.generate(**asked, do_sample=False, num_beams=1)
        return written[:, -settings.new_tokens :]

    def read() -> Tensor:
        return backbone.generate(vectors.expand(len(rows), -1, -1), backbone.embed_rows(rows), settings.new_tokens)

    def remembered() -> Tensor:
        return backbone.generate(memory.rows(first, len(start)), backbone.embed_rows(rows), settings.new_tokens)

    clocks = {work: Clock(backbone.device) for work in (theirs, read, remembered)}
    progress = Progress(say, "round", settings.warmup + settings.rounds)
    for number in range(settings.warmup + settings.rounds):
        progress.tick(number)
        told = [clock.time(work).cpu() for work, clock in clocks.items()]
        if number == 0:
            share = min(float((told[0] == other).float().mean()) for other in told[1:])
            check_share(share, AGREE[backbone.dtype], "tokens")
    times = [clock.seconds()[settings.warmup :] for clock in clocks.values()]
    named = dict(zip(("peft", "read", "remembered"), map(spread, times), strict=True))
    return {**named, "ratio": ratio(times[0], times[2]), "agreement": share}
