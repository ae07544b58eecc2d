"""A pretraining run: its steps, its losses, its checkpoint."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..artifacts.file_names import CHECKPOINT
from ..backbone import Losses
from ..config import difference
from ..errors import UserError, setting
from ..files.tensors import read_tensors, write_tensors
from ..tuning.checkpoint import below, load_optimizer
from .batches import Batches, Tokens, combined_seed
from .config import PretrainConfig
from .corpus import Corpus
from .optim import learning_rate, make_optimizers

CHANGEABLE = frozenset(
    (
        *("device", "compile", "checkpoint_every", "log_every", "evaluate_every"),
        *("pause_after", "saved", "processes"),
    )
)
"""Settings that may change when a run resumes, because they do not change what it learns."""
EVALUATION_BATCHES = 4


class DivergedError(UserError):
    """The loss is infinite or not a number."""

    exit_code = 1


class Pretraining:
    def __init__(
        self,
        config: PretrainConfig,
        model: Any,
        tokenizer: Any,
        corpora: dict[str, Corpus],
        device: torch.device,
    ) -> None:
        self.config, self.device = config, device
        self.model, self.tokenizer = model.to(device), tokenizer
        self.data_digests = {name: corpus.digest for name, corpus in corpora.items()}
        tokens = {name: Tokens(corpus.ids, device) for name, corpus in corpora.items()}
        self.batches = Batches(config, corpora, tokens, tokenizer, held_out=False)
        self.held_out = (
            Batches(config, corpora, tokens, tokenizer, held_out=True) if config.held_out else None
        )
        self.optimizers = make_optimizers(model.named_parameters(), config)
        on_gpu = device.type == "cuda"
        self.autocast = config.dtype == "bf16" or (config.dtype == "auto" and on_gpu)
        compiles = on_gpu if config.compile is None else config.compile
        self.losses: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = (
            torch.compile(self._losses, dynamic=False) if compiles else self._losses
        )
        self.step, self.seconds = 0, 0.0
        self.totals = torch.zeros(len(config.rows_by_objective), 2, device=device)
        """Sum of losses and number of tokens of each objective since the last line of metrics."""

    def _losses(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """[B] each: the sum of a row's token losses, and the same with the z-loss added."""
        start = self.model.config.decoder_start_token_id
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            logits = self.model(
                input_ids=inputs,
                attention_mask=(inputs != 0).long(),
                decoder_input_ids=F.pad(targets[:, :-1], (1, 0), value=start),
                use_cache=False,
            ).logits
        nll, z, _ = Losses.from_logits(logits, targets, targets != 0)
        return nll, nll + self.config.z_loss * z

    def advance(self) -> Tensor:
        """Take one step; the norm of its gradient."""
        config = self.config
        if config.dropout:
            torch.manual_seed(combined_seed(config.seed, self.step))
        self.model.train()
        inputs, targets = self.batches.at(self.step)
        total = (targets != 0).sum()
        nlls = []
        for microbatch in self._microbatches(inputs, targets):
            nll, loss = self.losses(*microbatch)
            (loss.sum() / total).backward()  # type: ignore[no-untyped-call]
            nlls.append(nll.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        rate = learning_rate(config, self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        self.totals += self._by_objective(torch.cat(nlls), targets)
        self.step += 1
        return norm

    def _microbatches(self, *batch: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return zip(*(part.chunk(self.config.microbatches) for part in batch), strict=True)

    def _by_objective(self, nll: Tensor, targets: Tensor) -> Tensor:
        """[objectives, 2]: the sum of the losses [B], and the number of target tokens."""
        rows = list(self.config.rows_by_objective.values())
        sums = [part.sum() for part in torch.split(nll, rows)]
        counts = [(part != 0).sum() for part in torch.split(targets, rows)]
        return torch.stack([torch.stack(sums), torch.stack(counts)], 1)

    def mean_losses(self, totals: Tensor) -> dict[str, float]:
        """Mean loss per token, overall and by objective. Waits for the device."""
        sums = dict(zip(self.config.rows_by_objective, totals.tolist(), strict=True))
        if len(sums) > 1:
            sums = {"all": [sum(column) for column in zip(*sums.values(), strict=True)], **sums}
        losses = {name: loss / max(1.0, count) for name, (loss, count) in sums.items()}
        if not all(abs(loss) < float("inf") for loss in losses.values()):
            raise DivergedError(
                f"The loss is not a finite number at step {self.step}; lower {setting('lr')}, or "
                f"raise {setting('warmup')}."
            )
        return {name: round(loss, 5) for name, loss in losses.items()}

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Losses on a fixed part of the held-out data: `held_out`, and `blind`, where each row
        gets another row's input. If the two are alike, the model ignores its input.

        Gradients stay on: without them the model would be compiled again.
        """
        assert self.held_out is not None
        # Training mode is compiled already, and without dropout the same as evaluation mode.
        self.model.train(self.config.dropout == 0)
        totals = {name: torch.zeros_like(self.totals) for name in ("held_out", "blind")}
        for number in range(EVALUATION_BATCHES):
            inputs, targets = self.held_out.at(number)
            for name, sources in zip(totals, (inputs, inputs.roll(1, 0)), strict=True):
                microbatches = self._microbatches(sources, targets)
                nlls = [self.losses(*microbatch)[0].detach() for microbatch in microbatches]
                totals[name] += self._by_objective(torch.cat(nlls), targets)
        return {name: self.mean_losses(total) for name, total in totals.items()}

    def save(self, folder: Path) -> None:
        tensors = {f"model/{name}": value for name, value in self.model.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                tensors |= {
                    f"optimizer/{number}/{index}/{name}": value for name, value in state.items()
                }
        write_tensors(
            folder / CHECKPOINT,
            {**tensors, "seen": self.totals},
            {
                "config": fixed_settings(self.config),
                "origin": self.data_digests,
                "step": self.step,
                "seconds": self.seconds,
            },
        )

    def load(self, folder: Path) -> None:
        tensors, note = read_tensors(folder / CHECKPOINT)
        settings = json.loads(json.dumps(fixed_settings(self.config)))
        advice = f"choose another {setting('output')}, or set {setting('overwrite')}"
        if change := difference(note.get("config"), settings):
            raise UserError(f"{folder} holds a run with other settings ({change}); {advice}.")
        if note.get("origin") != self.data_digests:
            raise UserError(f"The data of the run in {folder} has changed since; {advice}.")
        try:
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(tensors[f"model/{name}"])
            for number, optimizer in enumerate(self.optimizers):
                load_optimizer(optimizer, below(tensors, f"optimizer/{number}/"))
            self.totals.copy_(tensors["seen"])
            self.step, self.seconds = int(note["step"]), float(note["seconds"])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"{folder / CHECKPOINT} is damaged or from another version ({error}); start over "
                f"with {setting('overwrite')}."
            ) from None


def fixed_settings(config: PretrainConfig) -> dict[str, Any]:
    """The settings that decide what a run learns."""
    return {name: value for name, value in config.effective().items() if name not in CHANGEABLE}
