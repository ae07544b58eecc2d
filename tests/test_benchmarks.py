"""The scripts in benchmarks/ run, so that a record can be made again."""

import json
import multiprocessing.dummy
import sys
from pathlib import Path

import pytest
import yaml

from .conftest import MISTAKES
from .models import random_model, random_t5

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_a_sweep_records_every_run_once_and_makes_a_table(
    toy_csv: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import sweep
    import sweep_table

    made = random_model("t5")
    made.model.save_pretrained(tmp_path / "models" / "tiny")
    made.tokenizer.save_pretrained(tmp_path / "models" / "tiny")
    entry = {
        "model": "{backbones}/tiny",
        "train": "{data}/reviews.csv",
        "text": "review",
        "label": "mood",
        "steps": 2,
        "batch_size": 4,
    }
    grid = [{**entry, "grid": {"preset": ["prompt-tuning"], "seed": [0, 1], "prompt.length": [4]}}]
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    command = [
        "sweep.py", str(tmp_path / "grid.yaml"), "--output", str(tmp_path / "out.jsonl"), "--device", "cpu",
        "--data", str(toy_csv.parent), "--backbones", str(tmp_path / "models"),
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", command)
    sweep.main()
    monkeypatch.setattr(
        multiprocessing, "get_context", lambda _: multiprocessing.dummy
    )  # a thread is enough where nothing is left to do
    sweep.main()
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["settings"]["seed"] for record in records] == [0, 1]
    assert all("metrics" in record for record in records)
    monkeypatch.setattr(sys, "argv", ["sweep_table.py", str(tmp_path / "out.jsonl")])
    capsys.readouterr()
    sweep_table.main()
    assert "prompt-tuning" in capsys.readouterr().out


def test_the_recorded_runs_are_those_of_the_grids() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import sweep

    for name in ("families", "defaults"):
        grid = sweep.configs(yaml.safe_load((BENCHMARKS / "grids" / f"{name}.yaml").read_text()))
        recorded = [
            json.loads(line)["settings"]
            for line in (BENCHMARKS / "results" / f"{name}-h200.jsonl").read_text().splitlines()
        ]
        assert all(settings in recorded for settings in grid)
        assert all(settings in grid for settings in recorded)


@pytest.mark.usefixtures("no_curves")
def test_backbones_are_measured_side_by_side_and_not_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import backbones

    for name, made in (("first", random_t5()), ("second", random_t5(num_layers=1))):
        made.model.save_pretrained(tmp_path / name)
        made.tokenizer.save_pretrained(tmp_path / name)
    command = [
        f"old={tmp_path / 'first'}", f"new={tmp_path / 'second'}",
        "--tasks", "helpdesk/urgency,helpdesk/sentiment", "--seeds", "0,1", "--steps", "4",
        "--evaluate-every", "2", "--cap-validation", "20", "--batch-size", "4", "--device", "cpu", "--output", str(tmp_path / "out"),
    ]  # fmt: skip
    assert backbones.main(command) == 0
    table = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "backbones.json").read_text())
    assert list(found) == ["old", "new"]
    for record in found.values():
        assert record["tasks"].keys() == {"helpdesk/urgency", "helpdesk/sentiment"}
        best = [record["tasks"][task]["best"]["0"] for task in record["tasks"]]
        assert record["mean"]["best"]["0"] == pytest.approx(sum(best) / 2)
        assert all(
            scores["last"][seed] <= scores["best"][seed]
            for scores in record["tasks"].values()
            for seed in ("0", "1")
        )
    assert f"{found['old']['tasks']['helpdesk/urgency']['majority']:.1f}" in table
    assert (
        table.count("±") == 2 * 2 * 3 + 1
    )  # best and last, two backbones, two tasks and their mean; and the line that explains
    began = (tmp_path / "out" / "old" / "scores.json").stat().st_mtime_ns
    assert backbones.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert (tmp_path / "out" / "old" / "scores.json").stat().st_mtime_ns == began
    assert backbones.main([*command, "--steps", "5"]) == 2
    assert "with other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        *MISTAKES,
        (["--preset", "none"], "There is no preset 'none'"),
        (["t5-gone"], "The model 't5-gone' cannot be loaded"),
    ],
)
def test_settings_are_checked_before_the_first_backbone_is_measured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    sentence: str,
) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import backbones

    monkeypatch.setattr(backbones, "measure", None)
    command = ["--tasks", "helpdesk/urgency", "--output", str(tmp_path / "out"), "--device", "cpu"]
    assert backbones.main([*command, "t5-tiny", *flags]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_mean_over_tasks_leaves_out_a_seed_that_failed_somewhere() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import backbones

    tasks = {"a": {"best": {"0": 50.0, "1": 60.0}}, "b": {"best": {"1": 80.0}}}
    assert backbones.over_tasks(tasks, "best") == {"1": 70.0}
    assert backbones.spread({"0": 1.0, "1": 3.0}) == "2.0 ± 1.4"
    assert backbones.spread({}) == "failed"


def test_a_studys_cells_are_timed_as_a_cohort_and_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import study

    made = random_model("t5")
    made.model.save_pretrained(tmp_path / "random")
    made.tokenizer.save_pretrained(tmp_path / "random")
    settings = {
        "preset": "prompt-tuning",
        "prompt": {"length": 3},
        "batch_size": 4,
        "max_length": 24,
        "cap_validation": 12,
        "scoring": "labels",
    }
    grid = {
        "backbones": [str(tmp_path / "random")],
        "sources": ["helpdesk/intent", "helpdesk/area"],
        "seeds": [0, 1],
        "settings": settings,
    }
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({**grid, "source": {"steps": 500}}))
    command = [
        str(tmp_path / "grid.yaml"),
        "--cells",
        "3",
        "--steps",
        "2",
        "--device",
        "cpu",
        "--output",
        str(tmp_path / "out.json"),
    ]
    assert study.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "out.json").read_text())
    assert (found["cells"], found["steps"]) == (3, 2)
    assert found["cohort"]["scores"].keys() == found["one_by_one"]["scores"].keys()
    assert len(found["cohort"]["scores"]) == found["same_scores"] == 3
    assert found["largest_difference"] == 0
    assert found["ratio"] == pytest.approx(
        found["one_by_one"]["seconds"] / found["cohort"]["seconds"], rel=0.01
    )
    assert 0 < found["cohort"]["training_seconds"] < found["cohort"]["seconds"]
    assert found["cohort"]["cells_per_minute"] == pytest.approx(
        180 / found["cohort"]["seconds"], rel=0.01
    )
    assert f"{found['ratio']:.2f} times as fast" in study.told(found)
    assert study.main([*command, "--cells", "9"]) == 2
    assert "has 4 such cells" in capsys.readouterr().err
    assert study.main([*command, "--stage", "transfer"]) == 2
    assert "choose source or baseline" in capsys.readouterr().err


def test_a_profile_tells_where_a_step_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import step_profile

    made = random_t5()
    made.model.save_pretrained(tmp_path / "random")
    made.tokenizer.save_pretrained(tmp_path / "random")
    command = [
        "--model",
        str(tmp_path / "random"),
        "--runs",
        "2",
        "--batch",
        "4",
        "--prompt",
        "3",
        "--steps",
        "2",
        "--warmup",
        "1",
    ]
    assert (
        step_profile.main(
            [*command, "--device", "cpu", "--output", str(tmp_path / "out.json"), "--python", "5"]
        )
        == 0
    )
    told, found = capsys.readouterr(), json.loads((tmp_path / "out.json").read_text())
    assert found["kinds"]["matrix products"] > 0
    assert sum(found["kinds"].values()) == pytest.approx(found["busy_ms"], rel=0.01)
    assert found["run_step_ms"] == pytest.approx(found["step_ms"] / 2, rel=0.01)
    assert f"{found['tokens']:,} tokens a step" in told.out
    assert "tottime" in told.err
    assert step_profile.main(["--model", str(tmp_path / "none")]) == 2
    names = {
        "nvjet_sm90_tst_128x192": "matrix products",
        "_to_key": "attention",
        "triton_poi_fused_add": "other pointwise",
    }
    assert {name: step_profile.kind_of(name) for name in names} == names
