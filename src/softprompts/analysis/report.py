"""The report of a transfer study: tables as CSV and JSON, figures as PNG and SVG, a page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import write_csv, write_json, write_text
from ..library.search import SIMILARITIES
from ..tasks.plain_names import plain_names
from . import heatmaps
from .report_page import Summary, TableRow, page, verdicts
from .retrieval import KS, MethodResult, retrieval_table
from .spread import Spread, TaskScore, paired_columns
from .tables import rows_of
from .transfer import Correlation, Scores, Similarities, StudyRecord, correlation

METHOD_NAMES = {"average": "weighted average of top-k", "mixture": "multi-task mixture of top-k"}


def write_report(
    records: Iterable[StudyRecord],
    embeddings: Sequence[StudyRecord],
    retrieval: Iterable[StudyRecord],
    folder: Path,
    ks: Sequence[int] = KS,
    machines: Sequence[Mapping[str, str]] = (),
    subject: str = "",
) -> Summary:
    """Write the tables and figures of a study into the folder; the summary as plain data, with the
    page under `markdown`.

    `analysis.transfer` and `analysis.retrieval` describe `records`, `embeddings` and `retrieval`,
    which belong to one backbone. Unfinished cells stay empty. The study ran on `machines`.
    `subject` is part of the figures' titles, such as the names of study and model and the date.
    """
    scores = Scores(records)
    similarities = [Similarities(embeddings, name) for name in SIMILARITIES] if embeddings else []
    correlations = {
        similarity.name: [correlation(scores, similarity, target) for target in scores.targets]
        for similarity in similarities
        if scores.sources
    }
    summary: Summary = {
        "seeds": scores.seeds,
        "sources": [_task_row("source", "score", task) for task in scores.source_scores.values()],
        "expected": scores.expected,
        "missing": scores.missing,
        "targets": [_task_row("target", "baseline", task) for task in scores.targets.values()],
        "transfer": [
            {
                "source": cell.source,
                "target": cell.target,
                "weak": scores.targets[cell.target].weak,
                **_spread_columns("score", cell.score),
                "change": _rounded(cell.change),
                "relative_error_reduction": _rounded(cell.reduction and cell.reduction.mean),
                "relative_error_reduction_standard_error": _rounded(
                    cell.reduction and cell.reduction.standard_error
                ),
                "p": _rounded(cell.p),
                "clear": cell.significant,
                **paired_columns(cell.paired),
            }
            for cell in scores.cells
        ],
        "similarities": {
            similarity.name: {"tasks": similarity.tasks, "matrix": _rounded(similarity.matrix())}
            for similarity in similarities
        },
        "correlations": {
            name: [
                {"target": result.target, "weak": scores.targets[result.target].weak}
                | _rounded(asdict(result))
                | {"points": len(result.points)}
                for result in results
            ]
            for name, results in correlations.items()
        },
        **_retrieval_tables(scores, similarities, list(retrieval), ks),
    }
    if machines:
        summary["machines"] = [dict(machine) for machine in machines]
    summary["verdicts"] = verdicts(summary)
    summary["files"] = _write_files(scores, similarities, correlations, summary, folder, subject)
    markdown = page(summary)
    write_text(folder / "report.md", markdown)
    write_json(folder / "report.json", summary)
    return {**summary, "markdown": markdown}


def _retrieval_tables(
    scores: Scores,
    similarities: Sequence[Similarities],
    retrieval: Sequence[StudyRecord],
    ks: Sequence[int],
) -> dict[str, list[TableRow]]:
    """Over the targets that are not too weak, over all, and by target."""
    everything = list(scores.targets) if scores.sources else []
    strong = [name for name, target in scores.targets.items() if not target.weak]

    def table(targets: Sequence[str], chosen_by: Sequence[str] = ()) -> list[TableRow]:
        results = retrieval_table(scores, similarities, retrieval, targets, ks, chosen_by)
        return [_method_row(result) for result in results]

    return {
        "retrieval": table(strong),
        "retrieval_of_all_targets": table(everything),
        "retrieval_by_target": [
            {"target": target, **row}
            for target in everything
            for row in table([target], chosen_by=strong or everything)
        ],
    }


def _task_row(kind: str, score: str, task: TaskScore) -> TableRow:
    return {
        kind: task.name,
        **_spread_columns(score, task.score),
        "metric": task.metric,
        "majority": _rounded(task.majority),
        "rows": task.rows,
        "split": task.split,
        "standard_error": _rounded(task.standard_error),
        "weak": task.weak,
    }


def _method_row(result: MethodResult) -> TableRow:
    return {
        "method": METHOD_NAMES.get(result.method, result.method),
        "similarity": result.similarity,
        "k": result.k,
        "source": result.source,
        "targets": result.targets,
        **_mean_and_std("score", result.score),
        **_mean_and_std("change", result.change),
        **_mean_and_std("relative_error_reduction", result.reduction),
        "missing": result.missing,
        **paired_columns(result.paired),
    }


def _mean_and_std(name: str, value: Spread | None) -> TableRow:
    return {name: _rounded(value and value.mean), f"{name}_std": _rounded(value and value.std)}


def _spread_columns(name: str, value: Spread | None) -> TableRow:
    return {
        **_mean_and_std(name, value),
        f"{name}_standard_error": _rounded(value and value.standard_error),
        "seeds": value.runs if value else 0,
    }


def _rounded(value: Any) -> Any:
    """The value with all its numbers rounded to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


def _write_files(
    scores: Scores,
    similarities: Sequence[Similarities],
    correlations: Mapping[str, Sequence[Correlation]],
    summary: Summary,
    folder: Path,
    subject: str,
) -> list[str]:
    split = rows_of([target.split for target in scores.targets.values()])
    subtitle = "\n" + ", ".join(filter(None, (subject, split)))
    names = plain_names(dict.fromkeys([*scores.sources, *scores.targets]))
    weak = [name for name, target in scores.targets.items() if target.weak]
    tables = {"targets": summary["targets"]}
    figures = {}
    if scores.sources:
        retrieval = ("retrieval", "retrieval_of_all_targets", "retrieval_by_target")
        tables |= {name: summary[name] for name in ("sources", "transfer")}
        tables |= {name.replace("_", "-"): summary[name] for name in retrieval}
        title = f"Relative error reduction (%) against the target's baseline{subtitle}"
        figures["transfer"] = heatmaps.error_reductions(
            scores.reductions(), scores.sources, list(scores.targets), weak, title, names
        )
    for similarity in similarities:
        name, tasks, matrix = similarity.name, similarity.tasks, similarity.matrix()
        if len(tasks) > 1:
            title = f"Similarity of task embeddings ({name.replace('_', ' ')})\n{subject}".rstrip()
            figures[f"clusters-{name}"], tasks = heatmaps.clusters(
                matrix, tasks, title, plain_names(tasks)
            )
        order = {task: similarity.tasks.index(task) for task in tasks}
        tables[f"clusters-{name}"] = [
            {"task": task, **{other: _rounded(matrix[i][j]) for other, j in order.items()}}
            for task, i in order.items()
        ]
    for name, results in correlations.items():
        title = f"Similarity ({name.replace('_', ' ')}) against transfer{subtitle}"
        figures[f"correlation-{name}"] = heatmaps.scatters(results, title, weak, names)
        tables[f"correlation-{name}"] = summary["correlations"][name]
        tables[f"correlation-{name}-points"] = [
            {"target": result.target, **_rounded(asdict(point))}
            for result in results
            for point in result.points
        ]
    for name, rows in tables.items():
        write_csv(folder / f"{name}.csv", rows, list(rows[0]) if rows else [])
        write_json(folder / f"{name}.json", list(rows))
    files = [name for key, figure in figures.items() for name in heatmaps.save(figure, folder, key)]
    return [*files, *(f"{name}.{form}" for name in tables for form in ("csv", "json"))]
