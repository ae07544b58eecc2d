"""Which scores a transfer compares: those of the test rows, and all runs scored in the same way."""

import json
from pathlib import Path
from typing import Any

import pytest

import softprompts
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone
from softprompts.cli.transfer_summary import describe_result
from softprompts.config import RunConfig, run_config
from softprompts.files import read_json, write_json
from softprompts.transfer.settings import Request
from softprompts.transfer.transfer import run_transfer
from softprompts.tuning import Watcher

from .runs import SETTINGS


def test_the_gain_is_on_the_test_rows_of_a_task_that_has_some(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    """The run is kept by its validation score, and compared on rows that did not choose it."""
    rows = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "label": i % 2} for i in range(40)]
    for split, some in (("train", rows), ("validation", rows[:10])):
        path = tmp_path / f"data/glue/mrpc/{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    task = {"task": "glue/mrpc", "data_dir": str(tmp_path / "data"), "splits": "smop"}
    request = Request(run_config(SETTINGS, {"task": task}), library, k=1)
    record = run_transfer(request, tmp_path / "out", baseline=True, backbone=backbone)
    (kept,), baseline, gain = record["results"], record["baseline"], record["gain"]
    assert baseline is not None
    assert gain is not None
    assert gain["points"] == pytest.approx(kept["test"] - baseline["test"], abs=1e-3)
    assert (gain["split"], gain["rows"]) == ("test", 10)
    text = describe_result(record, tmp_path / "out")
    assert "on 10 test rows (p = " in text
    assert f"(test {kept['test']:.1f})" in text
    assert kept["rows"] == 10
    low, high = kept["interval"]
    assert f"(test {kept['test']:.1f})  [{low:.1f}, {high:.1f}]" in text


def own(rows: Path, scoring: str) -> RunConfig:
    task = {"train": str(rows), "text": "review", "label": "mood"}
    return run_config(SETTINGS, {"task": task, "tuning": {"scoring": scoring}})


def scoring(folder: Path) -> dict[str, Any]:
    return {path.parent.name: RunFolder(path.parent).card().scoring for path in cards(folder)}


def cards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/prompt.json"))


def test_a_half_done_transfer_of_an_earlier_version_keeps_its_scoring(
    library: Path,
    backbone: Backbone,
    toy_csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which generated answers to your own data by default, so its request says auto."""
    folder = tmp_path / "out"

    def stop(record: Any) -> None:
        raise KeyboardInterrupt

    old = Request(own(toy_csv, "generate"), library, k=1, probe_steps=2)
    with pytest.raises(KeyboardInterrupt):
        run_transfer(old, folder, backbone=backbone, on_choice=stop)
    choice = read_json(folder / "choice.json")
    choice["request"]["target"]["tuning"]["scoring"] = "auto"
    write_json(folder / "choice.json", choice)
    new = Request(own(toy_csv, "auto"), library, k=1, probe_steps=2)
    record = run_transfer(new, folder, baseline=True, backbone=backbone)
    assert scoring(folder / "runs") == dict.fromkeys(
        ["baseline", record["kept"], "probe"], "generate"
    )
    run_transfer(new, tmp_path / "new", backbone=backbone)
    assert set(scoring(tmp_path / "new" / "runs").values()) == {"labels"}


def test_a_cohort_of_an_earlier_version_grows_with_its_scoring(
    backbone: Backbone, toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softprompts.tuning.tune._load_backbone", lambda *arguments: backbone)
    monkeypatch.setattr(Watcher, "on_message", lambda *arguments: None)
    settings = {**SETTINGS["tuning"], "train": str(toy_csv), "text": "review", "label": "mood"}
    settings |= {
        "prompt": SETTINGS["prompt"],
        "preset": "prompt-tuning",
        "output": tmp_path / "out",
    }
    softprompts.tune(seed=[0, 1], **settings | {"scoring": "generate"}, verbose=False)
    softprompts.tune(seed=[0, 1, 2], **settings | {"scoring": "auto"}, verbose=False)
    assert scoring(tmp_path / "out") == dict.fromkeys(["seed=0", "seed=1", "seed=2"], "generate")
