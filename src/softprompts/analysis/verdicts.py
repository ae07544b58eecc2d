"""Verdicts on the claims of a study file: held, did not hold, or too weak to tell.

An expectation compares arms on the tasks and seeds that they share. Tasks on which no arm of it is
above the majority class (the rule of `TaskScore.weak`) are left out. It holds if the 95 % interval
of the paired differences lies above the margin, and a difference of zero is rejected by a paired
test that is corrected for all such tests of the claim (Holm); with another margin than zero, the
interval alone decides. It does not hold if the interval lies below the smallest difference that
would count. Nothing here needs torch.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from ..study.claims import EXPLAINED, OVER_SEEDS, Claim, Expectation, Selector
from ..tasks.statistics import paired_test
from .findings import HELD, NOT_HELD, NOT_RUN, TOO_WEAK, Finding, select, weak
from .runs import RunRecord, Runs
from .spread import grouped, holm, significant, t_interval
from .transfer_findings import TRANSFER_FINDINGS

Values = Mapping[int | None, float]
"""By seed, or with the key None if all seeds are taken together."""


def judge_claims(
    claims: Sequence[Claim], runs: Runs, analysis: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The verdict on each claim; `analysis` is the `report.json` of `study report`, or empty."""
    return [
        {
            "claim": claim.claim,
            "text": claim.text,
            "paper": claim.paper,
            **_judge(claim, runs, analysis),
        }
        for claim in claims
    ]


def _judge(claim: Claim, runs: Runs, analysis: Mapping[str, Any]) -> dict[str, Any]:
    measured = [_measure(part, runs) if part.terms else None for part in claim.expect]
    p_values = {
        index: found.p
        for index, (part, found) in enumerate(zip(claim.expect, measured, strict=True))
        if found is not None and found.p is not None and part.is_tested
    }
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    findings = []
    for index, (part, found) in enumerate(zip(claim.expect, measured, strict=True)):
        if found is None:
            findings.append(TRANSFER_FINDINGS[part.kind](part, runs, analysis))
        else:
            findings.append(_decide(part, found, corrected.get(index, found.p)))
    return {
        "verdict": overall([found.verdict for found in findings]),
        "expectations": [found.plain() for found in findings],
    }


def overall(verdicts: Sequence[str]) -> str:
    """One verdict of several: it held only if all did, and failed if one did."""
    for verdict in (NOT_HELD, TOO_WEAK, NOT_RUN):
        if verdict in verdicts:
            return verdict
    return HELD


def _decide(part: Expectation, found: Finding, p: float | None) -> Finding:
    verdict = found.verdict or TOO_WEAK
    if found.interval is not None:
        low, high = found.interval
        if high < part.least:
            verdict = NOT_HELD
        elif low > part.above and (significant(p) or not part.is_tested):
            verdict = HELD
    return replace(found, verdict=verdict, p=p, sentence=f"{found.sentence}: {verdict}")


# -- comparisons of arms ---------------------------------------------------------------------------


def _measure(part: Expectation, runs: Runs) -> Finding:
    """The paired differences of an expectation, before it is decided."""
    name = part.name
    selected = {selector: select(selector, runs) for _, selector in part.terms}
    if any(s.constant is None and not found for s, found in selected.items()):
        return Finding(NOT_RUN, f"{name} (no such runs)")
    tasks = _tasks(part, selected, runs)
    if not tasks:
        return Finding(TOO_WEAK, f"{name} no task is above the majority class")
    differences = [d for task in tasks for d in _differences(part, selected, runs, task)]
    if not differences:
        return Finding(NOT_RUN, f"{name} (no task and seed that all have)")
    interval = t_interval(differences)
    p = paired_test(differences, [0.0] * len(differences)) if len(differences) > 1 else None
    unit = "%" if part.relative else "points"
    doubt = "" if interval is None else f" ({interval[0]:.1f} to {interval[1]:.1f})"
    pairs = f"{len(differences)} pair{'s' if len(differences) > 1 else ''}"
    where = f", {pairs} on {len(tasks)} task{'s' if len(tasks) > 1 else ''}"
    sentence = f"{name} {fmean(differences):+.1f} {unit}{doubt}{where}"
    return Finding("", sentence, fmean(differences), interval, p, len(differences))


def _tasks(
    part: Expectation, selected: Mapping[Selector, Sequence[RunRecord]], runs: Runs
) -> list[str]:
    """The tasks that all arms have, without those on which none beats the majority class."""
    arms = [found for selector, found in selected.items() if selector.constant is None]
    shared = set.intersection(*({run.task for run in found} for found in arms))
    order = [task for task in dict.fromkeys(run.task for run in arms[0]) if task in shared]
    if part.tasks is not None:
        order = [task for task in order if task in part.tasks]
    unscored = (*EXPLAINED, "seconds", "parameters")
    if all(selector.take in unscored for selector in selected if selector.constant is None):
        return order
    return [task for task in order if not all(weak(runs, found, task) for found in arms)]


def _differences(
    part: Expectation, selected: Mapping[Selector, Sequence[RunRecord]], runs: Runs, task: str
) -> list[float]:
    """The weighted sums of the arms on a task: one per seed that all have, or one in all if an arm
    takes all seeds together."""
    arms = [(w, s, _values(s, selected[s], runs, task)) for w, s in part.terms]
    if any(not values for _, s, values in arms if s.constant is None):
        return []
    seeded = [set(values) for _, s, values in arms if s.constant is None]
    together = any(None in seeds for seeds in seeded)
    keys: list[int | None] = [None] if together else sorted(set.intersection(*seeded), key=str)
    sums = []
    for key in keys:
        terms = [(w, s.constant if s.constant is not None else _at(v, key)) for w, s, v in arms]
        total, base = math.fsum(weight * value for weight, value in terms), terms[-1][1]
        sums.append(100 * total / base if part.relative and base else total)
    return sums


def _at(values: Values, key: int | None) -> float:
    """The value of a seed; if another arm takes all seeds together, the mean over seeds."""
    return values[key] if key in values else fmean(values.values())


def _values(
    selector: Selector, found: Sequence[RunRecord], runs: Runs, task: str
) -> dict[int | None, float]:
    members = [run for run in found if run.task == task]
    if selector.take in OVER_SEEDS:
        value = _over_seeds(selector.take, members, runs)
        return {} if value is None else {None: value}
    numbers = [(run.seed, _value(selector.take, run, runs)) for run in members]
    by_seed = grouped((seed, number) for seed, number in numbers if number is not None)
    reduce = REDUCE.get(selector.take, fmean)
    return {seed: reduce(values) for seed, values in by_seed.items()}


REDUCE: dict[str, Any] = {
    "best": max,
    "worst": min,
    "range": lambda values: max(values) - min(values),
}


def _value(take: str, run: RunRecord, runs: Runs) -> float | None:
    """One run's number."""
    if take == "curve":
        curve = [entry[run.metric] for entry in run.history if run.metric and run.metric in entry]
        return fmean(curve) if curve else None
    if take == "seconds":
        return run.seconds
    if take == "parameters":
        return None if run.trained_parameters is None else float(run.trained_parameters)
    if take in EXPLAINED:
        return explained(take, run.explanation)
    return runs.score(run)


def explained(take: str, explanation: Mapping[str, Any]) -> float | None:
    """A number of an explanation, in percent."""
    if not explanation:
        return None
    if take.endswith("-cosine") or take == "random-words-shared":
        value = explanation.get(take.replace("-", "_"))  # which older explanations may lack
        return None if value is None else 100 * float(value)
    if take == "labels-near":
        labels = explanation["labels"]
        return 100 * fmean(count > 0 for count in labels.values()) if labels else None
    if take == "words-shared":
        tokens = [
            any(
                n["word"].strip("▁Ġ#").lower() in explanation["shared"] for n in token["neighbours"]
            )
            for token in explanation["tokens"]
        ]
        return 100 * fmean(tokens)
    loads = [part["rows"] for part in explanation["routing"]]
    total = sum(loads)
    if len(loads) < 2 or not total:
        return None
    shares = [load / total for load in loads if load]
    return -100 * math.fsum(share * math.log(share) for share in shares) / math.log(len(loads))


def _over_seeds(take: str, members: Sequence[RunRecord], runs: Runs) -> float | None:
    scores = [score for run in members if (score := runs.score(run)) is not None]
    if take == "sd":
        return stdev(scores) if len(scores) > 1 else None
    rows = [runs.row_scores(run) for run in members]
    if not all(rows) or len({len(part) for part in rows}) != 1:
        return max(scores) if take == "best-seed" and scores else None
    if take in ("best-seed", "mean-seed"):
        return (max if take == "best-seed" else fmean)([fmean(part) for part in rows])
    votes = vote(members, runs.split(members[0]))
    return None if votes is None else fmean(votes)


def vote(members: Sequence[RunRecord], split: str) -> list[float] | None:
    """The row scores of the majority's answers; ties go to the first run's answer. None where a
    score is of several rows, whose votes can go to different runs."""
    saved = [run.predictions[split] for run in members]
    rows = [part["row_scores"] for part in saved]
    scored = saved[0].get("scored_rows") or range(len(saved[0]["predictions"]))
    if len(scored) != len(rows[0]):
        return None
    answers = [[part["predictions"][row] for row in scored] for part in saved]
    scores = []
    for given, row in zip(zip(*answers, strict=True), zip(*rows, strict=True), strict=True):
        winner = Counter(given).most_common(1)[0][0]
        scores.append(row[given.index(winner)])
    return scores
