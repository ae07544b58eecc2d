import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..artifacts.card import Card
from ..errors import UserError, counted
from ..library import default_folder
from ..serving.client import VARIABLE, Client
from ..tasks import Row, TextFormat, read_rows
from ..tasks.sources import checked_encoding
from .command import (
    BACKBONE,
    ENCODING,
    PROMPT,
    SCORING,
    Parser,
    action,
    argument,
    check_card_model,
    check_one_backbone,
    check_prompt_folder,
    folder_names,
)
from .output import print_result, rows_in
from .table_file import check_table_file, unused_names, write_table_file

STDIN = "-"


@dataclass
class Question:
    """A row or a text to answer, and each prompt's answer."""

    row: Row
    inputs: list[str] = field(default_factory=list)
    """The text that each prompt reads; none of a row that cannot be answered."""
    answers: list[str] = field(default_factory=list)
    probabilities: list[dict[str, float]] = field(default_factory=list)
    """The probabilities of each prompt's labels, if it has labels."""


@action(
    "predict",
    """softprompts predict runs/stars "Great value, would buy again."
  softprompts predict runs/stars --file new.csv --output answers.csv
  softprompts predict runs/intent,runs/urgency --file new.csv --output answers.csv
  cat lines.txt | softprompts predict runs/stars -
  cat rows.csv | softprompts predict runs/stars --file - --json > answers.jsonl
  softprompts predict stars --server http://127.0.0.1:8000 --file new.csv""",
    PROMPT,
    SCORING,
    *BACKBONE,
    argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts to answer; - reads one per line from standard input",
    ),
    argument(
        "--file",
        metavar="FILE",
        help="rows with the task's columns: a CSV, TSV, JSON, JSONL or Parquet file, a dataset, "
        "or - for CSV, JSON or Parquet from standard input",
    ),
    argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="write the rows with all their columns and the answers as CSV, TSV, JSONL or Parquet",
    ),
    ENCODING,
    argument(
        "--server",
        metavar="URL",
        help="answer with the prompt of that name on a server (softprompts serve); "
        "SOFTPROMPTS_API_KEY holds the key",
    ),
    argument(
        "--skip-bad-rows",
        action="store_true",
        help="leave rows with an empty text unanswered, instead of stopping",
    ),
    usage="PROMPT [TEXT ...]",
    parse=Parser.parse_intermixed_args,
)
def main(options: argparse.Namespace) -> int:
    """Answer texts with a tuned prompt, or with several."""
    folders = [] if options.server else _folders(options.prompt)
    texts, rows = _read(options)
    if options.output is not None:
        check_table_file(options.output, options.file, [row.values for row in rows])
    prompts = ServerPrompts(options) if options.server else LocalPrompts(folders, options)
    names = prompts.names
    if texts:
        column = _text_column(prompts.forms)
        rows = [Row({column: text}, f"text {number}") for number, text in enumerate(texts, 1)]
    questions = _questions(prompts.forms, rows, options.skip_bad_rows)
    asked = [question for question in questions if question.inputs]
    prompts.answer(asked, bool(options.json or options.output))
    _print_notes(prompts, questions)
    if options.output is not None:
        table = _table(questions, names)
        write_table_file(options.output, table, list(table[0]))
        result = {"rows": len(questions), "file": str(options.output)}
        return print_result(options, result, rows_in(options.output, len(questions)))
    if len(names) > 1 and not options.json:
        print("\t".join(names))
    for question in questions:
        result = _as_json(question, names, bool(options.file))
        print_result(options, result, "\t".join(question.answers))
    return 0


# -- prompts ---------------------------------------------------------------------------------------


class LocalPrompts:
    """Prompts that share batches on a model that is loaded here, once the questions are checked."""

    def __init__(self, folders: Sequence[Path], options: argparse.Namespace) -> None:
        self.folders, self.options, self.names = folders, options, folder_names(folders)
        self.cards = [Card.of_folder(folder) for folder in folders]
        check_one_backbone(folders, self.cards)
        self.forms = [card.answering().form for card in self.cards]

    def answer(self, questions: Sequence[Question], shares: bool) -> None:
        options, numbers = self.options, range(len(self.names))
        check_card_model(self.cards[0], options.model)

        from ..serving.engine import make_engine
        from .row_progress import RowProgress

        engine = make_engine(
            self.folders,
            model=options.model,
            dtype=options.dtype,
            device=options.device,
            trust_remote_code=options.trust_remote_code,
            scoring=options.scoring,
        )
        bank = engine.bank
        queries = bank.tokenise([(n, q.inputs[n]) for q in questions for n in numbers])
        with RowProgress("predicting", len(queries), options.quiet) as progress:
            answers = iter(bank.answers(queries, progress.advance_rows, engine.batch_size))
        labelled = [bool(form.labels) for form in self.forms]
        chosen = [query for query in queries if labelled[query[0]]] if shares else []
        scored = iter(bank.probabilities(chosen, engine.batch_size) if chosen else [])
        for question in questions:
            question.answers = [next(answers) for _ in numbers]
            question.probabilities = [
                next(scored) if shares and labelled[n] else {} for n in numbers
            ]


class ServerPrompts:
    """Prompts that a server answers with, by their names there."""

    def __init__(self, options: argparse.Namespace) -> None:
        chosen = {
            "--model": options.model,
            "--scoring": options.scoring,
            "--device": options.device != "auto",
            "--dtype": options.dtype != "auto",
            "--trust-remote-code": options.trust_remote_code,
        }
        for flag in (flag for flag, value in chosen.items() if value):
            raise UserError(f"{flag} is set by the server; leave it out with --server.")
        self.quiet, self.names = options.quiet, _parts(options.prompt)
        self.client = Client(options.server, os.environ.get(VARIABLE))
        self.prompts = [self.client.prompt(name) for name in self.names]
        self.forms = [prompt.form for prompt in self.prompts]

    def answer(self, questions: Sequence[Question], shares: bool) -> None:
        from .row_progress import RowProgress

        rows = [question.row.values for question in questions]
        if len({question.row.location for question in questions}) < len(questions):
            raise UserError(
                "The prompts make several inputs from one row, which a server cannot answer; "
                "predict with their folders instead."
            )
        with RowProgress("predicting", len(rows) * len(self.names), self.quiet) as progress:
            for number in range(len(self.names)):
                self._answer(number, questions, rows, shares, progress.advance_rows)

    def _answer(
        self, number: int, questions: Sequence[Question], rows: Any, shares: bool, on_rows: Any
    ) -> None:
        name, by_label = self.names[number], self.prompts[number].scoring == "labels"
        chosen: list[tuple[str, dict[str, float]]] = []
        if by_label or (shares and self.forms[number].labels):
            chosen = self.client.classify(name, rows, on_rows if by_label else None)
        labels = [label for label, _ in chosen]
        answers = labels if by_label else self.client.complete(name, rows, on_rows)
        for index, question in enumerate(questions):
            question.answers.append(answers[index])
            question.probabilities.append(chosen[index][1] if shares and chosen else {})


def _folders(prompt: Path) -> list[Path]:
    """One folder, or several separated by commas."""
    one = prompt.exists() or "," not in str(prompt)
    folders = [prompt] if one else list(map(Path, _parts(prompt)))
    for folder in folders:
        check_prompt_folder(folder, default_folder())
    return folders


def _parts(prompt: Path) -> list[str]:
    """Names or folders of prompts that commas separate."""
    parts = [part.strip() for part in str(prompt).split(",") if part.strip()]
    if len(set(parts)) < len(parts):
        raise UserError(f"{prompt} names a prompt twice; name each prompt once.")
    return parts


# -- questions -------------------------------------------------------------------------------------


def _read(options: argparse.Namespace) -> tuple[list[str], list[Row]]:
    texts, from_stdin = options.texts, STDIN in options.texts
    if (options.file and texts) or (from_stdin and len(texts) > 1):
        raise UserError("Give either texts, or - for standard input, or --file.")
    if options.file:
        if options.file == STDIN:
            return [], _stdin_rows(options.encoding)
        return [], read_rows(options.file, "validation", encoding=options.encoding)
    if from_stdin:
        lines = sys.stdin.read().rstrip()
        texts = lines.split("\n") if lines else []
    if not texts:
        raise UserError("There is nothing to answer; give texts, - for standard input, or --file.")
    return texts, []


def _stdin_rows(encoding: str) -> list[Row]:
    """Rows from standard input: Parquet, JSON if it begins with [ or {, otherwise CSV."""
    data = sys.stdin.buffer.read()
    beginning = data[:100].decode(checked_encoding(encoding), "ignore").lstrip()
    suffix = ".json" if beginning.startswith(("[", "{")) else ".csv"
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / f"rows{'.parquet' if data.startswith(b'PAR1') else suffix}")
        Path(path).write_bytes(data)
        try:
            rows = read_rows(path, "validation", encoding=encoding)
        except UserError as error:
            raise UserError(error.message.replace(path, "standard input")) from None
    return [row._replace(location=row.location.replace(path, "standard input")) for row in rows]


def _text_column(forms: Sequence[TextFormat]) -> str:
    """The one column that all prompts read, which a plain text fills."""
    columns = {tuple(form.columns) for form in forms}
    (first, *others) = columns
    if others or len(first) != 1:
        names = ", ".join(dict.fromkeys(name for part in columns for name in part))
        raise UserError(
            f"This task reads the columns {names}, not one text; give rows with these columns, "
            "such as those of a --file."
        )
    return first[0]


def _questions(forms: Sequence[TextFormat], rows: Sequence[Row], skip_bad: bool) -> list[Question]:
    """A question for each input text of each row; bad rows keep their place, without inputs."""
    questions, first_error, bad = list[Question](), None, 0
    for form in forms:
        form.check_columns(rows, labelled=False)
    for row in rows:
        try:
            inputs = [form.inputs(row) for form in forms]
            questions += [Question(row, list(texts)) for texts in zip(*inputs, strict=True)]
        except UserError as error:
            first_error, bad = first_error or error, bad + 1
            questions.append(Question(row))
        except ValueError:
            raise UserError(
                f"The prompts make different numbers of inputs from {row.location}; answer with "
                "one prompt at a time."
            ) from None
    if first_error is None:
        return questions
    if not skip_bad:
        more = f" ({counted(bad - 1, 'more such row')})" if bad > 1 else ""
        raise UserError(
            f"{first_error.message}{more} Correct it, or leave such rows unanswered with "
            "--skip-bad-rows."
        )
    if bad == len(rows):
        raise UserError(f"No row can be answered; the first: {first_error.message}")
    are = "row is" if bad == 1 else "rows are"
    print(f"softprompts: {bad} {are} not answered; {first_error}", file=sys.stderr)
    return questions


# -- answers ---------------------------------------------------------------------------------------


def _print_notes(prompts: LocalPrompts | ServerPrompts, questions: Sequence[Question]) -> None:
    """On standard error: how many generated answers match no label."""
    for number, (form, name) in enumerate(zip(prompts.forms, prompts.names, strict=True)):
        labels = form.labels
        answers = [question.answers[number] for question in questions if question.answers]
        unmatched = [answer for answer in answers if answer not in labels] if labels else []
        if unmatched:
            print(
                f"softprompts: {len(unmatched)} of {len(answers)} answers of {name} match no label "
                f"(such as {unmatched[0]!r}); use --scoring labels.",
                file=sys.stderr,
            )


def _as_json(question: Question, names: Sequence[str], with_row: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"row": question.row.values} if with_row else {}
    shares = [
        {label: round(share, 4) for label, share in row.items()} for row in question.probabilities
    ]
    if len(names) == 1:
        return {
            "input": next(iter(question.inputs), None),
            "prediction": next(iter(question.answers), None),
            "probabilities": next(iter(shares), {}),
            **result,
        }
    answers: Sequence[str | None] = question.answers or [None] * len(names)
    return {
        "inputs": dict(zip(names, question.inputs, strict=False)),
        "predictions": dict(zip(names, answers, strict=True)),
        "probabilities": dict(zip(names, shares, strict=False)),
        **result,
    }


def _table(questions: Sequence[Question], names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows with all their columns, and the answers: `prediction` and its `probability`, or a
    column for each of several prompts."""
    columns = dict.fromkeys(column for question in questions for column in question.row.values)
    wanted = list(names) if len(names) > 1 else ["prediction", "probability"]
    added = list(unused_names(wanted, columns))
    if len(names) == 1 and not any(any(question.probabilities) for question in questions):
        added = added[:1]
    table = []
    for question in questions:
        values: list[Any] = list(question.answers)
        if len(names) == 1 and values:
            share = question.probabilities[0].get(values[0])
            values.append(None if share is None else round(share, 4))
        values += [None] * (len(added) - len(values))
        row = {column: question.row.values.get(column) for column in columns}
        table.append(row | dict(zip(added, values, strict=False)))
    return table
