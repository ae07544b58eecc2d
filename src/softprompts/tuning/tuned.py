"""A tuned prompt in use: loaded from its folder, or imported from PEFT."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..artifacts.card import UNTRAINED, BackboneCard, Card, PromptCard, TaskCard
from ..artifacts.file_names import MODEL
from ..artifacts.peft import read_adapter, write_adapter
from ..artifacts.run_folder import RunFolder
from ..artifacts.tournament import TournamentRecord
from ..backbone import Backbone, load_backbone
from ..backbone.load import BUNDLED_MODELS
from ..backbone.quantized import QUANTIZED
from ..config import PromptConfig, run_config
from ..errors import UserError, counted, setting, spelled
from ..files import find_path
from ..prompt import Prompt, folded_prompt
from ..tasks import (
    Example,
    Row,
    TextFormat,
    check_template,
    read_rows,
    register_rows,
    rounded,
    score,
)
from ..tasks.memory import is_pair
from ..tasks.questions import Question, check_question, question_list
from ..tasks.score_report import MAJORITY, score_report
from .advice import advice
from .evaluate import Predictor
from .progress import RowProgress


@dataclass(repr=False)
class Tuned:
    """A folded prompt, the frozen model that it works with, and its card."""

    prompt: Prompt
    backbone: Backbone
    card: Card
    folder: Path | None = None
    cost: dict[str, Any] | None = None
    """Seconds and memory of its training, shared with the other runs of its cohort; None if it was
    not trained just now."""
    embedding: Tensor | None = None
    """What represents its task when tasks are compared [K, P, H]; None: the prompt itself."""
    row_scores: list[float] = field(default_factory=list)
    """Scores of the rows that the prompt is judged by, for paired tests; empty if unknown."""
    tournament: TournamentRecord | None = None
    """How its settings were chosen, if by a tournament just now or in the same folder."""

    def __repr__(self) -> str:
        """One line, which a notebook shows: the task, the model, and the score with its doubt."""
        card, shown = self.card, ""
        if card.task.metrics and card.metric in card.judged.get("metrics", {}):
            report, split = card.judged, "test" if "test" in card.scores else "validation"
            low, high = report["intervals"].get(card.metric, (None, None))
            doubt = "" if low is None else f" [{low:.1f}, {high:.1f}]"
            score = f"{card.metric} {report['metrics'][card.metric]:.1f}"
            shown = f": {score}{doubt} on {counted(report['rows'], f'{split} row')}"
        return f"<Tuned {card.task.name} on {card.backbone.name}, {card.method}{shown}>"

    @property
    def metrics(self) -> dict[str, float]:
        return dict(self.card.metrics)

    @property
    def advice(self) -> str | None:
        """What to try if the prompt is no better than a baseline; None if it is."""
        text = advice(self.card)
        return None if text is None else spelled(text)

    @property
    def form(self) -> TextFormat:
        return self.card.answering().form

    def predictor(self, scoring: str | None = None) -> Predictor:
        answering = self.card.answering()
        return Predictor(
            self.backbone,
            self.prompt,
            answering.form.labels,
            scoring or answering.scoring,
            answering.max_length,
            answer_length=answering.answer_length,
            sentinel=answering.form.sentinel,
            chat=answering.chat,
        )

    def inputs(self, rows: Sequence[Question], first: int = 1) -> list[str]:
        """Texts, or rows with the task's columns (a list, a DataFrame, a dataset), as the model
        reads them. Errors count rows from `first`."""
        form, inputs = self.form, list[str]()
        for number, row in enumerate(question_list(rows), first):
            check_question(row, number)
            if isinstance(row, str):
                if len(form.columns) != 1:
                    raise UserError(
                        f"This task reads the columns {', '.join(form.columns)}, not one text; "
                        f"give rows with these columns, such as those of a {setting('file')}."
                    )
                row = {form.columns[0]: row}
            inputs += form.inputs(Row(dict(row), f"text {number}"))
        return inputs

    def predict(
        self, rows: Sequence[Question], scoring: str | None = None, verbose: bool = True
    ) -> list[str]:
        """An answer for each text or row, in order.

        `verbose`: show progress if it takes more than a few seconds.
        """
        inputs = self.inputs(rows)
        return self.predictor(scoring)(inputs, RowProgress(len(inputs), verbose))

    def evaluate(
        self,
        data: Any,
        split: str = "validation",
        scoring: str | None = None,
        skip_bad_rows: bool = False,
        verbose: bool = True,
    ) -> dict[str, float]:
        """The scores on labelled rows with the task's columns: data in memory as for `tune`, a
        file, or a `split` of a dataset."""
        examples, predictions = self._answered(data, split, scoring, skip_bad_rows, verbose)
        metrics = self.card.task.metrics or self.form.metrics
        return rounded(score(metrics, examples, predictions, self.form.labels))

    def report(
        self,
        data: Any,
        split: str = "validation",
        scoring: str | None = None,
        skip_bad_rows: bool = False,
        verbose: bool = True,
    ) -> dict[str, Any]:
        """As `evaluate`, with the number of rows, 95 % intervals, the majority class with a paired
        test, precision and recall of each class, and the confusion matrix."""
        examples, predictions = self._answered(data, split, scoring, skip_bad_rows, verbose)
        metrics = self.card.task.metrics or self.form.metrics
        majority = self.card.task.commonest
        baselines = {MAJORITY: [majority] * len(examples)} if majority is not None else {}
        return score_report(examples, predictions, metrics, self.form.labels, baselines).plain()

    def _answered(
        self, data: Any, split: str, scoring: str | None, skip_bad_rows: bool, verbose: bool
    ) -> tuple[list[Example], list[str]]:
        form = self.form
        if is_pair(data) and len(form.columns) == 1 and form.definition is None:
            data = {form.columns[0]: data[0], form.label: data[1]}
        name = str(data) if isinstance(data, str | os.PathLike) else register_rows(data)
        rows = read_rows(name, split)
        form.check_columns(rows)
        examples = form.examples(rows, skip_bad_rows, "validation")
        inputs = [example.input for example in examples]
        return examples, self.predictor(scoring)(inputs, RowProgress(len(inputs), verbose))

    def probabilities(
        self, rows: Sequence[Question], verbose: bool = True
    ) -> list[dict[str, float]]:
        """The probabilities of the labels, which sum to 1, for each text or row."""
        inputs = self.inputs(rows)
        return self.predictor().probabilities(inputs, RowProgress(len(inputs), verbose))

    def export_peft(self, folder: str | Path, texts: Sequence[Question] = ()) -> Path:
        """Write the prompt as a Hugging Face PEFT adapter.

        PEFT cannot route: of a mixture, it gets the mean prompt over `texts`, whose answers are
        not the mixture's (`averaged`).
        """
        prompt = self.averaged(self.inputs(texts)).prompt if len(texts) else self.prompt.fold()
        write_adapter(Path(folder), prompt, self.backbone.family, self.backbone.name)
        return Path(folder)

    @torch.no_grad()
    def averaged(self, inputs: Sequence[str]) -> "Tuned":
        """The mean of the prompts that input texts are routed to, as a single prompt for all."""
        if self.prompt.config.count == 1 or self.prompt.head is not None:
            return self
        total = torch.zeros(self.prompt.table[0].shape, dtype=torch.float64)
        predictor = self.predictor()
        rows = predictor.backbone.tokenise(inputs, predictor.budget)
        for start in range(0, len(rows), 64):
            text = self.backbone.embed_rows(rows[start : start + 64])
            mask = predictor.backbone.content_mask(text)
            total += self.prompt(text.embeds, mask).cpu().double().sum(0)
        like = PromptConfig(place=self.prompt.config.place)
        prompt = folded_prompt((total / len(rows)).float()[None], like=like)
        return replace(self, prompt=prompt.to(self.backbone.device))

    def save(self, folder: str | Path) -> Path:
        """Write the prompt and its card; a few kilobytes."""
        RunFolder(Path(folder)).save(self.prompt, self.card, self.embedding)
        return Path(folder)


def load(
    folder: str | Path,
    model: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    backbone: Backbone | None = None,
) -> Tuned:
    """A saved prompt with its backbone, which is loaded by its name on the card unless given; if
    it was tuned on int8 or int4 weights, on such weights again.

    A card never decides whether remote code is run.
    """
    saved = RunFolder(Path(folder))
    prompt, card = saved.load()
    card.answering()  # refused before the model is loaded
    if backbone is None:
        own = str(saved.model) if card.model == MODEL else _model_of(card, saved.path)
        if dtype == "auto" and card.backbone.dtype in QUANTIZED:
            dtype = card.backbone.dtype
        backbone = load_backbone(model or own, dtype, device, trust_remote_code)
    card.check_backbone(backbone, saved.path)
    check_widths(prompt, card, backbone, saved.path)
    prompt = prompt.to(backbone.device)
    return Tuned(prompt, backbone, card, saved.path, embedding=saved.embedding())


def check_widths(prompt: Prompt, card: Card, backbone: Backbone, folder: Path) -> None:
    """Refuse vectors, or a linear head, of another width than the backbone's."""
    head = prompt.head_sizes()
    if prompt.table.shape[2] != backbone.hidden or (
        head is not None and head != (len(card.answering().form.labels), backbone.feature_size)
    ):
        raise UserError(
            f"The vectors in {folder} do not have the width of {backbone.name}; "
            "copy the folder again."
        )


def _model_of(card: Card, folder: Path) -> str:
    """The backbone's name; of a model folder that moved with the prompt, its path now."""
    name = card.backbone.name
    if name in BUNDLED_MODELS or os.path.exists(name):
        return name
    return find_path(name, folder)


def import_peft(
    adapter: str | Path,
    model: str | None = None,
    *,
    template: str = "{text}",
    label: str = "label",
    labels: Sequence[str] | Mapping[str, str] = (),
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    backbone: Backbone | None = None,
) -> Tuned:
    """The prompt of a Hugging Face PEFT adapter, with its base model.

    With `labels` it chooses among them; without, it generates its answers.
    """
    adapter = Path(adapter)
    read = read_adapter(adapter)
    if backbone is None:
        name = model or read.base
        if not name:
            raise UserError(f"{adapter} does not name its base model; set {setting('model')}.")
        backbone = load_backbone(name, dtype, device, trust_remote_code)
    fits = read.task_type in (None, backbone.peft_task_type)
    if not fits or read.vectors.shape[1] != backbone.hidden:
        raise UserError(
            f"The adapter {adapter} is for a different model, not {backbone.name}; "
            f"set {setting('model')} to its base model."
        )
    if len(labels) == 1 or len(set(labels)) < len(labels):
        raise UserError(
            "An imported prompt needs at least two different labels to choose among, "
            "or none to generate its answers."
        )
    words = dict(labels) if isinstance(labels, Mapping) else {word: word for word in labels}
    form = TextFormat(check_template(template), label, words)
    prompt = folded_prompt(read.vectors[None]).to(backbone.device)
    return Tuned(prompt, backbone, _imported_card(prompt, backbone, form, adapter, read.kind))


def _imported_card(
    prompt: Prompt, backbone: Backbone, form: TextFormat, adapter: Path, kind: str
) -> Card:
    config = run_config(
        {
            "model": backbone.name,
            "preset": "prompt-tuning",
            "prompt": {"length": prompt.config.length},
            "tuning": {"max_length": backbone.default_max_length},
        }
    )
    predictor = Predictor(backbone, prompt, form.labels, max_length=backbone.default_max_length)
    return Card(
        prompt=PromptCard.describing(prompt.config),
        method=f"imported from PEFT ({kind})",
        backbone=BackboneCard.describing(backbone),
        task=TaskCard(
            name=adapter.resolve().name,
            form=form,
            metrics=["accuracy", "macro_f1"],
            absent=frozenset({"rows", "digests", "answer_length"}),
        ),
        scoring=predictor.scoring,
        config=config.plain(),
        absent=UNTRAINED,
    )
