"""The report of a transfer study: its files have all numbers, its page says what it found."""

import csv
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.analysis import heatmaps
from softprompts.analysis.report import write_report
from softprompts.errors import UserError
from softprompts.library.search import SIMILARITIES


def study(
    sources: int = 3, targets: int = 2, seeds: int = 2
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """A study in which source 0 helps most and the last target is at chance."""
    chance, vectors = random.Random(3), torch.Generator().manual_seed(3)
    records, tuned = [], []
    source_names = [f"source-{i}" for i in range(sources)]
    target_names = [f"target-{i}" for i in range(targets)]
    for target in target_names:
        level = 51.0 if target == target_names[-1] else 70.0
        for seed in range(seeds):
            for source in (None, *source_names):
                gain = 0 if source is None else 10 - 5 * source_names.index(source)
                score = level + gain + chance.uniform(-1, 1)
                records.append(
                    {
                        "source": source,
                        "target": target,
                        "seed": seed,
                        "score": score,
                        "majority": 50.0,
                        "rows": 1000,
                    }
                )
            for method in ("average", "mixture"):
                tuned.append(
                    {
                        "method": method,
                        "similarity": "per_token_average_cosine",
                        "k": 2,
                        "score": level + 4,
                        "target": target,
                        "seed": seed,
                    }
                )
    # with two seeds, 60 ± 2.1, 57 ± 2.1 and 54 ± 2.1
    for number, source in enumerate(source_names):
        own_run = {
            "source": source,
            "target": None,
            "metric": "accuracy",
            "majority": 50.0,
            "rows": 1000,
        }
        records += [
            {**own_run, "seed": seed, "score": 60.0 - 3 * number + 3 * seed - 1.5 * (seeds - 1)}
            for seed in range(seeds)
        ]
    prompts = [(task, seed) for task in source_names + target_names for seed in range(seeds)]
    embeddings = [
        {"task": task, "seed": seed, "vectors": torch.randn(2, 3, 8, generator=vectors)}
        for task, seed in prompts
    ]
    return records, embeddings, tuned


def strict_json(path: Path) -> Any:
    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=fail)


def test_a_report_has_every_number_and_is_reproducible(tmp_path: Path) -> None:
    summary = write_report(*study(), tmp_path / "one", ks=(1, 2))
    folder = tmp_path / "one"
    assert sorted([*summary["files"], "report.md", "report.json"]) == sorted(
        path.name for path in folder.iterdir()
    )
    for path in folder.glob("*.json"):
        strict_json(path)
    saved = strict_json(folder / "report.json")
    assert {**saved, "markdown": (folder / "report.md").read_text()} == summary
    for name in re.findall(r"\]\((.*?)\)", summary["markdown"]):
        assert (folder / name).exists()
    with (folder / "transfer.csv").open() as file:
        cells = {(row["source"], row["target"]): row for row in csv.DictReader(file)}
    assert len(cells) == 6
    best = cells["source-0", "target-0"]
    baseline = next(row["baseline"] for row in saved["targets"] if row["target"] == "target-0")
    assert float(best["relative_error_reduction"]) == pytest.approx(
        100 * (float(best["score"]) - baseline) / (100 - baseline), rel=1e-4
    )
    assert [row["weak"] for row in saved["targets"]] == [False, True]
    assert "Too weak, and left out: target-1." in summary["verdicts"][0]
    assert {row["targets"] for row in saved["retrieval"]} == {1}
    assert {row["targets"] for row in saved["retrieval_of_all_targets"]} == {2}
    with (folder / "sources.csv").open() as file:
        sources = {row["source"]: row for row in csv.DictReader(file)}
    assert [(row["score"], row["weak"]) for row in sources.values()] == [
        ("60.0", "False"),
        ("57.0", "False"),
        ("54.0", "True"),
    ]
    assert (
        "| source-2 | 54.0 ± 2.1 | accuracy | 50.0 | 1000 | 2.2 | too weak |" in summary["markdown"]
    )
    assert {
        (row["points"], row["sources"]) for row in saved["correlations"]["per_token_average_cosine"]
    } == {(6, 3)}
    assert "Prompts of one source are not independent" in summary["markdown"]
    single = [
        row
        for name in ("retrieval", "retrieval_of_all_targets", "retrieval_by_target")
        for row in saved[name]
        if row["source"]
    ]
    assert [row["source"] for row in single] == ["source-0"] * 4, (
        "once in each table, and for each target"
    )
    assert "| best single source for all targets (source-0) |" in summary["markdown"]
    assert "is that of a run's best evaluation on the validation rows" in summary["markdown"]
    assert (
        "| weighted average of top-k | per token average cosine | 2 | 74.0 ± 0.0 |"
        in summary["markdown"]
    )
    write_report(*study(), tmp_path / "two", ks=(1, 2))
    for path in folder.glob("*.*"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_verdict_says_what_chance_alone_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heatmaps, "save", lambda figure, folder, name: [])
    scores = {
        None: [68, 70, 72],
        "up": [79, 82, 85],
        "little": [71, 74, 77],
        "down": [60, 61, 62],
        "alike": [69, 70, 71],
    }
    records = [
        {
            "source": source,
            "target": "rte",
            "seed": seed,
            "score": float(score),
            "majority": 50.0,
            "rows": 400,
        }
        for source, values in scores.items()
        for seed, score in enumerate(values)
    ]
    verdict = write_report(records, [], [], tmp_path)["verdicts"][1]
    assert verdict.startswith(
        "Starting from another task's prompt raised the mean score in 2 of 4 cells, in 1 of them "
        "at p < 0.05 (Welch's t), and lowered it at this level in 1; chance alone gives at most "
        "about 0.1 each way. Each target's best source, chosen by these scores, cut its errors by "
        "40"
    )


def test_an_unfinished_study_says_so_and_leaves_cells_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heatmaps, "save", lambda figure, folder, name: [])
    records, embeddings, _ = study(targets=3)
    finished = [
        record
        for record in records
        if (record["source"], record["target"]) != ("source-1", "target-0")
        and (record["source"], record["target"], record["seed"]) != (None, "target-1", 1)
    ]
    summary = write_report(finished, embeddings[:-2], [], tmp_path)
    no_baselines = [record if record["source"] else {**record, "score": None} for record in records]
    page = write_report(no_baselines, embeddings, [], tmp_path / "no-baselines")["markdown"]
    assert "Without a baseline yet, and left out: target-0, target-1, target-2." in page
    assert "| too weak |" not in page.partition("## Targets")[2]
    assert "Too weak, and left out" not in page
    assert summary["missing"] == {"baselines": 1, "cells": 2}
    assert (
        "21 of 24 baselines and cells are finished; 3 are missing and left empty."
        in summary["markdown"]
    )
    assert re.search(r"^\| source-1 \|  \| -?\d", summary["markdown"], re.MULTILINE)
    empty = [
        (row["source"], row["target"])
        for row in strict_json(tmp_path / "transfer.json")
        if row["relative_error_reduction"] is None
    ]
    assert empty == [("source-1", "target-0")]


def test_a_report_names_the_study_and_the_rows_of_its_scores_in_every_figure(
    tmp_path: Path,
) -> None:
    records, embeddings, tuned = study()
    tested = [{**record, "split": "test"} for record in records]
    write_report(tested, embeddings, tuned, tmp_path, subject="spot, t5-tiny, 2026-11-16")
    figures = list(tmp_path.glob("*.svg"))
    assert len(figures) == 5
    for figure in figures:
        text = figure.read_text()
        assert "spot, t5-tiny, 2026-11-16" in text
        assert ("2026-11-16, test rows" in text) is not figure.name.startswith("clusters")
    page = (tmp_path / "report.md").read_text()
    assert "Scores on the test rows." in page
    assert "| majority class | test rows |" in page


def test_a_study_of_targets_alone_has_its_figures(tmp_path: Path) -> None:
    records, embeddings, _ = study(sources=0, targets=3)
    summary = write_report(records, embeddings, [], tmp_path)
    assert [name for name in summary["files"] if name.endswith(".png")] == [
        f"clusters-{name}.png" for name in SIMILARITIES
    ]
    assert "# Scores of the targets" in summary["markdown"]
    assert "Retrieval" not in summary["markdown"]


def test_a_study_can_have_baselines_only(tmp_path: Path) -> None:
    summary = write_report(
        [record for record in study()[0] if record["source"] is None], [], [], tmp_path
    )
    assert "transfer.png" not in summary["files"]
    assert "| target-0 | 70." in summary["markdown"] or "| target-0 | 69." in summary["markdown"]


def test_missing_plot_libraries_are_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.cluster.hierarchy", None)
    with pytest.raises(UserError, match=r"pip install 'softprompts\[plots\]'"):
        heatmaps.check()
