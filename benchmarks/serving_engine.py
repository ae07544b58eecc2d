r"""The engine with 1 to 10,000 prompts, against PEFT on the same rows: label scoring, generation.

    python benchmarks/serving_engine.py --output serving-engine.json
    python benchmarks/serving_engine.py --model llama-1b --dtype bf16  # GPU

A library of as many prompts as the largest of --prompts lies on disk; each row asks one of the
first 1, 100, ... of them at random. `ours` has --concurrency requests in flight in one process,
without HTTP, after all these prompts were loaded (`loads_per_s`) and, for decoder-only models,
read. PEFT answers --peft-rows of the same rows: `switching` sets the adapter for each row,
`batched` for each prompt, whose rows of one length are one batch; it holds only the adapters that
these rows need. Both sides must give the same answers.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from softprompts.artifacts.peft import write_adapter
from softprompts.backbone import Backbone
from softprompts.bench.learners import original_model
from softprompts.bench.measure import DisagreementError, environment, peft_library
from softprompts.bench.models import load_model
from softprompts.config import TaskConfig
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json
from softprompts.prompt import folded_prompt
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.requests import Limits, Sampling
from softprompts.tasks import load_task
from softprompts.tuning.tuned import import_peft

LABELS = ("positive", "negative")
WAYS = ("labels", "generate")
Asked = tuple[int, str]
"""The number of a prompt, and a text for it."""
MIN_AGREEMENT = {"labels": {"fp32": 1.0, "bf16": 0.9}, "generate": {"fp32": 1.0, "bf16": 0.0}}
"""The least share of equal answers. In bf16 a near tie can flip, and with it all later tokens."""


def main() -> int:
    settings = arguments()
    counts = prompt_counts(settings.prompts)
    # PEFT warns at every token; without pads it does not matter
    warnings.filterwarnings("ignore", "Position ids are not supported")
    backbone = load_model(
        settings.model, settings.dtype, settings.device, settings.seed, settings.threads
    )
    if not backbone.generates:
        raise UserError("This benchmark is for models that generate; choose t5-tiny or llama-1b.")
    if backbone.model.config.is_encoder_decoder:  # no token ends an answer
        backbone.model.generation_config.eos_token_id = None
    examples = load_task(TaskConfig(task="helpdesk/intent")).validation
    texts = [example.input[: settings.characters].strip() for example in examples]
    result = {**environment(backbone.device, backbone.dtype), "settings": vars(settings)}
    with TemporaryDirectory() as folder:
        library = Path(folder) / "library"
        vectors = write_library(backbone, library, max(counts), settings.length, settings.seed)
        if backbone.model.config.is_encoder_decoder:
            backbone.tokenizer.eos_token = None
        result["counts"] = [
            measure(settings, backbone, library, vectors, texts, count) for count in counts
        ]
    for way in WAYS if len(counts) > 1 else ():
        first, last = (result["counts"][place][way]["ours"]["rows_per_s"] for place in (0, -1))
        print(f"{way}: with {counts[-1]} prompts {last / first:.0%} of the rows/s with {counts[0]}")
    if settings.output:
        write_json(Path(settings.output), result)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="t5-tiny", help="a known shape, or any model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="of torch on a CPU")
    parser.add_argument("--prompts", default="1,100,1000,10000", help="numbers of prompts")
    parser.add_argument("--length", type=int, default=20, help="tokens of a prompt")
    parser.add_argument("--characters", type=int, default=400, help="of a text, at most")
    parser.add_argument("--rows", type=int, default=4000, help="rows of ours for label scoring")
    parser.add_argument("--generated-rows", type=int, default=800)
    parser.add_argument("--peft-rows", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=256, help="requests in flight")
    parser.add_argument("--memory", type=int, default=8, help="GiB of each tier of prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", help="a JSON file")
    return parser.parse_args()


def prompt_counts(text: str) -> list[int]:
    try:
        counts = [int(count) for count in text.split(",")]
    except ValueError:
        counts = []
    if min(counts, default=0) < 1:
        raise UserError(f"--prompts is {text!r}; give whole numbers from 1 on, such as 1,100.")
    return counts


def write_library(
    backbone: Backbone, library: Path, count: int, length: int, seed: int
) -> list[Tensor]:
    """Prompts of random words in a library; returns their vectors [P, H]."""
    rng = torch.Generator().manual_seed(seed)
    pieces = backbone.common_pieces(5000)
    began = time.perf_counter()
    vectors = [
        backbone.input_embeddings(pieces[torch.randint(len(pieces), (length,), generator=rng)])
        for _ in range(count)
    ]
    with TemporaryDirectory() as adapter:
        first = folded_prompt(vectors[0][None])
        write_adapter(Path(adapter), first, backbone.family, backbone.name)
        tuned = import_peft(adapter, backbone=backbone, labels=LABELS)
    for number, prompt in enumerate(vectors):
        folder = library / prompt_name(number)
        folder.mkdir(parents=True)
        replace(tuned, prompt=folded_prompt(prompt[None])).save(folder)
    print(f"{count} prompts written in {time.perf_counter() - began:.0f} s", flush=True)
    return vectors


def prompt_name(number: int) -> str:
    return f"task{number}"


# -- ours ------------------------------------------------------------------------------------------


def measure(
    settings: argparse.Namespace,
    backbone: Backbone,
    library: Path,
    vectors: Sequence[Tensor],
    texts: Sequence[str],
    count: int,
) -> dict[str, Any]:
    """The rates with `count` prompts, and how many times those of PEFT they are."""
    record: dict[str, Any] = {"prompts": count}
    for way in WAYS:
        size = settings.rows if way == "labels" else settings.generated_rows
        drawn = random.Random(settings.seed)
        rows = [(drawn.randrange(count), texts[row % len(texts)]) for row in range(size)]
        ours, answers = asyncio.run(ask_ours(settings, backbone, library, rows, count, way))
        peers = Peft(backbone, vectors, rows[: settings.peft_rows], way, settings.new_tokens)
        record[way] = {**ours, **compare(peers, answers, backbone.dtype, way)}
        for name in ("switching", "batched"):
            rate = record[way]["ours"]["rows_per_s"] / record[way][name]["rows_per_s"]
            record[way][name]["ratio"] = rate
        print(f"{count} prompts, {way}: " + json.dumps(record[way]), flush=True)
    return record


async def ask_ours(
    settings: argparse.Namespace,
    backbone: Backbone,
    library: Path,
    rows: Sequence[Asked],
    count: int,
    way: str,
) -> tuple[dict[str, Any], list[str]]:
    """The rate of loading the first `count` prompts, the rate and latencies of rows, and the
    answers."""
    sampling = Sampling(max_tokens=settings.new_tokens, stream=False)
    tiers = dict.fromkeys(("device_bytes", "memory_bytes", "prefix_bytes"), settings.memory * 2**30)
    limits = Limits(slots=settings.concurrency, timeout=None, **tiers)
    async with AsyncEngine(backbone, library, limits=limits) as engine:

        async def label(row: Asked) -> str:
            return (await engine.classify(prompt_name(row[0]), row[1])).label

        async def generate(row: Asked) -> str:
            pieces = engine.generate(prompt_name(row[0]), row[1], sampling)
            return "".join([piece.text async for piece in pieces])

        await asyncio.to_thread(engine.names)
        began = time.perf_counter()
        for number in range(count):
            await asyncio.to_thread(engine.store.load, prompt_name(number))
        loads = count / (time.perf_counter() - began)
        ask = label if way == "labels" else generate
        if not backbone.model.config.is_encoder_decoder:  # the model reads each prompt
            await crowd(label, [(number, rows[0][1]) for number in range(count)], 64)
        await crowd(ask, rows[: settings.concurrency], settings.concurrency)
        before = engine.stats()
        rate, answers = await crowd(ask, rows, settings.concurrency)
        after = engine.stats()
        rate["mean_batch"] = (after.rows - before.rows) / (after.passes - before.passes)
        return {"loads_per_s": loads, "ours": rate}, answers


async def crowd(
    ask: Callable[[Asked], Awaitable[str]], rows: Sequence[Asked], concurrency: int
) -> tuple[dict[str, float], list[str]]:
    """Ask all rows, so many at a time."""
    answers, seconds, waiting = [""] * len(rows), [0.0] * len(rows), iter(enumerate(rows))

    async def client() -> None:
        for index, row in waiting:
            began = time.perf_counter()
            answers[index] = await ask(row)
            seconds[index] = time.perf_counter() - began

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    rate = len(rows) / (time.perf_counter() - began)
    percentiles = statistics.quantiles([*seconds, *seconds], n=100)
    return {"rows_per_s": rate, "p50_s": percentiles[49], "p99_s": percentiles[98]}, answers


# -- PEFT ------------------------------------------------------------------------------------------


class Peft:
    """PEFT with the adapters that the rows need."""

    def __init__(
        self,
        backbone: Backbone,
        vectors: Sequence[Tensor],
        rows: Sequence[Asked],
        way: str,
        new_tokens: int,
    ) -> None:
        self.backbone, self.rows, self.way, self.new_tokens = backbone, rows, way, new_tokens
        self.length = len(vectors[0])
        library = peft_library()
        config = library.PromptTuningConfig(
            task_type=backbone.peft_task_type,
            num_virtual_tokens=self.length,
            num_transformer_submodules=1,
        )
        numbers = list(dict.fromkeys(number for number, _ in rows))
        model = original_model(backbone.model)
        self.model: Any = library.get_peft_model(model, config, prompt_name(numbers[0])).eval()
        for number in numbers:
            if number != numbers[0]:
                self.model.add_adapter(prompt_name(number), config)
            encoder = self.model.prompt_encoder[prompt_name(number)]
            encoder.embedding.weight.data.copy_(vectors[number])
        self.model.eval()
        self.targets = backbone.collate(backbone.tokenise_targets(LABELS))

    def switching(self) -> list[str]:
        return [answer for row in self.rows for answer in self._answer([row])]

    def batched(self) -> list[str]:
        """All rows of a prompt and of one length together: PEFT takes pads for tokens."""
        ids = self.backbone.token_ids([text for _, text in self.rows])
        groups: dict[tuple[int, int], list[int]] = {}
        for index, (number, _) in enumerate(self.rows):
            groups.setdefault((number, len(ids[index])), []).append(index)
        answers = [""] * len(self.rows)
        for group in groups.values():
            for index, answer in zip(
                group, self._answer([self.rows[i] for i in group]), strict=True
            ):
                answers[index] = answer
        return answers

    @torch.no_grad()
    def _answer(self, rows: Sequence[Asked]) -> list[str]:
        """The answers to rows of one prompt and one length."""
        self.model.set_adapter(prompt_name(rows[0][0]))
        device = self.backbone.device
        ids = torch.tensor(self.backbone.token_ids([text for _, text in rows]), device=device)
        if self.way == "labels":
            return self._labels(ids)
        generated = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.new_tokens,
            do_sample=False,
            num_beams=1,
            eos_token_id=sorted(self.backbone.eos_ids) or None,
            pad_token_id=self.backbone.pad_id,
        )
        causal = not self.backbone.model.config.is_encoder_decoder
        return self.backbone.decode(generated[:, ids.shape[1] :] if causal else generated)

    def _labels(self, ids: Tensor) -> list[str]:
        """Every text once with each label, in one pass."""
        targets, used = (part.to(ids.device) for part in self.targets)
        texts = ids.repeat_interleave(len(LABELS), 0)
        answers, mask = (part.repeat(len(ids), 1) for part in (targets, used))
        if self.backbone.model.config.is_encoder_decoder:
            labels = answers.masked_fill(mask == 0, -100)
            logits = self.model(
                input_ids=texts,
                attention_mask=torch.ones_like(texts),
                labels=labels,
                use_cache=False,
            ).logits
        else:
            joined = torch.cat([texts, answers], dim=1)
            visible = torch.cat([torch.ones_like(texts), mask], dim=1)
            logits = self.model(input_ids=joined, attention_mask=visible, use_cache=False).logits
            begin = self.length + texts.shape[1] - 1
            logits = logits[:, begin : begin + answers.shape[1]]
        logs = logits.float().log_softmax(-1).gather(-1, answers.unsqueeze(-1)).squeeze(-1)
        scores = (logs * mask).sum(1).view(len(ids), len(LABELS))
        return [LABELS[best] for best in scores.argmax(1).tolist()]


def compare(peers: Peft, ours: Sequence[str], dtype: str, way: str) -> dict[str, Any]:
    """PEFT's rates, and the share of its answers that are ours."""
    record: dict[str, Any] = {}
    for name, call in {"switching": peers.switching, "batched": peers.batched}.items():
        peers._answer(peers.rows[:1])  # warm
        began = time.perf_counter()
        answers = call()
        seconds = time.perf_counter() - began
        same = sum(a == b for a, b in zip(answers, ours, strict=False)) / len(answers)
        if same < MIN_AGREEMENT[way][dtype]:
            raise DisagreementError(f"PEFT {name} gives {same:.0%} of our answers ({way}).")
        record[name] = {"rows_per_s": len(answers) / seconds, "same_answers": same}
    return record


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error.spelled(as_flag), file=sys.stderr)
        sys.exit(2)
