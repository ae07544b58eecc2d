"""The report of a study: records, table of scores, figure of model sizes, analysis of transfers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from ..artifacts.study_folder import CellFolder, CellResult, StudyFolder
from ..files import safe_name, write_csv, write_json, write_text
from ..study.cells import check_fingerprints, score_fields, task_embedding
from ..study.config import StudyConfig
from ..study.plan import Cell
from ..study.state import StudyState
from ..study.study import Study
from ..tasks import BENCHMARKS
from ..tasks.plain_names import plain_names
from .heatmaps import check, save
from .report import write_report
from .retrieval import KS
from .runs import RunRecord, Runs, machines, of_cell
from .sizes import by_size, score_by_size, score_by_target, short_name
from .tables import ON_TARGETS, ScoreRow, markdown, rows_of, score_table
from .transfer import StudyRecord
from .variants import Difference, differences_markdown, variant_differences

RECORD = (
    *("cell", "stage", "backbone", "variant", "source", "target", "seed", "k", "similarity"),
    *("score", "metric", "metrics", "majority", "rows", "interval", "bag_of_words"),
    *("test", "test_rows", "test_majority", "test_interval", "best_step", "steps"),
    *("seconds", "cohort", "fingerprint", "parameters", "failed", "chosen"),
)
"""Fields of results in a report."""


class StudyReport(TypedDict):
    output: str
    done: int
    total: int
    scores: list[ScoreRow]  # on the test rows of targets that have some
    validation_scores: list[ScoreRow]  # all on the validation rows; empty if `scores` are
    variants: list[Difference]  # between them, with paired tests
    analyses: dict[str, Any]  # by variant and backbone


def write_study_report(study: Study, output: Path) -> StudyReport:
    """Write the report; the transfers of each backbone and variant are analysed separately."""
    check()
    cells, folder = study.cells(), study.folder
    for model in dict.fromkeys(cell.config.model for cell in cells):
        check_fingerprints(cells, folder, model)
    state = StudyState().update(cells, folder)
    results = [_with_test(result, folder) for result in _results(cells, state)]
    records = [of_cell(result.plain(), folder.cell(result.cell).path) for result in results]
    runs, benchmarks = Runs(folder.path, "study", records), _benchmarks(study.config)
    table, validation = score_table(runs, benchmarks), list[ScoreRow]()
    if any("test" in row["splits"].values() for row in table):
        validation = score_table(on_validation_rows(runs), benchmarks)
        write_json(output / "validation_scores.json", validation)
    _write_records(results, runs, output)
    write_text(output / "plan.yaml", folder.study_file.read_text(encoding="utf-8"))
    write_json(output / "scores.json", table)
    tables = [markdown(part) for part in (table, validation) if part]
    differences = variant_differences(runs)
    if differences:
        write_json(output / "variants.json", differences)
        write_csv(output / "variants.csv", differences, list(differences[0]))
        tables.append(differences_markdown(differences))
    parameters = {str(one.backbone): one.parameters for one in results if one.parameters}
    write_text(
        output / "scores.md",
        "\n".join([*tables, *_write_figures(study, runs, table, parameters, output)]),
    )
    ks = {variant: grid.retrieval.best for variant, grid in study.config.grids()}
    groups = list(dict.fromkeys((cell.variant, cell.backbone) for cell in cells))
    analyses: dict[str, Any] = {}
    for group in groups:
        members = [cell for cell in cells if (cell.variant, cell.backbone) == group]
        if any(cell.target is not None and not cell.trains_model for cell in members):
            name = "/".join(safe_name(part) for part in group if part is not None)
            part = [
                run for run in records if (run.arm.get("variant"), run.arm["backbone"]) == group
            ]
            analyses[name] = write_report(
                *_transfer_inputs(part, runs, folder),
                output / name if len(groups) > 1 else output,
                ks[group[0]] or KS,
                machines(part),
                _subject(study, part),
            )
    return {
        "output": str(output),
        "done": len(state.done),
        "total": len(cells),
        "scores": table,
        "validation_scores": validation,
        "variants": differences,
        "analyses": analyses,
    }


def _results(cells: Sequence[Cell], state: StudyState) -> list[CellResult]:
    """One for each planned cell, with a score of None if it is not finished."""
    return [
        replace(state.results.get(cell.name, CellResult(cell.name)), **cell.identity())
        for cell in cells
    ]


def on_validation_rows(runs: Runs) -> Runs:
    """The runs without their test scores."""
    records = [
        replace(run, scores={name: run.scores[name] for name in run.scores if name != "test"})
        for run in runs.records
    ]
    return replace(runs, records=records)


def _with_test(result: CellResult, folder: StudyFolder) -> CellResult:
    """A result with its test score, which older versions wrote to the prompt's card alone."""
    cell = folder.cell(result.cell)
    if result.score is None or result.test is not None or not cell.has_prompt:
        return result
    fields = score_fields(cell.card())
    return result if fields["test"] is None else replace(result, **fields)


def _write_records(results: Sequence[CellResult], runs: Runs, output: Path) -> None:
    """The fields of results; `judged_by` says which rows their `judged_score` is on."""
    records: list[dict[str, Any]] = [
        {name: getattr(result, name) for name in RECORD}
        | {"judged_by": runs.split(run), "judged_score": runs.score(run)}
        | {"chosen": [source.plain() for source in result.chosen]}
        for result, run in zip(results, runs.records, strict=True)
    ]
    write_json(output / "records.json", records)
    columns = [name for name in records[0] if name != "chosen"]
    for record in records:
        metrics = (record["metrics"] or {}).items()
        record["metrics"] = ";".join(f"{name}={value}" for name, value in metrics)
        for name in ("interval", "test_interval"):
            record[name] = " to ".join(map(str, record[name] or ()))
    write_csv(output / "records.csv", records, columns)


def _subject(study: Study, records: Sequence[RunRecord]) -> str:
    """The study, the variant and the backbone if there is one, and the day of the last result."""
    variants = {run.arm.get("variant") for run in records}
    backbones = {short_name(run.arm["backbone"]) for run in records}
    groups = [group.pop() for group in (variants, backbones) if len(group) == 1]
    last = max((run.finished for run in records), default=0.0)
    day = datetime.fromtimestamp(last, UTC).date().isoformat() if last else ""
    return ", ".join(part for part in (study.config.name, *groups, day) if part)


def _benchmarks(study: StudyConfig) -> dict[str, Sequence[str]]:
    """The benchmarks among the targets, such as GLUE; with several, each gets a mean."""
    named: dict[str, Sequence[str]] = {
        str(entry): BENCHMARKS[str(entry)]
        for _, grid in study.grids()
        for entry in grid.targets
        if str(entry) in BENCHMARKS
    }
    return named if any(len(grid.targets) > 1 for _, grid in study.grids()) else {}


def _write_figures(
    study: Study,
    runs: Runs,
    table: Sequence[ScoreRow],
    parameters: Mapping[str, int],
    output: Path,
) -> list[str]:
    """Write scores by target and by model size as figures; the Markdown that shows them."""
    tasks = [task for run in runs.records for task in (run.arm.get("source"), run.task) if task]
    subject, names = _subject(study, runs.records), plain_names(dict.fromkeys(tasks))
    baselines = [row for row in table if row["source"] is None]
    transfers = len(baselines) < len(table)
    shown = []
    if any(spread for row in baselines for spread in row["targets"].values()):
        majorities = {
            run.task: run.majority[runs.split(run)]
            for run in runs.records
            if run.stage == "baseline" and runs.split(run) in run.majority
        }
        save(score_by_target(baselines, majorities, names, subject, transfers), output, "targets")
        shown.append("![score by target](targets.png)\n")
    if len({row["backbone"] for row in table}) > 1:
        rows = by_size(table, parameters)
        split = rows_of([split for row in table for split in row["splits"].values()])
        save(score_by_size(rows, names, f"{subject}, {split}"), output, "sizes")
        write_json(output / "sizes.json", rows)
        write_csv(output / "sizes.csv", rows, list(rows[0]))
        shown.append("![score by model size](sizes.png)\n")
    return shown


def _transfer_inputs(
    records: Sequence[RunRecord], runs: Runs, folder: StudyFolder
) -> tuple[list[StudyRecord], list[StudyRecord], list[StudyRecord]]:
    """Records, task embeddings and retrieval runs for `write_report`."""
    scores: list[StudyRecord] = [
        {
            "source": run.task if run.stage == "source" else run.arm.get("source"),
            "target": None if run.stage == "source" else run.task,
            "seed": run.seed,
            "metric": run.metric,
            "score": runs.score(run),
            "majority": run.majority.get(runs.split(run)),
            "rows": run.rows.get(runs.split(run)),
            "split": runs.split(run),
            "selection": run.scores.get("validation"),
            "row_scores": runs.row_scores(run),
        }
        for run in records
        if run.stage in ("source", *ON_TARGETS)
    ]
    embeddings: list[StudyRecord] = [
        {"task": run.task, "seed": run.seed, "vectors": task_embedding(folder, run.name)}
        for run in records
        if run.stage in ("source", "baseline") and _has_vectors(folder.cell(run.name))
    ]
    retrieval: list[StudyRecord] = [
        {name: run.arm.get(name) for name in ("similarity", "k")}
        | {"target": run.task, "seed": run.seed, "method": run.stage, "score": runs.score(run)}
        for run in records
        if run.stage in ("average", "mixture")
    ]
    return scores, embeddings, retrieval


def _has_vectors(cell: CellFolder) -> bool:
    """Whether a cell left a prompt that can be compared; a hand-written one has no vectors."""
    return cell.has_prompt and cell.card().prompt.length > 0
