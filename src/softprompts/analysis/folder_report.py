"""The report of a folder of runs: one HTML page, the same as Markdown, and all numbers as JSON."""

import json
from pathlib import Path
from typing import Any

import yaml

from ..artifacts.file_names import CONFUSION, TOURNAMENT_PLOT
from ..files import read_json, write_text
from ..study.claims import read_claims
from .runs import Runs, read_runs
from .summary import Summary, summarize
from .summary_page import markdown, page
from .verdicts import judge_claims

ANALYSIS, NAME = "report.json", "summary"
"""`study report` writes a report.md of its own, about transfers."""


def report(
    folder: str | Path, *, output: str | Path | None = None, against: str | None = None
) -> Summary:
    """Write `summary.html`, `.md` and `.json` about the runs of a folder; return their content.

    The folder is that of a run, a cohort, a study, or the report of a study. The files go to
    `output`, or into the folder itself. `against` names the arm that all others are compared with,
    instead of the best of each column.
    """
    runs = read_runs(Path(folder))
    summary, title = summarize(runs, against), report_title(runs)
    summary["claims"] = folder_claims(runs)
    paths = [Path(output or folder) / f"{NAME}.{form}" for form in ("html", "md", "json")]
    summary["title"], summary["files"] = title, [str(path) for path in paths]
    write_text(paths[0], page(summary, title, figures(runs)))
    write_text(paths[1], markdown(summary, title))
    numbers = {name: value for name, value in summary.items() if name != "files"}
    write_text(paths[2], json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")  # many configs
    return summary


def folder_claims(runs: Runs, study: str | None = None) -> list[dict[str, Any]]:
    """The verdicts on the claims of a study file: of the text `study`, or of the runs' own."""
    text = study or runs.study
    claims = (yaml.safe_load(text) or {}).get("claims") if text else None
    return judge_claims(read_claims(claims), runs, _analysis(runs)) if claims else []


def _analysis(runs: Runs) -> dict[str, Any]:
    """What `study report` wrote about transfers, if it is there."""
    for path in (runs.folder / "report" / ANALYSIS, runs.folder / ANALYSIS):
        if path.exists():
            return dict(read_json(path))
    return {}


def report_title(runs: Runs) -> str:
    """The study's name and what it asks, or the folder's name."""
    name, about = runs.folder.resolve().name, ""
    if runs.study is not None:
        study = yaml.safe_load(runs.study) or {}
        name, about = str(study.get("name") or name), str(study.get("about") or "")
    return f"{name}: {about}" if about else name


def figures(runs: Runs) -> list[Path]:
    """The pictures that the run, or the study's own report, has drawn."""
    if runs.kind == "run":
        files = [runs.folder / name for name in (CONFUSION, TOURNAMENT_PLOT)]
        return [path for path in files if path.exists()]
    if runs.kind == "cohort":
        return []
    return sorted((runs.folder / "report" if runs.kind == "study" else runs.folder).rglob("*.png"))
