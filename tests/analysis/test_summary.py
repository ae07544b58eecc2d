"""Summaries of folders: means, tests and curves are right, and the page stands alone."""

import json
import math
import random
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats

from softprompts.analysis.folder_report import report
from softprompts.analysis.runs import arm_names, read_runs
from softprompts.analysis.spread import PairedTest, holm, paired_scores, t_interval
from softprompts.analysis.summary import summarize
from softprompts.analysis.summary_page import markdown, page
from softprompts.config import run_config
from softprompts.errors import UserError

SAVED = Path(__file__).parents[1] / "saved"
ROWS = 60


def write_run(folder: Path, task: str, seed: int, level: float, /, **settings: Any) -> float:
    """The folder of a run as `tune` leaves it, of which `level` percent of the rows are right."""
    folder.mkdir(parents=True)
    chance = random.Random(f"{task} {seed} {level}")
    right = [100.0 * (chance.random() < level / 100) for _ in range(ROWS)]
    score = fmean(right)
    card = {
        "prompt": {"length": 5},
        "backbone": {"name": "t5-tiny", "fingerprint": "abc"},
        "task": {"name": task, "metrics": ["accuracy"], "rows": {"train": 9, "validation": ROWS}},
        "metrics": {"accuracy": score},
        "majority": {"accuracy": 30.0},
        "test": None,
        "steps": 20,
        "seed": seed,
        "trained_parameters": 1280,
        "config": run_config({"seed": seed, "task": {"task": task}}, settings).plain(),
        "machine": {"device": "Some GPU", "dtype": "bf16", "torch": "2.9.9"},
    }
    (folder / "prompt.json").write_text(json.dumps(card))
    history = [{"step": 10, "loss": 2.0, "accuracy": score - 20}]
    history.append({"step": 20, "loss": 1.0, "accuracy": score})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, history)) + '\n{"step": 3')
    predictions = {"predictions": ["a"] * ROWS, "row_scores": right}
    (folder / "predictions.json").write_text(json.dumps({"validation": predictions}))
    return score


@pytest.fixture(scope="module")
def cohort(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[tuple[str, str], list[float]]]:
    """Two presets on two tasks with three seeds; residual is much better on boolq alone."""
    folder = tmp_path_factory.mktemp("cohort")
    scores: dict[tuple[str, str], list[float]] = {}
    for task, levels in {"boolq": (50, 85), "rte": (60, 60)}.items():
        for preset, level in zip(("prompt-tuning", "residual"), levels, strict=True):
            for seed in range(3):
                path = folder / f"preset={preset}_task={task}_seed={seed}"
                score = write_run(path, f"superglue/{task}", seed, level, preset=preset)
                scores.setdefault((preset, f"superglue/{task}"), []).append(score)
    return folder, scores


def test_a_cohorts_table_has_means_over_seeds_and_the_best_of_each_column(
    cohort: tuple[Path, dict[tuple[str, str], list[float]]],
) -> None:
    folder, scores = cohort
    (table,) = summarize(read_runs(folder))["tables"]
    arms = {arm["name"]: arm for arm in table["arms"]}
    assert list(arms) == ["prompt-tuning", "residual"]
    for (preset, task), values in scores.items():
        cell = arms[preset]["scores"][task]
        assert cell is not None
        assert cell["mean"] == pytest.approx(fmean(values), abs=1e-3)
        assert cell["std"] == pytest.approx(stdev(values), abs=1e-3)
    mean = arms["residual"]["scores"]["mean"]
    assert mean is not None
    by_seed = zip(
        scores["residual", "superglue/boolq"], scores["residual", "superglue/rte"], strict=True
    )
    assert mean["std"] == pytest.approx(stdev([fmean(pair) for pair in by_seed]), abs=1e-3)
    assert mean["best"]
    better = arms["prompt-tuning"]["scores"]["superglue/boolq"]
    assert better is not None
    assert (better["best"], better["tied"]) == (False, False), "clearly worse"
    same = [arm["scores"]["superglue/rte"] for arm in table["arms"]]
    assert {score["best"] or score["tied"] for score in same if score} == {True}


def test_differences_are_paired_over_rows_and_corrected(
    cohort: tuple[Path, dict[tuple[str, str], list[float]]],
) -> None:
    folder, _ = cohort
    rows = summarize(read_runs(folder), against="prompt-tuning")["tables"][0]["differences"]
    assert {(row["arm"], row["reference"]) for row in rows} == {("residual", "prompt-tuning")}
    by_task = {row["task"]: row for row in rows}
    assert (by_task["superglue/boolq"]["over"], by_task["superglue/boolq"]["pairs"]) == (
        "rows",
        ROWS,
    )
    assert (by_task["mean"]["over"], by_task["mean"]["pairs"]) == ("tasks x seeds", 6)
    boolq = by_task["superglue/boolq"]
    assert boolq["interval"] is not None
    assert boolq["interval"][0] < boolq["difference"] < boolq["interval"][1]
    assert boolq["interval"][0] > 0
    p_values = [row["p"] or 0.0 for row in rows]
    assert [row["p_corrected"] for row in rows] == pytest.approx(holm(p_values), rel=1e-3)
    with pytest.raises(UserError, match="There is no arm 'residul'; did you mean residual"):
        summarize(read_runs(folder), against="residul")


def test_runs_on_other_rows_are_paired_over_seeds(
    cohort: tuple[Path, dict[tuple[str, str], list[float]]],
) -> None:
    """As many rows need not be the same ones."""
    runs = read_runs(cohort[0])
    records = [replace(run, digests={"validation": str(run.arm["preset"])}) for run in runs.records]
    rows = summarize(replace(runs, records=records))["tables"][0]["differences"]
    assert {(row["over"], row["pairs"]) for row in rows} == {("seeds", 3), ("tasks x seeds", 6)}


def test_curves_have_a_band_over_seeds(
    cohort: tuple[Path, dict[tuple[str, str], list[float]]],
) -> None:
    folder, scores = cohort
    curves = summarize(read_runs(folder))["curves"]
    assert [curve["task"] for curve in curves] == ["superglue/boolq", "superglue/rte"]
    first, last = curves[0]["arms"]["residual"]
    values = scores["residual", "superglue/boolq"]
    assert (first["step"], last["step"], last["runs"]) == (10, 20, 3)
    assert last["mean"] == pytest.approx(fmean(values), abs=1e-3)
    assert first["std"] == pytest.approx(stdev(values), abs=1e-3)


def test_settings_are_common_or_of_an_arm_and_configs_are_whole(
    cohort: tuple[Path, dict[tuple[str, str], list[float]]],
) -> None:
    folder, _ = cohort
    summary = summarize(read_runs(folder))
    assert summary["common"]["tuning.lr"] == 0.3
    assert "preset" not in summary["common"]
    assert summary["settings"]["residual"]["prompt.shape.kind"] == "residual"
    assert all("seed" not in part for part in (summary["common"], *summary["settings"].values()))
    config = summary["configs"]["preset=residual_task=rte_seed=2"]
    assert (config["seed"], config["task"]["task"]) == (2, "superglue/rte")
    assert summary["machines"] == [{"device": "Some GPU", "dtype": "bf16", "torch": "2.9.9"}]


class Page(HTMLParser):
    """What a browser would see: tags that are closed, addresses, tables' headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "line", "polygon", "polyline", "!doctype"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_is_accessible(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "a<b>&'c", seed, 70, preset="residual")
        write_run(tmp_path / f"b{seed}", "a<b>&'c", seed, 60)
    (tmp_path / "transfer.png").write_bytes(b"\x89PNG")
    summary = summarize(read_runs(tmp_path))
    seen = Page(text := page(summary, "<script>alert(1)</script>", [tmp_path / "transfer.png"]))
    assert seen.open == []
    assert "<script" not in text
    addresses = [a[name] for _, a in seen.attributes for name in ("href", "src") if name in a]
    assert all(address and address.startswith("data:image/png;base64,") for address in addresses)
    assert "http" not in text.replace("http-equiv", "")
    assert all(a.get("alt") for tag, a in seen.attributes if tag == "img")
    pictures = [a for tag, a in seen.attributes if tag == "svg" and a.get("role") == "img"]
    assert len(pictures) == 1
    named = str(pictures[0]["aria-labelledby"]).split()
    identities = {a.get("id") for _, a in seen.attributes}
    assert set(named) <= identities
    assert all(a.get("scope") in ("col", "row") for tag, a in seen.attributes if tag == "th")
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert "ends at" in text, "the picture in words"


def test_points_of_a_curve_lie_inside_the_picture(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        write_run(tmp_path / str(seed), "superglue/rte", seed, 50 + 20 * seed)
    text = page(summarize(read_runs(tmp_path)), "curves")
    (line,) = re.findall(r"<polyline points='([^']*)'", text)
    points = [tuple(map(float, pair.split(","))) for pair in line.split()]
    assert len(points) == 2
    assert points[0][0] < points[1][0] <= 640
    assert 0 <= points[1][1] < points[0][1] <= 300, "a higher score is higher up"
    assert "<polygon" in text


def test_markdown_has_the_same_table(
    cohort: tuple[Path, dict[tuple[str, str], list[float]]],
) -> None:
    folder, scores = cohort
    text = markdown(summarize(read_runs(folder)), "title")
    values = scores["residual", "superglue/boolq"]
    assert f"**{fmean(values):.1f} ± {stdev(values):.1f}**" in text
    assert "| majority class |  | 30.0 | 30.0 |" in text
    assert "Some GPU, bf16, torch 2.9.9" in text


@pytest.mark.parametrize(
    ("name", "kind", "runs", "arms"),
    [
        ("cohort", "cohort", 4, ["lr 0.1", "lr 0.3"]),
        ("finished/smop", "run", 1, ["all runs"]),
        ("study", "study", 9, ["average of the nearest 1", "no transfer", "from helpdesk/intent"]),
    ],
)
def test_folders_of_every_kind_can_be_read(
    name: str, kind: str, runs: int, arms: list[str], tmp_path: Path
) -> None:
    summary = report(SAVED / name, output=tmp_path / "new")
    paths = [Path(file) for file in summary["files"]]
    assert (summary["kind"], summary["runs"]) == (kind, runs)
    names = [arm["name"] for arm in summary["tables"][0]["arms"]]
    assert set(names) <= {*arms, "mixture of the nearest 1"}
    assert set(arms) - {"average of the nearest 1"} <= set(names)
    assert [path.name for path in paths] == ["summary.html", "summary.md", "summary.json"]
    assert json.loads(paths[2].read_text())["runs"] == runs


def test_a_report_of_a_study_can_be_summarized_without_its_runs() -> None:
    runs = read_runs(Path(__file__).parents[2] / "results" / "spot-small")
    assert (runs.kind, len(runs.records)) == ("study report", 549)
    table, sources = summarize(runs)["tables"]
    by_name = {arm["name"]: arm for arm in table["arms"]}
    yelp = by_name["from spot_sources/yelp2"]["scores"]["textcls/cr"]
    assert yelp is not None
    assert (yelp["mean"], yelp["best"]) == (pytest.approx(76.1, abs=0.05), True)
    assert "average of the nearest 3" in by_name
    assert sources["tasks"][0]["name"] == "glue/mnli"
    weak = {task["name"] for task in table["tasks"] if task["weak"]}
    assert "superglue/boolq" in weak
    assert "textcls/cr" not in weak


def test_runs_that_failed_or_are_not_finished_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "lr=0.1", "superglue/rte", 0, 60, tuning={"lr": 0.1})
    (tmp_path / "lr=9").mkdir()
    (tmp_path / "lr=9" / "config.yaml").write_text("x")
    (tmp_path / "lr=3").mkdir()
    (tmp_path / "lr=3" / "config.yaml").write_text("x")
    (tmp_path / "cohort.csv").write_text(
        "lr,accuracy,stopped,folder\n0.1,60,,lr=0.1\n9,,the loss is not finite,lr=9\n"
    )
    summary = summarize(read_runs(tmp_path))
    assert summary["failed"] == {"lr=9": "the loss is not finite"}
    assert summary["unfinished"] == 1
    assert "lr=9 failed: the loss is not finite" in page(summary, "x")


def test_a_task_is_judged_by_its_test_rows_only_if_all_runs_have_them(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "superglue/rte", 0, 60)
    write_run(tmp_path / "b", "superglue/rte", 1, 60)
    for name, tested in (("a", {"accuracy": 11.0}), ("b", {"accuracy": 22.0})):
        path = tmp_path / name / "prompt.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"test": tested}))
    runs = read_runs(tmp_path)
    assert [runs.score(run) for run in runs.records] == [11.0, 22.0]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"test": None}))
    runs = read_runs(tmp_path)
    assert {runs.split(run) for run in runs.records} == {"validation"}


def test_every_claim_is_on_the_page_with_its_verdict_and_what_was_measured(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "superglue/rte", 0, 60)
    summary = summarize(read_runs(tmp_path))
    part = {"verdict": "held", "sentence": "a better than b: +2.0 points: held"}
    claim = {"claim": 7, "text": "A < B", "paper": "1 & 2", "verdict": "held"}
    summary["claims"] = [{**claim, "expectations": [part, {**part, "sentence": "more"}]}]
    text = page(summary, "x")
    assert "<h3>7. A &lt; B</h3><p><span class='verdict held'>held</span> Paper: 1 &amp; 2" in text
    assert "<ul><li>a better than b: +2.0 points: held</li><li>more</li></ul>" in text


def test_a_large_cohorts_page_stays_short_and_losses_that_exploded_are_not_drawn(
    tmp_path: Path,
) -> None:
    for seed in range(61):
        write_run(tmp_path / str(seed), "superglue/rte", seed, 60)
    text = page(summarize(read_runs(tmp_path)), "x")
    assert "The whole configs of all runs are in summary.json." in text
    assert "config.yaml of" not in text
    lone = tmp_path / "0"
    history = [{"step": s, "loss": loss, "accuracy": 50.0} for s, loss in ((1, 2.0), (2, math.nan))]
    (lone / "metrics.jsonl").write_text("\n".join(map(json.dumps, history)))
    curves = {
        curve["metric"]: curve["arms"]["all runs"] for curve in summarize(read_runs(lone))["curves"]
    }
    assert [point["step"] for point in curves["loss"]] == [1]
    assert [point["step"] for point in curves["accuracy"]] == [1, 2]


def test_cells_that_have_begun_are_counted(tmp_path: Path) -> None:
    shutil.copytree(SAVED / "study", tmp_path / "study")
    before = read_runs(tmp_path / "study")
    next((tmp_path / "study").rglob("result.json")).unlink()
    runs = read_runs(tmp_path / "study")
    assert len(runs.records) == len(before.records) - 1
    assert runs.unfinished == before.unfinished + 1


def test_folders_of_the_machine_are_left_out(tmp_path: Path) -> None:
    data, model = tmp_path / "secret" / "data", tmp_path / "secret" / "flan-t5-small"
    start = {"kind": "prompt", "sources": [str(tmp_path / "runs" / "source")]}
    settings = {"model": str(model), "prompt": {"start": start}}
    write_run(tmp_path / "runs" / "a", "superglue/rte", 0, 60, **settings)
    card = tmp_path / "runs" / "a" / "prompt.json"
    content = json.loads(card.read_text())
    content["config"]["task"]["data_dir"] = str(data)
    card.write_text(json.dumps(content))
    summary = report(tmp_path / "runs", output=tmp_path / "out")
    assert summary["configs"]["a"]["model"] == "flan-t5-small"
    assert summary["configs"]["a"]["prompt"]["start"]["sources"] == ["source"]
    for path in (tmp_path / "out").iterdir():
        assert "secret" not in path.read_text(), path


def test_arms_without_a_common_task_have_no_mean(tmp_path: Path) -> None:
    write_run(tmp_path / "1", "superglue/rte", 0, 60, preset="residual")
    write_run(tmp_path / "2", "superglue/cb", 0, 60, preset="prompt-tuning")
    summary = summarize(read_runs(tmp_path))
    assert all("mean" not in arm["scores"] for arm in summary["tables"][0]["arms"])
    assert "| arm | superglue/rte (accuracy) | superglue/cb (accuracy) |" in markdown(summary, "x")


def test_what_only_follows_from_the_task_is_no_arm(tmp_path: Path) -> None:
    write_run(tmp_path / "1", "superglue/rte", 0, 60, tuning={"scoring": "generate"})
    write_run(tmp_path / "2", "superglue/cb", 0, 60, tuning={"scoring": "labels"})
    assert arm_names(read_runs(tmp_path).records) == ["all runs", "all runs"]
    write_run(tmp_path / "3", "superglue/cb", 0, 60, tuning={"scoring": "generate"})
    names = arm_names(read_runs(tmp_path).records)
    assert names == ["scoring generate", "scoring labels", "scoring generate"]


def test_what_a_preset_brings_along_is_not_part_of_an_arms_name(tmp_path: Path) -> None:
    write_run(tmp_path / "1", "superglue/rte", 0, 60, preset="residual")
    write_run(tmp_path / "2", "superglue/rte", 0, 60, preset="prompt-tuning", tuning={"lr": 0.1})
    names = arm_names(read_runs(tmp_path).records)
    assert names == ["residual, lr 0.3", "prompt-tuning, lr 0.1"]


@pytest.mark.parametrize("content", [None, "{}", "[]"])
def test_a_folder_without_runs_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is None:
        with pytest.raises(UserError, match="is not a folder"):
            read_runs(tmp_path / "nowhere")
        with pytest.raises(UserError, match="holds no finished run"):
            read_runs(tmp_path)
    else:
        (tmp_path / "prompt.json").write_text(content)
        with pytest.raises(UserError, match="corrupted"):
            read_runs(tmp_path)


@given(some.lists(some.floats(0, 1), max_size=8))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(p <= q <= 1 or p > 1 for p, q in zip(p_values, corrected, strict=True))
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [corrected[i] for i in order] == sorted(corrected)
    if p_values:
        assert min(corrected) == pytest.approx(min(1, len(p_values) * min(p_values)))


def test_holm_of_a_known_example() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.parametrize("count", [2, 3, 8, 31])
def test_intervals_are_students(count: int) -> None:
    chance = random.Random(count)
    values = [chance.gauss(3, 2) for _ in range(count)]
    expected = stats.t.interval(0.95, count - 1, fmean(values), stdev(values) / math.sqrt(count))
    assert t_interval(values) == pytest.approx(expected)
    assert t_interval(values[:1]) is None


def own_task(folder: str, **settings: Any) -> dict[str, Any]:
    train = {"train": f"/data/{folder}/train.csv", "text": "review", "label": "label"}
    return {"task": {"task": None, **train, **settings}}


def test_files_of_one_name_in_several_folders_are_several_tasks(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        for seed in (0, 1):
            run = tmp_path / f"{folder}-{seed}"
            write_run(run, "train.csv:label", seed, 50, **own_task(f"{folder}/rows"))
    write_run(tmp_path / "stars", "stars", 0, 50, **own_task("third", name="stars"))
    (table,) = summarize(read_runs(tmp_path))["tables"]
    tasks = [task["name"] for task in table["tasks"]]
    assert tasks == [f"{folder}/rows/train.csv:label" for folder in ("first", "second")] + ["stars"]
    assert [arm["name"] for arm in table["arms"]] == ["all runs"]
    one = tmp_path / "first-0"
    assert [run.task for run in read_runs(one).records] == ["train.csv:label"]


@pytest.mark.parametrize(
    ("settings", "arm"),
    [
        ({"labels": {"0": "bad", "1": "good"}}, "labels 0=bad,1=good"),
        ({"text": "title"}, "text title"),
        ({"text": None, "template": "{title}: {review}"}, "template {title}: {review}"),
    ],
)
def test_how_rows_become_texts_and_answers_makes_arms_within_a_task(
    tmp_path: Path, settings: dict[str, Any], arm: str
) -> None:
    write_run(tmp_path / "a", "train.csv:label", 0, 50, **own_task("a"))
    write_run(tmp_path / "b", "train.csv:label", 0, 70, **own_task("a", **settings))
    records = read_runs(tmp_path).records
    assert arm_names(records)[0] != arm_names(records)[1]
    assert arm in arm_names(records)[1]


def test_the_columns_of_different_tasks_make_no_arms(tmp_path: Path) -> None:
    for folder, text in (("a", "review"), ("b", "body")):
        task = own_task(folder, text=text, labels={"0": f"not {text}"})
        write_run(tmp_path / folder, f"{folder}.csv:label", 0, 50, **task)
    assert arm_names(read_runs(tmp_path).records) == ["all runs", "all runs"]


def test_rows_are_the_same_whatever_stands_around_their_texts(tmp_path: Path) -> None:
    """A prompt by hand has demonstrations before every text, so digests of texts differ."""

    def tested_over(*digests: tuple[str, str]) -> tuple[str, bool]:
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        for preset, level, (text, targets) in zip(
            ("prompt-tuning", "residual"), (20, 90), digests, strict=True
        ):
            for seed in range(3):
                path = tmp_path / "runs" / f"{preset}{seed}"
                write_run(path, "superglue/rte", seed, level, preset=preset)
                card = json.loads((path / "prompt.json").read_text())
                card["task"]["digests"] = {"validation": text}
                (path / "prompt.json").write_text(json.dumps(card))
                saved = json.loads((path / "predictions.json").read_text())
                saved["validation"] |= {"targets": targets} if targets else {}
                (path / "predictions.json").write_text(json.dumps(saved))
        (table,) = summarize(read_runs(tmp_path / "runs"))["tables"]
        worse = table["arms"][0]["scores"]["superglue/rte"]
        assert worse is not None
        return table["differences"][0]["over"], worse["tied"]

    assert tested_over(("a", "t"), ("b", "t")) == ("rows", False)
    assert tested_over(("a", ""), ("a", "")) == ("rows", False)
    assert tested_over(("a", ""), ("b", "")) == ("seeds", False), "by the interval of three seeds"
    assert tested_over(("a", "t"), ("a", "u"))[0] == "seeds"


@pytest.mark.parametrize(
    ("scores", "over"),
    [((0.0, 0.0), "seeds"), ((5.0, 9.0), "seeds"), ((9.0, 5.0), "rows"), ((80.0, 10.0), "rows")],
)
def test_rows_test_a_score_only_if_it_moves_as_they_do(
    scores: tuple[float, float], over: str
) -> None:
    """A prompt that answers no label is right on fewer rows than one that answers a single label,
    but both have a Matthews correlation of 0."""
    rights = [100.0] * 16 + [0.0] * 4, [100.0] * 2 + [0.0] * 18
    first, second = (
        {seed: {"score": score, "row_scores": rows, "targets": "d"} for seed in (0, 1)}
        for score, rows in zip(scores, rights, strict=True)
    )
    found, pairs = paired_scores(first, second)
    assert (found, len(pairs)) == (over, 20 if over == "rows" else 2)
    test = PairedTest.of(found, pairs)
    assert test is not None
    assert (test.p < 0.01) == (over == "rows")
