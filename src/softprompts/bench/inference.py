"""Inference: one row of each of many tasks. Ours answers them as one batch; PEFT switches its adapter row by row.

PEFT can mix LoRA adapters in a batch (`adapter_names`), but not prompts, so with one row a task there is nothing it could batch. Both sides
read the prompts from the same adapter files, tokenise the texts, and give answers as text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..artifacts.peft import ADAPTER, write_adapter
from ..backbone import Backbone, EncoderDecoder
from ..errors import UserError
from ..prompt.prompt import plain
from ..serving.engine import Engine
from ..tasks import TaskConfig, load_task
from ..tuning.api import Tuned, import_peft
from ..tuning.api import load as load_prompt
from .learners import by_regions, untouched, ways_of
from .measure import Common, Say, beside, in_turn, peft, surroundings, tell
from .models import load

LABELS = ("positive", "negative")
AGREE = {"labels": {"fp32": 1.0, "bf16": 0.9}, "generate": {"fp32": 1.0, "bf16": 0.5}}
"""The least share of answers that must agree: in bf16 the order of additions can turn a near tie, and all that is written after it."""


@dataclass(frozen=True)
class Settings(Common):
    """What to measure."""

    tasks: int = 64
    """Tasks, each with a prompt of its own and one row."""

    shortest: int = 5
    """Tokens of the shortest random prompt."""

    longest: int = 100
    """Tokens of the longest."""

    prompts: str = ""
    """Folders of tuned prompts (or PEFT adapters) joined with commas, taken in turn instead of random ones."""

    new_tokens: int = 8
    """The most tokens of an answer that is written."""

    peers: str = "auto"
    """How PEFT is run: eager, regions (its layers compiled, which takes minutes) or both with a comma; auto: eager, on a GPU both."""

    rounds: int = 10
    """Times that all tasks are answered."""

    warmup: int = 2
    """Times before them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            min(self.tasks, self.shortest, self.rounds, self.new_tokens) < 1
            or self.longest < self.shortest
        ):
            raise UserError(
                "Tasks, tokens and rounds must be at least 1, and the longest prompt no shorter than the shortest."
            )


def measure(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """The benchmark's result."""
    backbone = load(settings.model, settings.dtype, settings.device, settings.seed)
    if not isinstance(backbone, EncoderDecoder):
        raise UserError(
            "This benchmark is for encoder-decoder models; for a decoder-only one take the benchmark decoding."
        )
    texts = [example.input for example in load_task(TaskConfig(task="helpdesk/intent")).validation]
    asked = [(f"task{number}", texts[number % len(texts)]) for number in range(settings.tasks)]
    abouts = {
        "labels": "the likelier of two labels",
        "generate": f"written, at most {settings.new_tokens} tokens",
    }
    ways = {}
    with TemporaryDirectory() as folder:
        adapters = _adapters(settings, backbone, Path(folder))
        peers = {
            way: Switching(backbone, adapters, way) for way in ways_of(settings.peers, backbone)
        }
        lengths = next(iter(peers.values())).lengths
        for way, about in abouts.items():
            tuned = [_tuned(backbone, adapter, way, settings.new_tokens) for adapter in adapters]
            engine = Engine(
                backbone, {name: own for (name, _), own in zip(asked, tuned, strict=True)}
            )
            works = {"ours": partial(engine.answer, asked)}
            works |= {
                name: partial(peer.each, asked, way, settings.new_tokens)
                for name, peer in peers.items()
            }
            turns = in_turn(
                works, backbone.device, settings.warmup, settings.rounds, say, fragile=["regions"]
            )
            ways[way] = {"about": about, **beside(turns, AGREE[way][backbone.dtype], "answers")}
            tell(say, way, ways[way]["peft"], "answers")
            yield {
                **surroundings(backbone.device, backbone.dtype),
                "settings": asdict(settings),
                "tasks": settings.tasks,
                "prompt_tokens": {
                    "shortest": min(lengths),
                    "longest": max(lengths),
                    "mean": sum(lengths) / settings.tasks,
                },
                "ways": ways,
            }


def _adapters(settings: Settings, backbone: Backbone, folder: Path) -> list[Path]:
    """A PEFT adapter for each task: of the prompts that were named, or random words of the vocabulary."""
    given, made = [Path(name) for name in settings.prompts.split(",") if name], []
    rng = torch.Generator().manual_seed(settings.seed)
    pieces = backbone.common_pieces(5000)
    for number in range(settings.tasks):
        made.append(folder / f"task{number}")
        if given:
            named = given[number % len(given)]
            read = import_peft if (named / ADAPTER).exists() else load_prompt
            read(named, backbone=backbone).export_peft(made[-1])
        else:
            length = int(torch.randint(settings.shortest, settings.longest + 1, (), generator=rng))
            words = pieces[torch.randint(len(pieces), (length,), generator=rng)]
            write_adapter(
                made[-1], plain(backbone.vectors(words)[None]), backbone.family, backbone.name
            )
    return made


def _tuned(backbone: Backbone, adapter: Path, way: str, new_tokens: int) -> Tuned:
    """The adapter as ours, told how to answer."""
    tuned = import_peft(adapter, backbone=backbone, labels=LABELS if way == "labels" else ())
    tuned.card["scoring"] = way
    if way == "generate":
        tuned.card["task"]["answer_length"] = new_tokens
    return tuned


class Switching:
    """PEFT with an adapter for each task, of which one is active at a time."""

    def __init__(self, backbone: Backbone, adapters: Sequence[Path], way: str) -> None:
        library = peft()
        self.backbone = backbone
        self.model = library.PeftModel.from_pretrained(
            untouched(backbone.model), adapters[0], adapter_name="task0"
        ).eval()
        for number, adapter in enumerate(adapters[1:], 1):
            self.model.load_adapter(adapter, adapter_name=f"task{number}")
        self.lengths = [config.num_virtual_tokens for config in self.model.peft_config.values()]
        if way == "regions":
            by_regions(self.model)
        self.candidates = backbone.collate(backbone.tokenise_targets(LABELS))[0].to(backbone.device)

    @torch.no_grad()
    def each(self, asked: Sequence[tuple[str, str]], way: str, new_tokens: int) -> list[str]:
        """An answer to each text by its own adapter."""
        told = []
        answer = self.chosen if way == "labels" else partial(self.written, new_tokens)
        for name, text in asked:
            self.model.set_adapter(name)
            told.append(answer(text))
        return told

    def chosen(self, text: str) -> str:
        """The likelier label; all labels in one forward pass."""
        ids = self._ids(text).expand(len(LABELS), -1)
        labels = self.candidates.masked_fill(self.candidates == self.backbone.pad, -100)
        logits = self.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, use_cache=False
        ).logits
        told = logits.float().log_softmax(-1).gather(-1, self.candidates.unsqueeze(-1)).squeeze(-1)
        return LABELS[int((told * (labels != -100)).sum(1).argmax())]

    def written(self, new_tokens: int, text: str) -> str:
        """The greedy answer."""
        ids = self._ids(text)
        written = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
        )
        return self.backbone.decode(written)[0]

    def _ids(self, text: str) -> torch.Tensor:
        return torch.tensor(self.backbone.whole([text]), device=self.backbone.device)
