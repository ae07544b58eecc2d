"""The report of a transfer study: tables as CSV and JSON, figures as PNG and SVG, a page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import write_json, write_text
from ..library.search import SIMILARITIES
from ..study.tables import as_csv
from . import heatmaps
from .report_page import Summary, TableRow, page, verdicts
from .retrieval import KS, MethodResult, retrieval_table
from .task_names import plain_names
from .transfer import Correlation, Scores, Similarities, Spread, StudyRecord, TaskScore, correlation

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
    heatmaps.check()
    scores = Scores(records)
    if not scores.targets:
        raise UserError("There are no records of this study yet; run it first.")
    similarities = [Similarities(embeddings, name) for name in SIMILARITIES] if embeddings else []
    correlations = {
        similarity.name: [correlation(scores, similarity, target) for target in scores.targets]
        for similarity in similarities
    }
    summary: Summary = {
        "seeds": scores.seeds,
        "sources": [_task_row("source", "score", task) for task in scores.source_scores.values()],
        "expected": scores.expected,
        "missing": scores.missing,
        "targets": [_task_row("target", "baseline", task) for task in scores.targets.values()],
        "transfer": _transfer_rows(scores),
        "similarities": {
            similarity.name: {"tasks": similarity.tasks, "matrix": _rounded(similarity.matrix())}
            for similarity in similarities
        },
        "correlations": {
            name: [_correlation_row(scores, result) for result in results]
            for name, results in correlations.items()
        },
        **_retrieval_tables(scores, similarities, list(retrieval), ks),
    }
    if machines:
        summary["machines"] = [dict(machine) for machine in machines]
    summary["verdicts"] = verdicts(summary)
    summary["files"] = _write_files(
        scores, similarities, correlations, summary, folder, subject and f"\n{subject}"
    )
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
    everything = list(scores.targets)
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
        "standard_error": _rounded(task.standard_error),
        "weak": task.weak,
    }


def _transfer_rows(scores: Scores) -> list[TableRow]:
    return [
        {
            "source": cell.source,
            "target": cell.target,
            "weak": scores.targets[cell.target].weak,
            **_spread_columns("score", cell.score),
            "relative_error_reduction": _rounded(cell.reduction and cell.reduction.mean),
            "relative_error_reduction_standard_error": _rounded(
                cell.reduction and cell.reduction.standard_error
            ),
            "p": _rounded(cell.p),
            "clear": cell.significant,
        }
        for cell in scores.cells
    ]


def _correlation_row(scores: Scores, result: Correlation) -> TableRow:
    weak = scores.targets[result.target].weak
    numbers = {**_rounded(asdict(result)), "points": len(result.points)}
    return {"target": result.target, "weak": weak} | numbers


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
    subtitle: str,
) -> list[str]:
    weak = [name for name, target in scores.targets.items() if target.weak]
    files = _write_table(folder, "targets", summary["targets"])
    if scores.sources:
        files += _write_table(folder, "sources", summary["sources"])
        reductions = {(cell.source, cell.target): cell.reduction for cell in scores.cells}
        values = [
            [spread.mean if (spread := reductions[s, t]) else None for t in scores.targets]
            for s in scores.sources
        ]
        names = plain_names([*scores.sources, *scores.targets])
        figure = heatmaps.error_reductions(
            values,
            [names[source] for source in scores.sources],
            [names[target] for target in scores.targets],
            [names[target] for target in weak],
            f"Relative error reduction (%) against the target's baseline{subtitle}",
        )
        files += heatmaps.save(figure, folder, "transfer")
        files += _write_table(folder, "transfer", summary["transfer"])
    for similarity in similarities:
        name = similarity.name
        files += _write_clusters(similarity, folder, subtitle)
        files += _write_scatters(name, correlations[name], weak, folder, subtitle)
        files += _write_table(folder, f"correlation-{name}", summary["correlations"][name])
    for name in ("retrieval", "retrieval_of_all_targets", "retrieval_by_target"):
        files += _write_table(folder, name.replace("_", "-"), summary[name])
    return files


def _write_clusters(similarities: Similarities, folder: Path, subtitle: str) -> list[str]:
    tasks, matrix, files = similarities.tasks, similarities.matrix(), []
    name, names = f"clusters-{similarities.name}", list(plain_names(tasks).values())
    order = names
    if len(tasks) > 1:
        title = f"Similarity of task embeddings ({similarities.name.replace('_', ' ')}){subtitle}"
        figure, order = heatmaps.clusters(matrix, names, title)
        files = heatmaps.save(figure, folder, name)
    indices = [names.index(task) for task in order]
    rows = [
        {"task": tasks[i], **{tasks[j]: _rounded(matrix[i][j]) for j in indices}} for i in indices
    ]
    return files + _write_table(folder, name, rows)


def _write_scatters(
    similarity: str,
    correlations: Sequence[Correlation],
    weak: Sequence[str],
    folder: Path,
    subtitle: str,
) -> list[str]:
    title = f"Similarity ({similarity.replace('_', ' ')}) against transfer{subtitle}"
    name = f"correlation-{similarity}"
    sources = {point.source for result in correlations for point in result.points}
    names = plain_names(sorted({result.target for result in correlations} | sources))
    renamed = [
        replace(
            result,
            target=names[result.target],
            points=tuple(replace(p, source=names[p.source]) for p in result.points),
        )
        for result in correlations
    ]
    figure = heatmaps.scatters(renamed, title, [names[target] for target in weak])
    files = heatmaps.save(figure, folder, name)
    points = [
        {"target": result.target, **_rounded(asdict(point))}
        for result in correlations
        for point in result.points
    ]
    return files + _write_table(folder, f"{name}-points", points)


def _write_table(folder: Path, name: str, rows: Sequence[TableRow]) -> list[str]:
    write_text(folder / f"{name}.csv", as_csv(rows, list(rows[0]) if rows else []))
    write_json(folder / f"{name}.json", list(rows))
    return [f"{name}.csv", f"{name}.json"]
