"""Several prompts of one task as an ensemble: their answers in shared batches, and the table of
Lester 2021 §6: the mean prompt, the best one, and the ensemble."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..errors import UserError
from ..tasks import Example, read_rows, register_rows, rounded
from ..tasks.metrics import metric
from ..tasks.score_report import ScoreReport, score_report
from ..tasks.statistics import bootstrap, score_p, unit_scores
from ..tuning.bank import OnRows, ignore_rows
from ..tuning.evaluate import in_parts
from ..tuning.progress import RowProgress
from ..tuning.tuned import Tuned
from .engine import Engine, majority, make_engine

VOTE, PROBABILITY = "vote", "probability"


@dataclass(frozen=True)
class Answers:
    """The answers of several prompts to the same texts, and their ensembles'."""

    prompts: dict[str, list[str]]
    """Each prompt's, by its name."""
    ensembles: dict[str, list[str]]
    """By `vote`; by the mean `probability`, if there are labels."""
    probabilities: list[dict[str, float]] | None
    """The mean probabilities of the labels, for each text."""

    def translated(self, words: Mapping[str, str]) -> "Answers":
        """With other words for the labels."""
        if not words:
            return self
        prompts, ensembles = (
            {name: [words.get(answer, answer) for answer in answers] for name, answers in part}
            for part in (self.prompts.items(), self.ensembles.items())
        )
        probabilities = self.probabilities and [
            {words.get(label, label): share for label, share in row.items()}
            for row in self.probabilities
        ]
        return Answers(prompts, ensembles, probabilities)


def check_one_task(engine: Engine) -> None:
    """Refuse prompts that read rows differently, or have other labels."""
    (first, form), *others = [(name, tuned.form) for name, tuned in engine.tuned.items()]
    for name, other in others:
        if other != form:
            raise UserError(
                f"The prompts {first} and {name} are for different tasks, or read the rows "
                "differently; name prompts of one task."
            )


def answer_together(
    engine: Engine, names: Sequence[str], texts: Sequence[str], on_rows: OnRows = ignore_rows
) -> Answers:
    """Every prompt's answer to each text: a text's copies, one per prompt, share batches."""
    bank, numbers = engine.bank, range(len(names))
    queries = bank.tokenise([(number, text) for text in texts for number in numbers])
    labels = bank.predictors[0].labels
    shares: list[dict[str, float]] = []
    if labels:
        score = partial(bank.probabilities, batch_size=engine.batch_size)
        shares = in_parts(score, queries, on_rows)
    if labels and all(predictor.scoring == "labels" for predictor in bank.predictors):
        flat = [max(row, key=row.__getitem__) for row in shares]
    else:
        flat = bank.answers(queries, ignore_rows if labels else on_rows, engine.batch_size)
    size = len(names)
    by_text = [flat[start : start + size] for start in range(0, len(flat), size)]
    ensembles = {VOTE: [majority(votes) for votes in by_text]}
    means = None
    if labels:
        members = [shares[start : start + size] for start in range(0, len(shares), size)]
        means = [{label: fmean(row[label] for row in rows) for label in labels} for rows in members]
        ensembles[PROBABILITY] = [max(row, key=row.__getitem__) for row in means]
    prompts = {name: [votes[number] for votes in by_text] for number, name in enumerate(names)}
    return Answers(prompts, ensembles, means)


def ensemble_report(
    examples: Sequence[Example], answers: Answers, metrics: Sequence[str], labels: Sequence[str]
) -> dict[str, Any]:
    """Scores with 95 % intervals of every prompt, their mean, the best and the ensembles, and for
    each ensemble the differences to the mean and the best with paired tests on the same rows.

    The best prompt is the one with the highest first metric on these very rows.
    """
    metrics = list(metrics)
    score = partial(score_report, examples, metrics=metrics, labels=labels, baselines={})
    members = {name: score(predictions=given) for name, given in answers.prompts.items()}
    reports = {
        by: score(
            predictions=given,
            probabilities=answers.probabilities if by == PROBABILITY else None,
        )
        for by, given in answers.ensembles.items()
    }
    first = metrics[0]
    best = max(members, key=lambda name: members[name].metrics[first])
    all_scores = [report.row_scores for report in members.values()]
    mean_scores = [fmean(scores) for scores in zip(*all_scores, strict=True)]
    mean = {name: fmean(r.metrics[name] for r in members.values()) for name in metrics}
    deviations = dict.fromkeys(metrics, 0.0)
    if len(members) > 1:
        deviations = {name: stdev(r.metrics[name] for r in members.values()) for name in metrics}
    compared = {
        "mean": (mean, mean_scores),
        "best": (members[best].metrics, members[best].row_scores),
    }
    return {
        "rows": len(examples),
        "prompts": {name: _scores(report) for name, report in members.items()},
        "mean": {
            "metrics": rounded(mean),
            "std": rounded(deviations),
            "intervals": {
                name: limits
                for name in metrics
                if (limits := _mean_interval(name, examples, answers, labels)) is not None
            },
        },
        "best": {"prompt": best, **_scores(members[best])},
        "ensembles": {
            by: {
                **_scores(report),
                "differences": {
                    other: {
                        "difference": round(difference, 3),
                        "p": score_p(report.row_scores, row_scores, difference),
                    }
                    for other, (scores, row_scores) in compared.items()
                    for difference in (report.metrics[first] - scores[first],)
                },
            }
            for by, report in reports.items()
        },
    }


def _scores(report: ScoreReport) -> dict[str, Any]:
    calibration = {} if report.ece is None else {"ece": report.ece}
    invalid = {"invalid": report.invalid} if report.invalid else {}
    return {"metrics": report.metrics, "intervals": report.intervals, **invalid, **calibration}


def _mean_interval(
    name: str, examples: Sequence[Example], answers: Answers, labels: Sequence[str]
) -> list[float] | None:
    """Of the mean over prompts, bootstrapped over rows, which all prompts share."""
    given = list(answers.prompts.values())
    by_prompt = [unit_scores(name, examples, predictions, labels) for predictions in given]
    known = [scores for scores in by_prompt if scores is not None]
    if known:
        means = [fmean(scores) for scores in zip(*known, strict=True)]
        limits = bootstrap(lambda rows: fmean(means[row] for row in rows), len(means))
    else:
        function = metric(name)

        def resampled(rows: Sequence[int]) -> float:
            chosen = [examples[row] for row in rows]
            return fmean(function(chosen, [p[row] for row in rows], labels) for p in given)

        try:
            limits = bootstrap(resampled, len(examples))
        except Exception:  # a plugin's metric may refuse rows of a single class
            limits = None
    return None if limits is None else [round(limit, 4) for limit in limits]


def evaluate_ensemble(
    prompts: Sequence[str | Path | Tuned],
    data: Any,
    split: str = "validation",
    scoring: str | None = None,
    skip_bad_rows: bool = False,
    verbose: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Scores on labelled rows of several prompts of one task, of their mean, the best of them, the
    majority vote and the mean probability, with intervals and paired tests.

    `data` is as for `Tuned.evaluate`; `options` are those of `load`.
    """
    engine = make_engine(prompts, scoring, verbose, **options)
    check_one_task(engine)
    first = next(iter(engine.tuned.values()))
    name = str(data) if isinstance(data, str | os.PathLike) else register_rows(data)
    rows = read_rows(name, split)
    first.form.check_columns(rows)
    examples = first.form.examples(rows, skip_bad_rows, "validation")
    texts = [example.input for example in examples]
    progress = RowProgress(len(texts) * len(engine.tuned), verbose)
    answers = answer_together(engine, list(engine.tuned), texts, progress)
    metrics = first.card.task.metrics or first.form.metrics
    return ensemble_report(examples, answers, metrics, first.form.labels)
