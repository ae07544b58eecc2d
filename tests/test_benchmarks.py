"""The scripts in benchmarks/ run, so that their results can be reproduced."""

import json
import multiprocessing.dummy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from softprompts.backbone import Backbone

from .models import random_model, random_t5
from .scripts import BAD_FLAGS, ROOT, load_script


def save(backbone: Backbone, folder: Path) -> Path:
    backbone.model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    return folder


def test_a_sweep_records_every_run_once_and_makes_a_table(
    toy_csv: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save(random_model("t5"), tmp_path / "models" / "tiny")
    entry = {
        "model": "{backbones}/tiny",
        "train": "{data}/reviews.csv",
        "text": "review",
        "label": "mood",
        "steps": 2,
        "batch_size": 4,
        "grid": {"preset": ["prompt-tuning"], "seed": [0, 1], "prompt.length": [4]},
    }
    grid, output = tmp_path / "grid.yaml", tmp_path / "out.jsonl"
    grid.write_text(yaml.safe_dump([entry]))
    folders = ["--data", str(toy_csv.parent), "--backbones", str(tmp_path / "models")]
    command = ["sweep.py", str(grid), "--output", str(output), "--device", "cpu", *folders]
    # threads in place of its worker processes, which would import torch
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: multiprocessing.dummy)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    monkeypatch.setattr(sys, "argv", command)
    load_script("benchmarks/sweep.py").main()
    load_script("benchmarks/sweep.py").main()  # again, with nothing left to run
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["settings"]["seed"] for record in records] == [0, 1]
    assert all("metrics" in record for record in records)
    monkeypatch.setattr(sys, "argv", ["sweep_table.py", str(output)])
    capsys.readouterr()
    load_script("benchmarks/sweep_table.py").main()
    assert "prompt-tuning" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["families", "defaults"])
def test_the_recorded_runs_are_those_of_the_grids(name: str) -> None:
    sweep, folder = load_script("benchmarks/sweep.py"), ROOT / "benchmarks"
    grid = sweep.expand(yaml.safe_load((folder / "grids" / f"{name}.yaml").read_text()))
    lines = (folder / "results" / f"{name}-h200.jsonl").read_text().splitlines()
    recorded = [json.loads(line)["settings"] for line in lines]
    assert all(settings in recorded for settings in grid)
    assert all(settings in grid for settings in recorded)


def test_backbones_are_compared_and_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backbones = load_script("benchmarks/backbones.py")
    first = save(random_t5(), tmp_path / "first")
    second = save(random_t5(num_layers=1), tmp_path / "second")
    flags = (
        "--tasks helpdesk/urgency,helpdesk/sentiment --seeds 0,1 --steps 4 --evaluate-every 2 "
        "--cap-validation 20 --batch-size 4 --device cpu"
    )
    output = tmp_path / "out"
    command = [f"old={first}", f"new={second}", *flags.split(), "--output", str(output)]
    assert backbones.main(command) == 0
    table = capsys.readouterr().out
    records = json.loads((output / "backbones.json").read_text())
    assert list(records) == ["old", "new"]
    for record in records.values():
        assert record["tasks"].keys() == {"helpdesk/urgency", "helpdesk/sentiment"}
        best = [record["tasks"][task]["best"]["0"] for task in record["tasks"]]
        assert record["mean"]["best"]["0"] == pytest.approx(sum(best) / 2)
        assert all(
            scores["last"][seed] <= scores["best"][seed]
            for scores in record["tasks"].values()
            for seed in ("0", "1")
        )
    assert f"{records['old']['tasks']['helpdesk/urgency']['majority']:.1f}" in table
    # best and last of two backbones on two tasks and in the mean; and the description
    assert table.count("±") == 2 * 2 * 3 + 1
    written = (output / "old" / "scores.json").stat().st_mtime_ns
    assert backbones.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == records
    assert (output / "old" / "scores.json").stat().st_mtime_ns == written
    assert backbones.main([*command, "--steps", "5"]) == 2
    assert "with other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        *BAD_FLAGS,
        (["--preset", "none"], "There is no preset 'none'"),
        (["t5-gone"], "The model 't5-gone' cannot be loaded"),
    ],
)
def test_settings_are_checked_before_the_first_backbone_is_measured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    message: str,
) -> None:
    backbones = load_script("benchmarks/backbones.py")
    monkeypatch.setattr(backbones, "measure", None)
    command = ["--tasks", "helpdesk/urgency", "--output", str(tmp_path / "out"), "--device", "cpu"]
    assert backbones.main([*command, "t5-tiny", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_mean_over_tasks_leaves_out_a_seed_that_failed_on_one() -> None:
    backbones = load_script("benchmarks/backbones.py")
    tasks = {"a": {"best": {"0": 50.0, "1": 60.0}}, "b": {"best": {"1": 80.0}}}
    assert backbones.mean_over_tasks(tasks, "best") == {"1": 70.0}
    assert backbones.mean_and_std({"0": 1.0, "1": 3.0}) == "2.0 ± 1.4"
    assert backbones.mean_and_std({}) == "failed"


def test_cells_of_a_study_are_timed_as_a_cohort_and_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = load_script("benchmarks/study.py")
    settings = {
        "preset": "prompt-tuning",
        "prompt": {"length": 3},
        "batch_size": 4,
        "max_length": 24,
        "cap_validation": 12,
        "scoring": "labels",
    }
    grid = {
        "backbones": [str(save(random_model("t5"), tmp_path / "random"))],
        "sources": ["helpdesk/intent", "helpdesk/area"],
        "seeds": [0, 1],
        "settings": settings,
        "source": {"steps": 500},
    }
    file, output = tmp_path / "grid.yaml", tmp_path / "out.json"
    file.write_text(yaml.safe_dump(grid))
    flags = ["--cells", "3", "--steps", "2", "--device", "cpu", "--output", str(output)]
    command = [str(file), *flags]
    assert study.main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(output.read_text())
    assert (result["cells"], result["steps"]) == (3, 2)
    cohort, alone = result["cohort"], result["one_by_one"]
    assert cohort["scores"].keys() == alone["scores"].keys()
    assert len(cohort["scores"]) == result["same_scores"] == 3
    assert result["largest_difference"] == 0
    assert result["ratio"] == pytest.approx(alone["seconds"] / cohort["seconds"], rel=0.01)
    assert 0 < cohort["training_seconds"] < cohort["seconds"]
    assert cohort["cells_per_minute"] == pytest.approx(180 / cohort["seconds"], rel=0.01)
    assert f"{result['ratio']:.2f} times as fast" in study.summary(result)
    assert study.main([*command, "--cells", "9"]) == 2
    assert "has 4 such cells" in capsys.readouterr().err
    assert study.main([*command, "--stage", "transfer"]) == 2
    assert "choose source or baseline" in capsys.readouterr().err


def test_a_profile_shows_where_the_time_of_a_step_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step_profile = load_script("benchmarks/step_profile.py")
    model, output = save(random_t5(), tmp_path / "random"), tmp_path / "out.json"
    flags = "--runs 2 --batch 4 --prompt 3 --steps 2 --warmup 1 --device cpu --python 5"
    command = ["--model", str(model), *flags.split(), "--output", str(output)]
    assert step_profile.main(command) == 0
    printed, result = capsys.readouterr(), json.loads(output.read_text())
    assert result["kinds"]["matrix products"] > 0
    assert sum(result["kinds"].values()) == pytest.approx(result["busy_ms"], rel=0.01)
    assert result["run_step_ms"] == pytest.approx(result["step_ms"] / 2, rel=0.01)
    assert f"{result['tokens']:,} tokens a step" in printed.out
    assert "tottime" in printed.err
    assert step_profile.main(["--model", str(tmp_path / "none")]) == 2
    names = {
        "nvjet_sm90_tst_128x192": "matrix products",
        "key_value_gradient": "attention",
        "triton_poi_fused_add": "other pointwise",
    }
    assert {name: step_profile.kind_of(name) for name in names} == names


def test_the_benchmark_of_prompts_after_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suffix = load_script("benchmarks/suffix.py")
    small = ["--tokens", "4,9", "--batch", "3", "--prompt", "2", "--repeats", "2"]
    folder, output = save(random_model("llama"), tmp_path / "llama"), tmp_path / "out.json"
    assert suffix.main(["--model", str(folder), *small, "--output", str(output)]) == 0
    first, second = json.loads(output.read_text())["trials"]
    assert first["text_tokens"] < second["text_tokens"]
    assert first["text_first_ms"] > 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    folder = save(random_model("t5"), tmp_path / "t5")
    assert suffix.main(["--model", str(folder), *small]) == 2
    assert "is not a decoder-only model" in capsys.readouterr().err


def test_the_page_on_choosing_has_the_tables_of_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences, intervals and how many tasks are better, from the records alone."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = load_script("benchmarks/choosing.py")
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    assert script.with_tables(page) == page, "run python benchmarks/choosing.py"
    with pytest.raises(SystemExit, match="no mark for the table 'methods'"):
        script.with_tables("nothing")
    record = {"held_out": {"400": 1.0}, "metric": "accuracy"}
    records = {
        ("t5-tiny", task, candidate, seed): {**record, "metrics": {"accuracy": score + seed}}
        for task in "abcdefgh"
        for candidate, score in (("mixture", 62.0 + ord(task) / 100), ("prompt-tuning", 60.0))
        for seed in (0, 1)
    }
    del records["t5-tiny", "a", "prompt-tuning", 1]
    (row,) = script.comparison(records, ["mixture"], "prompt-tuning").splitlines()[2:]
    assert row == "| `mixture`: 16 x 20 tokens | **+3.0 (+3.0 to +3.0), 8 of 8** |"


def test_auto_is_compared_with_the_presets_of_each_pair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def record(task: str, candidate: str, seed: int, score: float) -> dict[str, Any]:
        run = {"model": "t5", "task": task, "candidate": candidate, "seed": seed}
        made = {"metric": "accuracy", "metrics": {"accuracy": score}}
        if candidate == "auto":
            made |= {"winner": {"preset": "mixture", "lr": 0.3}, "runs_cost": 1.9}
        return run | made

    presets = {"mixture": 70.0, "prompt-tuning": 80.0, "residual": 75.0}
    rows = [
        *(record("a", preset, seed, 60.0 + seed) for preset in presets for seed in (0, 2)),
        record("a", "auto", 5, 65.0),
        *(record("b", preset, 0, score) for preset, score in presets.items()),
        record("b", "auto", 5, 79.0),
        record("c", "mixture", 0, 10.0),  # without the other presets
        record("c", "auto", 5, 90.0),
    ]
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = load_script("benchmarks/auto_table.py")
    table.measured(table.read(str(path)))
    shown = capsys.readouterr().out
    assert "| | t5 (2) | all (2) |" in shown
    assert "| auto | 72.0 | 72.0 |" in shown
    assert "| mixture | 65.5 | 65.5 |" in shown
    assert "| best preset with hindsight | 70.5 | 70.5 |" in shown
    assert "seeds of a preset: 1 to 2" in shown
    assert "auto - mixture: +6.5 (" in shown
    largest = "mixture: t5, b, 79.0 against 70.0, 69.2% of the sum; without it +4.0"
    assert f"largest gain over {largest}" in shown
    assert "better on 1 of 2" in shown.split("hindsight:")[1]
    assert "winners: mixture, lr 0.3: 2 times" in shown


def test_attention_is_checked_before_it_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    attention = load_script("benchmarks/attention.py")
    recorded = ROOT / "benchmarks" / "results" / "attention-h200.json"

    def wrong(problem: Any) -> Any:
        padded = attention.CONTENDERS["padded"](problem)
        return replace(padded, attend=lambda *states: 0.9 * padded.attend(*states))

    monkeypatch.setitem(attention.CONTENDERS, "varlen", wrong)
    cases = ["llama-135m-p20-r1", "t5-base-encoder-p20-r1", "modernbert-base-p100-r1"]
    output = tmp_path / "out.json"
    flags = ["--rows", "2", "--repeats", "1", "--device", "cpu"]
    assert attention.main(["--cases", ",".join(cases), *flags, "--output", str(output)]) == 0
    result, record = json.loads(output.read_text()), json.loads(recorded.read_text())
    assert list(result["cases"]) == cases
    assert result.keys() == record.keys()
    for name in cases:
        case, on_gpu = result["cases"][name], record["cases"][name]
        assert case.keys() == on_gpu.keys()
        padded, flex = case["contenders"]["padded"], case["contenders"]["flex"]
        assert padded["eager_ms"]["median"] > 0
        assert padded.keys() == on_gpu["contenders"]["padded"].keys() - {"graph_ms"}
        assert case["contenders"]["varlen"]["left_out"] == "its results are wrong"
        assert "eager_ms" not in case["contenders"]["varlen"]
        assert flex == {"left_out": "it needs a GPU"}
    capsys.readouterr()
    assert attention.main(["--table", str(recorded)]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[0][2:] for row in rows] == [case.name for case in attention.CASES]
    ours, padded = (record["cases"][cases[0]]["contenders"][name] for name in ("ours", "padded"))
    ratio = padded["graph_ms"]["median"] / ours["graph_ms"]["median"]
    assert rows[0].endswith(f" {padded['graph_ms']['median']:.3f} ({ratio:.2f}) |")
    assert attention.main(["--cases", "none"]) == 2
    assert "--cases none matches no case" in capsys.readouterr().err
