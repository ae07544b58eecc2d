"""Inference: one row of each of many tasks.

Ours answers them as one batch; PEFT switches its adapter row by row. PEFT can mix LoRA adapters in
a batch (`adapter_names`), but not prompts, so with one row per task it has nothing to batch. Both
sides read the prompts from the same adapter files, tokenise the texts, and return answers as text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..artifacts.peft import ADAPTER, write_adapter
from ..backbone import Backbone, EncoderDecoder
from ..config import TaskConfig
from ..errors import UserError
from ..prompt.prompt import folded_prompt
from ..serving.engine import Engine
from ..tasks import load_task
from ..tuning.tuned import Tuned, import_peft, load
from .learners import compile_layers, original_model, peft_modes
from .measure import Say, compare_with_peft, environment, peft_library
from .models import load_model
from .settings import InferenceSettings as Settings

LABELS = ("positive", "negative")
MIN_AGREEMENT = {"labels": {"fp32": 1.0, "bf16": 0.9}, "generate": {"fp32": 1.0, "bf16": 0.5}}
"""The least share of equal answers, by scoring. In bf16 the order of additions can flip a near tie,
and with it all tokens generated after it."""


def measure(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """The benchmark's result, again after each kind of scoring."""
    backbone = load_model(
        settings.model, settings.dtype, settings.device, settings.seed, settings.threads
    )
    if not isinstance(backbone, EncoderDecoder):
        raise UserError(
            "This benchmark is for encoder-decoder models; for a decoder-only one run the "
            "benchmark decoding."
        )
    texts = [example.input for example in load_task(TaskConfig(task="helpdesk/intent")).validation]
    names = [f"task{number}" for number in range(settings.tasks)]
    questions = [(name, texts[number % len(texts)]) for number, name in enumerate(names)]
    descriptions = {
        "labels": "the likelier of two labels",
        "generate": f"generated, at most {settings.new_tokens} tokens",
    }
    results = {}
    with TemporaryDirectory() as folder:
        adapters = _write_adapters(settings, backbone, Path(folder))
        modes = peft_modes(settings.peers, backbone)
        peers = {mode: SwitchingPeft(backbone, adapters, mode) for mode in modes}
        lengths = next(iter(peers.values())).lengths
        for scoring, about in descriptions.items():
            tuned = [_tuned(backbone, path, scoring, settings.new_tokens) for path in adapters]
            engine = Engine(backbone, dict(zip(names, tuned, strict=True)))
            calls = {"ours": partial(engine.answer, questions)}
            for mode, peer in peers.items():
                calls[mode] = partial(peer.answers, questions, scoring, settings.new_tokens)
            minimum = MIN_AGREEMENT[scoring][backbone.dtype]
            compared = compare_with_peft(
                calls, backbone.device, settings, minimum, scoring, "answers", say
            )
            results[scoring] = {"about": about, **compared}
            yield {
                **environment(backbone.device, backbone.dtype),
                "settings": asdict(settings),
                "tasks": settings.tasks,
                "prompt_tokens": {
                    "shortest": min(lengths),
                    "longest": max(lengths),
                    "mean": sum(lengths) / settings.tasks,
                },
                "ways": results,
            }


def _write_adapters(settings: Settings, backbone: Backbone, folder: Path) -> list[Path]:
    """A PEFT adapter for each task: of the named prompts, or of random words."""
    prompts = [Path(name) for name in settings.prompts.split(",") if name]
    rng = torch.Generator().manual_seed(settings.seed)
    pieces = backbone.common_pieces(5000)
    adapters = [folder / f"task{number}" for number in range(settings.tasks)]
    for number, adapter in enumerate(adapters):
        if prompts:
            source = prompts[number % len(prompts)]
            read = import_peft if (source / ADAPTER).exists() else load
            read(source, backbone=backbone).export_peft(adapter)
        else:
            length = int(torch.randint(settings.shortest, settings.longest + 1, (), generator=rng))
            words = pieces[torch.randint(len(pieces), (length,), generator=rng)]
            prompt = folded_prompt(backbone.input_embeddings(words)[None])
            write_adapter(adapter, prompt, backbone.family, backbone.name)
    return adapters


def _tuned(backbone: Backbone, adapter: Path, scoring: str, new_tokens: int) -> Tuned:
    labels = LABELS if scoring == "labels" else ()
    tuned = import_peft(adapter, backbone=backbone, labels=labels)
    task = replace(tuned.card.task, answer_length=None if labels else new_tokens)
    return replace(tuned, card=replace(tuned.card, scoring=scoring, task=task))


class SwitchingPeft:
    """PEFT with an adapter for each task, one of them active at a time."""

    def __init__(self, backbone: Backbone, adapters: Sequence[Path], mode: str) -> None:
        self.backbone = backbone
        self.model = (
            peft_library()
            .PeftModel.from_pretrained(
                original_model(backbone.model), adapters[0], adapter_name="task0"
            )
            .eval()
        )
        for number, adapter in enumerate(adapters[1:], 1):
            self.model.load_adapter(adapter, adapter_name=f"task{number}")
        self.lengths = [config.num_virtual_tokens for config in self.model.peft_config.values()]
        if mode == "regions":
            compile_layers(self.model)
        self.candidates = backbone.collate(backbone.tokenise_targets(LABELS))[0].to(backbone.device)

    @torch.no_grad()
    def answers(
        self, questions: Sequence[tuple[str, str]], scoring: str, new_tokens: int
    ) -> list[str]:
        """An answer to each text by the adapter it names."""
        answers = []
        answer = self.best_label if scoring == "labels" else partial(self.generate, new_tokens)
        for name, text in questions:
            self.model.set_adapter(name)
            answers.append(answer(text))
        return answers

    def best_label(self, text: str) -> str:
        # one forward pass for both labels
        ids = self._ids(text).expand(len(LABELS), -1)
        labels = self.candidates.masked_fill(self.candidates == self.backbone.pad_id, -100)
        logits = self.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, use_cache=False
        ).logits
        log_probabilities = logits.float().log_softmax(-1)
        scores = log_probabilities.gather(-1, self.candidates.unsqueeze(-1)).squeeze(-1)
        return LABELS[int((scores * (labels != -100)).sum(1).argmax())]

    def generate(self, new_tokens: int, text: str) -> str:
        ids = self._ids(text)
        generated = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
        )
        return self.backbone.decode(generated)[0]

    def _ids(self, text: str) -> torch.Tensor:
        return torch.tensor(self.backbone.token_ids([text]), device=self.backbone.device)
