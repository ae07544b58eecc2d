"""The command `softprompts predict`."""

import argparse
import sys
from collections.abc import Sequence

from ..errors import UserError
from ..tasks import read_rows
from .arguments import add_tuned_prompt, load_tuned_prompt
from .command import make_parser
from .output import print_result

EXAMPLES = """softprompts predict runs/stars "Great value, would buy again."
  softprompts predict runs/stars --file new.csv --json > answers.jsonl
  cat lines.txt | softprompts predict runs/stars -"""


def main(argv: Sequence[str]) -> int:
    """Answer texts with a tuned prompt."""
    options = _parser().parse_intermixed_args(argv)
    from_stdin = "-" in options.texts
    if (options.file and options.texts) or (from_stdin and len(options.texts) > 1):
        raise UserError("Give either texts, or - for standard input, or --file.")
    rows = read_rows(options.file, "validation") if options.file else []
    texts = options.texts
    if from_stdin:
        texts = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not rows and not (texts and all(text.strip() for text in texts)):
        raise UserError("There is nothing to answer; give texts, - for standard input, or --file.")

    from .progress import RowProgress

    tuned = load_tuned_prompt(options)
    tuned.form.check_columns(rows, labelled=False)
    inputs = [text for row in rows for text in tuned.form.inputs(row)] or tuned.inputs(texts)
    with RowProgress("predicting", len(inputs), options.quiet) as progress:
        predictor = tuned.predictor(options.scoring)
        answers = predictor(inputs, progress.advance_rows)
        probabilities: Sequence[dict[str, float]] = [{}] * len(inputs)
        if options.json and predictor.labels:
            probabilities = predictor.probabilities(inputs)
    for text, answer, shares in zip(inputs, answers, probabilities, strict=True):
        rounded = {label: round(share, 4) for label, share in shares.items()}
        result = {"input": text, "prediction": answer, "probabilities": rounded}
        print_result(options, result, answer)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("predict", EXAMPLES, main.__doc__)
    parser.usage = f"{parser.prog} PROMPT [TEXT ...] [options]"
    add_tuned_prompt(parser)
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts to answer; - reads one per line from standard input",
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="rows with the task's columns: a CSV, TSV, JSONL or Parquet file, or a dataset",
    )
    return parser
