"""Run: one prompt, one task, one schedule.

A run has its own prompt, optimiser, data order, randomness and best prompt; only the backbone is
shared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ..backbone import Backbone, with_chat
from ..config import RunConfig
from ..errors import UserError, setting, spelled
from ..tasks import Task
from .batches import Batches
from .evaluate import Predictor
from .microbatch import MicroBatch
from .optim import learning_rate, make_optimizer
from .prepare import (
    check_instruction,
    check_trainable,
    class_weights,
    count_steps,
    empty_prompt_for,
    initial_prompt,
    resolve,
)
from .team import Team
from .tokens import Rows, TargetRows, TextRows

CHECK_EVERY = 10
"""Steps between checks of the loss; reading it makes the CPU wait for the GPU."""
CURVE_POINTS = 100
"""Intervals of a run whose mean losses make its learning curve; a shorter run has one per step."""


class RunFailedError(UserError):
    """A run that failed without a prompt to keep; the message says what to change."""

    exit_code = 1


class Run:
    """A run at some step, driven by `Cohort`. Its results are the same alone and in a cohort."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        backbone: Backbone,
        resumed: bool = False,
        team: Team | None = None,
    ) -> None:
        """A run at step 0. One that is `resumed` is filled by a checkpoint and reads no sources."""
        self.team = team or Team()
        check_trainable(config, task, backbone, self.team.sharded)
        self.config = config = resolve(config, task, backbone)
        self.task, self.backbone = task, backbone
        create = empty_prompt_for if resumed else initial_prompt
        self.prompt = create(config, task, backbone).to(backbone.device)
        chat = with_chat(backbone, config.tuning.chat)
        self.backbone_with_head = chat.with_head(self.prompt.head, task.labels)
        self.trained: dict[str, torch.nn.Module] = {"prompt": self.prompt}
        if config.tuning.trains == "model":
            _ = self.origin  # computed before the model changes
            backbone.unfreeze()
            self.trained["model"] = backbone.model
        self.optimizer = make_optimizer(self._parameter_groups(), config.tuning)
        self.rng = torch.Generator().manual_seed(config.seed)
        backbone = self.backbone_with_head
        budget = self.predictor().budget  # refuses a task that the backbone cannot answer
        check_instruction(task, backbone, budget)
        self.inputs = TextRows(backbone, [member.train for member in task.members], budget)
        self.inputs.read([0])  # refuses a budget that is too small
        self.targets: Rows = TargetRows(backbone, task.train, task.form.sentinel)
        self.held_out = TextRows(backbone, [member.validation for member in task.members], budget)
        self.batches = Batches(
            self.inputs.lengths,
            config.tuning.batch_size,
            config.seed,
            task.member_sizes,
            task.mixture_limit,
        )
        self.weights = class_weights(task) if config.tuning.balance else None
        self.steps = count_steps(config.tuning, self.batches.per_epoch)
        self.step = 0
        self.pause_at = math.inf
        """The step up to which the run is trained for now; its schedule spans all `steps`."""
        self.history: list[dict[str, Any]] = []
        """One entry per evaluation: step, mean loss since the last, learning rate, metrics, and
        what a mixture's router did."""
        self.pending: list[float] = []
        """Losses since the last evaluation."""
        self.first: float | None = None
        """The mean loss of the first steps; a loss far above it has exploded."""
        self.losses: list[tuple[int, float]] = []
        """The mean loss of each interval of the learning curve, with the interval's last step."""
        self._unchecked: list[Tensor] = []
        """Losses since the last check, still on their device."""
        self.best: dict[str, Tensor] | None = None
        self.best_predictions: list[str] | None = None
        """Its predictions for the validation rows; None if it comes from a checkpoint."""
        self.best_probabilities: list[dict[str, float]] | None = None
        """Its label probabilities for them, if they came with the predictions."""
        self.evaluation_rows = 64
        """Validation rows that fit into memory together."""
        self.embedding: tuple[int, Tensor] | None = None
        """The task embedding: its step, and the folded prompt [K, P, H] at it."""
        self.stopped: str | None = None
        """Why the run ended before its last step, if it did."""
        self.failed = False
        self.cost: dict[str, Any] | None = None
        """Seconds and memory of the training, shared with the other runs of the cohort; None
        without training."""

    @cached_property
    def origin(self) -> dict[str, str]:
        """Hashes of data and model; a checkpoint with others does not fit."""
        return {"data": self.task.digest, "backbone": self.backbone.fingerprint}

    def _parameter_groups(self) -> dict[str, list[torch.nn.Parameter]]:
        """What is trained, by the choice it belongs to."""
        if "model" not in self.trained:
            return self.prompt.groups()
        model = list(self.trained["model"].parameters())
        return {"model": model, "head": self.prompt.groups()["head"]}

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self._parameter_groups().values() for parameter in group]

    def state(self) -> dict[str, Tensor]:
        """All trained tensors by name; tied weights once."""
        state = {f"prompt/{name}": value for name, value in self.prompt.state_dict().items()}
        if "model" in self.trained:
            parameters = self.trained["model"].named_parameters()
            state |= {f"model/{name}": value.detach() for name, value in parameters}
        return state

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy tensors that `state` returned."""
        current = self.state()
        if current.keys() != state.keys():
            raise ValueError("its tensors are not those of the run")
        for name, value in current.items():
            if value.shape != state[name].shape:
                raise ValueError(f"{name} has a different shape")
            value.copy_(state[name])

    # -- training ----------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.stopped is not None or self.step >= min(self.steps, self.pause_at)

    @property
    def cut_texts(self) -> int:
        """Of the training texts that were read so far, how many were truncated."""
        read = self.batches.rows_before(self.step * self.config.tuning.accumulate)
        return self.inputs.count_truncated(read)

    @cached_property
    def unknown_tokens(self) -> float:
        """The share of tokens that the backbone does not know, in the texts of the first batches;
        to be read before the first step."""
        if (unknown := self.backbone.unk_id) is None:
            return 0.0
        first = min(self.step, max(0, self.steps - 1)) * self.config.tuning.accumulate
        chunks = self.batches.chunks(first, 1)
        return self.inputs.share(unknown, [row for chunk in chunks for row in chunk])

    def rows_ahead(self) -> list[tuple[TextRows, Sequence[int]]]:
        """The chunks of rows that steps and evaluations will read, in the order of their use."""
        tuning = self.config.tuning
        first = self.step * tuning.accumulate

        def chunks(steps: float) -> list[tuple[TextRows, Sequence[int]]]:
            count = int(min(steps, self.steps - self.step)) * tuning.accumulate
            return [(self.inputs, rows) for rows in self.batches.chunks(first, count)]

        return [
            *chunks(tuning.evaluate_every - self.step % tuning.evaluate_every),
            (self.held_out, range(len(self.held_out))),
            *chunks(self.pause_at - self.step),
        ]

    def micro_batches(self) -> list[MicroBatch]:
        """The rows of the next optimiser step, one micro-batch for each of its forward passes."""
        self.prompt.train()
        factor = learning_rate(self.config.tuning, self.step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["base_lr"]
        count = self.config.tuning.accumulate
        batches = [self.batches[self.step * count + part] for part in range(count)]
        targets = [self.targets.read(batch) for batch in batches]
        tokens = sum(len(ids) for rows in targets for ids in rows)
        return [
            MicroBatch(
                self,
                self.inputs.read(batch),
                rows,
                tokens,
                self.weights and [self.weights[row] for row in batch],
            )
            for batch, rows in zip(batches, targets, strict=True)
        ]

    def before_step(self, losses: Sequence[Tensor]) -> None:
        """Sum and clip the gradients of all micro-batches."""
        loss = losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()
        self.team.sum([loss, *(p.grad for p in self.parameters() if p.grad is not None)])
        if self.config.tuning.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.config.tuning.clip)
        self._unchecked.append(loss)

    def after_step(self) -> None:
        """Count the step, and take the task embedding if it is due."""
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.step == self.config.tuning.embed_at:
            self.embedding = self._embed(self.step)

    @property
    def check_due(self) -> bool:
        """Whether the losses are to be checked at this step."""
        tuning = self.config.tuning
        return (
            self.step % CHECK_EVERY == 0
            or self.due(tuning.evaluate_every)
            or self.due(tuning.checkpoint_every)
        )

    def due(self, every: int) -> bool:
        return self.step % every == 0 or self.step >= self.steps

    def _check(self, losses: list[float], finite: bool) -> None:
        """Record the losses since the last check; fail if they are not finite or have exploded."""
        self.pending += losses
        self._unchecked = []
        mean = sum(losses) / len(losses)
        self.first = mean if self.first is None else self.first
        for step, loss in enumerate(losses, self.step - len(losses) + 1):
            self._extend_curve(step, loss)
        rate, clip = setting("tuning.lr"), setting("tuning.clip")
        advice = f"lower {rate} (now {self.config.tuning.lr:g}) or set {clip} to 1"
        if not math.isfinite(mean) or not finite:
            self.fail(f"the loss was not finite at step {self.step}; {advice}")
        elif mean > 3 * max(self.first, math.log(self.backbone.vocab_size)):
            self.fail(f"the loss exploded to {mean:.1f} by step {self.step}; {advice}")

    def _extend_curve(self, step: int, loss: float) -> None:
        """Add a step's loss to the last interval of the learning curve, or to a new one."""
        begin = self.losses[-2][0] if len(self.losses) > 1 else 0
        count = self.losses[-1][0] - begin if self.losses else 0
        if 0 < count < math.ceil(self.steps / CURVE_POINTS):
            loss = (self.losses.pop()[1] * count + loss) / (count + 1)
        self.losses.append((step, loss))

    def loss_ends(self) -> dict[str, float]:
        """The mean losses of the `first` and the `last` steps, up to ten of each; none of a run
        that is too short to tell them apart."""
        count = min(CHECK_EVERY, self.step // 2)
        points = max(1, count // max(1, math.ceil(self.steps / CURVE_POINTS)))
        if count < 2 or len(self.losses) < 2 * points:
            return {}
        losses = [loss for _, loss in self.losses]
        return {"first": fmean(losses[:points]), "last": fmean(losses[-points:])}

    def fail(self, why: str) -> None:
        """End the run, whose parameters are unusable; the best prompt so far stays."""
        self.stopped, self.failed = spelled(why), True

    # -- evaluation --------------------------------------------------------------------------------

    def predictor(self) -> Predictor:
        tuning = self.config.tuning
        assert tuning.max_length is not None  # resolved
        return Predictor(
            self.backbone,
            self.prompt.eval(),
            self.task.labels,
            tuning.scoring,
            tuning.max_length,
            answer_length=self.task.answer_length,
            sentinel=self.task.form.sentinel,
            chat=tuning.chat,
        )

    def predictions(self, on_rows: Callable[[int], object] = lambda rows: None) -> list[str]:
        """The prompt's answers to the validation rows, which all processes share."""
        predictor, team = self.predictor(), self.team
        if team.sharded:  # all must call the model in step, so all read the same rows
            answers = predictor.answers(self.held_out, on_rows)
            return team.on_main(lambda: answers)  # rounding must not let the processes diverge
        rows = self.held_out.read(team.share(range(len(self.held_out))))
        return team.gather(predictor.answers(rows, lambda count: on_rows(count * team.size)))

    def record(
        self,
        predictions: Sequence[str],
        probabilities: list[dict[str, float]] | None = None,
        router: Mapping[str, Any] | None = None,
    ) -> None:
        """Score the predictions, and keep the prompt if it is the best so far.

        `router`: what a mixture's router did with the rows (see `RouterWatch.entry`).
        """
        metrics = self.task.score(predictions)
        labels = set(self.task.labels)
        entry = {
            "step": self.step,
            "loss": round(sum(self.pending) / max(1, len(self.pending)), 6),
            "lr": self.optimizer.param_groups[0]["lr"],
            **metrics,
            "invalid": sum(p not in labels for p in predictions) if labels else 0,
            **(router or {}),
        }
        if not self.history or metrics[self.metric] > self.best_entry[self.metric]:
            self.best = {name: value.detach().cpu().clone() for name, value in self.state().items()}
            self.best_predictions, self.best_probabilities = list(predictions), probabilities
        self.history.append(entry)
        self.pending = []
        patience = self.config.tuning.patience
        waited = len(self.history) - 1 - self.history.index(self.best_entry)
        if patience is not None and not self.finished and waited >= patience:
            self.stopped = f"no better {self.metric} in {patience} evaluations"

    @property
    def metric(self) -> str:
        return self.task.metrics[0]

    @property
    def best_entry(self) -> dict[str, Any]:
        """The first entry with the highest score."""
        return max(self.history, key=lambda entry: entry[self.metric])

    def _embed(self, step: int) -> tuple[int, Tensor] | None:
        """The prompt as it is now, as a task embedding; None if it has no tokens."""
        if self.config.prompt.length == 0:
            return None
        return step, self.prompt.fold().table.detach().cpu().clone()

    def restore_best(self) -> None:
        """Return to the best prompt.

        A run that ended before `embed_at` is embedded by its last step, a failed one by its best.
        """
        if self.best is None:
            raise RunFailedError(f"The run produced no prompt: {self.stopped}.")
        if self.embedding is None and not self.failed:
            self.embedding = self._embed(self.step)
        self.load_state(self.best)
        self.prompt.eval()
        if self.embedding is None or not bool(self.embedding[1].isfinite().all()):
            self.embedding = self._embed(self.best_entry["step"])
        if "model" in self.trained:
            self.backbone.refreeze()


@torch.no_grad()
def check_losses(runs: Sequence[Run]) -> None:
    """Check the losses of all runs since their last check, and whether their parameters are finite.

    One synchronisation with the GPU serves them all.
    """
    runs = [run for run in runs if run._unchecked]
    if not runs:
        return
    parameters = [[p for p in run.parameters() if p.numel()] for run in runs]
    largest = torch._foreach_norm([p for group in parameters for p in group], torch.inf)
    losses = [loss for run in runs for loss in run._unchecked]
    values = iter(torch.stack([*losses, *(norm.float() for norm in largest)]).tolist())
    losses_of = [[next(values) for _ in run._unchecked] for run in runs]
    norms_of = [[next(values) for _ in group] for group in parameters]
    for run, run_losses, norms in zip(runs, losses_of, norms_of, strict=True):
        run._check(run_losses, all(map(math.isfinite, norms)))
