"""The end of a run: the best prompt restored, tested, described by its card and saved."""

from ..artifacts.card import BackboneCard, Card, EmbeddingCard, PromptCard, TaskCard
from ..artifacts.run_folder import MODEL, RunFolder
from ..prompt import Prompt
from ..tasks import Task
from .curve import learning_curve
from .run import Run, RunFailedError
from .tuned import Tuned


def finish(run: Run, folder: RunFolder | None, curve: bool = True) -> Tuned | RunFailedError:
    """The prompt of a run that has ended, saved in its folder; the error of one that left none.

    `curve`: also draw the learning curve.
    """
    try:
        run.restore_best()
    except RunFailedError as failed:
        return failed
    prompt = run.prompt.fold().to(run.backbone.device)
    card = make_card(run, prompt, test_scores(run))
    path = None if folder is None else folder.path
    embedding = None if run.embedding is None else run.embedding[1]
    tuned = Tuned(prompt, run.backbone, card, path, run.cost, embedding)
    if folder is not None and run.team.is_main:
        if curve:
            title = f"{run.task.name} on {run.backbone.name}: {card.method}, seed {card.seed}"
            majority = card.majority[card.metric]
            learning_curve(run.history, card.metric, majority, title, folder.curve)
        if card.model is not None:
            folder.save_model(run.backbone)
        tuned.save(folder.path)
    return tuned


def test_scores(run: Run) -> dict[str, float] | None:
    """The prompt's scores on the test rows, by which nothing was chosen; None without such rows."""
    if not run.task.test:
        return None
    predictions = run.predictor()([example.input for example in run.task.test])
    return run.task.score(predictions, run.task.test)


def make_card(run: Run, prompt: Prompt, test: dict[str, float] | None) -> Card:
    """The card of a run's folded prompt."""
    best = run.best_entry
    return Card(
        prompt=PromptCard.describing(prompt.config),
        method=run.config.method,
        backbone=BackboneCard.describing(run.backbone),
        model=MODEL if "model" in run.trained else None,
        task=_task_card(run.task),
        metrics={name: best[name] for name in run.task.metrics},
        invalid=best["invalid"],
        majority=run.task.majority(),
        test=test,
        scoring=run.config.tuning.scoring,
        best_step=best["step"],
        embedding=None if run.embedding is None else EmbeddingCard(step=run.embedding[0]),
        steps=run.step,
        stopped=run.stopped,
        failed=run.failed,
        cut_texts=run.cut_texts,
        trained_parameters=sum(parameter.numel() for parameter in run.parameters()),
        seed=run.config.seed,
        config=run.config.plain(),
    )


def _task_card(task: Task) -> TaskCard:
    sizes = {
        "train": len(task.train),
        "validation": len(task.validation),
        "skipped": task.skipped,
    }
    return TaskCard(
        name=task.name,
        form=task.form,
        commonest=task.majority_label,
        metrics=list(task.metrics),
        rows=sizes,
        digests=task.digests,
        answer_length=task.answer_length,
    )
