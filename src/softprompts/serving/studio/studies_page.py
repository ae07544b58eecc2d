"""Studies: their tables, verdicts and heatmaps, as `softprompts study report` wrote them."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from fastapi.responses import FileResponse, Response

from ...analysis.folder_report import folder_claims, report_title
from ...analysis.runs import Runs, read_runs
from ...analysis.summary import MEAN, Score, Table, summarize
from ...artifacts.file_names import CELLS, STUDY_FILE
from ...errors import UserError
from ..http_errors import HttpError
from .context import Page, Studio, Visit, figures
from .markup import (
    ROOT,
    Child,
    Html,
    element,
    link,
    notice,
    paragraph,
    section,
    table,
    text,
)

PATH = f"{ROOT}/studies"
RECORDS = "records.json"
FIRST = ("transfer", "clusters", "targets", "sizes")
DEPTH = 2
"""Levels below a folder of studies at which studies are looked for."""


def find_studies(folders: list[Path]) -> dict[str, Path]:
    """Studies and reports in these folders, by name."""
    studies: dict[str, Path] = {}
    for folder in folders:
        for path in _candidates(folder, DEPTH):
            name = path.name if path.name not in studies else f"{path.parent.name}-{path.name}"
            studies.setdefault(name, path)
    return dict(sorted(studies.items()))


def _candidates(folder: Path, depth: int) -> Iterator[Path]:
    if not folder.is_dir():
        return
    is_study = (folder / STUDY_FILE).exists() and (folder / CELLS).is_dir()
    if is_study or (folder / RECORDS).exists():
        yield folder
    elif depth:
        with os.scandir(folder) as items:
            names = sorted(item.name for item in items if item.is_dir() and item.name[0] != ".")
        for name in names:
            yield from _candidates(folder / name, depth - 1)


async def show(studio: Studio, visit: Visit) -> Page:
    studies = await asyncio.to_thread(find_studies, studio.studies)
    if not studies:
        body: Child = notice(
            "There is no study to show. `softprompts study run` runs one, and `study report` "
            "draws its heatmaps; --studies names the folder that holds them."
        )
    else:
        rows = [[link(f"{PATH}/{quote(name)}", name)] for name in studies]
        body = table("Studies", ["Study"], rows, titled=True)
    return Page("Studies", text(body), PATH)


def _find(studio: Studio, name: str) -> Path:
    """A study by its name, which never is a path."""
    path = find_studies(studio.studies).get(name)
    if path is None:
        raise HttpError(404, f"There is no study {name[:100]!r}.")
    return path


async def show_study(studio: Studio, visit: Visit) -> Page:
    path = await asyncio.to_thread(_find, studio, visit.name)
    title, body = await asyncio.to_thread(_study, path, visit.name)
    return Page(title, text(body), PATH)


def _study(path: Path, name: str) -> tuple[str, list[Child]]:
    try:
        runs = read_runs(path)
    except UserError:
        return name, [notice("No run of this study has finished yet.")]
    summary = summarize(runs)
    curves = figures(summary["curves"])
    unfinished = f", {summary['unfinished']:,} unfinished" if summary["unfinished"] else ""
    parts: list[Child] = [
        paragraph(f"{summary['runs']:,} runs{unfinished}."),
        _claims(runs),
        *(_table(part) for part in summary["tables"]),
        _figures(path, name),
        section("Learning curves", curves) if curves else None,
    ]
    return report_title(runs), parts


def _claims(runs: Runs) -> Html | None:
    claims = folder_claims(runs)
    rows: list[list[Child]] = [
        [f"{claim['claim']}. {claim['text']}", claim["verdict"]] for claim in claims
    ]
    if not rows:
        return None
    return section(
        "Claims", table("Claims", ["Claim", "Verdict"], rows, class_="texts", titled=True)
    )


def _table(part: Table) -> Html:
    names = [task["name"] for task in part["tasks"]]
    names += [MEAN] if len(names) > 1 else []
    rows = [
        [arm["name"], *(_score(arm["scores"].get(name)) for name in names)] for arm in part["arms"]
    ]
    title = part["title"] or "Scores"
    numbers = range(1, len(names) + 1)
    return section(title, table(title, ["Runs", *names], rows, numbers=numbers, titled=True))


def _score(score: Score | None) -> Child:
    if score is None:
        return ""
    std = "" if score["std"] is None else f" ± {score['std']:.1f}"
    return element("strong" if score["best"] else "span", f"{score['mean']:.1f}{std}")


# -- figures ---------------------------------------------------------------------------------------


def _pictures(path: Path) -> list[Path]:
    """The figures of a study's report, those of transfers and similarities first."""
    folder = path / "report" if (path / STUDY_FILE).exists() else path

    def order(picture: Path) -> tuple[int, str]:
        kind = picture.stem.partition("-")[0]
        return (FIRST.index(kind) if kind in FIRST else len(FIRST), str(picture))

    return sorted(folder.rglob("*.png"), key=order)


def _figures(path: Path, name: str) -> Html:
    pictures = _pictures(path)
    if not pictures:
        return notice("It has no heatmaps yet; `softprompts study report` draws them.")
    shown = []
    for number, picture in enumerate(pictures):
        title = picture.stem.replace("-", " ").replace("_", " ")
        source = f"{PATH}/{quote(name)}/figures/{number}"
        image = element("img", src=source, alt=f"Figure: {title}; the tables have its numbers")
        shown.append(element("figure", link(source, image), element("figcaption", title)))
    return section("Heatmaps", element("div", *shown, class_="pictures"))


async def figure(studio: Studio, visit: Visit) -> Response:
    path = await asyncio.to_thread(_find, studio, visit.name)
    pictures = await asyncio.to_thread(_pictures, path)
    number = visit.request.path_params["number"]
    if number >= len(pictures):
        raise HttpError(404, "There is no such figure.")
    return FileResponse(pictures[number], media_type="image/png")
