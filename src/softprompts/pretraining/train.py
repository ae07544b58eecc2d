"""A pretraining run from the files to the folder: what is there goes on, and ends as if it had never stopped."""

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backbone.load import named_device
from ..config.choice import difference
from ..errors import UserError
from ..files import sweep, write_json, write_text
from ..files.lock import exclusive
from ..files.tensors import read_tensors, write_tensors
from .batches import Batches, Tokens, mixed
from .config import PretrainConfig
from .corpus import Corpus, file_digest, raw_texts, read_definitions, tokenised
from .model import load_model, new_model, sizes, write_model, write_tokenizer
from .optim import learning_rate, make_optimizers
from .progress import Watcher
from .tokenizer import load_tokenizer, sample, train_tokenizer

CHECKPOINT, METRICS, CARD = "checkpoint.safetensors", "metrics.jsonl", "training.json"
ELSEWHERE = frozenset(
    {
        "device",
        "compile",
        "checkpoint_every",
        "log_every",
        "evaluate_every",
        "pause_after",
        "saved",
        "processes",
    }
)
"""Settings that may change while a run is under way, since they do not change what it learns."""
EVALUATED = 4
"""Batches of what is held out."""


class FailedError(Exception):
    """The loss is no number any more; told in one sentence that says what to lower."""


class Pretraining:
    """A run at some step."""

    def __init__(
        self,
        config: PretrainConfig,
        model: Any,
        tokenizer: Any,
        corpora: dict[str, Corpus],
        device: torch.device,
    ) -> None:
        self.config, self.model, self.tokenizer, self.device = (
            config,
            model.to(device),
            tokenizer,
            device,
        )
        self.origin = {name: corpus.digest for name, corpus in corpora.items()}
        tokens = {name: Tokens(corpus.ids, device) for name, corpus in corpora.items()}
        self.batches = Batches(config, corpora, tokens, tokenizer, held=False)
        self.unseen = (
            Batches(config, corpora, tokens, tokenizer, held=True) if config.held_out else None
        )
        self.optimizers = make_optimizers(model.named_parameters(), config)
        self.half = config.dtype == "bf16" or (config.dtype == "auto" and device.type == "cuda")
        use_compile = config.compile if config.compile is not None else device.type == "cuda"
        self.losses: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = (
            torch.compile(self._losses, dynamic=False) if use_compile else self._losses
        )
        self.step, self.seconds = 0, 0.0
        self.seen = torch.zeros(len(config.rows_of), 2, device=device)
        """Each objective's sum of losses and count of tokens since the last line of metrics."""

    def _losses(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """[B] each: the sum of a row's token losses, and the same with the z-loss."""
        before = F.pad(targets[:, :-1], (1, 0), value=self.model.config.decoder_start_token_id)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            logits = self.model(
                input_ids=inputs,
                attention_mask=(inputs != 0).long(),
                decoder_input_ids=before,
                use_cache=False,
            ).logits
        logits, kept = logits.float(), targets != 0
        normaliser = logits.logsumexp(-1)
        nll = normaliser - logits.gather(-1, targets[..., None]).squeeze(-1)
        return (nll * kept).sum(1), ((nll + self.config.z_loss * normaliser.square()) * kept).sum(1)

    def advance(self) -> Tensor:
        """One step; the norm of its gradient."""
        config = self.config
        if config.dropout:
            torch.manual_seed(mixed(config.seed, self.step))
        self.model.train()
        inputs, targets = self.batches.at(self.step)
        total = (targets != 0).sum()
        told = []
        for rows, wanted in zip(
            inputs.chunk(config.microbatches), targets.chunk(config.microbatches), strict=True
        ):
            nll, trained = self.losses(rows, wanted)
            (trained.sum() / total).backward()  # type: ignore[no-untyped-call]
            told.append(nll.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        rate = learning_rate(config, self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        self.seen += self._by_objective(torch.cat(told), targets)
        self.step += 1
        return norm

    def _by_objective(self, nll: Tensor, targets: Tensor) -> Tensor:
        sizes = list(self.config.rows_of.values())
        sums = torch.stack([part.sum() for part in torch.split(nll, sizes)])
        return torch.stack(
            [sums, torch.stack([(part != 0).sum() for part in torch.split(targets, sizes)])], 1
        )

    def told(self, seen: Tensor) -> dict[str, float]:
        """Mean loss of a token, of all and by objective. Waits for the device."""
        table = seen.tolist()
        sums = {
            name: (loss, count)
            for name, (loss, count) in zip(self.config.rows_of, table, strict=True)
        }
        losses = {name: loss / max(1.0, count) for name, (loss, count) in sums.items()}
        if len(losses) > 1:
            losses = {
                "all": sum(loss for loss, _ in sums.values())
                / max(1.0, sum(count for _, count in sums.values())),
                **losses,
            }
        if not all(abs(loss) < float("inf") for loss in losses.values()):
            raise FailedError(
                f"The loss is no number any more by step {self.step}; lower --lr, or lengthen --warmup."
            )
        return {name: round(loss, 5) for name, loss in losses.items()}

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Losses on what is held out, always the same of it; and blind, when each row reads another's input: where the two are alike, the
        model does not look at what it reads. Gradients stay on, since without them a step is compiled anew."""
        if self.unseen is None:
            return {}
        self.model.train(self.config.dropout == 0)  # the same without dropout, and compiled already
        seen = {"held_out": torch.zeros_like(self.seen), "blind": torch.zeros_like(self.seen)}
        for number in range(EVALUATED):
            inputs, targets = self.unseen.at(number)
            for name, read in (("held_out", inputs), ("blind", inputs.roll(1, 0))):
                parts = zip(
                    read.chunk(self.config.microbatches),
                    targets.chunk(self.config.microbatches),
                    strict=True,
                )
                seen[name] += self._by_objective(
                    torch.cat([self.losses(*part)[0].detach() for part in parts]), targets
                )
        return {name: self.told(found) for name, found in seen.items()}

    def save(self, folder: Path) -> None:
        tensors = {f"model/{name}": value for name, value in self.model.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                tensors |= {
                    f"optimizer/{number}/{index}/{name}": value for name, value in state.items()
                }
        note = {
            "config": learned(self.config),
            "origin": self.origin,
            "step": self.step,
            "seconds": self.seconds,
        }
        write_tensors(folder / CHECKPOINT, {**tensors, "seen": self.seen}, note)

    def load(self, folder: Path) -> None:
        """Go on where the checkpoint left off."""
        tensors, note = read_tensors(folder / CHECKPOINT)
        if change := difference(note.get("config"), json.loads(json.dumps(learned(self.config)))):
            raise UserError(
                f"{folder} holds a run with other settings ({change}); choose another --output, or --overwrite it."
            )
        if note.get("origin") != self.origin:
            raise UserError(
                f"The data of the run in {folder} has changed since; choose another --output, or --overwrite it."
            )
        try:
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(tensors[f"model/{name}"])
            for number, optimizer in enumerate(self.optimizers):
                _fill(optimizer, tensors, f"optimizer/{number}/")
            self.seen.copy_(tensors["seen"])
            self.step, self.seconds = int(note["step"]), float(note["seconds"])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"{folder / CHECKPOINT} is damaged or of another version ({error}); start anew with --overwrite."
            ) from None


def _fill(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], prefix: str) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            index, _, key = name.removeprefix(prefix).partition("/")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def learned(config: PretrainConfig) -> dict[str, Any]:
    """The settings that say what a run learns."""
    return {name: value for name, value in config.plain().items() if name not in ELSEWHERE}


def pretrain(
    config: PretrainConfig, folder: Path, overwrite: bool = False, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Pretrain into `folder`; the card. A run that pauses returns a card without `finished`."""
    watcher = watcher or Watcher(quiet=True)
    for given in (config.from_model, config.tokenizer):
        if given is not None and Path(given).resolve() == folder.resolve():
            raise UserError(f"{folder} is what the run begins from; name another --output.")
    with exclusive(folder):
        _open(folder, overwrite)
        return _trained(config, folder, not overwrite and (folder / CHECKPOINT).exists(), watcher)


def _trained(
    config: PretrainConfig, folder: Path, resumed: bool, watcher: Watcher
) -> dict[str, Any]:
    device = named_device(config.device)
    definitions = read_definitions(config.definitions)
    for name in (*config.text, *config.tasks):
        file_digest(name)  # missing files are told before long work
    tokenizer = _tokenizer(config, folder if resumed else None, watcher)
    model = (
        load_model(config, len(tokenizer))
        if config.from_model
        else new_model(config, len(tokenizer))
    )
    corpora: dict[str, Corpus] = {}
    for kind, files, wanted in (
        ("text", config.text, config.reads_text),
        ("tasks", config.tasks, "tasks" in config.shares),
    ):
        if wanted:
            with watcher.bar(f"tokenising {kind}", sum(map(os.path.getsize, files))) as bar:
                corpora[kind] = tokenised(
                    kind, files, tokenizer, definitions, config.processes, bar.tokens
                )
    run = Pretraining(config, model, tokenizer, corpora, device)
    if resumed:
        run.load(folder)
    else:
        _clear(folder)
        write_tokenizer(tokenizer, folder)  # a run that goes on needs the same one
    _keep_metrics(folder, run.step)
    losses = _loop(run, folder, watcher)
    card = _card(run, corpora, losses)
    if run.step < config.all_steps:
        return card
    write_model(
        run.model, tokenizer, folder, torch.bfloat16 if config.saved == "bf16" else torch.float32
    )
    write_json(folder / CARD, card | {"finished": True})
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return card | {"finished": True}


def _loop(run: Pretraining, folder: Path, watcher: Watcher) -> dict[str, dict[str, float]]:
    """Steps until all are done or it is time to pause; the last losses, on what is learned from and what is held out."""
    config, began = run.config, time.monotonic()
    before, last = run.seconds, (run.step, time.monotonic())
    losses: dict[str, dict[str, float]] = {}
    with (
        watcher.bar("pretraining", config.all_steps, run.step) as bar,
        (folder / METRICS).open("a", encoding="utf-8") as metrics,
    ):

        def write(entry: dict[str, Any]) -> None:
            metrics.write(json.dumps({"step": run.step, **entry}) + "\n")
            metrics.flush()

        while run.step < config.all_steps:
            norm = run.advance()
            done = run.step == config.all_steps
            if run.step % config.log_every == 0 or done:
                losses["train"] = run.told(run.seen)
                run.seconds = before + time.monotonic() - began
                run.seen.zero_()
                speed = (
                    (run.step - last[0])
                    * config.step_tokens
                    / max(1e-9, time.monotonic() - last[1])
                )
                last = run.step, time.monotonic()
                rates = {
                    "lr": learning_rate(config, run.step - 1),
                    "gradient": round(norm.item(), 4),
                }
                write(
                    {
                        "loss": losses["train"],
                        **rates,
                        "tokens_per_second": round(speed),
                        "seconds": round(run.seconds, 1),
                    }
                )
                bar.news(
                    f"loss {next(iter(losses['train'].values())):.3f}  {speed / 1000:,.0f}k tokens/s"
                )
            bar.at(run.step)
            if run.unseen is not None and (run.step % config.evaluate_every == 0 or done):
                losses |= (found := run.evaluate())
                write(found)
            run.seconds = before + time.monotonic() - began
            pausing = (
                config.pause_after is not None and time.monotonic() - began >= config.pause_after
            )
            if (run.step % config.checkpoint_every == 0 or pausing) and not done:
                run.told(run.seen)  # what is no number is not kept
                run.save(folder)
            if pausing:
                break
    return losses


def _open(folder: Path, overwrite: bool) -> None:
    """Nobody's model is overwritten unasked, and nothing is mixed with other things: the tokenizer is what a run writes first."""
    there = (
        [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        if folder.is_dir()
        else []
    )
    if there and "tokenizer.json" not in there:
        raise UserError(
            f"{folder} holds other things than a model; name another folder with --output."
        )
    if (folder / "config.json").exists() and not (folder / METRICS).exists():
        raise UserError(
            f"{folder} already holds a model that was not pretrained here; choose another --output."
        )
    if (folder / CARD).exists() and not overwrite:
        raise UserError(
            f"{folder} already holds a model; choose another --output, or replace it with --overwrite."
        )
    sweep(folder, (CHECKPOINT, CARD))


def _clear(folder: Path) -> None:
    """What is overwritten goes when nothing can be refused any more."""
    for name in (CARD, CHECKPOINT):
        (folder / name).unlink(missing_ok=True)


def _tokenizer(config: PretrainConfig, begun: Path | None, watcher: Watcher) -> Any:
    """The one asked for, the one of the model to go on from, the one a run under way began with, or a new one."""
    given = config.tokenizer or config.from_model
    if given is not None:
        return load_tokenizer(given)
    if begun is not None:
        return load_tokenizer(str(begun))
    with watcher.bar("training a tokenizer", None):
        texts = sample(
            raw_texts(config.text, config.tasks), config.tokenizer_characters, config.seed
        )
        return train_tokenizer(texts, config.vocabulary, config.sentinels, config.input_length)


def _keep_metrics(folder: Path, step: int) -> None:
    """Lines of steps that a checkpoint does not know are written again."""
    path = folder / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    write_text(path, "".join(f"{line}\n" for line in lines if _step(line) <= step))


def _step(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # cut by a kill
        return float("inf")


def _card(
    run: Pretraining, corpora: dict[str, Corpus], losses: dict[str, dict[str, float]]
) -> dict[str, Any]:
    config, tokens = run.config, run.step * run.config.step_tokens
    files = {"text": config.text, "tasks": config.tasks}
    return {
        "steps": run.step,
        "tokens": tokens,
        "seconds": round(run.seconds, 1),
        "tokens_per_second": round(tokens / max(1e-9, run.seconds)),
        "losses": losses,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "model": sizes(run.model),
        "data": {
            name: {
                "files": [
                    {"name": Path(file).name, "sha256": file_digest(file)} for file in files[name]
                ],
                "tokens": len(corpus.ids),
                **(
                    {"documents": len(corpus.ends)}
                    if name == "text"
                    else {"examples": len(corpus.ends) // 2}
                ),
            }
            for name, corpus in corpora.items()
        },
        "machine": torch.cuda.get_device_name(run.device)
        if run.device.type == "cuda"
        else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "config": config.plain(),
    }
