import argparse
import datetime
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifacts.card import Card
from ..errors import UserError
from ..files import write_atomically, write_json, write_text
from ..library import default_folder
from ..tasks import Example, Row, Task, read_rows
from .command import (
    BACKBONE,
    ENCODING,
    PROMPT,
    action,
    argument,
    check_card_model,
    check_prompt_folder,
    load_tuned_prompt,
    output_folder,
)
from .evaluate import own_task
from .output import print_result

if TYPE_CHECKING:
    from torch import Tensor

    from ..analysis.explain import Explanation
    from ..tuning.tuned import Tuned


@action(
    "explain",
    """softprompts explain runs/stars
  softprompts explain runs/stars --file test.csv --output explained    # JSON, HTML, PNG""",
    PROMPT,
    argument(
        "--file",
        metavar="FILE",
        help="labelled rows with the task's columns (default: the task's validation rows)",
    ),
    ENCODING,
    argument(
        "--output", metavar="FOLDER", type=output_folder, help="also write JSON, HTML and a PNG"
    ),
    *BACKBONE,
)
def main(options: argparse.Namespace) -> int:
    """Show what a tuned prompt has learned: the words nearest to its tokens, how much
    the loss rises without each token, and how a mixture routes inputs."""
    check_prompt_folder(options.prompt, default_folder())
    rows = read_rows(options.file, encoding=options.encoding) if options.file else []
    card = Card.of_folder(options.prompt)
    task = None if rows else own_task(card)
    examples = _examples(card, rows, task)
    check_card_model(card, options.model)

    from ..analysis.explain import explain
    from ..analysis.explain_page import describe
    from ..artifacts.run_folder import RunFolder
    from .row_progress import RowProgress

    tuned = load_tuned_prompt(options)
    count = tuned.prompt.table.shape[0] * tuned.prompt.table.shape[1] if examples else 0
    with RowProgress("leaving out tokens", count, options.quiet) as progress:
        explanation = explain(
            tuned,
            examples,
            _start(tuned, task),
            lambda done: progress.advance_rows(1),
            history=RunFolder(options.prompt).history(),
        )
    if options.output:
        model = Path(card.backbone.name).name
        subject = f"{options.prompt.resolve().name}: {card.task.name} on {model}"
        _write(options.output, explanation, f"{subject}, {datetime.date.today()}")
    written = f"the explanation is in {options.output} as JSON, HTML and PNG"
    return print_result(
        options,
        explanation.plain(),
        *describe(explanation),
        None if examples else "give labelled rows with --file to see the effect of each token",
        written if options.output else None,
    )


def _examples(card: Card, rows: Sequence[Row], task: Task | None) -> list[Example]:
    if rows:
        form = card.answering().form
        form.check_columns(rows)
        return list(form.examples(rows, split="validation"))
    return [] if task is None else list(task.validation)


def _start(tuned: "Tuned", task: Task | None) -> "Tensor | None":
    """The vectors that training began from, if the run's settings are beside the prompt."""
    from ..artifacts.run_folder import RunFolder
    from ..tuning.prepare import initial_prompt, resolve

    folder = None if tuned.folder is None else RunFolder(tuned.folder)
    if task is None or folder is None or not folder.has_config:
        return None
    with suppress(UserError):
        config = resolve(folder.config(), task, tuned.backbone)
        return initial_prompt(config, task, tuned.backbone).fold().table.detach().cpu()
    return None


def _write(folder: Path, explanation: "Explanation", title: str) -> None:
    from ..analysis.explain_page import figure, page

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "explanation.json", explanation.plain())
    write_text(folder / "explanation.html", page(explanation, title))
    with suppress(ImportError):  # without matplotlib
        drawing = figure(explanation, title)
        write_atomically(
            folder / "explanation.png", lambda path: drawing.savefig(path, format="png", dpi=120)
        )
