"""The end of a run: the best prompt restored, tested, described by its card and saved."""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from ..artifacts.card import BackboneCard, Card, EmbeddingCard, PromptCard, TaskCard
from ..artifacts.file_names import MODEL
from ..artifacts.run_folder import RunFolder
from ..backbone.hardware import environment
from ..prompt import Prompt
from ..tasks import Task
from ..tasks.baselines import bag_of_words, computed_beside
from ..tasks.score_report import ScoreReport, bags_of_words, task_report
from ..tasks.task_definition import content_digest
from .evaluate import can_calibrate
from .phases import Phases
from .pictures import draw_pictures, import_beside
from .run import Run, RunFailedError
from .tuned import Tuned

CORES = 4
"""A machine with fewer cores has none to spare while it trains."""


def preparing(runs: Sequence[Run], draws: bool) -> AbstractContextManager[None]:
    """Inside, while a GPU trains these runs, their end is prepared: another process computes their
    baselines, and matplotlib is imported if one `draws`."""
    if not _has_spare_cores(runs):
        return nullcontext()
    if draws:
        import_beside()
    tasks = {id(run.task): run.task for run in runs if run.config.tuning.baselines}
    return computed_beside(rows for task in tasks.values() for rows in bags_of_words(task))


def _has_spare_cores(runs: Sequence[Run]) -> bool:
    training = [run for run in runs if not run.finished]
    on_gpu = any(run.backbone.device.type != "cpu" for run in training)
    return on_gpu and (os.cpu_count() or 1) >= CORES


def finish(
    run: Run, folder: RunFolder | None, curve: bool = True, phases: Phases | None = None
) -> Tuned | RunFailedError:
    """The prompt of a finished run, saved in its folder; or the error of a run without a prompt.

    `curve`: also draw its pictures.
    """
    phases = phases or Phases()
    try:
        run.restore_best()
    except RunFailedError as failed:
        return failed
    prompt = run.prompt.fold().to(run.backbone.device)
    saved = run.team.on_main(lambda: _saved_reports(run, folder))
    reports = saved or _reports(run, folder, curve, phases)
    card = make_card(run, prompt, reports)
    path = None if folder is None else folder.path
    embedding = None if run.embedding is None else run.embedding[1]
    *_, judged = reports.values()
    tuned = Tuned(prompt, run.backbone, card, path, run.cost, embedding, judged.row_scores)
    if folder is not None and run.team.is_main:
        if curve and not (saved and folder.curve.exists()):
            with phases("pictures"):
                draw_pictures(run, tuned, reports, folder, phases)
        if card.model is not None:
            folder.save_model(run.backbone)
        tuned.save(folder.path)
    return tuned


def _reports(
    run: Run, folder: RunFolder | None, calibrated: bool, phases: Phases
) -> dict[str, ScoreReport]:
    """The scores on the validation rows, and on the test rows, which were not used for selection.

    The predictions are kept beside the prompt. `calibrated`: with the calibration error, which
    takes a pass of label scoring.
    """
    task = run.task
    with phases("evaluate"):
        predictions = {"validation": run.best_predictions or run.predictions()}
        if task.test:
            predictions["test"] = run.predictor()([example.input for example in task.test])
    if run.config.tuning.baselines:
        with phases("baseline"):
            for rows in bags_of_words(task):
                bag_of_words(*rows)
    reports = {}
    for split, answers in predictions.items():
        texts = [example.input for example in getattr(task, split)]
        probabilities = run.best_probabilities if split == "validation" else None
        if calibrated and probabilities is None and can_calibrate(task, len(texts)):
            with phases("evaluate"):
                probabilities = run.predictor().probabilities(texts)
        reports[split] = task_report(
            task, split, answers, run.config.tuning.baselines, probabilities
        )
    if folder is not None and run.team.is_main:
        folder.write_predictions(
            {
                split: {
                    "predictions": answers,
                    "row_scores": reports[split].row_scores,
                    "scored_rows": reports[split].scored_rows,
                    "targets": content_digest([e.target for e in getattr(task, split)]),
                }
                for split, answers in predictions.items()
            }
        )
    return reports


def _saved_reports(run: Run, folder: RunFolder | None) -> dict[str, ScoreReport] | None:
    """The reports of a run that was already finished; None if there is something to compute."""
    if run.best_predictions is not None or folder is None or not folder.has_prompt:
        return None
    card = folder.card()
    if not card.scores or (card.best_step, card.steps) != (run.best_entry["step"], run.step):
        return None
    return {
        split: ScoreReport.of(report, folder.row_scores(split))
        for split, report in card.scores.items()
    }


def make_card(run: Run, prompt: Prompt, reports: Mapping[str, ScoreReport]) -> Card:
    """The card of a run's folded prompt."""
    best = run.best_entry
    losses = {**run.loss_ends(), "uniform": math.log(run.backbone.vocab_size)}
    return Card(
        prompt=PromptCard.describing(prompt.config),
        method=run.config.method,
        backbone=BackboneCard.describing(run.backbone),
        model=MODEL if "model" in run.trained else None,
        task=_task_card(run.task),
        metrics={name: best[name] for name in run.task.metrics},
        invalid=best["invalid"],
        majority=run.task.majority(),
        test=reports["test"].metrics if "test" in reports else None,
        scores={split: report.plain() for split, report in reports.items()},
        loss={
            name: round(loss, 4)
            for name, loss in losses.items()
            if run.step and loss is not None and math.isfinite(loss)
        },
        scoring=run.config.tuning.scoring,
        best_step=best["step"],
        embedding=None if run.embedding is None else EmbeddingCard(step=run.embedding[0]),
        steps=run.step,
        stopped=run.stopped,
        failed=run.failed,
        cut_texts=run.cut_texts,
        unknown_tokens=round(run.unknown_tokens, 4),
        trained_parameters=sum(parameter.numel() for parameter in run.parameters()),
        seed=run.config.seed,
        config=run.config.plain(),
        machine=environment(run.backbone.device, run.backbone.dtype),
    )


def _task_card(task: Task) -> TaskCard:
    return TaskCard(
        name=task.name,
        form=task.form,
        commonest=task.majority_label,
        metrics=list(task.metrics),
        rows={
            "train": len(task.train),
            "validation": len(task.validation),
            **({"test": len(task.test)} if task.test else {}),
            "skipped": task.skipped,
        },
        digests=task.digests,
        answer_length=task.answer_length,
    )
