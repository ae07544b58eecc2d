"""Tuning on uploaded rows: the uploads, and runs as they go."""

import asyncio
from typing import Any
from urllib.parse import quote

from fastapi.responses import RedirectResponse, Response

from ...analysis.summary import CurvePoint
from ...errors import UserError
from ..requests import MIB
from .columns import ending_of
from .context import Page, Studio, Visit, figures
from .markup import (
    Child,
    Html,
    button_form,
    capitalized,
    element,
    field,
    link,
    notice,
    paragraph,
    playground_path,
    prompt_link,
    section,
    table,
    text,
)
from .tune_preview import PATH, checked_settings, duration, plain, preview
from .tuning_runs import ENDINGS, TuningRun


async def show(studio: Studio, visit: Visit) -> Page:
    """Where rows are uploaded, and what was uploaded before."""
    runs = await asyncio.to_thread(studio.runs.all)
    rows = [
        [
            link(f"{PATH}/{run.identity}", run.file.name),
            _state(run),
            run.name,
            f"{run.size / 1024:,.0f} KiB",
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
        _upload_form(studio.max_body),
        section("Uploaded rows", uploads) if runs else None,
    ]
    return Page("Tune", text(body), PATH)


def _upload_form(most: int) -> Html:
    kinds, size = ", ".join(ENDINGS), f"{most / MIB:,.3g} MiB"
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
        field("A file of rows", file, "file", f"{kinds}, with a header, up to {size}"),
        field("Rows", rows, "rows", "The file's rows appear here; or paste some."),
        element("input", type="hidden", name="file", id="file-name"),
        element("button", "Preview rows", type="submit"),
        element("div", id="problem"),
        method="post",
        action=PATH,
        class_="card",
        data_uploads="problem",
        data_most=most,
        data_size=size,
    )


async def upload(studio: Studio, visit: Visit) -> Response:
    """Keep the rows of a form, or those that `studio.js` sends as they are."""
    rows = visit.body or visit.value("rows")
    file = visit.value("file") or f"rows{ending_of(rows)}"
    run = await asyncio.to_thread(studio.runs.upload, file, rows)
    start = visit.value("start")
    query = f"?start={quote(start, safe='')}" if start else ""
    page = f"{PATH}/{run.identity}{query}"
    if visit.body:
        return Response(status_code=201, headers={"Location": page})
    return RedirectResponse(page, 303)


async def show_run(studio: Studio, visit: Visit) -> Page:
    """Uploaded rows before their run, or the run."""
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    if run.state == "ready":
        return await preview(studio, visit, run)
    body = element("div", _progress(run), id="run", data_poll="1" if run.active else None)
    return Page(f"Tuning {run.name}", body, PATH)


# -- the run ---------------------------------------------------------------------------------------


async def start(studio: Studio, visit: Visit) -> Page | Response:
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    if not run.active:
        try:
            settings = await asyncio.to_thread(checked_settings, studio, visit, run)
            await studio.runs.start(run, visit.value("name"), settings)
        except UserError as problem:
            return await preview(studio, visit, run, plain(problem, run))
    return RedirectResponse(f"{PATH}/{run.identity}", 303)


async def stop(studio: Studio, visit: Visit) -> Response:
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    studio.runs.stop(run)
    return RedirectResponse(f"{PATH}/{run.identity}", 303)


async def remove(studio: Studio, visit: Visit) -> Response:
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    await asyncio.to_thread(studio.runs.remove, run)
    return RedirectResponse(PATH, 303)


def _state(run: TuningRun) -> str:
    percent = f", {run.step / run.steps:.0%}" if run.steps and run.active else ""
    return f"{'not tuned' if run.state == 'ready' else run.state}{percent}"


def _progress(run: TuningRun) -> list[Child]:
    parts: list[Child] = [element("p", _status(run), role="status", id="status")]
    if run.active:
        value = run.step if run.steps else None
        parts.append(element("progress", max=run.steps or 1, value=value, aria_labelledby="status"))
        stopping = run.state == "stopping"
        parts.append(button_form(f"{PATH}/{run.identity}/stop", "Stop", disabled=stopping))
    if run.state == "done":
        playground = link(playground_path(run.name), "Try it")
        parts.append(paragraph("See ", prompt_link(run.name), " · ", playground))
        parts.append(notice(f"{capitalized(run.advice)}.") if run.advice else None)
    if run.state == "failed":
        parts.append(notice(run.note, error=True))
    parts.append(figures(_curves(run)))
    if run.messages:
        lines = element("ul", [element("li", line) for line in run.messages])
        parts.append(element("details", element("summary", "Messages"), lines))
    if not run.active:
        label = "Change the settings" if run.state == "failed" else "Rows and settings"
        parts.append(button_form(f"{PATH}/{run.identity}/again", label, class_="quiet"))
    return parts


async def again(studio: Studio, visit: Visit) -> Response:
    """The rows and settings of a run that has ended."""
    run = await asyncio.to_thread(studio.runs.find, visit.name)
    if not run.active:
        run.state = "ready"
    return RedirectResponse(f"{PATH}/{run.identity}", 303)


def _status(run: TuningRun) -> str:
    best = max((entry["score"] for entry in run.history), default=None)
    if run.state == "done":
        return run.note if best is None else f"{run.note} Its {run.metric} is {best:.1f}."
    if run.state == "failed":
        return "The run produced no prompt."
    if not run.steps:
        return f"{capitalized(run.messages[-1])} …" if run.messages else "Starting …"
    left = run.seconds_left
    time_left = "" if left is None or run.state == "stopping" else f", about {duration(left)} left"
    verb = "Stopping after step" if run.state == "stopping" else "Step"
    scores = ""
    if best is not None:
        scores = f"; {run.metric} {run.history[-1]['score']:.1f} (best {best:.1f})"
    return f"{verb} {run.step:,} of {run.steps:,}{time_left}{scores}"


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
