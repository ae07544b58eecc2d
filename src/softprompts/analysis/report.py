"""The report of a transfer study: every number as CSV and JSON, every picture as PNG and SVG, and a page that tells it all."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import UserError
from ..files import write_json, write_text
from ..library.search import SIMILARITIES
from . import heatmaps
from .retrieval import KS, Method, retrieval_table
from .transfer import SURE, Correlation, Record, Scores, Similarities, Spread, Task, correlation

Row = dict[str, Any]
TOLD = {"average": "weighted average of top-k", "mixture": "multi-task mixture of top-k"}


def write_report(
    records: Iterable[Record],
    embeddings: Sequence[Record],
    retrieval: Iterable[Record],
    folder: Path,
    ks: Sequence[int] = KS,
    machines: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Write the tables and pictures of a study into the folder; the summary as plain data, with the page under `markdown`.

    `records`, `embeddings` and `retrieval` are as `analysis.transfer` and `analysis.retrieval` tell, of one backbone. Cells that are not
    finished stay empty. `machines` is what they ran on.
    """
    heatmaps.check()
    scores = Scores(records)
    if not scores.targets:
        raise UserError("There are no records of this study yet; run it first.")
    similarities = [Similarities(embeddings, name) for name in SIMILARITIES] if embeddings else []
    correlations = {
        one.name: [correlation(scores, one, target) for target in scores.targets]
        for one in similarities
    }
    strong = [name for name, target in scores.targets.items() if not target.weak]
    retrieval = list(retrieval)
    judged = retrieval_table(scores, similarities, retrieval, strong, ks)
    everything = retrieval_table(scores, similarities, retrieval, list(scores.targets), ks)
    summary: dict[str, Any] = {
        "seeds": scores.seeds,
        "sources": [_task("source", "score", task) for task in scores.own.values()],
        "expected": scores.expected,
        "missing": scores.missing,
        "targets": [_task("target", "baseline", task) for task in scores.targets.values()],
        "transfer": _transfer(scores),
        "similarities": {
            one.name: {"tasks": one.tasks, "matrix": _plain(one.matrix())} for one in similarities
        },
        "correlations": {
            name: [_correlation(scores, one) for one in found]
            for name, found in correlations.items()
        },
        "retrieval": [_method(row) for row in judged],
        "retrieval_of_all_targets": [_method(row) for row in everything],
        "retrieval_by_target": [
            {"target": target, **_method(row)}
            for target in scores.targets
            for row in retrieval_table(
                scores,
                similarities,
                retrieval,
                [target],
                ks,
                chosen_by=strong or list(scores.targets),
            )
        ],
    }
    if machines:
        summary["machines"] = [dict(machine) for machine in machines]
    summary["verdicts"] = _verdicts(summary)
    summary["files"] = _write(scores, similarities, correlations, summary, folder)
    page = _page(summary)
    write_text(folder / "report.md", page)
    write_json(folder / "report.json", summary)
    return {**summary, "markdown": page}


def _task(kind: str, score: str, task: Task) -> Row:
    return {
        kind: task.name,
        **_spread(score, task.score),
        "metric": task.metric,
        "majority": _plain(task.majority),
        "rows": task.rows,
        "standard_error": _plain(task.error),
        "weak": task.weak,
    }


def _transfer(scores: Scores) -> list[Row]:
    return [
        {
            "source": cell.source,
            "target": cell.target,
            "weak": scores.targets[cell.target].weak,
            **_spread("score", cell.score),
            "relative_error_reduction": _plain(cell.reduction and cell.reduction.mean),
            "relative_error_reduction_standard_error": _plain(
                cell.reduction and cell.reduction.error
            ),
            "p": _plain(cell.p),
            "clear": cell.clear,
        }
        for cell in scores.cells
    ]


def _correlation(scores: Scores, found: Correlation) -> Row:
    told = {
        name: _plain(value)
        for name, value in asdict(found).items()
        if name not in ("target", "points")
    }
    return {
        "target": found.target,
        "weak": scores.targets[found.target].weak,
        "points": len(found.points),
        **told,
    }


def _method(row: Method) -> Row:
    told = {
        "method": TOLD.get(row.method, row.method),
        "similarity": row.similarity,
        "k": row.k,
        "source": row.source,
        "targets": row.targets,
    }
    spreads = {"score": row.score, "change": row.change, "relative_error_reduction": row.reduction}
    for name, value in spreads.items():
        told |= {name: _plain(value and value.mean), f"{name}_std": _plain(value and value.std)}
    return {**told, "missing": row.missing}


def _spread(name: str, value: Spread | None) -> Row:
    told = {
        name: value and value.mean,
        f"{name}_std": value and value.std,
        f"{name}_standard_error": value and value.error,
    }
    return {**_plain(told), "seeds": value.runs if value else 0}


def _plain(value: Any) -> Any:
    """Numbers of six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _verdicts(summary: Mapping[str, Any]) -> list[str]:
    """What the study says of the paper's claims, on the targets that are not too weak."""
    strong = [row["target"] for row in summary["targets"] if not row["weak"]]
    weak = [
        row["target"] for row in summary["targets"] if row["weak"] and row["baseline"] is not None
    ]
    unknown = [row["target"] for row in summary["targets"] if row["baseline"] is None]
    left = f" Too weak, and left out: {', '.join(weak)}." if weak else ""
    left += f" Without a baseline yet, and left out: {', '.join(unknown)}." if unknown else ""
    if not strong:
        return [
            f"No target's baseline is over the majority class by more than two standard errors, so there is no verdict.{left}"
        ]
    cells = [
        row
        for row in summary["transfer"]
        if not row["weak"]
        and row["relative_error_reduction"] is not None
        and row["source"] != row["target"]
    ]
    told = [f"Verdicts rest on {len(strong)} of {len(summary['targets'])} targets.{left}"]
    if cells:
        told.append(_transfer_verdict(cells))
    for name, found in summary["correlations"].items():
        known = [row for row in found if not row["weak"] and row["pearson"] is not None]
        sure = [row for row in known if _sure(row["pearson_p"])]
        with_it, against = (
            [row["target"] for row in sure if (row["pearson"] > 0) is positive]
            for positive in (True, False)
        )
        told.append(
            f"{name}: similarity and error reduction correlate at p < {SURE} on {len(sure)} of {len(known)} targets "
            f"(positively: {', '.join(with_it) or 'none'}; negatively: {', '.join(against) or 'none'}), and over the sources' means on "
            f"{sum(_sure(row['pearson_of_sources_p']) for row in known)}."
        )
    changes = {
        (row["method"], row["similarity"], row["k"]): row["change"] for row in summary["retrieval"]
    }
    by_chance, oracle = changes.get(("best of k at random", None, 1)), changes["oracle", None, None]
    for name in summary["similarities"]:
        nearest = changes.get(("best of top-k", name, 1))
        if nearest is not None and by_chance is not None and oracle is not None:
            told.append(
                f"{name}: the most similar source prompt changes the mean score by {nearest:+z.1f}, one at random by {by_chance:+z.1f}, "
                f"the best of all by {oracle:+z.1f}."
            )
    return told


def _sure(p: float | None) -> bool:
    return p is not None and p < SURE


def _transfer_verdict(cells: Sequence[Row]) -> str:
    up = [row for row in cells if row["relative_error_reduction"] > 0]
    clear, fell = (
        sum(row["clear"] for row in up),
        sum(row["clear"] for row in cells if row["relative_error_reduction"] < 0),
    )
    by_chance = SURE / 2 * sum(row["p"] is not None for row in cells)
    best: dict[str, float] = {}
    for row in cells:
        best[row["target"]] = max(
            row["relative_error_reduction"], best.get(row["target"], -math.inf)
        )
    return (
        f"Starting from another task's prompt raised the mean score in {len(up)} of {len(cells)} cells, in {clear} at p < {SURE} (Welch's "
        f"t), and lowered it as surely in {fell}, where chance alone gives at most about {by_chance:.1f} each way; each target's best "
        f"source, chosen by these scores, cut its errors by {fmean(best.values()):.1f} % on average."
    )


def _write(
    scores: Scores,
    similarities: Sequence[Similarities],
    correlations: Mapping[str, Sequence[Correlation]],
    summary: Mapping[str, Any],
    folder: Path,
) -> list[str]:
    """All tables and pictures; the names of their files."""
    weak = [name for name, target in scores.targets.items() if target.weak]
    files = _table(folder, "targets", summary["targets"])
    if scores.sources:
        files += _table(folder, "sources", summary["sources"])
        cells = {(cell.source, cell.target): cell.reduction for cell in scores.cells}
        values = [
            [found.mean if (found := cells[s, t]) else None for t in scores.targets]
            for s in scores.sources
        ]
        files += heatmaps.save(
            heatmaps.error_reductions(values, scores.sources, list(scores.targets), weak),
            folder,
            "transfer",
        )
        files += _table(folder, "transfer", summary["transfer"])
    for one in similarities:
        files += _write_clusters(one, folder)
        files += _write_scatters(one.name, correlations[one.name], weak, folder)
        files += _table(folder, f"correlation-{one.name}", summary["correlations"][one.name])
    for name in ("retrieval", "retrieval_of_all_targets", "retrieval_by_target"):
        files += _table(folder, name.replace("_", "-"), summary[name])
    return files


def _write_clusters(found: Similarities, folder: Path) -> list[str]:
    name, matrix, order = f"clusters-{found.name}", found.matrix(), found.tasks
    files = []
    if len(found.tasks) > 1:
        figure, order = heatmaps.clusters(
            matrix, found.tasks, f"Similarity of task embeddings ({found.name.replace('_', ' ')})"
        )
        files = heatmaps.save(figure, folder, name)
    places = [found.tasks.index(task) for task in order]
    return files + _table(
        folder,
        name,
        [
            {"task": found.tasks[i], **{found.tasks[j]: _plain(matrix[i][j]) for j in places}}
            for i in places
        ],
    )


def _write_scatters(
    similarity: str, found: Sequence[Correlation], weak: Sequence[str], folder: Path
) -> list[str]:
    figure = heatmaps.scatters(
        found, f"Similarity ({similarity.replace('_', ' ')}) against transfer", weak
    )
    points = [
        {"target": target.target, **_plain(asdict(point))}
        for target in found
        for point in target.points
    ]
    return heatmaps.save(figure, folder, f"correlation-{similarity}") + _table(
        folder, f"correlation-{similarity}-points", points
    )


def _table(folder: Path, name: str, rows: Sequence[Row]) -> list[str]:
    """The rows as CSV and JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / f"{name}.csv", text.getvalue())
    write_json(folder / f"{name}.json", list(rows))
    return [f"{name}.csv", f"{name}.json"]


def _page(summary: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lacking = sum(summary["missing"].values())
    done = (
        f"{summary['expected'] - lacking} of {summary['expected']} baselines and cells are finished"
    )
    parts = [
        "# Transfer between tasks",
        done + (f"; {lacking} are missing and left empty." if lacking else "."),
        *summary["verdicts"],
    ]
    if any(row["score"] is not None for row in summary["sources"]):
        parts += ["## Sources", _tasks(summary["sources"], "source", "score")]
    parts += ["## Targets", _tasks(summary["targets"], "target", "baseline")]
    parts.append(
        "Too weak: not over the majority class by two standard errors, which are over seeds and over validation rows."
    )
    if summary["transfer"]:
        reductions = {
            (row["source"], row["target"]): row["relative_error_reduction"]
            for row in summary["transfer"]
        }
        targets = [row["target"] for row in summary["targets"]]
        sources = [row["source"] for row in summary["sources"]]
        rows = [
            [source, *(_said(reductions[source, target], 1) for target in targets)]
            for source in sources
        ]
        parts += [
            "## Relative error reduction (%)",
            "![sources x targets](transfer.png)",
            _markdown(["source", *targets], rows),
        ]
    for name, found in summary["similarities"].items():
        if len(found["tasks"]) > 1:
            parts += [
                f"## Task embeddings: {name.replace('_', ' ')}",
                f"![clusters](clusters-{name}.png)",
            ]
    for name, told in summary["correlations"].items():
        rows = [
            [row["target"] + (heatmaps.WEAK if row["weak"] else ""), str(row["points"])]
            + [
                _said(row[key], 4 if key.endswith("_p") else 2)
                for key in ("pearson", "pearson_p", "spearman", "spearman_p")
            ]
            + [
                str(row["sources"]),
                _said(row["pearson_of_sources"], 2),
                _said(row["pearson_of_sources_p"], 4),
            ]
            for row in told
        ]
        parts += [
            f"## Similarity against transfer: {name.replace('_', ' ')}",
            f"![scatter](correlation-{name}.png)",
        ]
        heads = [
            "target",
            "source prompts",
            "Pearson r",
            "p",
            "Spearman rho",
            "p",
            "sources",
            "Pearson r of their means",
            "p",
        ]
        parts += [_markdown(heads, rows)]
        parts.append(
            "Prompts of one source are not independent, so p over prompts is too small; the means have one point for each source."
        )
    weak = [row["weak"] for row in summary["targets"]]
    if not all(weak):
        parts += [
            "## Retrieval" + (", the targets that are not too weak" if any(weak) else ""),
            _retrieval(summary["retrieval"]),
        ]
    if any(weak):
        parts += ["## Retrieval, all targets", _retrieval(summary["retrieval_of_all_targets"])]
    parts.append(
        "Means over targets ± standard deviation over seeds. Every score, the baselines' too, is that of a run's best evaluation on the "
        "validation rows. The best of k, the best single source and the oracle are chosen and told on the same rows, so they rise with "
        "the number of tries by chance alone: compare the best of k with the best of k drawn at random (its expectation)."
    )
    return "\n\n".join(parts) + "\n"


def _tasks(rows: Sequence[Row], kind: str, score: str) -> str:
    """Sources or targets, and which of them are too weak."""
    cells = [
        [
            row[kind],
            _pm(row, score, 1),
            row["metric"] or "",
            _said(row["majority"], 1),
            str(row["rows"] or ""),
            _said(row["standard_error"], 1),
            "not finished" if row[score] is None else "too weak" if row["weak"] else "",
        ]
        for row in rows
    ]
    return _markdown([kind, score, "metric", "majority class", "rows", "standard error", ""], cells)


def _retrieval(rows: Sequence[Row]) -> str:
    heads = [
        "method",
        "similarity",
        "k",
        "score",
        "change",
        "relative error reduction (%)",
        "targets",
        "missing cells",
    ]
    spreads = ("score", "change", "relative_error_reduction")
    return _markdown(
        heads,
        [
            [
                row["method"] + (f" ({row['source']})" if row["source"] else ""),
                (row["similarity"] or "").replace("_", " "),
                str(row["k"] or ""),
            ]
            + [_pm(row, name, 1) for name in spreads]
            + [str(row["targets"]), str(row["missing"] or "")]
            for row in rows
        ],
    )


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *rows]
    )


def _said(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:z.{digits}f}"


def _pm(row: Row, name: str, digits: int) -> str:
    spread = row[f"{name}_std"]
    return _said(row[name], digits) + ("" if spread is None else f" ± {_said(spread, digits)}")
