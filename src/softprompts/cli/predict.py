"""The command `softprompts predict`."""

import json
import sys
from collections.abc import Sequence

from ..errors import UserError
from .command import make_parser
from .loading import add_prompt_folder, load_prompt


def main(argv: Sequence[str]) -> int:
    """Answer texts with a tuned prompt."""
    parser = make_parser(
        "predict",
        'softprompts predict runs/stars "Great value, would buy again."\n'
        "  softprompts predict runs/stars --file new.csv --json > answers.jsonl\n"
        "  cat lines.txt | softprompts predict runs/stars -",
        main.__doc__,
    )
    add_prompt_folder(parser)
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts to answer; - reads one per line from standard input",
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="rows with the task's columns: CSV, TSV, JSONL, Parquet or a dataset",
    )
    options = parser.parse_intermixed_args(argv)

    from ..tasks.sources import read_rows
    from .progress import RowProgress

    if (options.file and options.texts) or ("-" in options.texts and len(options.texts) > 1):
        raise UserError("Texts, - and --file are three ways to say what to answer; use one.")
    rows = read_rows(options.file, "validation") if options.file else []
    texts = (
        [line.rstrip("\n") for line in sys.stdin if line.strip()]
        if "-" in options.texts
        else options.texts
    )
    if not rows and not (texts and all(text.strip() for text in texts)):
        raise UserError("There is nothing to answer; give texts, - for standard input, or --file.")
    tuned = load_prompt(options)
    tuned.form.check_columns(rows, labelled=False)
    inputs = [text for row in rows for text in tuned.form.inputs(row)] or tuned.inputs(texts)
    with RowProgress("predicting", len(inputs), options.quiet) as progress:
        predictor = tuned.predictor(options.scoring)
        answers = predictor(inputs, progress.tick)
        shares = (
            predictor.probabilities(inputs)
            if options.json and predictor.labels
            else [{}] * len(inputs)
        )
    for index, (text, answer) in enumerate(zip(inputs, answers, strict=True)):
        if options.json:
            rounded = {label: round(share, 4) for label, share in shares[index].items()}
            print(
                json.dumps(
                    {"input": text, "prediction": answer, "probabilities": rounded},
                    ensure_ascii=False,
                )
            )
        else:
            print(answer)
    return 0
