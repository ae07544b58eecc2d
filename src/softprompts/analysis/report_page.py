"""The page of a transfer study's report: what it found, and its tables as Markdown."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from .markup import WEAK, markdown_table
from .spread import SIGNIFICANCE, number, paired_text, plus_minus, significant
from .tables import scored_on

Summary = dict[str, Any]
TableRow = dict[str, Any]


def verdicts(summary: Summary) -> list[str]:
    """What the study says about the paper's claims, for the targets that are not too weak."""
    targets = summary["targets"]
    strong = [row["target"] for row in targets if not row["weak"]]
    weak = [row["target"] for row in targets if row["weak"] and row["baseline"] is not None]
    unfinished = [row["target"] for row in targets if row["baseline"] is None]
    score = "baseline" if summary["sources"] else "score"
    left_out = f" Too weak, and left out: {', '.join(weak)}." if weak else ""
    if unfinished:
        left_out += f" Without a {score} yet, and left out: {', '.join(unfinished)}."
    if not strong:
        return [
            f"No target's {score} beats the majority class by more than two standard errors, so "
            f"there is no verdict.{left_out}"
        ]
    sentences = [f"Verdicts are based on {len(strong)} of {len(targets)} targets.{left_out}"]
    cells = [
        row
        for row in summary["transfer"]
        if not row["weak"]
        and row["relative_error_reduction"] is not None
        and row["source"] != row["target"]
    ]
    if cells:
        sentences.append(_transfer_verdict(cells))
    sentences += [
        _correlation_verdict(name, rows) for name, rows in summary["correlations"].items()
    ]
    return sentences + _retrieval_verdicts(summary)


def _transfer_verdict(cells: Sequence[TableRow]) -> str:
    better = [row for row in cells if row["relative_error_reduction"] > 0]
    worse = [row for row in cells if row["relative_error_reduction"] < 0]
    tested = [row for row in cells if row["p"] is not None or row["p_paired"] is not None]
    best = [
        max(row["relative_error_reduction"] for row in cells if row["target"] == target)
        for target in {row["target"] for row in cells}
    ]
    test = "Welch's t" if any(row["p"] is not None for row in cells) else "paired tests"
    return (
        f"Starting from another task's prompt raised the mean score in {len(better)} of "
        f"{len(cells)} cells, in {sum(row['clear'] for row in better)} of them at "
        f"p < {SIGNIFICANCE} ({test}), and lowered it at this level in "
        f"{sum(row['clear'] for row in worse)}; chance alone gives at most about "
        f"{SIGNIFICANCE / 2 * len(tested):.1f} each way. Each target's best source, chosen by "
        f"these scores, cut its errors by {fmean(best):.1f} % on average."
    )


def _correlation_verdict(name: str, rows: Sequence[TableRow]) -> str:
    known = [row for row in rows if not row["weak"] and row["pearson"] is not None]
    clear = [row for row in known if significant(row["pearson_p"])]
    positive = [row["target"] for row in clear if row["pearson"] > 0]
    negative = [row["target"] for row in clear if row["pearson"] <= 0]
    over_sources = sum(significant(row["pearson_of_sources_p"]) for row in known)
    return (
        f"{name}: similarity and error reduction correlate at p < {SIGNIFICANCE} on "
        f"{len(clear)} of {len(known)} targets (positively: {', '.join(positive) or 'none'}; "
        f"negatively: {', '.join(negative) or 'none'}), and over the sources' means on "
        f"{over_sources}."
    )


def _retrieval_verdicts(summary: Summary) -> list[str]:
    rows = {(row["method"], row["similarity"], row["k"]): row for row in summary["retrieval"]}
    changes = {
        method: f"{row['change']:+z.1f}{paired_text(row, ' ({})')}"
        for method, row in rows.items()
        if row["change"] is not None
    }
    random, oracle = ("best of k at random", None, 1), ("oracle", None, None)
    nearest = {name: ("best of top-k", name, 1) for name in summary["similarities"]}
    return [
        f"{name}: the most similar source prompt changes the mean score by {changes[method]}, a "
        f"random one by {changes[random]}, the best one by {changes[oracle]}."
        for name, method in nearest.items()
        if {method, random, oracle} <= changes.keys()
    ]


def page(summary: Summary) -> str:
    missing, expected = sum(summary["missing"].values()), summary["expected"]
    kind = "baselines and cells" if summary["sources"] else "runs"
    progress = f"{expected - missing} of {expected} {kind} are finished"
    parts = [
        "# Transfer between tasks" if summary["sources"] else "# Scores of the targets",
        progress + (f"; {missing} are missing and left empty." if missing else "."),
        scored_on({row["target"]: row["split"] for row in summary["targets"]}) + ".",
        *summary["verdicts"],
    ]
    if any(row["score"] is not None for row in summary["sources"]):
        parts += ["## Sources", _tasks_table(summary["sources"], "source", "score")]
    parts += [
        "## Targets",
        _tasks_table(
            summary["targets"], "target", "baseline", None if summary["sources"] else "score"
        ),
        "Too weak: not above the majority class by two standard errors, over seeds and over rows.",
    ]
    if summary["transfer"]:
        parts += [
            "## Relative error reduction (%)",
            "![sources x targets](transfer.png)",
            _transfer_table(summary),
            "## Differences from the baseline",
            _differences_table(summary["transfer"]),
            "p (paired): of the means over seeds on the same rows; over seeds where predictions "
            "were not saved. p (seeds): Welch's t, which also counts the chance in training.",
        ]
    for name, similarity in summary["similarities"].items():
        if len(similarity["tasks"]) > 1:
            parts += [
                f"## Task embeddings: {name.replace('_', ' ')}",
                f"![clusters](clusters-{name}.png)",
            ]
    for name, rows in summary["correlations"].items():
        parts += [
            f"## Similarity against transfer: {name.replace('_', ' ')}",
            f"![scatter](correlation-{name}.png)",
            _correlations_table(rows),
            "Prompts of one source are not independent, so p over prompts is too small; the means "
            "have one point for each source.",
        ]
    retrieval = _retrieval_section(summary) if summary["sources"] else []
    return "\n\n".join([*parts, *retrieval]) + "\n"


def _retrieval_section(summary: Summary) -> list[str]:
    weak = [row["weak"] for row in summary["targets"]]
    splits = {row["split"] for row in summary["targets"]}
    parts = []
    if not all(weak):
        which = ", targets that are not too weak" if any(weak) else ""
        parts += [f"## Retrieval{which}", _retrieval_table(summary["retrieval"])]
    if any(weak):
        parts += [
            "## Retrieval, all targets",
            _retrieval_table(summary["retrieval_of_all_targets"]),
        ]
    choice = (
        "The best of k, the best single source and the oracle are chosen on the validation rows. "
        "Where these are also the rows of the score, they rise with the number of tries by chance "
        "alone: compare the best of top-k with the expected best of k at random."
    )
    return [
        *parts,
        "Means over targets ± standard deviation over seeds; p is of paired tests of the change. "
        "Every score, including the baselines, is that of a run's best evaluation on the "
        f"validation rows{', measured on the test rows' if 'test' in splits else ''}. {choice}",
    ]


def _tasks_table(rows: Sequence[TableRow], kind: str, score: str, title: str | None = None) -> str:
    """`score` is the key of the scores, and their column's title if there is no other."""
    splits = {row["split"] for row in rows}
    cells = [
        [
            row[kind],
            _plus_minus(row, score),
            row["metric"] or "",
            number(row["majority"]),
            str(row["rows"] or "") + (f" ({row['split']})" if len(splits) > 1 else ""),
            number(row["standard_error"]),
            "not finished" if row[score] is None else "too weak" if row["weak"] else "",
        ]
        for row in rows
    ]
    rows_of = f"{splits.pop()} rows" if len(splits) == 1 else "rows"
    return markdown_table(
        [kind, title or score, "metric", "majority class", rows_of, "standard error", ""], cells
    )


def _transfer_table(summary: Summary) -> str:
    reductions = {
        (row["source"], row["target"]): row["relative_error_reduction"]
        for row in summary["transfer"]
    }
    targets = [row["target"] for row in summary["targets"]]
    rows = [
        [row["source"], *(number(reductions[row["source"], target]) for target in targets)]
        for row in summary["sources"]
    ]
    return markdown_table(["source", *targets], rows)


def _differences_table(rows: Sequence[TableRow]) -> str:
    cells = [
        [
            row["source"],
            row["target"] + (WEAK if row["weak"] else ""),
            _plus_minus(row, "score"),
            f"{row['change']:+z.1f}",
            paired_text(row),
            str(row["seeds"]),
            number(row["p"], 3),
        ]
        for row in rows
        if row["change"] is not None
    ]
    return markdown_table(
        ["source", "target", "score", "change", "p (paired)", "seeds", "p (seeds)"], cells
    )


def _correlations_table(rows: Sequence[TableRow]) -> str:
    columns = [
        ("Pearson r", "pearson", 2),
        ("p", "pearson_p", 4),
        ("Spearman rho", "spearman", 2),
        ("p", "spearman_p", 4),
        ("sources", "sources", 0),
        ("Pearson r of their means", "pearson_of_sources", 2),
        ("p", "pearson_of_sources_p", 4),
    ]
    cells = [
        [
            row["target"] + (WEAK if row["weak"] else ""),
            str(row["points"]),
            *(number(row[name], digits) for _, name, digits in columns),
        ]
        for row in rows
    ]
    return markdown_table(["target", "source prompts", *(title for title, _, _ in columns)], cells)


def _retrieval_table(rows: Sequence[TableRow]) -> str:
    spreads = {
        "score": "score",
        "change": "change",
        "relative error reduction (%)": "relative_error_reduction",
    }
    cells = [
        [
            row["method"] + (f" ({row['source']})" if row["source"] else ""),
            (row["similarity"] or "").replace("_", " "),
            str(row["k"] or ""),
            *(_plus_minus(row, name) for name in spreads.values()),
            paired_text(row),
            str(row["targets"]),
            str(row["missing"] or ""),
        ]
        for row in rows
    ]
    columns = ["method", "similarity", "k", *spreads, "p (paired)", "targets", "missing cells"]
    return markdown_table(columns, cells)


def _plus_minus(row: TableRow, name: str) -> str:
    known = row[name] is not None
    return plus_minus({"mean": row[name], "std": row[f"{name}_std"]} if known else None)
