"""The report of a study: records, table of scores, figure of model sizes, analysis of transfers."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from ..artifacts.study_folder import CellFolder, CellResult, StudyFolder
from ..files import safe_name, write_json, write_text
from ..study.cells import check_fingerprints, score_fields, task_embedding
from ..study.config import StudyConfig
from ..study.state import StudyState
from ..study.study import Study
from ..study.tables import (
    Judged,
    ScoreRow,
    all_results,
    as_csv,
    as_record,
    judge,
    markdown,
    rows_of,
    score_table,
)
from ..tasks import BENCHMARKS
from ..tasks.plain_names import plain_names
from .heatmaps import check, save
from .report import write_report
from .retrieval import KS
from .sizes import by_size, score_by_size, score_by_target, short_name
from .transfer import StudyRecord
from .variants import Difference, Record, differences_markdown, variant_differences


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
    results = [_with_test(result, folder) for result in all_results(cells, state)]
    judged, benchmarks = judge(results), _benchmarks(study.config)
    table, validation = score_table(judged, benchmarks), list[ScoreRow]()
    if any("test" in row["splits"].values() for row in table):
        validation = score_table(judge(results, "validation"), benchmarks)
        write_json(output / "validation_scores.json", validation)
    _write_records(judged, output)
    write_text(output / "plan.yaml", folder.study_file.read_text(encoding="utf-8"))
    write_json(output / "scores.json", table)
    tables = [markdown(part) for part in (table, validation) if part]
    differences = variant_differences(_finished_runs(judged, folder))
    if differences:
        write_json(output / "variants.json", differences)
        write_text(output / "variants.csv", as_csv(differences, list(differences[0])))
        tables.append(differences_markdown(differences))
    write_text(
        output / "scores.md", "\n".join([*tables, *_write_figures(study, judged, table, output)])
    )
    ks = {variant: grid.retrieval.best for variant, grid in study.config.grids()}
    groups = list(dict.fromkeys((cell.variant, cell.backbone) for cell in cells))
    analyses: dict[str, Any] = {}
    for group in groups:
        members = [cell for cell in cells if (cell.variant, cell.backbone) == group]
        if any(cell.target is not None and not cell.trains_model for cell in members):
            name = "/".join(safe_name(part) for part in group if part is not None)
            part = [one for one in judged if (one.result.variant, one.result.backbone) == group]
            analyses[name] = write_report(
                *_transfer_inputs(part, folder),
                output / name if len(groups) > 1 else output,
                ks[group[0]] or KS,
                _machines(part),
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


def _finished_runs(judged: Sequence[Judged], folder: StudyFolder) -> list[Record]:
    """The runs on targets that variants are compared by."""
    records: list[Record] = []
    names = ("backbone", "variant", "source", "target", "seed")
    for one in judged:
        result, cell = one.result, folder.cell(one.result.cell)
        if result.stage in ("baseline", "transfer") and one.score is not None:
            digests = cell.card().task.digests if cell.has_prompt else {}
            digest = digests.get(one.split, digests.get("validation"))
            records.append(
                {name: getattr(result, name) for name in names}
                | {"score": one.score, "digest": digest, "row_scores": cell.row_scores(one.split)}
            )
    return records


def _with_test(result: CellResult, folder: StudyFolder) -> CellResult:
    """A result with its test score, which older versions wrote to the prompt's card alone."""
    cell = folder.cell(result.cell)
    if result.score is None or result.test is not None or not cell.has_prompt:
        return result
    fields = score_fields(cell.card())
    return result if fields["test"] is None else dataclasses.replace(result, **fields)


def _write_records(results: Sequence[Judged], output: Path) -> None:
    records = [as_record(judged) for judged in results]
    write_json(output / "records.json", records)
    columns = [name for name in records[0] if name != "chosen"]
    for record in records:
        metrics = (record["metrics"] or {}).items()
        record["metrics"] = ";".join(f"{name}={value}" for name, value in metrics)
        for name in ("interval", "test_interval"):
            record[name] = " to ".join(map(str, record[name] or ()))
    write_text(output / "records.csv", as_csv(records, columns))


def _machines(results: Sequence[Judged]) -> list[Mapping[str, str]]:
    """The machines that the cells ran on, each once; older results have none."""
    machines = [one.result.machine for one in results if one.result.machine is not None]
    return [machine for i, machine in enumerate(machines) if machine not in machines[:i]]


def _subject(study: Study, judged: Sequence[Judged]) -> str:
    """The study, the variant and the backbone if there is one, and the day of the last result."""
    results = [one.result for one in judged]
    variants = {result.variant for result in results}
    backbones = {short_name(str(result.backbone)) for result in results}
    groups = [group.pop() for group in (variants, backbones) if len(group) == 1]
    last = max((result.finished for result in results), default=0.0)
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
    study: Study, judged: Sequence[Judged], table: Sequence[ScoreRow], output: Path
) -> list[str]:
    """Write scores by target and by model size as figures; the Markdown that shows them."""
    tasks = [task for one in judged for task in (one.result.source, one.result.target) if task]
    subject, names = _subject(study, judged), plain_names(dict.fromkeys(tasks))
    baselines = [row for row in table if row["source"] is None]
    transfers = len(baselines) < len(table)
    shown = []
    if any(spread for row in baselines for spread in row["targets"].values()):
        majorities = {
            str(one.result.target): one.majority
            for one in judged
            if one.result.stage == "baseline" and one.majority is not None
        }
        save(score_by_target(baselines, majorities, names, subject, transfers), output, "targets")
        shown.append("![score by target](targets.png)\n")
    if len({row["backbone"] for row in table}) > 1:
        results = [one.result for one in judged]
        rows = by_size(table, {str(r.backbone): r.parameters for r in results if r.parameters})
        split = rows_of([split for row in table for split in row["splits"].values()])
        save(score_by_size(rows, names, f"{subject}, {split}"), output, "sizes")
        write_json(output / "sizes.json", rows)
        write_text(output / "sizes.csv", as_csv(rows, list(rows[0])))
        shown.append("![score by model size](sizes.png)\n")
    return shown


def _transfer_inputs(
    judged: Sequence[Judged], folder: StudyFolder
) -> tuple[list[StudyRecord], list[StudyRecord], list[StudyRecord]]:
    """Records, task embeddings and retrieval runs for `write_report`."""
    runs: list[StudyRecord] = [
        {name: getattr(one.result, name) for name in ("source", "target", "seed", "metric")}
        | {name: getattr(one, name) for name in ("score", "majority", "rows", "split")}
        | {
            "selection": one.result.score,
            "row_scores": folder.cell(one.result.cell).row_scores(one.split),
        }
        for one in judged
        if one.result.stage in ("source", "baseline", "transfer")
    ]
    embeddings: list[StudyRecord] = [
        {
            "task": result.source or result.target,
            "seed": result.seed,
            "vectors": task_embedding(folder, result.cell),
        }
        for result in (one.result for one in judged)
        if result.stage in ("source", "baseline") and _has_vectors(folder.cell(result.cell))
    ]
    retrieval: list[StudyRecord] = [
        {name: getattr(one.result, name) for name in ("similarity", "k", "target", "seed")}
        | {"method": one.result.stage, "score": one.score}
        for one in judged
        if one.result.stage in ("average", "mixture")
    ]
    return runs, embeddings, retrieval


def _has_vectors(cell: CellFolder) -> bool:
    """Whether a cell left a prompt that can be compared; a hand-written one has no vectors."""
    return cell.has_prompt and cell.card().prompt.length > 0
