"""Tuning on uploaded rows: what they are, what it will take, and the run as it goes."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from fastapi.responses import RedirectResponse, Response

from ...analysis.curve_svg import curve_figure
from ...analysis.summary import CurvePoint
from ...config import RunConfig, TaskConfig, run_config, sections
from ...errors import UserError
from ...files import safe_name
from ...library.library import Library, ignore
from ...tasks import Row, Task, load_task, lone_classes, read_rows
from ..answers import together
from .columns import Columns, guess_columns
from .context import Page, Studio, Visit
from .markup import (
    ROOT,
    Child,
    Html,
    element,
    field,
    link,
    notice,
    options,
    paragraph,
    prompt_link,
    section,
    table,
    text,
)
from .tuning_runs import ENDINGS, TuningRun

PATH = f"{ROOT}/tune"
SHOWN_ROWS, SHOWN_CHARACTERS = 5, 160
PROBE_ROWS = 16
"""Texts that are answered to see how quick the model is."""
STEP_COST = 3.0
"""A row's share of a training step, forward and backward, in answers to a row."""
MOST_SOURCES = 200
NEW = "a new prompt"


async def show(studio: Studio, visit: Visit) -> Page:
    """Where rows are uploaded, and what was uploaded before."""
    visit.check_unrestricted()
    runs = await asyncio.to_thread(studio.runs.all)
    rows = [
        [
            link(f"{PATH}/{run.identity}", run.file.name),
            _state(run),
            run.name,
            f"{run.file.stat().st_size / 1024:,.0f} KiB",
        ]
        for run in runs
    ]
    uploads = table(
        "Uploaded rows", ["File", "State", "Prompt", "Size"], rows, numbers=[3], titled=True
    )
    body = [
        paragraph(
            "Tune a prompt on your own rows: a table with a column of texts and a column of "
            "labels or answers. It is served as soon as it is done."
        ),
        _upload_form(),
        section("Uploaded rows", uploads) if runs else None,
    ]
    return Page("Tune", text(body), PATH)


def _upload_form() -> Html:
    kinds = ", ".join(ENDINGS)
    file = element("input", type="file", id="file", accept=kinds, data_fills="rows")
    rows = element(
        "textarea",
        name="rows",
        id="rows",
        rows=8,
        spellcheck="false",
        required=True,
        placeholder="text,label\nWhere is my parcel?,question\nThank you!,thanks",
    )
    return element(
        "form",
        field("A file of rows", file, "file", f"{kinds}, with a header"),
        field("Rows", rows, "rows", "The file's rows appear here; or paste some."),
        element("input", type="hidden", name="file", value="rows.csv", id="file-name"),
        element("button", "Look at the rows", type="submit"),
        method="post",
        action=PATH,
        class_="card",
    )


async def upload(studio: Studio, visit: Visit) -> Response:
    visit.check_unrestricted()
    run = await asyncio.to_thread(
        studio.runs.upload, visit.value("file", "rows.csv"), visit.value("rows")
    )
    return RedirectResponse(f"{PATH}/{run.identity}", 303)


async def show_run(studio: Studio, visit: Visit) -> Page:
    """Uploaded rows before their run, or the run."""
    visit.check_unrestricted()
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    if run.state == "ready":
        return await _preview(studio, visit, run)
    body = element("div", _progress(run), id="run", data_poll="1" if run.active else None)
    return Page(f"Tuning {run.name}", body, PATH)


# -- before the run --------------------------------------------------------------------------------


async def _preview(studio: Studio, visit: Visit, run: TuningRun, error: str = "") -> Page:
    try:
        rows = await asyncio.to_thread(read_rows, str(run.file))
        columns = guess_columns(rows)
    except UserError as problem:
        message = notice(_plain(problem, run), error=True)
        return Page(run.file.name, text([message, _remove_form(run)]), PATH, 400)
    columns = _chosen(visit, columns)
    names = (await asyncio.to_thread(studio.engine.names))[:MOST_SOURCES]
    source = visit.value("start", NEW)
    parts: list[Child] = [notice(error, error=True) if error else None, _first_rows(rows, columns)]
    try:
        config = await asyncio.to_thread(_config, studio, visit, run, columns)
        task = await asyncio.to_thread(load_task, config.task)
        parts.append(await _cost(studio, visit, config, task))
    except UserError as problem:
        parts.append(notice(_plain(problem, run), error=True))
    parts += [_settings_form(visit, run, columns, [NEW, *names], source), _remove_form(run)]
    return Page(run.file.name, text(parts), PATH, 400 if error else 200)


def _chosen(visit: Visit, guess: Columns) -> Columns:
    """The columns of the form, or the guess."""
    text_column, label = visit.value("text", guess.text), visit.value("label", guess.label)
    is_form = bool(visit.form.get("text") or visit.query.get("text"))
    free_text = visit.value("free_text") == "yes" if is_form else guess.free_text
    return Columns(guess.names, text_column, label, free_text)


def _config(studio: Studio, visit: Visit, run: TuningRun, columns: Columns) -> RunConfig:
    """The settings of the run."""
    return run_config(sections(_settings(studio, visit, run, columns)))


def _settings(studio: Studio, visit: Visit, run: TuningRun, columns: Columns) -> dict[str, Any]:
    backbone, steps, source = studio.engine.backbone, visit.value("steps"), visit.value("start")
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
    if steps:
        settings["steps"] = int(steps) if steps.isdecimal() else steps
    if source and source != NEW:
        path = studio.engine.prompt(source).card.path
        if path is None:
            raise UserError(f"The prompt {source} is in memory only; choose another start.")
        start = {"kind": "prompt", "sources": [str(path.parent.resolve())]}
        settings["prompt"] = {"start": start}
    return settings


def _first_rows(rows: Sequence[Row], columns: Columns) -> Html:
    shown = [
        [str(number), *(_short(row.values.get(name)) for name in columns.names)]
        for number, row in enumerate(rows[:SHOWN_ROWS], 1)
    ]
    heads = [f"{name} ({role})" if role else name for name, role in _roles(columns)]
    title = f"The first {len(shown)} of {len(rows):,} rows"
    return section("Rows", table(title, ["", *heads], shown, class_="texts"))


def _roles(columns: Columns) -> list[tuple[str, str]]:
    roles = {columns.text: "text", columns.label: "label"}
    return [(name, roles.get(name, "")) for name in columns.names]


def _short(value: object) -> str:
    words = "" if value is None else str(value)
    return words if len(words) <= SHOWN_CHARACTERS else f"{words[:SHOWN_CHARACTERS]}…"


async def _cost(studio: Studio, visit: Visit, config: RunConfig, task: Task) -> Html:
    """What a run will take, and what may be wrong with the rows."""
    tuning, answers = config.tuning, len(task.labels)
    evaluations = -(-tuning.steps // tuning.evaluate_every)
    trained = tuning.steps * tuning.batch_size * tuning.accumulate
    read = STEP_COST * trained + evaluations * len(task.validation)
    pace = await _seconds_per_row(studio, visit, [e.input for e in task.train[:PROBE_ROWS]])
    estimate = (
        "unknown before the first steps" if pace is None else f"about {_duration(pace * read)}"
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
    warning = lone_classes(task)
    return section(
        "What it will take",
        table("What it will take", ["", "Value"], facts, class_="facts", titled=True),
        notice(warning) if warning else None,
    )


async def _seconds_per_row(studio: Studio, visit: Visit, texts: Sequence[str]) -> float | None:
    """How long an answer takes in a batch, by a prompt that is served; None without one."""
    for served in await visit.prompts(studio):
        form = served.card.task.form
        if form is None or not form.labels or len(form.columns) != 1 or not texts:
            continue
        asker = visit.asker(studio, served.name)
        for _ in range(2):  # the first loads the prompt
            began = time.perf_counter()
            await together([asker.classify(question) for question in texts])
            seconds = time.perf_counter() - began
        return seconds / len(texts)
    return None


def _duration(seconds: float) -> str:
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
        field("Name of the prompt", _input("name", name, maxlength=200), "name"),
        field("Column of the text", choice("text", columns.names, columns.text), "text"),
        field("Column of the label", choice("label", columns.names, columns.label), "label"),
        element(
            "div",
            free_text,
            element("label", "The labels are free text to generate", for_="free_text"),
            class_="check",
        ),
        field("Steps", _input("steps", steps, type="number", min="1"), "steps"),
        field("Start from", choice("start", sources, source), "start"),
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


def _remove_form(run: TuningRun) -> Html:
    return element(
        "form",
        element("button", "Remove these rows", type="submit", class_="quiet"),
        method="post",
        action=f"{PATH}/{run.identity}/remove",
    )


def _plain(error: UserError, run: TuningRun) -> str:
    """An error that names the file as its owner does."""
    return (
        str(error)
        .replace(str(run.file.resolve()), run.file.name)
        .replace(str(run.file), run.file.name)
    )


# -- the run ---------------------------------------------------------------------------------------


async def start(studio: Studio, visit: Visit) -> Page | Response:
    visit.check_unrestricted()
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    if not run.active:
        try:
            settings = await asyncio.to_thread(_checked, studio, visit, run)
            await studio.runs.start(run, visit.value("name"), settings)
        except UserError as problem:
            return await _preview(studio, visit, run, _plain(problem, run))
    return RedirectResponse(f"{PATH}/{run.identity}", 303)


def _checked(studio: Studio, visit: Visit, run: TuningRun) -> dict[str, Any]:
    """The settings, if a run with them can begin."""
    if studio.runs.library is None:
        raise UserError("The server has no library to put a new prompt into; serve one.")
    library = Library(studio.runs.library, ignore)
    library.check_free(visit.value("name"))
    if visit.value("name") in studio.engine.names():
        raise UserError(f"A prompt {visit.value('name')} is served already; choose another name.")
    columns = _chosen(visit, guess_columns(read_rows(str(run.file))))
    settings = _settings(studio, visit, run, columns)
    load_task(run_config(sections(settings)).task)
    return settings


async def stop(studio: Studio, visit: Visit) -> Response:
    visit.check_unrestricted()
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    studio.runs.stop(run)
    return RedirectResponse(f"{PATH}/{run.identity}", 303)


async def remove(studio: Studio, visit: Visit) -> Response:
    visit.check_unrestricted()
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    await asyncio.to_thread(studio.runs.remove, run)
    return RedirectResponse(PATH, 303)


def _state(run: TuningRun) -> str:
    percent = f", {run.step / run.steps:.0%}" if run.steps and run.active else ""
    return {"ready": "not tuned", "running": "running", "stopping": "stopping"}.get(
        run.state, run.state
    ) + percent


def _progress(run: TuningRun) -> list[Child]:
    """The run as it is now."""
    parts: list[Child] = [element("p", _status(run), role="status", id="status")]
    if run.active:
        value = run.step if run.steps else None
        parts.append(element("progress", max=run.steps or 1, value=value, aria_labelledby="status"))
        parts.append(
            element(
                "form",
                element("button", "Stop", type="submit", disabled=run.state == "stopping"),
                method="post",
                action=f"{PATH}/{run.identity}/stop",
            )
        )
    if run.state == "done":
        playground = link(f"{ROOT}/playground?prompt={run.name}", "Try it")
        parts.append(paragraph("See ", prompt_link(run.name), " · ", playground))
    if run.state == "failed":
        parts.append(notice(run.note, error=True))
        parts.append(paragraph(link(f"{PATH}/{run.identity}/again", "Change the settings")))
    figures = [Html(curve_figure(curve, number)) for number, curve in enumerate(_curves(run))]
    parts.append(element("div", *figures, class_="figures") if figures else None)
    if run.messages:
        lines = element("ul", [element("li", line) for line in run.messages])
        parts.append(element("details", element("summary", "Messages"), lines))
    return parts


async def again(studio: Studio, visit: Visit) -> Response:
    """The settings of a run that failed."""
    visit.check_unrestricted()
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    if run.state == "failed":
        run.state = "ready"
    return RedirectResponse(f"{PATH}/{run.identity}", 303)


def _status(run: TuningRun) -> str:
    if run.state == "done":
        return run.note
    if run.state == "failed":
        return "The run left no prompt."
    if not run.steps:
        return f"{run.messages[-1]} …" if run.messages else "starting …"
    left = run.seconds_left
    time_left = "" if left is None or run.state == "stopping" else f", about {_duration(left)} left"
    verb = "stopping after " if run.state == "stopping" else ""
    scores = ""
    if run.history:
        last, best = run.history[-1], max(entry["score"] for entry in run.history)
        scores = f"; {run.metric} {last['score']:.1f} (best {best:.1f})"
    return f"{verb}step {run.step:,} of {run.steps:,}{time_left}{scores}"


def _curves(run: TuningRun) -> list[Any]:
    """Score and loss by step, once there are two evaluations."""
    if len(run.history) < 2:
        return []

    def points(name: str) -> list[CurvePoint]:
        return [
            {"step": entry["step"], "mean": entry[name], "std": None, "runs": 1}
            for entry in run.history
            if entry[name] is not None
        ]

    return [
        {"task": run.name, "metric": metric, "arms": {run.name: points(name)}}
        for name, metric in (("score", run.metric), ("loss", "loss"))
    ]
