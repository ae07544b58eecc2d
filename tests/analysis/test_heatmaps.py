"""The report of a transfer study: pictures that can be read, files that hold the numbers."""

import csv
import json
import random
import re
import sys
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.spatial.distance import squareform

from softprompts.analysis import heatmaps
from softprompts.analysis.heatmaps import clusters, error_reductions, save, scatters
from softprompts.analysis.report import write_report
from softprompts.analysis.transfer import Correlation, Point
from softprompts.errors import UserError

LONG = [f"some-benchmark/a-rather-long-task-{i}" for i in range(26)]
SHORT = [f"t{i}" for i in range(26)]


def drawn(figure: Figure) -> FigureCanvasAgg:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas


def ticks(axis: Any, limits: tuple[float, float]) -> list[Any]:
    """The tick labels that are seen."""
    low, high = sorted(limits)
    labels = [
        label
        for tick in axis.get_major_ticks()
        if low <= tick.get_loc() <= high
        for label in (tick.label1, tick.label2)
    ]
    return [label for label in labels if label.get_visible() and label.get_text()]


def assert_legible(figure: Figure, numbers: bool = False) -> None:
    """No text is cut by the picture's edge or tiny, no two names of an axis and no two titles overlap; `numbers` fit into their cells."""
    renderer = drawn(figure).get_renderer()
    whole = figure.bbox
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        names = [ticks(axes.xaxis, axes.get_xlim()), ticks(axes.yaxis, axes.get_ylim())]
        for text in [
            *axes.texts,
            *names[0],
            *names[1],
            *([axes.title] if axes.get_title() else []),
        ]:
            box = text.get_window_extent(renderer)
            assert text.get_fontsize() >= 6
            assert whole.x0 <= box.x0 <= box.x1 <= whole.x1, text.get_text()
            assert whole.y0 <= box.y0 <= box.y1 <= whole.y1, text.get_text()
        for labels in names:
            boxes = [label.get_window_extent(renderer) for label in labels]
            assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    titles = [
        axes.title.get_window_extent(renderer)
        for axes in figure.axes
        if axes.get_visible() and axes.get_title()
    ]
    assert not any(one.overlaps(other) for one, other in combinations(titles, 2))
    if numbers:
        assert_numbers_fit(figure, renderer)


def assert_numbers_fit(figure: Figure, renderer: Any) -> None:
    (axes,) = [axes for axes in figure.axes if axes.texts]
    (left, top), (right, bottom) = axes.transData.transform([(0, 0), (1, 1)])
    for text in axes.texts:
        box = text.get_window_extent(renderer)
        assert box.width < 0.95 * (right - left)
        assert box.height < 0.95 * (top - bottom)


def blocks(count: int) -> list[list[float | None]]:
    """Similarities of tasks of which every third is alike."""
    return [
        [
            0.9 - 0.001 * abs(i - j) if i % 3 == j % 3 else 0.1 + 0.001 * (i + j)
            for j in range(count)
        ]
        for i in range(count)
    ]


@pytest.mark.parametrize("names", [LONG, SHORT], ids=["long", "short"])
def test_26_by_26_error_reductions_are_legible_and_centred(names: list[str]) -> None:
    chance = random.Random(0)
    values: list[list[float | None]] = [[chance.gauss(0, 30) for _ in names] for _ in names]
    values[3][4], values[0][0] = None, -999.4
    figure = error_reductions(values, names, names, weak=names[5:6])
    assert_legible(figure, numbers=True)
    mesh = figure.axes[0].collections[0]
    assert mesh.norm.vmin == -mesh.norm.vmax, "no change has the neutral colour"
    assert mesh.norm.vmax < 100, "one cell that fell apart does not take the colour from the others"
    assert len(figure.axes[0].texts) == 26 * 26 - 1


def luminance(colour: Any) -> float:
    """As WCAG 2 defines it, of red, green and blue of 0 to 1."""
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour
    ]
    return float(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2])


def test_weak_targets_are_faded_and_their_numbers_legible() -> None:
    values: list[list[float | None]] = [[30.0] * 2, [-30.0] * 2, [3.0] * 2, [0.0] * 2]
    figure = error_reductions(values, SHORT[:4], ["strong", "weak"], weak=["weak"])
    axes = figure.axes[0]
    picture = np.asarray(drawn(figure).buffer_rgba())[..., :3] / 255
    numbers = {text.get_position(): text for text in axes.texts}
    for row in range(3):
        seen = []
        for column in range(2):
            x, y = axes.transData.transform((column + 0.5, row + 0.12))  # above the number
            seen.append(luminance(picture[len(picture) - 1 - round(y), round(x)]))
            number = luminance(to_rgb(numbers[column + 0.5, row + 0.5].get_color()))
            light, dark = max(seen[-1], number), min(seen[-1], number)
            assert (light + 0.05) / (dark + 0.05) > 4.5, "WCAG 2's contrast of legible text"
        assert seen[1] > seen[0], "the weak one is paler"
    assert [label.get_text() for label in ticks(axes.xaxis, axes.get_xlim())] == ["strong", "weak†"]


def test_a_picture_is_saved_with_its_names_and_numbers(tmp_path: Path) -> None:
    names = LONG[:6]
    values: list[list[float | None]] = [
        [10.0 * row - column for column in range(6)] for row in range(6)
    ]
    values[0][0] = -999.4
    figure = error_reductions(values, names, names, weak=names[5:])
    save(figure, tmp_path, "heat")
    text = (tmp_path / "heat.svg").read_text()
    assert all(name in text for name in names)
    assert "-999" in text
    assert names[5] + "†" in text
    assert (tmp_path / "heat.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heat.png", "heat.svg"]


@pytest.mark.parametrize("names", [LONG, SHORT], ids=["long", "short"])
def test_26_clusters_are_legible_and_alike_tasks_stand_together(names: list[str]) -> None:
    values = blocks(26)
    for i in range(26):
        values[i][i] = None
    figure, order = clusters(values, names, "Similarity")
    assert_legible(figure, numbers=True)
    kinds = [names.index(task) % 3 for task in order]
    assert sum(one != other for one, other in pairwise(kinds)) == 2
    assert sorted(order) == sorted(names)
    labels = [label.get_text() for label in ticks(figure.axes[1].yaxis, (0, 26))]
    assert labels == order, "rows stand in the order of the tree"


def test_the_tree_is_scipys_and_its_branches_meet_their_rows() -> None:
    values: list[list[float | None]] = [[None, 0.2, 0.8], [0.2, None, 0.3], [0.8, 0.3, None]]
    figure, order = clusters(values, ["a", "b", "c"], "Similarity")
    assert order in (["a", "c", "b"], ["c", "a", "b"], ["b", "a", "c"], ["b", "c", "a"])
    start = min(figure.axes[0].get_xlim())
    depths = sorted({round(float(x), 9) for line in figure.axes[0].lines for x in line.get_xdata()})
    expected = cophenet(
        linkage(squareform([[0, 0.8, 0.2], [0.8, 0, 0.7], [0.2, 0.7, 0]]), "average")
    )
    assert depths == pytest.approx(sorted({start, *expected})), (
        "a and c join at 0.2, b joins them at the mean of 0.8 and 0.7"
    )
    ends = [
        end
        for line in figure.axes[0].lines
        for end in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]
    assert sorted(float(y) for x, y in ends if x == start) == pytest.approx([0.5, 1.5, 2.5])


@pytest.mark.parametrize(
    ("near", "far"),
    [(0.13, 0.02), (0.9, 0.1), (0.999, 0.998), (0.05, 0.05), (1.0, 1.0), (1.0, 0.2), (-0.1, -0.8)],
    ids=str,
)
def test_the_tree_fills_its_axis_for_any_range_of_similarities(near: float, far: float) -> None:
    """Embeddings that are all 0.02 to 0.13 alike join at 0.87 to 0.98, which an axis from 0 would show as one bar."""
    values = [
        [None if i == j else near + (far - near) * max(i, j) / 11 for j in range(12)]
        for i in range(12)
    ]
    figure, _ = clusters(values, SHORT[:12], "Similarity")
    assert_legible(figure)
    axes = figure.axes[0]
    right, left = axes.get_xlim()
    drawn_at = sorted({float(x) for line in axes.lines for x in line.get_xdata()})
    merges = sorted({1 - (near + (far - near) * far_off / 11) for far_off in range(1, 12)})
    assert left <= drawn_at[0] <= drawn_at[-1] <= right, "nothing is cut off"
    assert drawn_at[-1] == pytest.approx(merges[-1], abs=1e-9)
    assert left >= 0, "nothing is more alike than alike"
    assert merges[-1] - merges[0] >= 0.8 * (right - left) or near == far, (
        "the merges have the axis for themselves"
    )
    assert len(ticks(axes.xaxis, axes.get_xlim())) >= 1, "and it has numbers"


def points(count: int, source: str = "a-rather-long-source-name") -> tuple[Point, ...]:
    return tuple(Point(source, seed, seed / count, float((7 * seed) % 11)) for seed in range(count))


def test_26_scatters_are_legible_and_tell_r_and_p() -> None:
    found = [Correlation(name, points(48), 0.314, 0.0299, 0.2, 0.1) for name in LONG[:24]]
    found += [
        Correlation(LONG[24], points(48), -0.9, 1e-9, -0.9, 1e-9),
        Correlation(LONG[25], (), None, None, None, None),
    ]
    figure = scatters(found, "Similarity against transfer", weak=LONG[1:2])
    assert_legible(figure)
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles[0] == f"{LONG[0]}\nr = 0.31, p = 0.030"
    assert "too weak" in titles[1]
    assert titles[24:] == [f"{LONG[24]}\nr = -0.90, p < 0.001", f"{LONG[25]}\ntoo few points"]


def made(
    sources: int = 3, targets: int = 2, seeds: int = 2
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """A study in which source 0 helps most and the last target is not over chance."""
    chance, vectors = random.Random(3), torch.Generator().manual_seed(3)
    records, tuned = [], []
    names = [f"source-{i}" for i in range(sources)], [f"target-{i}" for i in range(targets)]
    for place, target in enumerate(names[1]):
        level = 51.0 if place == targets - 1 else 70.0
        for seed in range(seeds):
            for source in (None, *names[0]):
                gain = 0 if source is None else 10 - 5 * names[0].index(source)
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
                own = {
                    "method": method,
                    "similarity": "per_token_average_cosine",
                    "k": 2,
                    "score": level + 4,
                }
                tuned.append({**own, "target": target, "seed": seed})
    for place, source in enumerate(names[0]):  # of two seeds, 60 ± 2.1, 57 ± 2.1 and 54 ± 2.1
        own = {
            "source": source,
            "target": None,
            "metric": "accuracy",
            "majority": 50.0,
            "rows": 1000,
        }
        records += [
            {**own, "seed": seed, "score": 60.0 - 3 * place + 3 * seed - 1.5 * (seeds - 1)}
            for seed in range(seeds)
        ]
    every = [(task, seed) for task in [*names[0], *names[1]] for seed in range(seeds)]
    embeddings = [
        {"task": task, "seed": seed, "vectors": torch.randn(2, 3, 8, generator=vectors)}
        for task, seed in every
    ]
    return records, embeddings, tuned


def strict(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_report_holds_every_number_and_can_be_made_again(tmp_path: Path) -> None:
    summary = write_report(*made(), tmp_path / "one", ks=(1, 2))
    folder = tmp_path / "one"
    assert sorted([*summary["files"], "report.md", "report.json"]) == sorted(
        path.name for path in folder.iterdir()
    )
    for path in folder.glob("*.json"):
        strict(path)
    told = strict(folder / "report.json")
    assert {**told, "markdown": (folder / "report.md").read_text()} == summary
    for name in re.findall(r"\]\((.*?)\)", summary["markdown"]):
        assert (folder / name).exists()
    with (folder / "transfer.csv").open() as file:
        cells = {(row["source"], row["target"]): row for row in csv.DictReader(file)}
    assert len(cells) == 6
    best = cells["source-0", "target-0"]
    baseline = next(row["baseline"] for row in told["targets"] if row["target"] == "target-0")
    assert float(best["relative_error_reduction"]) == pytest.approx(
        100 * (float(best["score"]) - baseline) / (100 - baseline), rel=1e-4
    )
    assert [row["weak"] for row in told["targets"]] == [False, True]
    assert "Too weak, and left out: target-1." in summary["verdicts"][0]
    assert {row["targets"] for row in told["retrieval"]} == {1}
    assert {row["targets"] for row in told["retrieval_of_all_targets"]} == {2}
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
        (row["points"], row["sources"]) for row in told["correlations"]["per_token_average_cosine"]
    } == {(6, 3)}
    assert "Prompts of one source are not independent" in summary["markdown"]
    single = [
        row
        for name in ("retrieval", "retrieval_of_all_targets", "retrieval_by_target")
        for row in told[name]
        if row["source"]
    ]
    assert [row["source"] for row in single] == ["source-0"] * 4, (
        "once in each table, and for each target"
    )
    assert "| best single source for all targets (source-0) |" in summary["markdown"]
    assert "is that of a run's best evaluation on the validation rows" in summary["markdown"], (
        "what was chosen by which rows is told"
    )
    assert (
        "| weighted average of top-k | per token average cosine | 2 | 74.0 ± 0.0 |"
        in summary["markdown"]
    )
    write_report(*made(), tmp_path / "two", ks=(1, 2))
    for path in folder.glob("*.*"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_verdict_tells_what_chance_alone_gives(
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
        for source, found in scores.items()
        for seed, score in enumerate(found)
    ]
    verdict = write_report(records, [], [], tmp_path)["verdicts"][1]
    assert verdict.startswith(
        "Starting from another task's prompt raised the mean score in 2 of 4 cells, in 1 at p < 0.05 (Welch's t), and lowered it as surely "
        "in 1, where chance alone gives at most about 0.1 each way; each target's best source, chosen by these scores, cut its errors by 40"
    )


def test_an_unfinished_study_is_told_and_its_cells_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        heatmaps, "save", lambda figure, folder, name: []
    )  # what is asked here is no matter of pictures
    records, embeddings, _ = made(targets=3)
    kept = [
        record
        for record in records
        if (record["source"], record["target"]) != ("source-1", "target-0")
    ]
    kept = [
        record
        for record in kept
        if (record["source"], record["target"], record["seed"]) != (None, "target-1", 1)
    ]
    summary = write_report(kept, embeddings[:-2], [], tmp_path)
    bare = write_report(
        [{**record, "score": None} if not record["source"] else record for record in records],
        embeddings,
        [],
        tmp_path / "bare",
    )
    assert (
        "Without a baseline yet, and left out: target-0, target-1, target-2." in bare["markdown"]
    ), "that is not to be too weak"
    assert "| too weak |" not in bare["markdown"].partition("## Targets")[2]
    assert "Too weak, and left out" not in bare["markdown"]
    assert summary["missing"] == {"baselines": 1, "cells": 2}
    assert (
        "21 of 24 baselines and cells are finished; 3 are missing and left empty."
        in summary["markdown"]
    )
    assert re.search(r"^\| source-1 \|  \| -?\d", summary["markdown"], re.MULTILINE)
    empty = [
        (row["source"], row["target"])
        for row in strict(tmp_path / "transfer.json")
        if row["relative_error_reduction"] is None
    ]
    assert empty == [("source-1", "target-0")]


def test_a_study_may_have_baselines_only(tmp_path: Path) -> None:
    summary = write_report(
        [record for record in made()[0] if record["source"] is None], [], [], tmp_path
    )
    assert "transfer.png" not in summary["files"]
    assert "| target-0 | 70." in summary["markdown"] or "| target-0 | 69." in summary["markdown"]


def test_bad_input_is_one_sentence_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, embeddings, tuned = made()
    with pytest.raises(UserError, match="told twice"):
        write_report([*records, records[0]], embeddings, tuned, tmp_path / "out")
    with pytest.raises(UserError, match="no records of this study yet"):
        write_report([], embeddings, tuned, tmp_path / "out")
    other = {"task": "other", "seed": 0, "vectors": torch.zeros(3, 5)}
    with pytest.raises(UserError, match="one backbone at a time"):
        write_report(records, [*embeddings, other], tuned, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "scipy.cluster.hierarchy", None)
    with pytest.raises(UserError, match=r"pip install 'softprompts\[plots\]'"):
        write_report(records, embeddings, tuned, tmp_path / "out")
    assert not (tmp_path / "out").exists()
