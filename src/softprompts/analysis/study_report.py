"""The report of a study: records, table of scores, figure of model sizes, analysis of transfers."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from ..artifacts.study_folder import CellResult, StudyFolder
from ..files import safe_name, write_json, write_text
from ..study.cells import check_fingerprints, task_embedding
from ..study.config import StudyConfig
from ..study.state import StudyState
from ..study.study import Study
from ..study.tables import ScoreRow, all_results, as_csv, as_record, markdown, score_table
from ..tasks import BENCHMARKS
from .heatmaps import check, save
from .report import write_report
from .retrieval import KS
from .sizes import by_size, score_by_size
from .transfer import StudyRecord


class StudyReport(TypedDict):
    output: str
    done: int
    total: int
    scores: list[ScoreRow]
    test_scores: list[ScoreRow]
    """The same on the test rows; empty if no task has some."""
    analyses: dict[str, Any]
    """By variant and backbone."""


def write_study_report(study: Study, output: Path) -> StudyReport:
    """Write the report; the transfers of each backbone and variant are analysed separately."""
    check()
    cells, folder = study.cells(), study.folder
    for model in dict.fromkeys(cell.config.model for cell in cells):
        check_fingerprints(cells, folder, model)
    state = StudyState().update(cells, folder)
    results = all_results(cells, state)
    table = score_table(results, _benchmarks(study.config))
    tested = any(result.test is not None for result in results)
    tests = score_table(results, _benchmarks(study.config), "test") if tested else []
    _write_records(results, output)
    write_text(output / "plan.yaml", folder.study_file.read_text(encoding="utf-8"))
    write_json(output / "scores.json", table)
    several = len({row["backbone"] for row in table}) > 1
    figure = _write_sizes(results, table, output) if several else ""
    test_table = f"\nOn the test rows:\n\n{markdown(tests)}" if tests else ""
    if tests:
        write_json(output / "test_scores.json", tests)
    write_text(output / "scores.md", markdown(table) + test_table + figure)
    ks = {variant: grid.retrieval.best for variant, grid in study.config.grids()}
    groups = list(dict.fromkeys((cell.variant, cell.backbone) for cell in cells))
    analyses: dict[str, Any] = {}
    for group in groups:
        members = [cell for cell in cells if (cell.variant, cell.backbone) == group]
        if any(cell.stage == "transfer" and not cell.trains_model for cell in members):
            cell_names = {cell.name for cell in members}
            name = "/".join(safe_name(part) for part in group if part is not None)
            part = [result for result in results if result.cell in cell_names]
            analyses[name] = write_report(
                *_transfer_inputs(part, folder),
                output / name if len(groups) > 1 else output,
                ks[group[0]] or KS,
                _machines(part),
                _subject(study, group, part),
            )
    return {
        "output": str(output),
        "done": len(state.done),
        "total": len(cells),
        "scores": table,
        "test_scores": tests,
        "analyses": analyses,
    }


def _write_records(results: Sequence[CellResult], output: Path) -> None:
    records = [as_record(result) for result in results]
    write_json(output / "records.json", records)
    columns = [name for name in records[0] if name != "chosen"]
    for record in records:
        metrics = (record["metrics"] or {}).items()
        record["metrics"] = ";".join(f"{name}={value}" for name, value in metrics)
        for name in ("interval", "test_interval"):
            record[name] = " to ".join(map(str, record[name] or ()))
    write_text(output / "records.csv", as_csv(records, columns))


def _machines(results: Sequence[CellResult]) -> list[Mapping[str, str]]:
    """The machines that the cells ran on, each once; older results have none."""
    machines = [result.machine for result in results if result.machine is not None]
    return [machine for i, machine in enumerate(machines) if machine not in machines[:i]]


def _subject(study: Study, group: tuple[str | None, str], results: Sequence[CellResult]) -> str:
    """The study, its variant, the backbone, and the day the last of these cells finished."""
    last = max((result.finished for result in results), default=0.0)
    day = datetime.fromtimestamp(last, UTC).date().isoformat() if last else ""
    return ", ".join(part for part in (study.config.name, *group, day) if part)


def _benchmarks(study: StudyConfig) -> dict[str, Sequence[str]]:
    """The benchmarks among the targets, such as GLUE; with several, each gets a mean."""
    named: dict[str, Sequence[str]] = {
        str(entry): BENCHMARKS[str(entry)]
        for _, grid in study.grids()
        for entry in grid.targets
        if str(entry) in BENCHMARKS
    }
    return named if any(len(grid.targets) > 1 for _, grid in study.grids()) else {}


def _write_sizes(results: Sequence[CellResult], table: Sequence[ScoreRow], output: Path) -> str:
    """Write score against model size as PNG, SVG, CSV and JSON; the Markdown that shows it."""
    rows = by_size(table, {str(r.backbone): r.parameters for r in results if r.parameters})
    save(score_by_size(rows), output, "sizes")
    write_json(output / "sizes.json", rows)
    write_text(output / "sizes.csv", as_csv(rows, list(rows[0])))
    return "\n![score by model size](sizes.png)\n"


def _transfer_inputs(
    results: Sequence[CellResult], folder: StudyFolder
) -> tuple[list[StudyRecord], list[StudyRecord], list[StudyRecord]]:
    """Records, task embeddings and retrieval runs for `write_report`."""
    names = ("source", "target", "seed", "score", "metric", "majority", "rows")
    runs: list[StudyRecord] = [
        {name: getattr(result, name) for name in names}
        for result in results
        if result.stage in ("source", "baseline", "transfer")
    ]
    embeddings: list[StudyRecord] = [
        {
            "task": result.source or result.target,
            "seed": result.seed,
            "vectors": task_embedding(folder, result.cell),
        }
        for result in results
        if result.stage in ("source", "baseline") and result.score is not None
    ]
    chosen = ("similarity", "k", "target", "seed", "score")
    retrieval: list[StudyRecord] = [
        {"method": result.stage, **{name: getattr(result, name) for name in chosen}}
        for result in results
        if result.stage in ("average", "mixture")
    ]
    return runs, embeddings, retrieval
