"""Pretraining from text files to a model folder; an interrupted run resumes unchanged."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

from ..artifacts.file_names import CHECKPOINT, METRICS
from ..backbone.backbone import DTYPES
from ..backbone.hardware import device_name
from ..backbone.load import resolve_device
from ..errors import UserError, setting
from ..files import exclusive, remove_stale, write_json, write_text
from .config import PretrainConfig
from .corpus import Corpus, OnProgress, file_digest, load_corpus, raw_texts, read_definitions
from .model import describe, load_model, new_model, write_model, write_tokenizer
from .optim import learning_rate
from .run import Pretraining
from .tokenizer import load_t5_tokenizer, sample, train_tokenizer

CARD = "training.json"


class Watcher:
    """Follows the progress: a no-op; subclasses show each stage of the work, such as tokenising."""

    @contextmanager
    def stage(self, name: str, total: float | None, completed: int = 0) -> Iterator[OnProgress]:
        """A stage begins, with `completed` of `total` done already; None: of unknown size."""
        yield lambda completed, note: None


def pretrain(
    config: PretrainConfig, folder: Path, overwrite: bool = False, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Pretrain into `folder`; the card, without `finished` if the run paused."""
    for source in (config.from_model, config.tokenizer):
        if source is not None and Path(source).resolve() == folder.resolve():
            raise UserError(
                f"{folder} is the model or tokenizer that the run starts from; "
                f"choose another {setting('output')}."
            )
    with exclusive(folder):
        _check_folder(folder, overwrite)
        resumes = not overwrite and (folder / CHECKPOINT).exists()
        return _train(config, folder, resumes, watcher or Watcher())


def _train(config: PretrainConfig, folder: Path, resumes: bool, watcher: Watcher) -> dict[str, Any]:
    device = resolve_device(config.device)
    definitions = read_definitions(config.definitions)
    for name in (*config.text, *config.tasks):
        file_digest(name)  # reports missing files before long work
    tokenizer = _tokenizer(config, folder if resumes else None, watcher)
    model = (load_model if config.from_model else new_model)(config, len(tokenizer))
    corpora = _corpora(config, tokenizer, definitions, watcher)
    run = Pretraining(config, model, tokenizer, corpora, device)
    if resumes:
        run.load(folder)
    else:
        # Only now, when nothing can be rejected any more, is a run overwritten.
        for name in (CARD, CHECKPOINT):
            (folder / name).unlink(missing_ok=True)
        write_tokenizer(tokenizer, folder)  # needed to resume
    _drop_metrics_after(folder, run.step)
    card = _card(run, corpora, _loop(run, folder, watcher))
    if run.step < config.total_steps:
        return card
    write_model(run.model, tokenizer, folder, DTYPES[config.saved])
    card["finished"] = True
    write_json(folder / CARD, card)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return card


def _check_folder(folder: Path, overwrite: bool) -> None:
    """Protect other files, and models that were not made here or are not to be overwritten."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    visible = [name for name in names if not name.startswith(".")]
    another = f"choose another {setting('output')}"
    if visible and "tokenizer.json" not in visible:  # which a run writes first
        raise UserError(f"{folder} holds files that are not a model's; {another}.")
    if "config.json" in names and METRICS not in names:
        raise UserError(f"{folder} already holds a model that was not pretrained here; {another}.")
    if CARD in names and not overwrite:
        raise UserError(
            f"{folder} already holds a model; {another}, or replace it with {setting('overwrite')}."
        )
    remove_stale(folder, (CHECKPOINT, CARD))


def _tokenizer(config: PretrainConfig, resumed: Path | None, watcher: Watcher) -> Any:
    """The tokenizer of the settings, of the run that is resumed, or a new one."""
    source = config.tokenizer or config.from_model or resumed
    if source is not None:
        return load_t5_tokenizer(str(source))
    with watcher.stage("training a tokenizer", None):
        texts = sample(
            raw_texts(config.text, config.tasks), config.tokenizer_characters, config.seed
        )
        return train_tokenizer(texts, config.vocabulary, config.sentinels, config.input_length)


def _corpora(
    config: PretrainConfig, tokenizer: Any, definitions: dict[str, str], watcher: Watcher
) -> dict[str, Corpus]:
    files = {
        "text": config.text if config.reads_text else [],
        "tasks": config.tasks if "tasks" in config.shares else [],
    }
    corpora = {}
    for kind, names in files.items():
        if names:
            size = sum(map(os.path.getsize, names))
            with watcher.stage(f"tokenising {kind}", size) as on_progress:
                corpora[kind] = load_corpus(
                    kind, names, tokenizer, definitions, config.processes, on_progress
                )
    return corpora


def _loop(run: Pretraining, folder: Path, watcher: Watcher) -> dict[str, dict[str, float]]:
    """Train until the end or a pause; the last losses on training and held-out data."""
    config, began, seconds_before = run.config, time.monotonic(), run.seconds
    logged = run.step, began
    losses: dict[str, dict[str, float]] = {}
    with (
        watcher.stage("pretraining", config.total_steps, run.step) as on_progress,
        (folder / METRICS).open("a", encoding="utf-8") as metrics,
    ):
        while run.step < config.total_steps:
            norm, note = run.advance(), ""
            finished = run.step == config.total_steps
            if run.step % config.log_every == 0 or finished:
                losses["train"] = run.mean_losses(run.totals)
                run.totals.zero_()
                now = time.monotonic()
                run.seconds = seconds_before + now - began
                speed = (run.step - logged[0]) * config.step_tokens / max(1e-9, now - logged[1])
                logged = run.step, now
                _log(
                    metrics,
                    step=run.step,
                    loss=losses["train"],
                    lr=learning_rate(config, run.step - 1),
                    gradient=round(norm.item(), 4),
                    tokens_per_second=round(speed),
                    seconds=round(run.seconds, 1),
                )
                loss = next(iter(losses["train"].values()))
                note = f"loss {loss:.3f}  {speed / 1000:,.0f}k tokens/s"
            on_progress(run.step, note)
            if run.held_out is not None and (run.step % config.evaluate_every == 0 or finished):
                evaluation = run.evaluate()
                losses |= evaluation
                _log(metrics, step=run.step, **evaluation)
            elapsed = time.monotonic() - began
            run.seconds = seconds_before + elapsed
            pauses = config.pause_after is not None and elapsed >= config.pause_after
            if (run.step % config.checkpoint_every == 0 or pauses) and not finished:
                run.mean_losses(run.totals)  # a diverged run is not saved
                run.save(folder)
            if pauses:
                break
    return losses


def _log(metrics: TextIO, **entry: Any) -> None:
    metrics.write(json.dumps(entry) + "\n")
    metrics.flush()


def _drop_metrics_after(folder: Path, step: int) -> None:
    """Remove lines of steps after the checkpoint, which will be taken again."""
    path = folder / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    write_text(path, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # an interrupted write
        return float("inf")


def _card(
    run: Pretraining, corpora: dict[str, Corpus], losses: dict[str, dict[str, float]]
) -> dict[str, Any]:
    config, tokens = run.config, run.step * run.config.step_tokens
    return {
        "steps": run.step,
        "tokens": tokens,
        "seconds": round(run.seconds, 1),
        "tokens_per_second": round(tokens / max(1e-9, run.seconds)),
        "losses": losses,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "model": describe(run.model),
        "data": {kind: _data_card(config, kind, corpus) for kind, corpus in corpora.items()},
        "machine": device_name(run.device),
        "torch": torch.__version__,
        "config": config.effective(),
    }


def _data_card(config: PretrainConfig, kind: str, corpus: Corpus) -> dict[str, Any]:
    files = config.text if kind == "text" else config.tasks
    texts = len(corpus.ends)
    return {
        "files": [{"name": Path(file).name, "sha256": file_digest(file)} for file in files],
        "tokens": len(corpus.ids),
        **({"documents": texts} if kind == "text" else {"examples": texts // 2}),
    }
