"""The scripts in benchmarks/ run, so that a record can be made again."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from .models import random_model

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_a_sweep_records_every_run_once_and_makes_a_table(toy_csv: Path, tmp_path: Path) -> None:
    made = random_model("t5")
    made.model.save_pretrained(tmp_path / "models" / "tiny")
    made.tokenizer.save_pretrained(tmp_path / "models" / "tiny")
    entry = {"model": "{backbones}/tiny", "train": "{data}/reviews.csv", "text": "review", "label": "mood", "steps": 2, "batch_size": 4}
    grid = [{**entry, "grid": {"preset": ["prompt-tuning"], "seed": [0, 1], "prompt.length": [4]}}]
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    command = [
        sys.executable, str(BENCHMARKS / "sweep.py"), str(tmp_path / "grid.yaml"), "--output", str(tmp_path / "out.jsonl"),
        "--device", "cpu", "--data", str(toy_csv.parent), "--backbones", str(tmp_path / "models"),
    ]  # fmt: skip
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["settings"]["seed"] for record in records] == [0, 1]
    assert all("metrics" in record for record in records)
    table = [sys.executable, str(BENCHMARKS / "sweep_table.py"), str(tmp_path / "out.jsonl")]
    assert "prompt-tuning" in subprocess.run(table, check=True, capture_output=True, text=True).stdout


def test_the_recorded_runs_are_those_of_the_grids() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    import sweep

    for name in ("families", "defaults"):
        grid = sweep.configs(yaml.safe_load((BENCHMARKS / "grids" / f"{name}.yaml").read_text()))
        recorded = [json.loads(line)["settings"] for line in (BENCHMARKS / "results" / f"{name}-h200.jsonl").read_text().splitlines()]
        assert all(settings in recorded for settings in grid)
        assert all(settings in grid for settings in recorded)
