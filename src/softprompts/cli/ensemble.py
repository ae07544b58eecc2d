import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.card import Card
from ..errors import UserError
from ..library import default_folder
from ..tasks.task_definition import PREDICT
from .command import (
    BACKBONE,
    SCORING,
    action,
    argument,
    check_card_model,
    check_one_backbone,
    check_prompt_folder,
    folder_names,
)
from .evaluate import ROWS, EvaluationSet, evaluation_set, file_rows
from .output import aligned, format_interval, format_p, invalid_answers, print_result, rows_in
from .table_file import check_table_file, write_table_file

if TYPE_CHECKING:
    from ..serving.ensemble import Answers

NAMES = {"vote": "majority vote", "probability": "mean probability"}
BEST = "The best prompt is selected on these same rows, so its score is optimistic."


@action(
    "ensemble",
    """softprompts ensemble runs/seeds/seed=0 runs/seeds/seed=1 runs/seeds/seed=2
  softprompts ensemble runs/seeds/seed=* --file test.csv --output answers.csv
  softprompts ensemble runs/seeds/seed=* --task superglue/rte --split validation \\
      --data-dir DATA --json""",
    argument(
        "prompts",
        metavar="PROMPT",
        nargs="+",
        type=Path,
        help="folders of prompts with the same task and backbone; the first breaks ties",
    ),
    SCORING,
    *BACKBONE,
    *ROWS,
    argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="write every prompt's and the ensembles' answers as CSV, TSV, JSONL or Parquet",
    ),
    argument(
        "--by",
        choices=list(NAMES),
        default="vote",
        help="which answers to print for rows without labels (default vote)",
    ),
    usage="PROMPT PROMPT ...",
)
def main(options: argparse.Namespace) -> int:
    """Combine several prompts for one task, and compare with their mean and the best."""
    _check(options)
    data, labelled = _data(options)
    check_card_model(Card.of_folder(options.prompts[0]), options.model)

    from ..serving.engine import make_engine
    from ..serving.ensemble import answer_together, check_one_task, ensemble_report
    from .row_progress import RowProgress

    engine = make_engine(
        options.prompts,
        model=options.model,
        dtype=options.dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
        scoring=options.scoring,
    )
    check_one_task(engine)
    names = folder_names(options.prompts)
    texts = [example.input for example in data.examples]
    with RowProgress("answering", len(texts) * len(names), options.quiet) as progress:
        answers = answer_together(engine, names, texts, progress.advance_rows)
    answers = answers.translated(data.translation)
    task = options.task or next(iter(engine.tuned.values())).card.task.name
    result: dict[str, Any] = {"task": task, "rows": len(texts)}
    lines: list[str | None] = [*answers.ensembles[options.by]]
    table = list(_predictions(data, answers, labelled))
    if labelled:
        result |= ensemble_report(data.examples, answers, data.metrics, data.labels)
        lines = _describe(result)
    elif options.json:
        result["predictions"] = table
    if options.output is not None:
        write_table_file(options.output, table, list(table[0]))
        result["file"] = str(options.output)
        lines = [*(lines if labelled else []), rows_in(options.output, len(texts))]
    return print_result(options, result, *lines)


def _check(options: argparse.Namespace) -> None:
    if len(options.prompts) < 2:
        raise UserError("An ensemble needs at least two prompts; name their folders.")
    resolved = [path.resolve() for path in options.prompts]
    twice = [str(path) for n, path in enumerate(options.prompts) if resolved[n] in resolved[:n]]
    if twice:
        raise UserError(f"The prompt {twice[0]} is named twice; name each prompt once.")
    for path in options.prompts:
        check_prompt_folder(path, default_folder())
    options.prompt = options.prompts[0]  # whose task is evaluated
    if options.output is not None:
        check_table_file(options.output, options.file)


def _data(options: argparse.Namespace) -> tuple[EvaluationSet, bool]:
    """The rows to answer, and whether they have labels; a file without its label column has not."""
    rows = file_rows(options)
    cards = [Card.of_folder(path) for path in options.prompts]
    check_one_backbone(options.prompts, cards)
    card = cards[0]
    form = card.answering().form
    if rows and form.definition is None and not any(form.label in row.values for row in rows):
        form.check_columns(rows, labelled=False)
        examples = form.examples(rows, options.skip_bad_rows, PREDICT)
        return EvaluationSet(examples, [], form.labels), False
    return evaluation_set(card, options, rows), True


def _predictions(
    data: EvaluationSet, answers: "Answers", labelled: bool
) -> Iterator[dict[str, Any]]:
    """For each row: its input, target, every answer, and the mean probability of the likeliest."""
    for number, example in enumerate(data.examples):
        row: dict[str, Any] = {"row": number + 1, "input": example.input}
        if labelled:
            row["target"] = example.target
        row |= {name: given[number] for name, given in answers.prompts.items()}
        row |= {NAMES[by]: given[number] for by, given in answers.ensembles.items()}
        if answers.probabilities is not None:
            row["probability"] = round(max(answers.probabilities[number].values()), 4)
        yield row


def _describe(result: Mapping[str, Any]) -> list[str | None]:
    metrics, mean, best = list(result["mean"]["metrics"]), result["mean"], result["best"]
    spread = [f" ± {mean['std'][name]:.1f}" for name in metrics]
    rows = [
        ["", *metrics],
        *([name, *_cells(scores)] for name, scores in result["prompts"].items()),
        [f"mean of {len(result['prompts'])}", *_cells(mean, spread)],
        [f"best ({best['prompt']})", *_cells(best)],
        *([NAMES[by], *_cells(scores)] for by, scores in result["ensembles"].items()),
    ]
    lines = list(aligned(rows))
    for by, scores in result["ensembles"].items():
        against = [
            f"{values['difference']:+.1f} against the {other}{format_p(values['p'])}"
            for other, values in scores["differences"].items()
        ]
        lines.append(f"{NAMES[by]}: {metrics[0]} {', '.join(against)}")
    invalid = max(scores.get("invalid", 0) for scores in result["prompts"].values())
    tests = f"{result['rows']:,} rows, 95 % intervals, paired tests on the same rows. {BEST}"
    return [*lines, invalid_answers(invalid, result["rows"]), tests]


def _cells(scores: Mapping[str, Any], spread: Sequence[str] = ()) -> list[str]:
    intervals = scores["intervals"]
    values = scores["metrics"].items()
    spreads = spread or [""] * len(values)
    return [
        f"{value:.1f}{deviation}{format_interval(intervals.get(name))}"
        for (name, value), deviation in zip(values, spreads, strict=True)
    ]
