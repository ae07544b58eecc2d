"""Uploaded rows before their run: what they are, what a run will take, and its settings."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from ...config import RunConfig, TaskConfig, run_config, sections
from ...errors import UserError
from ...files import safe_name
from ...library.library import Library, ignore
from ...tasks import Row, Task, doubtful_classes, load_task, read_rows
from ..concurrency import together
from .columns import Columns, guess_columns
from .context import Page, Studio, Visit, is_number
from .markup import (
    ROOT,
    Child,
    Html,
    button_form,
    element,
    field,
    notice,
    options,
    section,
    shortened,
    table,
    text,
)
from .spelling import FIELDS
from .tuning_runs import TuningRun

PATH = f"{ROOT}/tune"
SHOWN_ROWS, SHOWN_CHARACTERS = 5, 161
PROBE_ROWS = 16
"""Texts that are answered to see how quick the model is."""
STEP_COST = 1.5
"""What a row of a training step takes, forward and backward, in answers to a row."""
EVALUATIONS = 10
"""Points of the curve that one watches."""
MOST_SOURCES = 200
NEW = "a new prompt"


async def preview(studio: Studio, visit: Visit, run: TuningRun, error: str = "") -> Page:
    remove = button_form(f"{PATH}/{run.identity}/remove", "Remove these rows", class_="quiet")
    try:
        rows = await asyncio.to_thread(read_rows, str(run.file))
        columns = guess_columns(rows)
    except UserError as problem:
        message = notice(plain(problem, run), error=True)
        return Page(run.file.name, text([message, remove]), PATH, 400)
    columns = _chosen(visit, columns)
    names = (await asyncio.to_thread(studio.engine.names))[:MOST_SOURCES]
    source = visit.value("start", NEW)
    parts: list[Child] = [notice(error, error=True) if error else None, _first_rows(rows, columns)]
    try:
        settings = await asyncio.to_thread(_settings, studio, visit, run, columns)
        config = run_config(sections(settings))
        task = await asyncio.to_thread(load_task, config.task)
        parts.append(await _cost(studio, visit, config, task))
    except UserError as problem:
        parts.append(notice(plain(problem, run), error=True))
    parts += [_settings_form(visit, run, columns, [NEW, *names], source), remove]
    return Page(run.file.name, text(parts), PATH, 400 if error else 200)


def _chosen(visit: Visit, guess: Columns) -> Columns:
    """The columns of the form, or the guess."""
    text_column, label = visit.value("text", guess.text), visit.value("label", guess.label)
    is_form = bool(visit.form.get("text") or visit.query.get("text"))
    free_text = visit.value("free_text") == "yes" if is_form else guess.free_text
    return Columns(guess.names, text_column, label, free_text)


def _settings(studio: Studio, visit: Visit, run: TuningRun, columns: Columns) -> dict[str, Any]:
    backbone, source = studio.engine.backbone, visit.value("start")
    steps = visit.value("steps", str(RunConfig().tuning.steps))
    task = TaskConfig(
        train=str(run.file.resolve()),
        text=columns.text,
        label=columns.label,
        free_text=columns.free_text,
        skip_bad_rows=True,
    )
    settings: dict[str, Any] = {
        "model": backbone.name,
        "dtype": backbone.dtype,
        "device": str(backbone.device),
        "task": task.plain(),
    }
    if not is_number(steps):
        raise UserError(f"Steps is {steps[:100]!r}; it must be a number.")
    settings |= {"steps": int(steps), "evaluate_every": max(1, int(steps) // EVALUATIONS)}
    if source and source != NEW:
        path = studio.engine.prompt(source).card.path
        if path is None:
            raise UserError(f"The prompt {source} is in memory only; choose another start.")
        start = {"kind": "prompt", "sources": [str(path.parent.resolve())]}
        settings["prompt"] = {"start": start}
    return settings


def _first_rows(rows: Sequence[Row], columns: Columns) -> Html:
    shown = [
        [str(number), *(_shown(row.values.get(name)) for name in columns.names)]
        for number, row in enumerate(rows[:SHOWN_ROWS], 1)
    ]
    roles = {columns.text: " (text)", columns.label: " (label)"}
    heads = [f"{name}{roles.get(name, '')}" for name in columns.names]
    title = f"The first {len(shown)} of {len(rows):,} rows"
    return section("Rows", table(title, ["Row", *heads], shown, class_="texts"))


def _shown(value: object) -> str:
    return "" if value is None else shortened(str(value), SHOWN_CHARACTERS)


async def _cost(studio: Studio, visit: Visit, config: RunConfig, task: Task) -> Html:
    """What a run will take, and what may be wrong with the rows."""
    tuning, answers = config.tuning, len(task.labels)
    evaluations = -(-tuning.steps // tuning.evaluate_every)
    trained = tuning.steps * tuning.batch_size * tuning.accumulate
    read = STEP_COST * trained + evaluations * len(task.validation)
    pace = await _seconds_per_row(studio, visit, [e.input for e in task.train[:PROBE_ROWS]])
    estimate = (
        "unknown before the first steps" if pace is None else f"about {duration(pace * read)}"
    )
    facts = [
        ["Rows", f"{len(task.train):,} to train, {len(task.validation):,} to validate"],
        [
            "Rows left out",
            f"{task.skipped:,} with an empty text or label" if task.skipped else "none",
        ],
        ["Answers", f"{answers} labels" if answers else "free text"],
        ["Steps", f"{tuning.steps:,}, of {tuning.batch_size * tuning.accumulate} rows each"],
        ["Time", estimate],
    ]
    warning = doubtful_classes(task)
    return section(
        "Estimate",
        table("Estimate", ["What", "Value"], facts, class_="facts", titled=True),
        notice(warning) if warning else None,
    )


async def _seconds_per_row(studio: Studio, visit: Visit, texts: Sequence[str]) -> float | None:
    """How long an answer takes in a batch, by a prompt that is served; None without one."""
    for served in await visit.prompts(studio):
        form = served.card.task.form
        if form is None or not form.labels or len(form.columns) != 1 or not texts:
            continue
        asker = visit.asker(studio, served.name)
        try:
            for _ in range(2):  # the first loads the prompt
                began = time.perf_counter()
                await together([asker.classify(question) for question in texts])
                seconds = time.perf_counter() - began
        except UserError:  # the server is busy
            return None
        return seconds / len(texts)
    return None


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _settings_form(
    visit: Visit, run: TuningRun, columns: Columns, sources: Sequence[str], source: str
) -> Html:
    def choice(name: str, values: Sequence[str], chosen: str) -> Html:
        return element("select", options(values, chosen), name=name, id=name)

    name = visit.value("name", safe_name(run.file.stem.lower())[:60])
    steps = visit.value("steps", str(RunConfig().tuning.steps))
    free_text = element(
        "input", type="checkbox", name="free_text", value="yes", id="free_text",
        checked=columns.free_text,
    )  # fmt: skip
    return element(
        "form",
        element("h2", "Settings"),
        field(FIELDS["name"], _input("name", name, maxlength=200), "name"),
        field(FIELDS["text"], choice("text", columns.names, columns.text), "text"),
        field(FIELDS["label"], choice("label", columns.names, columns.label), "label"),
        element(
            "div",
            free_text,
            element("label", FIELDS["free_text"], for_="free_text"),
            class_="check",
        ),
        field(FIELDS["steps"], _input("steps", steps, type="number", min="1"), "steps"),
        field(FIELDS["start"], choice("start", sources, source), "start"),
        element(
            "div",
            element("button", "Start tuning", type="submit"),
            element("button", "Check again", type="submit", formmethod="get",
                    formaction=f"{PATH}/{run.identity}", class_="quiet"),
            class_="row",
        ),
        method="post",
        action=f"{PATH}/{run.identity}/start",
        class_="card",
    )  # fmt: skip


def _input(name: str, value: str, **attributes: str | float) -> Html:
    return element("input", name=name, id=name, value=value, required=True, **attributes)


def plain(error: UserError, run: TuningRun) -> str:
    """An error that names the file as its owner does."""
    return (
        str(error)
        .replace(str(run.file.resolve()), run.file.name)
        .replace(str(run.file), run.file.name)
    )


def checked_settings(studio: Studio, visit: Visit, run: TuningRun) -> dict[str, Any]:
    """The settings, if a run with them can begin."""
    if studio.runs.library is None:
        raise UserError("The server has no library to put a new prompt into; serve one.")
    name = visit.value("name")
    taken = Library(studio.runs.library, ignore).prompt_folder(name).exists()
    if taken or name in studio.engine.names():
        raise UserError(f"There is a prompt {name} already; choose another name.")
    columns = _chosen(visit, guess_columns(read_rows(str(run.file))))
    settings = _settings(studio, visit, run, columns)
    load_task(run_config(sections(settings)).task)
    return settings
