"""Run: one prompt, one task, one schedule. All is its own but the backbone: prompt, optimiser, data order, randomness, best prompt."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..artifacts.prompt_file import check_backbone, load_prompt
from ..backbone import Backbone
from ..config.choice import Choice
from ..config.run import RunConfig
from ..errors import UserError
from ..prompt import Material, Source, build
from ..prompt.prompt import blank
from ..tasks import Task
from ..tasks.sentinel import opened
from . import tokens
from .batches import Batches
from .evaluate import Predictor
from .lesson import Lesson
from .optim import learning_rate, make_optimizer
from .team import Team

CHECK_EVERY = 10
"""Steps between looks at the loss: looking makes a GPU wait."""


class RunFailedError(Exception):
    """A run that went wrong before there was anything to keep; told in one sentence that says what to lower."""


class Run:
    """A run at some step. `Cohort` drives it; alone or among others it computes the same."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        backbone: Backbone,
        fresh: bool = True,
        team: Team | None = None,
    ) -> None:
        """A run at step 0; or, not `fresh`, one that a checkpoint is about to fill, which needs no source prompt any more."""
        self.team = team or Team()
        whole_model = config.tuning.trains == "model"
        if config.tuning.trains != "nothing" and (config.prompt.length == 0) != whole_model:
            raise UserError(
                "A prompt of length 0 has nothing to train, and --trains model leaves no prompt: the preset model-tuning sets both."
            )
        if whole_model and (backbone.dtype != "fp32" or self.team.sharded):
            raise UserError(
                "Tuning the whole model needs it whole and in fp32; set --dtype fp32, and launch without FSDP."
            )
        self.config = config = resolved(config, task, backbone)
        self.task = task
        if not task.labels and not backbone.generates:
            raise UserError(
                f"{task.name} asks for free text, which {backbone.name} cannot write; take a model that generates."
            )
        material = Material(
            backbone,
            task.start_words,
            lambda name: fetch_source(name, backbone),
            backbone.features,
            len(task.labels),
        )
        head = (len(task.labels), backbone.features)
        prompt = (
            build(config.prompt, material, config.seed, backbone.unit)
            if fresh
            else blank(config.prompt, backbone.hidden, backbone.unit, head=head)
        )
        self.prompt = prompt.to(backbone.device)
        self.backbone, self.speaker = backbone, backbone.answering(self.prompt.head, task.labels)
        self.trained: dict[str, torch.nn.Module] = {"prompt": self.prompt}
        if whole_model:
            _ = self.origin  # what the run stands on, read before it changes
            backbone.thaw()
            self.trained["model"] = backbone.model
        self.optimizer = make_optimizer(self._parts(), config.tuning)
        self.rng = torch.Generator().manual_seed(config.seed)

        budget = self.predictor().budget
        for part in task.mixed:
            if part.form.before and len(self.speaker.whole([part.form.before])[0]) >= budget:
                raise UserError(
                    "The instruction and its examples leave no room for the text; shorten them, or raise --max-length."
                )
        whole = [
            row
            for part in task.mixed
            for row in tokens.whole(self.speaker, [e.input for e in part.train])
        ]
        self.cut = sum(len(row) > budget for row in whole)
        self.inputs = [self.speaker.cut(row, budget) for row in whole]
        words = list(dict.fromkeys(e.target for e in task.train))
        answers = opened(
            self.speaker.tokenise_targets(words),
            backbone.tokenizer,
            backbone.name,
            task.form.sentinel,
        )
        spelled = dict(zip(words, answers, strict=True))
        self.targets = [spelled[e.target] for e in task.train]
        held = [
            row
            for part in task.mixed
            for row in tokens.whole(self.speaker, [e.input for e in part.validation])
        ]
        self.held_out = [self.speaker.cut(row, budget) for row in held]
        self.batches = Batches(
            [len(ids) for ids in self.inputs],
            config.tuning.batch_size,
            config.seed,
            task.parts,
            task.limit,
        )

        per_epoch = self.batches.per_epoch / config.tuning.accumulate
        epochs = config.tuning.epochs
        self.steps = config.tuning.steps if epochs is None else math.ceil(epochs * per_epoch - 1e-9)
        if config.tuning.trains == "nothing":
            self.steps = 0
        self.step = 0
        self.history: list[dict[str, Any]] = []
        """One entry per evaluation: step, mean loss since the last, learning rate, metrics."""
        self.pending: list[float] = []
        """Losses since the last evaluation."""
        self.first: float | None = None
        """The mean loss of the first steps, which an explosion is measured against."""
        self._unseen: list[Tensor] = []
        self.best: dict[str, Tensor] | None = None
        self.embedding: tuple[int, Tensor] | None = None
        """The task embedding: the step that `embed_at` names, once it was taken, and its folded prompt [K, P, H]."""
        self.stopped: str | None = None
        """Why the run ended before its last step, if it did."""
        self.failed = False
        self.cost: dict[str, Any] | None = None
        """Seconds and memory of the training that led here, shared with the runs beside it; None where there was none."""

    @cached_property
    def origin(self) -> dict[str, str]:
        """What the run stands on, so that a checkpoint on other data or another model is noticed."""
        return {"data": self.task.digest, "backbone": self.backbone.fingerprint}

    def _parts(self) -> dict[str, list[torch.nn.Parameter]]:
        """What learns, by the choice it belongs to."""
        if "model" not in self.trained:
            return self.prompt.groups()
        return {
            "model": list(self.trained["model"].parameters()),
            "head": self.prompt.groups()["head"],
        }

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for part in self._parts().values() for parameter in part]

    def state(self) -> dict[str, Tensor]:
        """All that was learned, by name; tied weights once."""
        found = {f"prompt/{name}": value for name, value in self.prompt.state_dict().items()}
        if "model" in self.trained:
            found |= {
                f"model/{name}": value.detach()
                for name, value in self.trained["model"].named_parameters()
            }
        return found

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Back to what `state` told."""
        own = self.state()
        if own.keys() != state.keys():
            raise ValueError("it holds other parts than the run has")
        for name, value in own.items():
            if value.shape != state[name].shape:
                raise ValueError(f"{name} is of another shape")
            value.copy_(state[name])

    # -- learning ------------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.stopped is not None or self.step >= self.steps

    @cached_property
    def longest_target(self) -> int:
        """Tokens of the longest target among its rows."""
        return max(map(len, self.targets))

    def lessons(self) -> list[Lesson]:
        """What the next optimiser step learns from: one for each of its forward passes."""
        self.prompt.train()
        share = learning_rate(self.config.tuning, self.step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = share * group["base_lr"]
        many = self.config.tuning.accumulate
        batches = [self.batches[self.step * many + part] for part in range(many)]
        count = sum(len(self.targets[row]) for batch in batches for row in batch)
        return [
            Lesson(
                self,
                [self.inputs[row] for row in batch],
                [self.targets[row] for row in batch],
                count,
            )
            for batch in batches
        ]

    def take(self, losses: Sequence[Tensor]) -> None:
        """What comes before the optimiser's step, when the lessons' gradients are there."""
        loss = losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()
        self.team.sum([loss, *(p.grad for p in self.parameters() if p.grad is not None)])
        if self.config.tuning.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.config.tuning.clip)
        self._unseen.append(loss)

    def stepped(self) -> None:
        """What comes after it."""
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.step == self.config.tuning.embed_at:
            self.embedding = self._embedded(self.step)

    @property
    def looks(self) -> bool:
        """Whether it is time to look at the losses."""
        tuning = self.config.tuning
        return (
            self.step % CHECK_EVERY == 0
            or self.due(tuning.evaluate_every)
            or self.due(tuning.checkpoint_every)
        )

    def due(self, every: int) -> bool:
        return self.step % every == 0 or self.step >= self.steps

    def look(self) -> None:
        look_all([self])

    def _seen(self, fresh: list[float], finite: bool) -> None:
        """Take in the losses since the last look; stop the run if they are not finite or have exploded."""
        self.pending += fresh
        self._unseen = []
        mean = sum(fresh) / len(fresh)
        self.first = mean if self.first is None else self.first
        advice = f"lower --lr (now {self.config.tuning.lr:g}) or set --clip 1"
        if not math.isfinite(mean) or not finite:
            self.fail(f"the loss was not finite at step {self.step}; {advice}")
        elif mean > 3 * max(self.first, math.log(self.backbone.vocabulary)):
            self.fail(f"the loss exploded to {mean:.1f} by step {self.step}; {advice}")

    def fail(self, why: str) -> None:
        """End the run: its numbers are ruined, what was best before stands."""
        self.stopped, self.failed = why, True

    # -- judging -------------------------------------------------------------------------------------------------------------

    def predictor(self) -> Predictor:
        tuning = self.config.tuning
        assert tuning.max_length is not None  # resolved
        return Predictor(
            self.backbone, self.prompt.eval(), self.task.labels, tuning.scoring, tuning.max_length, answer_length=self.task.answer_length,
            sentinel=self.task.form.sentinel,
        )  # fmt: skip

    def answers(self, tick: Callable[[int], object] = lambda rows: None) -> list[str]:
        """The prompt's answers to the held-out rows."""
        predictor, team = self.predictor(), self.team
        if team.sharded:  # all must call the model in step, so all read the same rows
            own = predictor.answers(self.held_out, tick)
            return team.first(lambda: own)  # one process's word, or they could come to differ
        return team.together(
            predictor.answers(team.share(self.held_out), lambda rows: tick(rows * team.size))
        )

    def judge(self, predictions: Sequence[str]) -> None:
        """Score the answers, note it, and keep the prompt if it is the best so far."""
        metrics = self.task.score(predictions)
        labels = set(self.task.labels)
        entry = {
            "step": self.step,
            "loss": round(sum(self.pending) / max(1, len(self.pending)), 6),
            "lr": self.optimizer.param_groups[0]["lr"],
            **metrics,
            "invalid": sum(p not in labels for p in predictions) if labels else 0,
        }
        if not self.history or metrics[self.metric] > max(e[self.metric] for e in self.history):
            self.best = {name: value.detach().cpu().clone() for name, value in self.state().items()}
        self.history.append(entry)
        self.pending = []
        patience = self.config.tuning.patience
        if (
            patience is not None
            and not self.finished
            and len(self.history) - 1 - self.history.index(self.best_entry) >= patience
        ):
            self.stopped = f"no better {self.metric} in {patience} evaluations"

    @property
    def metric(self) -> str:
        return self.task.metrics[0]

    @property
    def best_entry(self) -> dict[str, Any]:
        """The first entry of the highest score."""
        return max(self.history, key=lambda entry: entry[self.metric])

    def _embedded(self, step: int) -> tuple[int, Tensor] | None:
        """The prompt as it is now, to stand for the task; None where it has no tokens."""
        return (
            (step, self.prompt.fold().table.detach().cpu().clone())
            if self.config.prompt.length
            else None
        )

    def restore_best(self) -> None:
        """The prompt as it scored best. A run that ended before `embed_at` is embedded by its last step, a ruined one by its best."""
        if self.best is None:
            raise RunFailedError(f"Nothing was learned that could be kept: {self.stopped}.")
        if self.embedding is None and not self.failed:
            self.embedding = self._embedded(self.step)
        self.load_state(self.best)
        self.prompt.eval()
        if self.embedding is None or not bool(self.embedding[1].isfinite().all()):
            self.embedding = self._embedded(self.best_entry["step"])
        if "model" in self.trained:
            self.backbone.settle()


@torch.no_grad()
def look_all(runs: Sequence[Run]) -> None:
    """Every run takes in its losses since the last look; one wait for the GPU serves them all."""
    runs = [run for run in runs if run._unseen]
    if not runs:
        return
    parameters = [
        [parameter for parameter in run.parameters() if parameter.numel()] for run in runs
    ]
    largest = torch._foreach_norm([p for own in parameters for p in own], torch.inf)
    told = torch.stack(
        [*(loss for run in runs for loss in run._unseen), *(norm.float() for norm in largest)]
    ).tolist()
    losses, norms = told[: -len(largest)], told[-len(largest) :]
    for run, own in zip(runs, parameters, strict=True):
        many = len(run._unseen)
        fresh, losses = losses[:many], losses[many:]
        finite, norms = all(map(math.isfinite, norms[: len(own)])), norms[len(own) :]
        run._seen(fresh, finite)


def resolved(config: RunConfig, task: Task, backbone: Backbone) -> RunConfig:
    """The config with what it leaves to the backbone filled in, so that it reproduces the run."""
    prompt, tuning = config.prompt, config.tuning
    if prompt.head.kind == "auto":
        prompt = dataclasses.replace(prompt, head=Choice(backbone.best_head(task.labels)))
    if tuning.scoring == "auto":
        tuning = dataclasses.replace(tuning, scoring=backbone.best_scoring)  # type: ignore[arg-type]
    if tuning.max_length is None:
        tuning = dataclasses.replace(tuning, max_length=backbone.room)
    return dataclasses.replace(config, dtype=backbone.dtype, prompt=prompt, tuning=tuning)


def fetch_source(name: str, backbone: Backbone) -> Source:
    """A trained prompt of this backbone by its folder."""
    prompt, card = load_prompt(name)
    if prompt.config.length == 0:
        raise UserError(
            f"{name} has no prompt vectors to start from: its model was tuned, or nothing was; name a run that tuned a prompt."
        )
    check_backbone(name, card, backbone)
    return prompt.source()
