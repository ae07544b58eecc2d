"""Verdicts: they follow from the numbers alone, and weak tasks decide nothing."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from softprompts.analysis.findings import HELD, NOT_HELD, NOT_RUN, TOO_WEAK, select
from softprompts.analysis.folder_report import folder_claims
from softprompts.analysis.runs import RunRecord, Runs, read_runs
from softprompts.analysis.verdicts import judge_claims, overall
from softprompts.errors import UserError
from softprompts.study.claims import Selector, read_claims
from softprompts.study.config import StudyConfig, check_claims, check_study

ROOT = Path(__file__).parents[2]
TASKS = ("a", "b", "c", "d")
Level = Callable[[str, str, int], float]


def runs_of(
    arms: Sequence[str], level: Level, seeds: int = 5, majority: float = 50.0, **fields: Any
) -> Runs:
    """Runs of variants on four tasks, with the score `level(variant, task, seed)`."""
    records = [
        RunRecord(
            f"{variant}/{task}/{seed}",
            task,
            seed,
            {"variant": variant, "stage": "baseline"},
            metric="accuracy",
            scores={"validation": level(variant, task, seed)},
            majority={"validation": majority},
            rows={"validation": 1000},
            **{name: value(variant, task, seed) for name, value in fields.items()},
        )
        for variant in arms
        for task in TASKS
        for seed in range(seeds)
    ]
    return Runs(Path("x"), "study", records)


def noisy(gains: Mapping[str, float], noise: float = 1.0) -> Level:
    def level(variant: str, task: str, seed: int) -> float:
        chance = random.Random(f"{variant} {task} {seed}")
        return 70 + 3 * TASKS.index(task) + gains[variant] + chance.uniform(-noise, noise)

    return level


def verdict(runs: Runs, *expect: Any, analysis: Mapping[str, Any] | None = None) -> dict[str, Any]:
    entry = {"claim": 1, "text": "A claim.", "paper": "1.0", "expect": list(expect)}
    (judged,) = judge_claims(read_claims([entry]), runs, analysis or {})
    return judged


@pytest.mark.parametrize(
    ("gain", "noise", "least", "expected"),
    [
        (4.0, 1.0, 1.0, HELD),
        (0.0, 1.0, 1.0, NOT_HELD),
        (-4.0, 1.0, 1.0, NOT_HELD),
        (0.5, 20.0, 1.0, TOO_WEAK),
        (2.0, 0.5, 7.0, NOT_HELD),
    ],
)
def test_a_difference_holds_fails_or_is_too_weak(
    gain: float, noise: float, least: float, expected: str
) -> None:
    runs = runs_of(["new", "old"], noisy({"new": gain, "old": 0.0}, noise))
    judged = verdict(runs, {"better": "new", "than": "old", "least": least})
    assert judged["verdict"] == expected
    (part,) = judged["expectations"]
    assert part["pairs"] == 20
    assert part["interval"][0] < part["difference"] < part["interval"][1]
    assert part["difference"] == pytest.approx(gain, abs=noise)


def test_a_wide_margin_needs_an_interval_above_it() -> None:
    runs = runs_of(["new", "old"], noisy({"new": 4.0, "old": 0.0}))
    judged = verdict(runs, {"better": "new", "than": "old", "by": 3})
    assert judged["verdict"] == HELD
    assert "new better than old by 3: +3." in judged["expectations"][0]["sentence"]
    assert verdict(runs, {"better": "new", "than": "old", "least": 4})["verdict"] == HELD
    assert verdict(runs, {"better": "new", "than": "old", "by": 6})["verdict"] == NOT_HELD
    small = runs_of(["new", "old"], noisy({"new": 2.0, "old": 0.0}, 8.0))
    assert verdict(small, {"better": "new", "than": "old", "by": 2})["verdict"] == TOO_WEAK


def test_no_worse_needs_an_interval_above_the_margin() -> None:
    runs = runs_of(["short", "long"], noisy({"short": -0.3, "long": 0.0}))
    assert verdict(runs, {"no_worse": "short", "than": "long", "within": 2})["verdict"] == HELD
    worse = runs_of(["short", "long"], noisy({"short": -6.0, "long": 0.0}))
    assert verdict(worse, {"no_worse": "short", "than": "long", "within": 2})["verdict"] == NOT_HELD
    unsure = runs_of(["short", "long"], noisy({"short": -1.0, "long": 0.0}, 25))
    assert (
        verdict(unsure, {"no_worse": "short", "than": "long", "within": 2})["verdict"] == TOO_WEAK
    )


def test_tasks_at_the_majority_class_decide_nothing() -> None:
    runs = runs_of(["new", "old"], noisy({"new": 4.0, "old": 0.0}), majority=90.0)
    judged = verdict(runs, {"better": "new", "than": "old"})
    assert judged["verdict"] == TOO_WEAK
    assert "no task is above the majority class" in judged["expectations"][0]["sentence"]
    # tasks a and b are below it for both arms, d is above it for one
    some_weak = runs_of(["new", "old"], noisy({"new": 4.0, "old": 0.0}), majority=77.5)
    pairs = verdict(some_weak, {"better": "new", "than": "old"})["expectations"][0]["pairs"]
    assert pairs == 5


def test_all_expectations_must_hold_and_are_corrected_together() -> None:
    runs = runs_of(["a", "b", "c"], noisy({"a": 6.0, "b": 3.0, "c": 3.0}))
    clear = {"better": "a", "than": "b"}
    assert verdict(runs, clear, {"better": "a", "than": "c"})["verdict"] == HELD
    judged = verdict(runs, clear, {"better": "b", "than": "c"})
    assert [part["verdict"] for part in judged["expectations"]] == [HELD, NOT_HELD]
    assert judged["verdict"] == NOT_HELD
    alone = verdict(runs, clear)["expectations"][0]["p"]
    assert judged["expectations"][0]["p"] == pytest.approx(2 * alone)
    assert overall([HELD, TOO_WEAK]) == TOO_WEAK


def test_only_tests_that_decide_are_corrected_for() -> None:
    """An interval decides whether an arm is no worse, so that is no further test."""
    runs = runs_of(["a", "b", "c"], noisy({"a": 6.0, "b": 3.0, "c": 3.0}))
    clear = {"better": "a", "than": "b"}
    judged = verdict(runs, clear, {"no_worse": "b", "than": "c", "within": 2})
    assert judged["verdict"] == HELD
    assert judged["expectations"][0]["p"] == verdict(runs, clear)["expectations"][0]["p"]


def test_a_contrast_asks_whether_a_gap_shrinks() -> None:
    gaps = {"new-few": 9.0, "old-few": 0.0, "new-many": 2.0, "old-many": 0.0}
    runs = runs_of(list(gaps), noisy(gaps))
    contrast = [[1, "new-few"], [-1, "old-few"], [-1, "new-many"], [1, "old-many"]]
    judged = verdict(runs, {"contrast": contrast, "least": 1})
    assert judged["verdict"] == HELD
    assert judged["expectations"][0]["difference"] == pytest.approx(7.0, abs=1)
    reverse = [[-weight, arm] for weight, arm in contrast]
    assert verdict(runs, {"contrast": reverse})["verdict"] == NOT_HELD


def test_the_range_over_arms_measures_robustness() -> None:
    levels = {"new-1": 0.0, "new-2": 1.0, "old-1": 0.0, "old-2": 12.0}
    runs = runs_of(list(levels), noisy(levels))
    new, old = ({"variant": [f"{name}-1", f"{name}-2"], "take": "range"} for name in ("new", "old"))
    judged = verdict(runs, {"lower": new, "than": old, "least": 2})
    assert judged["verdict"] == HELD
    assert judged["expectations"][0]["difference"] == pytest.approx(11, abs=1.5)


def test_the_spread_over_seeds_gives_one_pair_per_task() -> None:
    def level(variant: str, task: str, seed: int) -> float:
        return 80 + (seed - 2) * (0.1 if variant == "calm" else 4.0 + TASKS.index(task))

    runs = runs_of(["calm", "wild"], level)
    arms = [{"variant": name, "take": "sd"} for name in ("calm", "wild")]
    judged = verdict(runs, {"lower": arms[0], "than": arms[1], "least": 1})
    assert judged["expectations"][0]["pairs"] == len(TASKS)
    assert judged["expectations"][0]["difference"] > 5


def test_a_vote_of_seeds_is_compared_with_their_mean_and_the_best() -> None:
    def predictions(variant: str, task: str, seed: int) -> dict[str, Any]:
        wrong = {row for row in range(100) if row % 5 == seed}  # no row is wrong twice
        answers = ["no" if row in wrong else "yes" for row in range(100)]
        rows = [0.0 if row in wrong else 100.0 for row in range(100)]
        return {"validation": {"predictions": answers, "row_scores": rows}}

    runs = runs_of(["p"], lambda *_: 65.0, predictions=predictions)  # F1, say: not of the rows
    voted = {"variant": "p", "take": "vote"}
    mean, best = ({"variant": "p", "take": f"{name}-seed"} for name in ("mean", "best"))
    judged = verdict(runs, {"better": voted, "than": mean}, {"no_worse": voted, "than": best})
    assert [part["difference"] for part in judged["expectations"]] == [20.0, 20.0]


@pytest.mark.parametrize("known", [True, False])
def test_a_vote_on_questions_with_several_rows_is_of_the_row_that_decides(known: bool) -> None:
    """ReCoRD has a row per answer, and a score per question, of its first row."""

    def predictions(variant: str, task: str, seed: int) -> dict[str, Any]:
        right = 0.0 if seed == 0 else 100.0
        answers = ["no" if seed == 0 else "yes", f"other {seed}"] * 3
        scored = {"scored_rows": [0, 2, 4]} if known else {}
        return {"validation": {"predictions": answers, "row_scores": [right] * 3, **scored}}

    runs = runs_of(["p"], lambda *_: 65.0, seeds=3, predictions=predictions)
    voted = {"variant": "p", "take": "vote"}
    judged = verdict(runs, {"better": voted, "than": {"variant": "p", "take": "mean-seed"}})
    if known:
        assert judged["expectations"][0]["difference"] == pytest.approx(100 / 3)
    else:
        assert judged["verdict"] == NOT_RUN


def test_curves_seconds_and_parameters_can_be_compared() -> None:
    def history(variant: str, task: str, seed: int) -> list[dict[str, Any]]:
        early = 70.0 if variant == "fast" else 40.0
        return [{"step": 1, "accuracy": early + seed}, {"step": 2, "accuracy": 80.0}]

    runs = runs_of(
        ["fast", "slow"],
        lambda *_: 80.0,
        history=history,
        seconds=lambda variant, *_: 5.0 if variant == "fast" else 10.0,
    )
    arms = [{"variant": name, "take": "curve"} for name in ("fast", "slow")]
    assert (
        verdict(runs, {"better": arms[0], "than": arms[1]})["expectations"][0]["difference"] == 15
    )
    arms = [{"variant": name, "take": "seconds"} for name in ("fast", "slow")]
    judged = verdict(runs, {"lower": arms[0], "than": arms[1], "relative": True, "least": 10})
    assert judged["expectations"][0]["difference"] == 50, "percent of the slower one"
    judged = verdict(runs, {"better": arms[1], "than": arms[0], "relative": True, "least": 10})
    assert judged["expectations"][0]["difference"] == 100, "percent of the faster one"


def test_explanations_are_judged_in_percent_even_on_weak_tasks() -> None:
    def explanation(variant: str, task: str, seed: int) -> dict[str, Any]:
        return {
            "nearest_cosine": 0.5 + seed / 100,
            "random_cosine": 0.2,
            "neighbour_cosine": 0.4,
            "labels": {"yes": 1, "no": 0},
            "shared": {"good": 2},
            "tokens": [{"neighbours": [{"word": word}]} for word in ("▁Good", "▁bad")],
            "routing": [{"rows": 10}, {"rows": 10}, {"rows": 0}, {"rows": 0}],
        }

    runs = runs_of(["p"], lambda *_: 50.0, explanation=explanation)
    near = {"better": {"variant": "p", "take": "nearest-cosine"}, "than": 20, "least": 5}
    judged = verdict(runs, near)
    assert judged["verdict"] == HELD
    assert judged["expectations"][0]["difference"] == pytest.approx(32)
    older = {"better": {"variant": "p", "take": "random-neighbour-cosine"}, "than": 0}
    assert verdict(runs, older)["verdict"] == NOT_RUN, "an explanation without it"
    shares = {"labels-near": 50, "words-shared": 50, "load-entropy": 50, "neighbour-cosine": 40}
    for take, expected in shares.items():
        part = verdict(runs, {"better": {"variant": "p", "take": take}, "than": 0})["expectations"]
        assert part[0]["difference"] == pytest.approx(expected)


def test_what_was_not_run_is_not_judged() -> None:
    runs = runs_of(["new"], noisy({"new": 1.0}))
    assert verdict(runs, {"better": "new", "than": "old"})["verdict"] == NOT_RUN
    assert verdict(runs, {"correlates": 4})["verdict"] == NOT_RUN


def transfers(gain: float, seeds: int = 6) -> Runs:
    """A source that changes the score of four targets by `gain`, without saved predictions."""
    known = runs_of(["x"], noisy({"x": 0.0}), seeds)
    moved = [
        replace(
            run,
            stage="transfer",
            arm={"variant": "x", "stage": "transfer", "source": "s"},
            scores={"validation": run.scores["validation"] + gain},
        )
        for run in known.records
    ]
    return replace(known, records=[*known.records, *moved])


@pytest.mark.parametrize(
    ("gain", "seeds", "helps", "hurts"),
    [(5.0, 8, HELD, NOT_HELD), (-5.0, 8, NOT_HELD, HELD), (5.0, 3, TOO_WEAK, TOO_WEAK)],
)
def test_pairs_of_source_and_target_are_corrected_for_their_number(
    gain: float, seeds: int, helps: str, hurts: str
) -> None:
    runs = transfers(gain, seeds)
    assert verdict(runs, {"pairs": "helps"})["verdict"] == helps
    assert verdict(runs, {"pairs": "hurts"})["verdict"] == hurts
    assert verdict(runs, {"pairs": {"helps": 100}})["verdict"] == helps


def test_many_pairs_are_more_than_one() -> None:
    """One of four targets gains, which is a quarter of the pairs."""
    runs = transfers(0.0, 8)
    records = [
        replace(run, scores={"validation": run.scores["validation"] + 5})
        if run.stage == "transfer" and run.task == "a"
        else run
        for run in runs.records
    ]
    some = replace(runs, records=records)
    assert verdict(some, {"pairs": {"helps": 25}})["verdict"] == HELD
    assert verdict(some, {"pairs": "helps", "tasks": ["b", "c"]})["verdict"] == NOT_HELD
    assert verdict(some, {"pairs": {"helps": 50}})["verdict"] == TOO_WEAK


def test_the_most_similar_source_is_that_of_the_averages() -> None:
    """Source s of seed 1 is nearest for all seeds; its transfer is compared with the averages."""
    runs = transfers(5.0, 2)
    source = RunRecord("source/s/1", "s", 1, {"variant": "x", "stage": "source"}, stage="source")
    averages = [
        replace(
            run,
            name=f"average/{run.name}",
            stage="average",
            arm={"variant": "x", "stage": "average", "k": 3},
            chosen=("source/s/1", "source/other/0"),
        )
        for run in runs.records
        if run.stage == "baseline"
    ]
    known = replace(runs, records=[*runs.records, source, *averages])
    nearest = select(Selector((("stage", ("nearest",)),)), known)
    moved = {run.task: run.scores for run in known.records if run.stage == "transfer" and run.seed}
    assert [run.seed for run in nearest] == [0, 1] * len(TASKS)
    assert all(run.scores == moved[run.task] for run in nearest), "the transfer of seed 1"
    judged = verdict(known, {"better": {"stage": "nearest"}, "than": {"stage": "average", "k": 3}})
    assert judged["expectations"][0]["pairs"] == 2 * len(TASKS)
    assert judged["expectations"][0]["difference"] == pytest.approx(5, abs=1)


MATRIX = [[None, 0.9, 0.1, 0.2, 0.1, 0.2], [0.9, None, 0.2, 0.1, 0.2, 0.1],
          [0.1, 0.2, None, 0.8, 0.3, 0.1], [0.2, 0.1, 0.8, None, 0.1, 0.3],
          [0.1, 0.2, 0.3, 0.1, None, 0.9], [0.2, 0.1, 0.1, 0.3, 0.9, None]]  # fmt: skip


def test_task_embeddings_are_alike_inside_groups() -> None:
    analysis = {"similarities": {"cosine": {"tasks": list("abcdef"), "matrix": MATRIX}}}
    runs = runs_of(["x"], lambda *_: 80.0)
    alike = {"one": ["a", "b"], "two": ["c", "d"], "three": ["e", "f"]}
    judged = verdict(runs, {"alike": alike}, analysis=analysis)
    assert judged["expectations"][0]["difference"] > 0.6
    other = {"one": ["a", "c"], "two": ["b", "e"], "three": ["d", "f"]}
    assert verdict(runs, {"alike": other}, analysis=analysis)["verdict"] != HELD
    closer = {"task": "a", "to": ["b", "c"], "than": ["d"]}
    judged = verdict(runs, {"closer": closer}, analysis=analysis)
    assert judged["verdict"] == HELD
    assert (
        "a closer to b, c than to d: cosine 0.500 against 0.200"
        in (judged["expectations"][0]["sentence"])
    )
    farther = {"task": "a", "to": ["c"], "than": ["d"]}
    assert verdict(runs, {"closer": farther}, analysis=analysis)["verdict"] == NOT_HELD
    unknown = {"task": "a", "to": ["x"], "than": ["d"]}
    assert verdict(runs, {"closer": unknown}, analysis=analysis)["verdict"] == TOO_WEAK
    assert verdict(runs, {"closer": closer})["verdict"] == NOT_RUN


def test_retrieval_must_beat_chance() -> None:
    runs = runs_of(["x"], lambda *_: 80.0)
    top: dict[str, Any] = {"method": "best of top-k", "similarity": "s", "k": 3}
    top |= {"change": 4.0, "p_paired": 0.01, "targets": 9}
    chance = {"method": "best of k at random", "similarity": None, "k": 3, "change": 2.0}
    for changed, expected in (
        ({}, HELD),
        ({"change": 1.0}, NOT_HELD),
        ({"change": 1.0, "targets": 3}, TOO_WEAK),
        ({"p_paired": 0.2}, TOO_WEAK),
    ):
        analysis = {"retrieval": [top | changed, chance], "targets": [1]}
        assert verdict(runs, {"retrieval": 3}, analysis=analysis)["verdict"] == expected


@pytest.mark.parametrize(
    ("oracle", "targets", "expected"),
    [(5.0, 9, HELD), (6.0, 9, NOT_HELD), (5.0, 3, TOO_WEAK), (-1.0, 9, TOO_WEAK)],
)
def test_retrieval_reaches_a_share_of_the_best_sources_gain(
    oracle: float, targets: int, expected: str
) -> None:
    runs = runs_of(["x"], lambda *_: 80.0)
    rows: list[dict[str, Any]] = [
        {"method": "best of top-k", "similarity": "s", "k": 3, "change": 4.0, "targets": targets},
        {"method": "best of k at random", "similarity": None, "k": 3, "change": 2.0},
        {"method": "oracle", "similarity": None, "k": None, "change": oracle},
    ]
    share = {"retrieval": {"k": 3, "oracle": 80}}
    analysis = {"retrieval": rows, "targets": [1]}
    assert verdict(runs, share, analysis=analysis)["verdict"] == expected


def test_the_small_study_on_t5_tiny_is_judged_by_its_recipes_claims() -> None:
    recipe = (ROOT / "recipes" / "spot-small.yaml").read_text()
    judged = {c["claim"]: c for c in folder_claims(read_runs(ROOT / "results/spot-small"), recipe)}
    assert {13, 14, 15, 16, 17} <= set(judged)
    assert judged[15]["verdict"] in (NOT_HELD, TOO_WEAK)
    assert all(claim["verdict"] != NOT_RUN for claim in judged.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": None, "claim": "x"}, "needs a whole number"),
        ({"expect": []}, "a list of what is expected"),
        ({"expect": [{"beter": "a"}]}, "expects nothing; write one of better, lower"),
        ({"expect": [{"better": "a"}]}, "better needs than"),
        ({"expect": [{"better": "a", "than": "b", "margin": 3}]}, "'margin' is not part of better"),
        ({"expect": [{"better": "a", "than": "b", "least": "x"}]}, "it must be a number of points"),
        ({"expect": [{"better": {"take": "vot"}, "than": "b"}]}, "did you mean vote"),
        ({"expect": [{"better": {"varant": "a"}, "than": "b"}]}, "did you mean variant"),
        ({"expect": [{"contrast": ["a"]}]}, "contrast is a list of"),
        ({"expect": [{"contrast": []}]}, "contrast is a list of"),
        ({"expect": [{"pairs": "help"}]}, "pairs is 'help'; it needs helps or hurts"),
        ({"expect": [{"closer": {"task": "a"}}]}, "it needs task, and the lists"),
        ({"expect": [{"closer": {"task": "a", "to": "b", "than": ["c"]}}]}, "the lists to and"),
        ({"expect": [{"alike": {"qa": "a", "nli": ["b"]}}]}, "two groups of tasks or more"),
        ({"expect": [{"alike": {"qa": ["a"]}}]}, "two groups of tasks or more"),
        ({"expect": [{"correlates": "four"}]}, "correlates is 'four'; it needs a number of"),
        ({"expect": [{"pairs": {"helps": "ten"}}]}, "alone or with a percentage"),
        ({"expect": [{"retrieval": {"k": 3}}]}, "or k and oracle"),
        ({"expect": [{"retrieval": 0}]}, "it needs a number of sources"),
        ({"expect": [{"retrieval": 3, "tasks": ["a"]}]}, "'tasks' is not part of retrieval"),
        ({"expect": [{"better": 1, "than": 2}]}, "better compares numbers alone"),
        ({"expect": [{"better": "a", "than": "b", "by": 3, "least": 1}]}, "'least' is not part"),
        ({"expect": [{"better": "c", "than": "b"}]}, "names the variant 'c', which the study"),
        (
            {"expect": [{"better": "a", "than": "b", "tasks": ["helpdesk/intend"]}]},
            "names the task 'helpdesk/intend', which the study .* did you mean helpdesk/intent",
        ),
        ({"expect": [{"better": {"k": {"a": 1}}, "than": "b"}]}, "k is {'a': 1}; give one value"),
        ({"expect": [{"better": {"stage": [["a"]]}, "than": "b"}]}, "stage is .* give one value"),
    ],
)
def test_claims_that_are_not_understood_are_refused(changes: dict[str, Any], message: str) -> None:
    entry = {"claim": 1, "text": "t", "paper": "p", "expect": [{"better": "a", "than": "b"}]}
    study = StudyConfig.of(
        {"targets": ["helpdesk/intent"], "variants": {"a": {}, "b": {}}, "claims": [entry]}
    )
    check_study(study)
    with pytest.raises(UserError, match=message):
        check_claims(read_claims([{**entry, **changes}]), dict(study.grids()))
    with pytest.raises(UserError, match="it needs claim"):
        read_claims(["x"])


@pytest.mark.parametrize(
    "expect", [{"retrieval": 3}, {"correlates": 1}, {"alike": {"a": ["x"], "b": ["y"]}}]
)
def test_what_one_analysis_shows_is_not_expected_of_several(expect: dict[str, Any]) -> None:
    claims = read_claims([{"claim": 1, "text": "t", "paper": "p", "expect": [expect]}])
    one = StudyConfig.of({"targets": ["helpdesk/intent"], "variants": {"a": {}}})
    check_claims(claims, dict(one.grids()))
    two = StudyConfig.of({"targets": ["helpdesk/intent"], "variants": {"a": {}, "b": {}}})
    with pytest.raises(UserError, match="but the study has 2, one for each variant and backbone"):
        check_claims(claims, dict(two.grids()))
