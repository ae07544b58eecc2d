"""Studies: that every cell is run and told, and that results can be had again."""

import argparse
import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from softprompts.backbone.hardware import environment
from softprompts.cli import main as cli
from softprompts.cli.study import _planned, _where, main
from softprompts.errors import UserError
from softprompts.study.cells import RESULT, commit, open_cell, place, saved_config, settle
from softprompts.study.checks import check_unchanged
from softprompts.study.leases import WORKERS, Claims
from softprompts.study.plan import plan, read_study
from softprompts.study.records import pace
from softprompts.study.workers import State

from .conftest import FEW, QUICK, Write, results, scores
from .test_plan import ALL


def test_a_study_runs_every_cell_and_tells_what_it_came_to(whole: Path, model: str) -> None:
    found = results(whole)
    assert len(found) == ALL
    assert all(
        told["rows"] == 12 and told["majority"] > 0
        for told in found.values()
        if told["stage"] != "mixture-source"
    )
    assert len({told["score"] for told in found.values()}) > 3, (
        "scores that could be mistaken for one another would prove nothing below"
    )
    home = next(iter(found)).split("/")[0]
    transfer = found[f"{home}/transfer/helpdesk-intent--helpdesk-urgency/seed1"]
    assert transfer["config"]["prompt"]["start"]["sources"] == [
        str(place(whole, f"{home}/source/helpdesk-intent/seed1"))
    ]
    average = found[f"{home}/average/helpdesk-urgency/k2/seed0"]
    assert len(average["chosen"]) == 2
    assert sum(chosen["weight"] for chosen in average["chosen"]) == pytest.approx(1)
    assert average["chosen"][0]["similarity"] >= average["chosen"][1]["similarity"]
    mixed = found[f"{home}/mixture-source/helpdesk-urgency/k1/seed0"]["config"]["task"][
        "task"
    ].split("+")
    assert mixed[0] == "helpdesk/urgency"
    assert set(mixed[1:]) < {"helpdesk/intent", "helpdesk/area"}
    after = found[f"{home}/mixture/helpdesk-urgency/k1/seed0"]["config"]
    assert after["prompt"]["start"]["sources"] == [
        str(place(whole, f"{home}/mixture-source/helpdesk-urgency/k1/seed0"))
    ]
    assert not list(whole.rglob(".claim-*"))
    assert not list((whole / WORKERS).iterdir())


def test_a_finished_study_runs_nothing_again(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")}
    assert main(["run", str(whole), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["done"], told["total"], told["missing"]) == (ALL, ALL, [])
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")} == before


@pytest.mark.parametrize(
    "kind",
    [
        "source/helpdesk-area/seed1",
        "transfer/helpdesk-intent--helpdesk-register/seed0",
        "average/helpdesk-urgency/k2/seed1",
    ],
)
def test_a_cell_rerun_from_its_config_gives_the_recorded_score(
    whole: Path, tmp_path: Path, kind: str
) -> None:
    (name,) = (name for name in results(whole) if name.endswith(kind))
    assert (
        cli.main(
            [
                "tune",
                "--config",
                str(place(whole, name) / "config.yaml"),
                "--output",
                str(tmp_path / "again"),
                "--quiet",
            ]
        )
        == 0
    )
    again = json.loads((tmp_path / "again" / "prompt.json").read_text())
    told = results(whole)[name]
    assert again["metrics"] == told["metrics"]
    assert again["config"] == told["config"]


def test_a_cohort_rerun_gives_the_recorded_scores(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (name,) = (
        name
        for name in results(whole)
        if name.endswith("transfer/helpdesk-area--helpdesk-urgency/seed1")
    )
    assert main(["rerun", str(whole), name, "--output", str(tmp_path / "again"), "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert {told["cell"] for told in cells} == set(results(whole)[name]["beside"])
    assert len(cells) > 1
    assert all(
        told["same"] and told["recorded"] == told["again"] == scores(whole)[told["cell"]]
        for told in cells
    )
    with pytest.raises(
        UserError,
        match=r"no result of a cell 'x'; .*status .* --json names the finished cells under \"finished\"",
    ):
        main(["rerun", str(whole), "x", "--output", str(tmp_path / "more")])
    with pytest.raises(UserError, match="is no folder of a study"):
        main(["rerun", str(tmp_path), "x", "--output", str(tmp_path / "more")])
    assert not (tmp_path / "more").exists()
    assert main(["status", str(whole), "--json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)["finished"]) == sorted(results(whole))


def test_a_study_that_was_moved_is_told_and_rerun_from_where_it_is(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells' configs name source prompts where they were; those that lie beside the cell now are taken."""
    moved = tmp_path / "moved"
    shutil.copytree(whole, moved)
    (name,) = (
        name for name in results(moved) if name.endswith("average/helpdesk-urgency/k2/seed1")
    )
    configs = [saved_config(moved, cell) for cell in results(moved)[name]["beside"]]
    starts = [
        str(source)
        for config in configs
        for source in config.prompt.start.options.get("sources", [])
    ]
    assert starts
    assert all(start.startswith(str(moved)) and Path(start).is_dir() for start in starts)
    assert configs[0].prompt.start.options.get("weights") == saved_config(
        whole, results(moved)[name]["beside"][0]
    ).prompt.start.options.get("weights")
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
        open_cell(cell, cell.config, folder)
        told = {
            "cell": cell.name,
            "score": score + cell.seed,
            "parameters": size,
            "finished": 2.0,
            "begun": 1.0,
            "majority": 50.0,
            "rows": 9,
        }
        commit(folder, told)
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


def test_rows_that_are_not_there_are_told_before_anything_runs(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "data" / "glue" / "sst2").mkdir(parents=True)
    (tmp_path / "data" / "glue" / "sst2" / "train.jsonl").touch()
    for targets, sentence in (
        (["glue/rte"], "holds no rows of glue/rte"),
        (
            [{"name": "mine", "train": str(tmp_path / "no.csv")}],
            "no.csv that the study names does not exist",
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


def test_rows_that_the_hub_does_not_give_are_told_before_anything_runs(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOFTPROMPTS_DATA", raising=False)
    with pytest.raises(
        UserError,
        match=r"The hub does not give the rows of glue/rte here; name a folder .* with --data-dir",
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
def test_a_gpu_that_is_not_there_is_told_before_anything_runs(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no device 'cuda' here; choose cpu, or auto"):
        main(["run", str(write()), "--output", str(tmp_path / "study"), "--device", "cuda"])
    assert not (tmp_path / "study").exists()


def test_bad_rows_of_own_data_are_told_before_anything_runs_and_can_be_left_out(
    write: Write,
    toy_csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole_rows = toy_csv.read_text()
    toy_csv.write_text(whole_rows + "a text without a mood,\n")
    own = {"name": "mine", "train": str(toy_csv), "text": "review", "label": "mood"}
    folder = tmp_path / "study"

    def run(**more: object) -> int:
        study = write(**FEW, sources=["helpdesk/intent"], targets=[{**own, **more}])
        return cli.main(
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
    told = capsys.readouterr().err
    assert "The rows of mine cannot be used" in told
    assert "reviews.csv:26: the column 'mood' is empty" in told
    assert (
        "leave such rows out with skip_bad_rows: true in its entry of the study file, or under settings."
        in told
    )
    assert "--skip" not in told
    assert not folder.exists()
    monkeypatch.setattr("softprompts.study.checks.check_data", lambda *given: {})
    monkeypatch.setattr("softprompts.study.checks.check_runs", lambda *given: None)
    assert run() == 2, "rows that change after the look are told when they are read"
    assert "skip_bad_rows: true in its entry" in capsys.readouterr().err
    assert len(list(folder.rglob("cell.json"))) == 1
    assert run(skip_bad_rows=True) == 0, "a cell that was only claimed is not begun"
    assert len(results(folder)) == 1


def test_a_cell_without_a_checkpoint_may_become_another(write: Write, tmp_path: Path) -> None:
    """What a run left before its first checkpoint is not in the way; what a living worker is at stays."""
    folder, few = tmp_path / "study", {**FEW, "sources": [], "targets": ["helpdesk/urgency"]}
    (cell,) = plan(read_study(write(**few)), "cpu")
    open_cell(cell, cell.config, folder)
    cell.config.save(place(folder, cell.name) / "config.yaml")
    (place(folder, cell.name) / "metrics.jsonl").touch()
    changed = plan(read_study(write(**few, target={"steps": 3})), "cpu")
    with Claims(folder) as claims:
        assert claims.take(cell.name)
        with pytest.raises(UserError, match=r"was begun with tuning.steps 2 where it says 3 now"):
            check_unchanged(changed, folder)
    check_unchanged(changed, folder)
    open_cell(changed[0], changed[0].config, folder)
    assert not (place(folder, cell.name) / "config.yaml").exists()
    (place(folder, cell.name) / "checkpoint.safetensors").touch()
    with pytest.raises(UserError, match=r"was begun with tuning.steps 3 where it says 2 now"):
        check_unchanged([cell], folder)


NO_MODEL = "The model 'no-such-model' cannot be loaded"


def test_a_model_that_cannot_be_had_is_told_before_anything_runs(
    write: Write, model: str, tmp_path: Path
) -> None:
    for changes, sentence in (
        ({"backbones": ["no-such-model"]}, NO_MODEL),
        ({"backbones": [model, "no-such-model"]}, NO_MODEL),
        ({"settings": {**QUICK, "dtype": "fp16"}}, "cannot be loaded as fp16"),
        ({"settings": {**QUICK, "device": "nowhere"}}, "There is no device 'nowhere' here"),
    ):
        with pytest.raises(UserError, match=sentence):
            main(["run", str(write(**changes)), "--output", str(tmp_path / "study")])
        assert not (tmp_path / "study").exists()


def test_a_model_that_is_not_there_leaves_a_study_as_it_was(
    write: Write, whole: Path, model: str, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(whole, folder)
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


def test_a_finished_study_does_not_ask_for_its_model(
    whole: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "softprompts.study.checks.inspect_model",
        lambda name, trusted: pytest.fail(f"{name} is not needed"),
    )
    assert main(["run", str(whole)]) == 0


def test_a_studys_folder_is_a_study_that_may_be_run_elsewhere(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    shutil.copy(write(), folder / "study.yaml")
    asked = argparse.Namespace(study=folder)
    assert _planned(asked)[1] == folder
    assert _planned(asked, tmp_path / "other")[1] == tmp_path / "other"


def test_the_time_left_counts_work_alone_and_epochs_by_cells() -> None:
    def cells(**tuning: Any) -> Any:
        return [
            SimpleNamespace(name=name, config=SimpleNamespace(tuning=SimpleNamespace(**tuning)))
            for name in "abcd"
        ]

    def told(begun: float) -> dict[str, Any]:
        return {"score": 1.0, "steps": 100, "begun": begun, "finished": begun + 100.0}

    apart = State({"x": told(0.0), "y": told(36_000.0)})
    assert pace(cells(steps=100, epochs=None), apart) == {
        "cells_per_minute": 0.6,
        "eta_seconds": 400,
    }
    assert pace(cells(steps=400, epochs=50), apart) == {"cells_per_minute": 0.6, "eta_seconds": 400}
    beside = State({"x": told(0.0), "y": told(0.0), "z": told(50.0)})
    assert pace(cells(steps=100, epochs=None), beside)["eta_seconds"] == 200


def test_status_and_report_of_a_study(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(whole), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["stages"]["transfer"] == {"done": 8, "total": 8}
    assert told["cells_per_minute"] > 0
    assert told["eta_seconds"] == 0
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    assert main(["report", str(whole), "--output", str(tmp_path / "report"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    records = json.loads((tmp_path / "report" / "records.json").read_text())
    assert {record["cell"]: record["score"] for record in records} == scores(whole)
    assert {record["cell"]: record["metrics"] for record in records} == {
        name: told["metrics"] for name, told in results(whole).items()
    }
    assert {record["fingerprint"] for record in records} == {
        told["fingerprint"] for told in results(whole).values()
    }
    with (tmp_path / "report" / "records.csv").open() as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    mixed = next(record for record in records if record["stage"] == "mixture-source")
    assert len(mixed["metrics"]) == 5, "a mean, and two of each task"
    assert rows[mixed["cell"]]["metrics"] == ";".join(
        f"{name}={value}" for name, value in mixed["metrics"].items()
    )
    assert (tmp_path / "report" / "plan.yaml").read_bytes() == (whole / "study.yaml").read_bytes()
    baselines = [
        r["score"]
        for r in records
        if r["stage"] == "baseline" and r["target"] == "helpdesk/urgency"
    ]
    line = next(line for line in told["scores"] if line["source"] is None)
    assert line["targets"]["helpdesk/urgency"]["mean"] == pytest.approx(
        sum(baselines) / 2, abs=0.01
    )
    assert "(no transfer)" in (tmp_path / "report" / "scores.md").read_text()
    sources = json.loads((tmp_path / "report" / "sources.json").read_text())
    own = [r["score"] for r in records if r["stage"] == "source" and r["source"] == "helpdesk/area"]
    area = next(row for row in sources if row["source"] == "helpdesk/area")
    assert area["score"] == pytest.approx(sum(own) / 2, rel=1e-5)
    assert (area["metric"], area["rows"]) == ("accuracy", 12)
    assert "## Sources" in (tmp_path / "report" / "report.md").read_text()


def test_a_report_tells_what_its_cells_ran_on(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    here = environment(torch.device("cpu"), "fp32")
    assert here.keys() == {"device", "dtype", "softprompts", "torch", "transformers"}
    assert all(told["machine"] == here for told in results(whole).values())
    folder = tmp_path / "study"
    shutil.copytree(whole, folder)
    cells = plan(read_study(folder / "study.yaml"))
    for place_of, told in (
        (place(folder, cell.name) / RESULT, results(folder)[cell.name]) for cell in cells
    ):
        del told["machine"]  # as older results are
        place_of.write_text(json.dumps(told))
    for study, machines in ((whole, [here]), (folder, None)):
        assert main(["report", str(study), "--output", str(tmp_path / study.name), "--json"]) == 0
        (analysis,) = json.loads(capsys.readouterr().out)["analyses"].values()
        assert analysis.get("machines") == machines
        assert (
            json.loads((tmp_path / study.name / "report.json").read_text()).get("machines")
            == machines
        )


@pytest.mark.parametrize(("failed", "steps"), [(0, 16 + 4), (1, 12 + 4)])
def test_half_way_the_time_left_goes_by_the_steps_left(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], failed: int, steps: int
) -> None:
    """Of 4 sources of 4 steps, 4 baselines and 8 transfers of 2, the sources and two baselines are done, in 40 seconds."""
    study, folder = write(retrieval={}), tmp_path / "study"
    cells = plan(read_study(study))
    for place_of, cell in enumerate(cells[:6]):
        begun, finished = (1000.0, 1032.0) if cell.stage == "source" else (1032.0, 1040.0)
        told = {
            "cell": cell.name,
            "score": 50.0,
            "steps": cell.config.tuning.steps,
            "begun": begun,
            "finished": finished,
        }
        if place_of < failed:
            told |= {"score": None, "steps": 0, "failed": "the loss was no number"}
        open_cell(cell, cell.config, folder)
        commit(folder, told)
    shutil.copy(study, folder / "study.yaml")
    assert main(["status", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    left = 2 * (2 + 8 - 2 * failed)  # a failed source's transfers take no time
    assert (told["done"], told["total"], told["cells_per_minute"]) == (6, 16, 9.0)
    assert told["eta_seconds"] == 40 * left / steps == 40
    with Claims(folder):
        assert main(["status", str(folder)]) == 0
    assert "9.0 cells a minute, about 40 s left\n" in capsys.readouterr().out
    assert main(["status", str(folder)]) == 0, "the worker has left, or was killed"
    told = capsys.readouterr().out
    assert (
        f"9.0 cells a minute\nnobody is at work on it; softprompts study run {folder} goes on\n"
        in told
    )


def test_stages_may_be_run_in_parts(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, folder = str(write(retrieval={}, seeds=[0])), str(tmp_path / "study")
    with pytest.raises(UserError, match="add source to --only"):
        main(["run", study, "--output", folder, "--only", "transfer"])
    with pytest.raises(UserError, match="no stage 'x'"):
        main(["run", study, "--output", folder, "--only", "x"])
    assert (
        main(["run", study, "--output", folder, "--only", "source,baseline", "--device", "cpu"])
        == 0
    )
    assert {told["stage"] for told in results(Path(folder)).values()} == {"source", "baseline"}
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
        match=r"was begun with tuning.steps 4 where it says 6 now \(and 1 more cells\); change it back",
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


def test_a_failed_source_is_told_and_blocks_what_starts_from_it(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write(
        seeds=[0], retrieval={}, targets=["helpdesk/urgency"], source={"steps": 4, "lr": 1e30}
    )
    assert (
        main(["run", str(study), "--output", str(tmp_path / "study"), "--json", "--device", "cpu"])
        == 1
    )
    told = json.loads(capsys.readouterr().out)
    assert len(told["failed"]) == 2
    assert all("lower --lr" in why for why in told["failed"].values())
    assert len(told["blocked"]) == 2
    assert told["stages"]["baseline"] == {"done": 1, "total": 1}


def test_no_failure_is_blamed_where_there_is_none() -> None:
    told = {
        "stages": {},
        "done": 1,
        "total": 2,
        "cells_per_minute": None,
        "running": [],
        "workers": [],
        "failed": {},
    }
    told |= {"blocked": ["a"], "missing": ["a"]}
    assert "1 cells cannot run, because there are fewer source prompts than they choose" in _where(
        told
    )
    assert "nobody is at work" not in _where(told), "nothing is left to do"
    assert "because a cell they start from failed" in _where(
        {**told, "failed": {"b": "the loss was no number"}}
    )


def test_of_many_sources_one_that_failed_is_not_chosen_and_stops_no_average(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(whole, folder)
    cells = plan(read_study(folder / "study.yaml"))
    average = next(cell for cell in cells if cell.stage == "average")
    (failed,) = {chosen["cell"] for chosen in results(folder)[average.name]["chosen"][:1]}
    for path in place(folder, failed).iterdir():
        path.unlink()
    commit(folder, {"cell": failed, "score": None, "failed": "the loss was no number"})
    blocked = State().look(cells, folder).blocked
    assert blocked == {
        cell.name for cell in cells if cell.stage == "transfer" and failed in cell.starts
    }
    config, chosen = settle(average, {cell.name: cell for cell in cells}, folder)
    assert len(chosen) == len(config.prompt.start.options["sources"]) == 2
    assert failed not in {one["cell"] for one in chosen}
    assert average.hopeless(set(average.starts[:-1])), "of one prompt there is no top 2"


def test_a_file_that_is_only_called_study_is_left_alone(write: Write, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "study.yaml").write_text("my notes: 1\n")
    with pytest.raises(UserError, match="holds other things than a study"):
        main(["run", str(write()), "--output", str(tmp_path / "notes")])
    assert (tmp_path / "notes" / "study.yaml").read_text() == "my notes: 1\n"


def test_a_folder_of_other_things_is_left_alone(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="holds other things than a study"):
        main(["run", str(write()), "--output", str(tmp_path / "mine")])
    with pytest.raises(UserError, match="is no folder of a study"):
        main(["status", str(tmp_path / "mine")])
