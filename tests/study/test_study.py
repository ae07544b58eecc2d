"""Studies: that every cell is run and result, and that results can be had again."""

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from softprompts.artifacts.file_names import CARD, CELLS, RESULT, WORKERS
from softprompts.artifacts.study_folder import CellResult, StudyFolder
from softprompts.backbone.hardware import environment
from softprompts.cli import main as cli
from softprompts.cli.study import describe, main
from softprompts.errors import UserError
from softprompts.study.cells import commit, open_cell, resolve_start, saved_config
from softprompts.study.checks import check_unchanged
from softprompts.study.config import read_study
from softprompts.study.leases import Leases
from softprompts.study.plan import plan
from softprompts.study.progress import StudyLines
from softprompts.study.state import StudyState, pace
from softprompts.study.study import Study

from .conftest import FEW, QUICK, Write, cell_path, planned, results, scores
from .test_plan import ALL


def test_a_study_runs_every_cell(finished_study: Path, model: str) -> None:
    by_cell = results(finished_study)
    assert len(by_cell) == ALL
    assert all(
        result["rows"] == 12 and result["majority"] > 0
        for result in by_cell.values()
        if result["stage"] != "mixture-source"
    )
    assert len({result["score"] for result in by_cell.values()}) > 3, (
        "equal scores would prove nothing below"
    )
    home = next(iter(by_cell)).split("/")[0]
    transfer = by_cell[f"{home}/transfer/helpdesk-intent--helpdesk-urgency/seed1"]
    assert transfer["config"]["prompt"]["start"]["sources"] == [
        str(cell_path(finished_study, f"{home}/source/helpdesk-intent/seed1"))
    ]
    average = by_cell[f"{home}/average/helpdesk-urgency/k2/seed0"]
    assert len(average["chosen"]) == 2
    assert sum(chosen["weight"] for chosen in average["chosen"]) == pytest.approx(1)
    assert average["chosen"][0]["similarity"] >= average["chosen"][1]["similarity"]
    mixed = by_cell[f"{home}/mixture-source/helpdesk-urgency/k1/seed0"]["config"]["task"][
        "task"
    ].split("+")
    assert mixed[0] == "helpdesk/urgency"
    assert set(mixed[1:]) < {"helpdesk/intent", "helpdesk/area"}
    after = by_cell[f"{home}/mixture/helpdesk-urgency/k1/seed0"]["config"]
    assert after["prompt"]["start"]["sources"] == [
        str(cell_path(finished_study, f"{home}/mixture-source/helpdesk-urgency/k1/seed0"))
    ]
    assert not list(finished_study.rglob(".claim-*"))
    assert not list((finished_study / WORKERS).iterdir())


def test_a_finished_study_runs_nothing_again(
    finished_study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished_study.rglob("*.safetensors")}
    assert main(["run", str(finished_study), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["done"], printed["total"], printed["missing"]) == (ALL, ALL, [])
    assert {
        path: path.stat().st_mtime_ns for path in finished_study.rglob("*.safetensors")
    } == before


@pytest.mark.parametrize(
    "kind",
    [
        "source/helpdesk-area/seed1",
        "transfer/helpdesk-intent--helpdesk-register/seed0",
        "average/helpdesk-urgency/k2/seed1",
    ],
)
def test_a_cell_rerun_from_its_config_gives_the_recorded_score(
    finished_study: Path, tmp_path: Path, kind: str
) -> None:
    (name,) = (name for name in results(finished_study) if name.endswith(kind))
    assert (
        cli(
            [
                "tune",
                "--config",
                str(cell_path(finished_study, name) / "config.yaml"),
                "--output",
                str(tmp_path / "again"),
                "--quiet",
            ]
        )
        == 0
    )
    again = json.loads((tmp_path / "again" / "prompt.json").read_text())
    result = results(finished_study)[name]
    assert again["metrics"] == result["metrics"]
    assert again["config"] == result["config"]


def test_a_cohort_rerun_gives_the_recorded_scores(
    finished_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (name,) = (
        name
        for name in results(finished_study)
        if name.endswith("transfer/helpdesk-area--helpdesk-urgency/seed1")
    )
    assert (
        main(["rerun", str(finished_study), name, "--output", str(tmp_path / "again"), "--json"])
        == 0
    )
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert {result["cell"] for result in cells} == set(results(finished_study)[name]["beside"])
    with (tmp_path / "again" / "cohort.csv").open() as file:
        table = {row["cell"]: float(row["accuracy"]) for row in csv.DictReader(file)}
    assert table == {result["cell"]: result["again"] for result in cells}
    assert len(cells) > 1
    assert all(
        result["same"]
        and result["recorded"] == result["again"] == scores(finished_study)[result["cell"]]
        for result in cells
    )
    with pytest.raises(
        UserError,
        match=r"no result of a cell 'x'; .*status .* --json` lists finished cells as \"finished\"",
    ):
        main(["rerun", str(finished_study), "x", "--output", str(tmp_path / "more")])
    with pytest.raises(UserError, match="is not the folder of a study"):
        main(["rerun", str(tmp_path), "x", "--output", str(tmp_path / "more")])
    assert not (tmp_path / "more").exists()
    assert main(["status", str(finished_study), "--json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)["finished"]) == sorted(
        results(finished_study)
    )


def test_a_moved_study_can_be_reported_and_rerun(
    finished_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells' configs name the old folders of source prompts; the current ones are used."""
    moved = tmp_path / "moved"
    shutil.copytree(finished_study, moved)
    (name,) = (
        name for name in results(moved) if name.endswith("average/helpdesk-urgency/k2/seed1")
    )
    cohort = results(moved)[name]["beside"]
    beside = [CellResult.read(cell_path(moved, cell) / RESULT) for cell in cohort]
    configs = [saved_config(StudyFolder(moved), result) for result in beside]
    starts = [
        str(source)
        for config in configs
        for source in config.prompt.start.options.get("sources", [])
    ]
    assert starts
    assert all(start.startswith(str(moved)) and Path(start).is_dir() for start in starts)
    original = saved_config(StudyFolder(finished_study), beside[0])
    weights = [config.prompt.start.options.get("weights") for config in (original, configs[0])]
    assert weights[0] == weights[1]
    assert main(["run", str(moved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []


def test_several_backbones_make_a_picture_of_model_sizes(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    study, folder = (
        write(backbones=["big/one", "small/one"], sources=[], retrieval={}),
        tmp_path / "study",
    )
    for cell in plan(read_study(study)):
        size, score = (7_000_000, 80.0) if cell.backbone == "big/one" else (1_000, 60.0)
        open_cell(cell, cell.config, StudyFolder(folder))
        result = {
            "cell": cell.name,
            "score": score + cell.seed,
            "parameters": size,
            "finished": 2.0,
            "begun": 1.0,
            "majority": 50.0,
            "rows": 9,
        }
        commit(StudyFolder(folder), CellResult(**result))
    shutil.copy(study, folder / "study.yaml")
    assert main(["report", str(folder), "--output", str(tmp_path / "report"), "--json"]) == 0
    rows = json.loads((tmp_path / "report" / "sizes.json").read_text())
    assert [(row["backbone"], row["parameters"], row["score"]) for row in rows] == [
        ("small/one", 1_000, 60.5),
        ("big/one", 7_000_000, 80.5),
    ]
    assert (tmp_path / "report" / "sizes.png").exists()
    assert "7.0M" in (tmp_path / "report" / "sizes.svg").read_text()
    assert "(sizes.png)" in (tmp_path / "report" / "scores.md").read_text()


def test_missing_rows_are_reported_before_anything_runs(write: Write, tmp_path: Path) -> None:
    (tmp_path / "data" / "glue" / "sst2").mkdir(parents=True)
    (tmp_path / "data" / "glue" / "sst2" / "train.jsonl").touch()
    for targets, sentence in (
        (["glue/rte"], "holds no rows of glue/rte"),
        (
            [{"name": "mine", "train": str(tmp_path / "no.csv")}],
            "no.csv in the study file does not exist",
        ),
    ):
        study = write(sources=["glue/sst2"], targets=targets, retrieval={})
        with pytest.raises(UserError, match=sentence):
            main(
                [
                    "run",
                    str(study),
                    "--output",
                    str(tmp_path / "study"),
                    "--data-dir",
                    str(tmp_path / "data"),
                ]
            )
        assert not (tmp_path / "study").exists()


def test_rows_missing_on_the_hub_are_reported_before_anything_runs(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOFTPROMPTS_DATA", raising=False)
    with pytest.raises(
        UserError,
        match=r"The rows of glue/rte are not available from the Hub; name a folder .* data_dir",
    ):
        main(
            [
                "run",
                str(write(sources=["glue/rte+glue/mrpc"], retrieval={})),
                "--output",
                str(tmp_path / "study"),
            ]
        )
    assert not (tmp_path / "study").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported_before_anything_runs(write: Write, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="The device 'cuda' is not available; set device to cpu or auto"
    ):
        main(["run", str(write()), "--output", str(tmp_path / "study"), "--device", "cuda"])
    assert not (tmp_path / "study").exists()


def test_bad_rows_are_reported_before_anything_runs_and_can_be_skipped(
    write: Write,
    toy_csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole_rows = toy_csv.read_text()
    toy_csv.write_text(whole_rows + "a text without a mood,\n")
    user_data = {"name": "mine", "train": str(toy_csv), "text": "review", "label": "mood"}
    folder = tmp_path / "study"

    def run(**more: object) -> int:
        study = write(**FEW, sources=["helpdesk/intent"], targets=[{**user_data, **more}])
        return cli(
            [
                "study",
                "run",
                str(study),
                "--output",
                str(folder),
                "--device",
                "cpu",
                "--only",
                "baseline",
            ]
        )

    assert run() == 2
    message = capsys.readouterr().err
    assert "The rows of mine cannot be used" in message
    assert "reviews.csv:26: the column 'mood' is empty" in message
    assert "skip_bad_rows" in message
    assert "--skip" not in message
    assert not folder.exists()
    monkeypatch.setattr("softprompts.study.study.check_data", lambda *arguments: {})
    monkeypatch.setattr("softprompts.study.study.check_runs", lambda *arguments: None)
    assert run() == 2, "rows that change after the look are message when they are read"
    assert "skip_bad_rows" in capsys.readouterr().err
    assert len(list(folder.rglob("cell.json"))) == 1
    assert run(skip_bad_rows=True) == 0, "a cell that has only a lease has not begun"
    assert len(results(folder)) == 1


def test_a_cell_without_a_checkpoint_may_change(write: Write, tmp_path: Path) -> None:
    """Files from before the first checkpoint are removed; a cell that a worker runs stays."""
    folder, few = tmp_path / "study", {**FEW, "sources": [], "targets": ["helpdesk/urgency"]}
    (cell,) = plan(read_study(write(**few)), "cpu")
    open_cell(cell, cell.config, StudyFolder(folder))
    cell.config.save(cell_path(folder, cell.name) / "config.yaml")
    (cell_path(folder, cell.name) / "metrics.jsonl").touch()
    changed = plan(read_study(write(**few, target={"steps": 3})), "cpu")
    with Leases(StudyFolder(folder)) as leases:
        assert leases.acquire(cell.name)
        with pytest.raises(UserError, match=r"was started: steps was 2 and is now 3"):
            check_unchanged(changed, StudyFolder(folder))
    check_unchanged(changed, StudyFolder(folder))
    open_cell(changed[0], changed[0].config, StudyFolder(folder))
    assert not (cell_path(folder, cell.name) / "config.yaml").exists()
    (cell_path(folder, cell.name) / "checkpoint.safetensors").touch()
    with pytest.raises(UserError, match=r"was started: steps was 3 and is now 2"):
        check_unchanged([cell], StudyFolder(folder))


NO_MODEL = "The model 'no-such-model' cannot be loaded"


def test_a_model_that_cannot_be_loaded_is_reported_before_anything_runs(
    write: Write, model: str, tmp_path: Path
) -> None:
    for changes, sentence in (
        ({"backbones": ["no-such-model"]}, NO_MODEL),
        ({"backbones": [model, "no-such-model"]}, NO_MODEL),
        (
            {"settings": {**QUICK, "dtype": "fp16"}},
            r"dtype is 'fp16'; did you mean bf16\? The choices are auto, fp32, bf16, int8, int4\.",
        ),
        ({"settings": {**QUICK, "device": "nowhere"}}, "The device 'nowhere' is not available"),
    ):
        with pytest.raises(UserError, match=sentence):
            main(["run", str(write(**changes)), "--output", str(tmp_path / "study")])
        assert not (tmp_path / "study").exists()


def test_a_missing_model_leaves_a_study_unchanged(
    write: Write, finished_study: Path, model: str, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(finished_study, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(UserError, match=NO_MODEL):
        main(
            [
                "run",
                str(write(backbones=[model, "no-such-model"])),
                "--output",
                str(folder),
                "--device",
                "cpu",
            ]
        )
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_finished_study_does_not_need_its_model(
    finished_study: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "softprompts.study.checks.inspect_model",
        lambda name, trusted: pytest.fail(f"{name} is not needed"),
    )
    assert main(["run", str(finished_study)]) == 0


def test_a_study_runs_from_python_and_in_another_folder(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    shutil.copy(write(), folder / "study.yaml")
    study = Study.load(folder)
    assert study.folder.path == folder
    study.run(output=tmp_path / "other", only=["baseline"], device="cpu")
    assert {result["stage"] for result in results(tmp_path / "other").values()} == {"baseline"}
    assert Study.open(tmp_path / "other").status()["stages"]["baseline"]["done"] == 4
    assert not results(folder)


def test_in_a_log_a_line_says_how_many_cells_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    cells = planned(**FEW)
    names, lines = [cell.name for cell in cells], StudyLines(cells)
    one = CellResult(names[0], score=50.0)
    for state in (
        StudyState(),
        StudyState({names[0]: one, "of-another-file": one}),
        StudyState({names[0]: one}),  # nothing new
        StudyState({names[0]: one, names[1]: CellResult(names[1])}, failed={names[1]}),
    ):
        lines.on_update(state)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"softprompts: 0 of {len(cells)} cells are done",
        f"softprompts: 1 of {len(cells)} cells are done",
        f"softprompts: 2 of {len(cells)} cells are done, 1 failed",
    ]


def test_in_a_log_a_long_cohort_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("softprompts.study.progress.time.monotonic", lambda: now[0])
    cells = planned(**FEW)
    lines = StudyLines(cells)
    lines.on_update(StudyState())
    runs: list[Any] = [SimpleNamespace(step=0, steps=cells[0].config.tuning.steps)]
    lines.on_start(runs)
    for seconds, step in ((5.0, 1), (31.0, 2), (40.0, 3)):
        now[0], runs[0].step = seconds, step
        lines.on_step(runs[0])
    written = capsys.readouterr().err.splitlines()
    assert len(written) == 2, "a short cohort needs no line"
    assert re.fullmatch(
        r"softprompts: 2 of \d+ run-steps of this cohort, about 0:\d\d:\d\d left in all", written[1]
    )


@pytest.mark.parametrize(
    ("variants", "quiet", "warned"),
    [
        ({"slow": {"settings": {"lr": 0.1}}}, False, True),
        ({"slow": {"settings": {"lr": 0.1}}}, True, False),
        ({"base": {}, "slow": {"settings": {"lr": 0.1}}}, False, False),
        ({}, False, False),
    ],
)
def test_variants_without_the_study_s_own_settings_are_pointed_out(
    variants: dict[str, Any],
    quiet: bool,
    warned: bool,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On standard error, before anything runs; `--quiet` leaves it out."""

    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        main(["run", str(write(variants=variants)), *(["--quiet"] if quiet else [])])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("only the variants in" in captured.err) is warned
    assert ("add a variant without changes (base: {})" in captured.err) is warned


def test_the_time_left_counts_busy_time_and_epochs_by_cells() -> None:
    def cells(**tuning: Any) -> Any:
        return [
            SimpleNamespace(name=name, config=SimpleNamespace(tuning=SimpleNamespace(**tuning)))
            for name in "abcd"
        ]

    def result(begun: float) -> CellResult:
        return CellResult("x", score=1.0, steps=100, begun=begun, finished=begun + 100.0)

    apart = StudyState({"x": result(0.0), "y": result(36_000.0)})
    assert pace(cells(steps=100, epochs=None), apart) == {
        "cells_per_minute": 0.6,
        "eta_seconds": 400,
    }
    assert pace(cells(steps=400, epochs=50), apart) == {"cells_per_minute": 0.6, "eta_seconds": 400}
    beside = StudyState({"x": result(0.0), "y": result(0.0), "z": result(50.0)})
    assert pace(cells(steps=100, epochs=None), beside)["eta_seconds"] == 200


def test_status_and_report_of_a_study(
    finished_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(finished_study), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["stages"]["transfer"] == {"done": 8, "total": 8}
    assert printed["cells_per_minute"] > 0
    assert printed["eta_seconds"] == 0
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    assert (
        main(["report", str(finished_study), "--output", str(tmp_path / "report"), "--json"]) == 0
    )
    printed = json.loads(capsys.readouterr().out)
    records = json.loads((tmp_path / "report" / "records.json").read_text())
    assert {record["cell"]: record["score"] for record in records} == scores(finished_study)
    assert {record["cell"]: record["metrics"] for record in records} == {
        name: printed["metrics"] for name, printed in results(finished_study).items()
    }
    assert {record["fingerprint"] for record in records} == {
        printed["fingerprint"] for printed in results(finished_study).values()
    }
    with (tmp_path / "report" / "records.csv").open() as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    mixed = next(record for record in records if record["stage"] == "mixture-source")
    assert len(mixed["metrics"]) == 5, "a mean, and two metrics per task"
    assert rows[mixed["cell"]]["metrics"] == ";".join(
        f"{name}={value}" for name, value in mixed["metrics"].items()
    )
    assert (tmp_path / "report" / "plan.yaml").read_bytes() == (
        finished_study / "study.yaml"
    ).read_bytes()
    baselines = [
        r["score"]
        for r in records
        if r["stage"] == "baseline" and r["target"] == "helpdesk/urgency"
    ]
    line = next(line for line in printed["scores"] if line["source"] is None)
    assert line["targets"]["helpdesk/urgency"]["mean"] == pytest.approx(
        sum(baselines) / 2, abs=0.01
    )
    assert "(no transfer)" in (tmp_path / "report" / "scores.md").read_text()
    sources = json.loads((tmp_path / "report" / "sources.json").read_text())
    source_scores = [
        record["score"]
        for record in records
        if record["stage"] == "source" and record["source"] == "helpdesk/area"
    ]
    area = next(row for row in sources if row["source"] == "helpdesk/area")
    assert area["score"] == pytest.approx(sum(source_scores) / 2, rel=1e-5)
    assert (area["metric"], area["rows"]) == ("accuracy", 12)
    assert "## Sources" in (tmp_path / "report" / "report.md").read_text()


def test_a_report_names_the_machines_of_its_cells(
    finished_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    here = environment(torch.device("cpu"), "fp32")
    assert here.keys() == {"device", "dtype", "softprompts", "torch", "transformers"}
    assert all(result["machine"] == here for result in results(finished_study).values())
    folder = tmp_path / "study"
    shutil.copytree(finished_study, folder)
    for path in (*(folder / CELLS).rglob(RESULT), *(folder / CELLS).rglob(CARD)):
        known = json.loads(path.read_text())
        del known["machine"]  # as older results and cards are
        path.write_text(json.dumps(known))
    for study, machines in ((finished_study, [here]), (folder, None)):
        assert main(["report", str(study), "--output", str(tmp_path / study.name), "--json"]) == 0
        (analysis,) = json.loads(capsys.readouterr().out)["analyses"].values()
        assert analysis.get("machines") == machines
        assert (
            json.loads((tmp_path / study.name / "report.json").read_text()).get("machines")
            == machines
        )


@pytest.mark.parametrize(("failed", "steps"), [(0, 16 + 4), (1, 12 + 4)])
def test_the_time_left_is_estimated_by_steps(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], failed: int, steps: int
) -> None:
    """4 sources of 4 steps and 2 of 4 baselines of 2 took 40 seconds; 8 transfers are left."""
    study, folder = write(retrieval={}), tmp_path / "study"
    cells = plan(read_study(study))
    for index, cell in enumerate(cells[:6]):
        begun, finished = (1000.0, 1032.0) if cell.stage == "source" else (1032.0, 1040.0)
        times = {"begun": begun, "finished": finished}
        result = CellResult(cell.name, score=50.0, steps=cell.config.tuning.steps, **times)
        if index < failed:
            result = CellResult(cell.name, failed="the loss was not finite", **times)
        open_cell(cell, cell.config, StudyFolder(folder))
        commit(StudyFolder(folder), result)
    shutil.copy(study, folder / "study.yaml")
    assert main(["status", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    left = 2 * (2 + 8 - 2 * failed)  # a failed source's transfers take no time
    assert (printed["done"], printed["total"], printed["cells_per_minute"]) == (6, 16, 9.0)
    assert printed["eta_seconds"] == 40 * left / steps == 40
    with Leases(StudyFolder(folder)):
        assert main(["status", str(folder)]) == 0
    assert "9.0 cells per minute, about 40 s left\n" in capsys.readouterr().out
    assert main(["status", str(folder)]) == 0, "the worker has left"
    printed = capsys.readouterr().out
    resume = f"no workers are running; `softprompts study run {folder}` resumes the study"
    assert f"9.0 cells per minute\n{resume}\n" in printed


def test_stages_may_run_separately(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, folder = str(write(retrieval={}, seeds=[0])), str(tmp_path / "study")
    with pytest.raises(UserError, match="add source to only"):
        main(["run", study, "--output", folder, "--only", "transfer"])
    with pytest.raises(UserError, match="no stage 'x'"):
        main(["run", study, "--output", folder, "--only", "x"])
    assert (
        main(["run", study, "--output", folder, "--only", "source,baseline", "--device", "cpu"])
        == 0
    )
    assert {result["stage"] for result in results(Path(folder)).values()} == {"source", "baseline"}
    capsys.readouterr()
    assert main(["status", folder]) == 0
    assert "transfer        0 of 4" in capsys.readouterr().out


def test_a_changed_study_file_is_refused(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    small = {"targets": ["helpdesk/urgency"], "seeds": [0], "retrieval": {}}
    assert main(["run", str(write(**small)), "--output", str(folder), "--device", "cpu"]) == 0
    before = results(folder)
    with pytest.raises(
        UserError,
        match=r"was started: steps was 4 and is now 6 \(and 1 more cells\); undo",
    ):
        main(["run", str(write(**small, source={"steps": 6})), "--output", str(folder)])
    assert results(folder) == before
    assert (
        main(
            [
                "run",
                str(write(**{**small, "seeds": [0, 1]})),
                "--output",
                str(folder),
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    after = results(folder)
    assert len(after) == 2 * len(before)
    assert {name: after[name] for name in before} == before


def test_a_failed_source_blocks_the_cells_that_start_from_it(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write(
        seeds=[0], retrieval={}, targets=["helpdesk/urgency"], source={"steps": 4, "lr": 1e30}
    )
    assert (
        main(["run", str(study), "--output", str(tmp_path / "study"), "--json", "--device", "cpu"])
        == 1
    )
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["failed"]) == 2
    assert all("lower lr" in why for why in printed["failed"].values())
    assert len(printed["blocked"]) == 2
    assert printed["stages"]["baseline"] == {"done": 1, "total": 1}


def test_blocked_cells_without_a_failure_have_another_reason() -> None:
    result = {
        "stages": {},
        "done": 1,
        "total": 2,
        "reused": 0,
        "cells_per_minute": None,
        "running": [],
        "workers": [],
        "failed": {},
    }
    result |= {"blocked": ["a"], "missing": ["a"]}
    assert "1 cells cannot run, because there are fewer source prompts than they need" in describe(
        result
    )
    assert "no workers" not in describe(result), "no cells can run"
    assert "because a cell they start from failed" in describe(
        {**result, "failed": {"b": "the loss was not finite"}}
    )


def test_a_failed_source_is_not_chosen_for_an_average(finished_study: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(finished_study, folder)
    cells = plan(read_study(folder / "study.yaml"))
    average = next(cell for cell in cells if cell.stage == "average")
    (failed,) = {chosen["cell"] for chosen in results(folder)[average.name]["chosen"][:1]}
    for path in cell_path(folder, failed).iterdir():
        path.unlink()
    commit(StudyFolder(folder), CellResult(failed, failed="the loss was not finite"))
    blocked = StudyState().update(cells, StudyFolder(folder)).blocked
    assert blocked == {
        cell.name for cell in cells if cell.stage == "transfer" and failed in cell.starts
    }
    config, chosen = resolve_start(
        average, {cell.name: cell for cell in cells}, StudyFolder(folder)
    )
    assert len(chosen) == len(config.prompt.start.options["sources"]) == 2
    assert failed not in {source.cell for source in chosen}
    assert average.is_blocked(set(average.starts[:-1])), "one prompt has no top 2"


def test_another_file_of_the_same_name_is_not_replaced(write: Write, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "study.yaml").write_text("my notes: 1\n")
    with pytest.raises(UserError, match="holds files that do not belong to a study"):
        main(["run", str(write()), "--output", str(tmp_path / "notes")])
    assert (tmp_path / "notes" / "study.yaml").read_text() == "my notes: 1\n"


def test_a_folder_with_other_files_is_not_used(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="holds files that do not belong to a study"):
        main(["run", str(write()), "--output", str(tmp_path / "mine")])
    with pytest.raises(UserError, match="is not the folder of a study"):
        main(["status", str(tmp_path / "mine")])
