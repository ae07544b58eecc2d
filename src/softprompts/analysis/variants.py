"""Variants of a study against each other: the same sources, targets and seeds, in paired tests."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from .compare import by_seed
from .markup import markdown_table
from .runs import RunRecord, Runs
from .spread import PairedTest, Pairs, grouped, paired_columns, paired_scores, paired_text
from .tables import ON_TARGETS

Difference = dict[str, Any]


def variant_differences(runs: Runs) -> list[Difference]:
    """How much each variant differs from each that stands before it, on every source and target
    that both have finished; and in the mean over targets, where there are several.

    A difference is between the means over the seeds of both. It is tested on the rows if both
    were scored on the same ones, and else over the seeds; a mean over targets over the targets.
    """
    finished = [
        run for run in runs.records if run.stage in ON_TARGETS and runs.score(run) is not None
    ]
    groups = grouped(((run.arm.get("backbone"), run.arm.get("source")), run) for run in finished)
    differences = []
    for (backbone, source), part in groups.items():
        variants = grouped((run.arm.get("variant"), run) for run in part)
        differences += [
            {"backbone": backbone, "source": source, "first": first, "second": second, **row}
            for first, second in combinations(variants, 2)
            for row in _on_targets(runs, variants[first], variants[second])
        ]
    return differences


def _on_targets(
    runs: Runs, one: Sequence[RunRecord], other: Sequence[RunRecord]
) -> list[Difference]:
    rows, means = [], list[tuple[float, float]]()
    for target in dict.fromkeys(run.task for run in one):
        first, second = by_seed(runs, one, target), by_seed(runs, other, target)
        seeds = [seed for seed in first if seed in second]
        if seeds:
            means.append(
                (fmean(first[s]["score"] for s in seeds), fmean(second[s]["score"] for s in seeds))
            )
            test = PairedTest.of(*paired_scores(first, second))
            rows.append(_row(target, means[-1:], len(seeds), test))
    if len(means) > 1:
        rows.append(_row(None, means, None, PairedTest.of("targets", means)))
    return rows


def _row(
    target: str | None, means: Pairs, seeds: int | None, test: PairedTest | None
) -> Difference:
    first, second = map(fmean, zip(*means, strict=True))
    return {
        "target": target,
        "first_score": round(first, 4),
        "second_score": round(second, 4),
        "change": round(second - first, 4),
        "seeds": seeds,
        **paired_columns(test),
    }


def differences_markdown(differences: Sequence[Difference]) -> str:
    several = [
        name
        for name in ("backbone", "source")
        if len({difference[name] for difference in differences}) > 1
    ]
    columns = ["variants", *several, "target", "scores", "change", "p (paired)"]
    lines = []
    for row in differences:
        shown = {"backbone": row["backbone"], "source": row["source"] or "(no transfer)"}
        lines.append(
            [
                f"{row['second']} against {row['first']}",
                *(str(shown[name]) for name in several),
                row["target"] or "(mean over targets)",
                f"{row['second_score']:.1f} against {row['first_score']:.1f}",
                f"{row['change']:+z.1f}",
                paired_text(row),
            ]
        )
    title = "Variants against each other, on the same seeds and rows:"
    return f"{title}\n\n{markdown_table(columns, lines)}\n"
