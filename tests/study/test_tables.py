"""Tables of a study: test scores where there are test rows, and always said which."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from softprompts.analysis.runs import RunRecord, Runs
from softprompts.analysis.study_report import on_validation_rows
from softprompts.analysis.tables import markdown, score_table
from softprompts.analysis.variants import differences_markdown, variant_differences
from softprompts.artifacts.file_names import RESULT
from softprompts.artifacts.study_folder import CellResult
from softprompts.cli.study import main
from softprompts.tasks.statistics import paired_test

from .conftest import FEW, Write, as_runs
from .conftest import results as saved_results


def result(target: str, score: float | None, test: float | None = None, **more: Any) -> CellResult:
    fields = {"stage": "baseline", "backbone": "b", "seed": 0, "rows": 20, "majority": 50.0}
    tests = {} if test is None else {"test": test, "test_rows": 8, "test_majority": 40.0}
    return CellResult("x", target=target, score=score, **fields | tests | more)


def judged(runs: Runs) -> list[tuple[str, float | None]]:
    return [(runs.split(run), runs.score(run)) for run in runs.records]


def test_runs_are_judged_by_test_rows_where_a_task_has_some() -> None:
    results = [result("rte", 80.0, 75.0), result("cb", 60.0)]
    both = as_runs(results)
    assert judged(both) == [("test", 75.0), ("validation", 60.0)]
    known = [both.task_score(run.task, [run]) for run in both.records]
    assert [(task.rows, task.majority) for task in known] == [(8, 40.0), (20, 50.0)]
    text = markdown(score_table(both))
    assert "Scores on the test rows of rte, and on the validation rows of cb" in text
    assert "| rte (test) | cb (validation) |" in text
    assert "| 67.5 | 75.0 | 60.0 |" in text
    assert "\nRows: 8 of rte, 20 of cb. The 95 % interval of each run is in records.csv.\n" in text
    assert "transfer" not in text, "nothing was transferred"
    transferred = as_runs([*results, result("cb", 70.0, source="mnli", stage="transfer")])
    assert "| (no transfer) | 67.5 | 75.0 | 60.0 |" in markdown(score_table(transferred))
    alone = as_runs(results[:1])
    assert markdown(score_table(alone)).startswith("Scores on the test rows, mean")
    assert markdown(score_table(on_validation_rows(alone))).startswith(
        "Scores on the validation rows, mean"
    )


def test_tables_round_once() -> None:
    """11.547 is 11.5, as `softprompts report` shows it, not 11.55 and then 11.6."""
    results = [result("a", score, seed=n) for n, score in enumerate((40.0, 60.0, 60.0))]
    (row,) = table = score_table(as_runs(results))
    assert row["mean"] == {"mean": 53.3333, "std": 11.547}
    assert "| 53.3 ± 11.5 |" in markdown(table)


def test_a_bar_in_a_name_does_not_end_its_cell() -> None:
    results = [result("a|b", 60.0), result("a|b", 70.0, source="c|d", stage="transfer")]
    text = markdown(score_table(as_runs(results)))
    assert "| source | mean | a\\|b |" in text
    assert "| c\\|d | 70.0 | 70.0 |" in text


def test_test_and_validation_scores_of_a_task_are_never_mixed() -> None:
    """An older run has no test score; one that is not finished has no score at all."""
    older = [result("rte", 80.0, 75.0), result("rte", 82.0, seed=1, source="mnli")]
    assert judged(as_runs(older)) == [("validation", 80.0), ("validation", 82.0)]
    unfinished = as_runs([older[0], result("rte", None, seed=1)])
    assert judged(unfinished) == [("test", 75.0), ("test", None)]
    mixture = as_runs([older[0], result("rte", 70.0, stage="mixture-source")])
    assert judged(mixture) == [("test", 75.0), ("validation", 70.0)]


def test_a_report_is_on_the_test_rows_also_of_older_results(
    finished_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Older versions wrote the test score to the prompt's card only."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    folder, report = tmp_path / "study", tmp_path / "report"
    shutil.copytree(finished_study, folder)
    for number, path in enumerate(sorted(folder.rglob("prompt.json"))):
        card, cell = json.loads(path.read_text()), json.loads((path.parent / RESULT).read_text())
        if cell["target"] == "helpdesk/register":
            continue
        card["test"] = dict.fromkeys(card["metrics"], 40.0 + number)
        card["task"]["rows"]["test"] = 77
        card["scores"] = {}
        path.write_text(json.dumps(card))
    assert main(["report", str(folder), "--output", str(report), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["validation_scores"] == json.loads(
        (report / "validation_scores.json").read_text()
    )
    with (report / "records.csv").open() as file:
        records = list(csv.DictReader(file))
    by_target = {(r["target"], r["judged_by"]) for r in records if r["stage"] == "transfer"}
    assert by_target == {("helpdesk/urgency", "test"), ("helpdesk/register", "validation")}
    assert all(
        float(r["judged_score"]) == float(r["test" if r["judged_by"] == "test" else "score"])
        for r in records
    )
    baselines = [
        float(r["test"])
        for r in records
        if (r["stage"], r["target"]) == ("baseline", "helpdesk/urgency")
    ]
    (row,) = (r for r in printed["scores"] if r["source"] is None)
    assert row["targets"]["helpdesk/urgency"]["mean"] == pytest.approx(sum(baselines) / 2, abs=0.01)
    page = (report / "report.md").read_text()
    assert "Scores on the test rows of helpdesk/urgency, and on the validation rows of" in page
    targets = {r["target"]: r for r in json.loads((report / "targets.json").read_text())}
    assert targets["helpdesk/urgency"]["baseline"] == pytest.approx(sum(baselines) / 2)
    assert [(r["rows"], r["split"]) for r in targets.values()] == [(77, "test"), (12, "validation")]
    assert "measured on the test rows" in page
    figures = {path.stem.partition("-")[0]: path.read_text() for path in report.glob("*.svg")}
    assert set(figures) == {"targets", "transfer", "clusters", "correlation"}
    for text in figures.values():
        assert "trial, random-t5, 20" in text, "the study, the model and the date"


def test_a_study_of_targets_alone_reports_with_figures(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    study = write(**FEW, sources=[], variants={"base": {}, "slow": {"settings": {"lr": 0.01}}})
    folder, report = str(tmp_path / "study"), tmp_path / "report"
    assert main(["run", str(study), "--output", folder, "--device", "cpu", "--quiet"]) == 0
    assert main(["report", folder, "--output", str(report)]) == 0
    assert "| slow against base | helpdesk/urgency |" in capsys.readouterr().out
    assert "(targets.png)" in (report / "scores.md").read_text()
    svg = (report / "targets.svg").read_text()
    assert "helpdesk/urgency" in svg
    assert "trial, random-t5, 20" in svg
    clusters = [path.name for path in report.rglob("clusters-*.png")]
    assert len(clusters) == 4, "two similarities for each variant"
    differences = json.loads((report / "variants.json").read_text())
    assert {(row["first"], row["second"]) for row in differences} == {("base", "slow")}
    assert [(row["target"], row["paired_over"]) for row in differences] == [
        *(("helpdesk/urgency", "rows"), ("helpdesk/register", "rows"), (None, "targets")),
    ]
    assert all(0 < row["p_paired"] <= 1 for row in differences)
    scores = (report / "scores.md").read_text()
    assert "| slow against base | helpdesk/urgency |" in scores
    for page in [scores, svg, *(path.read_text() for path in report.rglob("report.md"))]:
        assert "baseline" not in page, "nothing was transferred"
        assert "transfer" not in page
    capsys.readouterr()


def test_every_difference_of_a_report_has_a_paired_test(
    finished_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the 12 validation rows, or for an older study without predictions, over its seeds."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    folder = tmp_path / "older"
    shutil.copytree(
        finished_study, folder, ignore=lambda *_: {"predictions.json", "embedding.safetensors"}
    )
    assert len(saved_results(folder)) == len(saved_results(finished_study))
    for study, paired in ((finished_study, ("rows", 12)), (folder, ("seeds", 2))):
        report = tmp_path / "reports" / study.name
        assert main(["report", str(study), "--output", str(report), "--json"]) == 0
        rows = json.loads((report / "transfer.json").read_text())
        assert {(row["paired_over"], row["pairs"]) for row in rows} == {paired}
        assert all(0 < row["p_paired"] <= 1 for row in rows)
        page = (report / "report.md").read_text()
        assert page.count(f", {paired[1]} {paired[0]} |") >= len(rows)
        methods = json.loads((report / "retrieval-of-all-targets.json").read_text())
        assert {(row["paired_over"], row["pairs"]) for row in methods[1:]} == {("targets", 2)}
    capsys.readouterr()


def test_variants_are_compared_on_the_same_rows_and_seeds() -> None:
    def run(variant: str, target: str, seed: int, rows: list[int], digest: str = "d") -> RunRecord:
        return RunRecord(
            f"{variant}/{target}/{seed}",
            target,
            seed,
            {"backbone": "b", "variant": variant, "stage": "baseline"},
            scores={"validation": 100 * sum(rows) / len(rows)},
            digests={"validation": digest},
            predictions={"validation": {"row_scores": rows}},
        )

    right, wrong = [1] * 10, [0] * 10
    records = [
        *(run("base", "rte", seed, [*wrong, *right]) for seed in (0, 1, 2)),
        *(run("slow", "rte", seed, [*right, *right]) for seed in (0, 1)),
        *(run("base", "cb", seed, right) for seed in (0, 1)),
        *(run("slow", "cb", seed, [*right[:-1], 0], digest="other") for seed in (0, 1)),
    ]
    rte, cb, mean = variant_differences(Runs(Path("x"), "study", records))
    assert (rte["first_score"], rte["second_score"], rte["change"], rte["seeds"]) == (
        *(50, 100, 50, 2),
    )
    assert (rte["paired_over"], rte["pairs"]) == ("rows", 20)
    assert rte["p_paired"] == pytest.approx(paired_test([0.0] * 10, [1.0] * 10), rel=1e-5)
    assert (cb["change"], cb["paired_over"], cb["pairs"]) == (-10, "seeds", 2), "other rows"
    assert (mean["target"], mean["change"], mean["paired_over"]) == (None, 20, "targets")
    page = differences_markdown([rte, cb, mean])
    assert "| slow against base | rte | 100.0 against 50.0 | +50.0 | p = 0.002, 20 rows |" in page
    assert "| (mean over targets) |" in page
    alone = [record for record in records if record.arm["variant"] == "base"]
    assert variant_differences(Runs(Path("x"), "study", alone)) == []
