"""A transfer as text: which sources were chosen and why, and what came of it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..artifacts.transfer_folder import TransferRecord
from ..errors import counted, listing
from ..transfer.sources import SAME_TASK
from .output import aligned, format_interval, format_p, joined

RANKED = 10
"""Rows of the ranking to print, unless more sources were chosen."""


def describe_choice(record: TransferRecord) -> str:
    """The ranking, which sources were chosen and why, and which were left out."""
    left_out: dict[str, list[str]] = {}
    for source in record["left_out"]:
        left_out.setdefault(source["why"], []).append(source["name"])
    return joined(
        *_probe(record),
        *_ranking(record),
        *(
            f"left out: {listing(names)}: "
            + (reason if len(names) == 1 else re.sub("^it ", "each ", reason))
            + (" (--keep-same-task keeps it)" if reason == SAME_TASK else "")
            for reason, names in left_out.items()
        ),
        *_lengths(record),
        _reason(record),
    )


def _probe(record: TransferRecord) -> Iterator[str]:
    """How the target was compared, and what makes the similarities less reliable."""
    request, probe, ranked = record["request"], record["probe"], record["ranked"]
    if probe is None:
        return
    yield f"a probe of {probe['steps']} steps, compared by {request['similarity']}"
    steps = {source["step"] for source in ranked}
    if steps != {probe["steps"]}:
        known = [str(step) for step in sorted(step for step in steps if step)]
        unknown = ["unknown"] if len(known) < len(steps) else []
        yield (
            f"the sources were embedded at step{'s' * (len(steps) > 1)} "
            f"{', '.join([*known, *unknown])}; "
            "embeddings of the same step compare best"
        )
    if {source["seed"] for source in ranked} != {request["target"]["seed"]}:
        yield (
            "not all sources have the probe's seed; those that do start from the same tokens "
            "and look more similar"
        )


def _ranking(record: TransferRecord) -> Iterator[str]:
    chosen, ranked, weights = record["chosen"], record["ranked"], record["weights"] or {}
    rows = [["rank", "source", "task", "similarity", *(["weight"] if weights else []), "chosen"]]
    shown = ranked[: max(RANKED, len(chosen))]
    for rank, source in enumerate(shown, 1):
        name, similarity = source["name"], source["similarity"]
        rows.append(
            [
                *(str(rank), name, source["task"]),
                "-" if similarity is None else f"{similarity:.4f}",
                *([f"{weights[name]:.3f}" if name in weights else "-"] if weights else []),
                "yes" if name in chosen else "",
            ]
        )
    yield from aligned(rows)
    if len(ranked) > len(shown):
        yield f"... and {len(ranked) - len(shown)} more in choice.json"


def _lengths(record: TransferRecord) -> list[str]:
    """Sources that are longer or shorter than the target's prompt; a mixture starts from none."""
    if record["mixture"] is not None:
        return []
    length = record["request"]["target"]["prompt"]["length"]
    lengths = {source["name"]: source["length"] for source in record["ranked"]}
    longer, shorter = (
        f"its first {length} start the run",
        f"sampled vocabulary fills up to {length}",
    )
    return [
        f"{name} has {lengths[name]} tokens: {longer if lengths[name] > length else shorter}"
        for name in record["chosen"]
        if lengths[name] != length
    ]


def _reason(record: TransferRecord) -> str:
    request, chosen = record["request"], record["chosen"]
    strategy, k = request["strategy"], request["k"]
    prompts = f"the {len(chosen)} prompts" if len(chosen) > 1 else "the prompt"
    if record["probe"] is not None and len(chosen) < k:
        prompts += f" (of {k} requested)"
    if strategy == "average":
        return (
            f"average: one run starts from the mean of {prompts} most similar to the probe; "
            "negative similarities get weight zero"
        )
    if record["mixture"] is not None:
        tasks = record["mixture"]["task"]
        return f"mixture: one prompt is tuned on {tasks} together, and starts the target's run"
    if strategy == "named":
        return f"from: the run starts from {chosen[0]}, as requested"
    sources = f"each of {prompts}" if len(chosen) > 1 else prompts
    similar = " most similar to the probe" if strategy == "best" else ""
    return f"{strategy}: a run starts from {sources}{similar}; the best on validation is kept"


def describe_result(record: TransferRecord, output: Path) -> str:
    """The runs' scores, which prompt was kept, and how it compares with the baseline."""
    baseline = record["baseline"]
    results = [*record["results"], *([baseline] if baseline else [])]
    rows = [["run", "score", "95 % interval", "rows", "majority class", "best step"]]
    for result in results:
        name = "baseline (the usual start)" if result is baseline else result["name"]
        rows.append([name, *_scores(result)])
    kept = next(result for result in record["results"] if result["name"] == record["kept"])
    return joined(
        "",
        *aligned(rows),
        f"kept: {kept['name']}, {kept['metric']} {kept['score']:.1f}",
        *_gain(record, output),
        *(
            f"{result['name']} failed: {result['stopped']}"
            for result in results
            if result["failed"]
        ),
        f"the prompt and choice.json are in {output}",
    )


def _gain(record: TransferRecord, output: Path) -> Iterator[str]:
    baseline, gain = record["baseline"], record["gain"]
    if gain is None or baseline is None:
        return
    line = f"compared with the baseline: {gain['points']:+.1f} points"
    if gain["error_reduction"] is not None:
        line += f"; relative error reduction {100 * gain['error_reduction']:+.1f} %"
    if "p" in gain:
        split = gain.get("split", "validation")
        line += f" on {counted(gain['rows'], f'{split} row')}{format_p(gain['p'])}"
    yield line
    if gain["points"] < 0:
        yield f"the baseline is better; its prompt is in {output / baseline['folder']}"


def _scores(result: Mapping[str, Any]) -> list[str]:
    if result["score"] is None:
        return ["failed", *["-"] * 4]
    score = f"{result['metric']} {result['score']:.1f}"
    if "test" in result:
        score += f" (test {result['test']:.1f})"
    known = result.get("interval"), result.get("rows")  # not in records of older versions
    doubt = format_interval(known[0]).strip() or "-", str(known[1] or "-")
    return [score, *doubt, f"{result['majority']:.1f}", str(result["best_step"])]
