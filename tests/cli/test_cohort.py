"""Lists on the command line: the runs they make, their folders, resuming, failing, summaries.

Each run has the same result as when run alone.
"""

import csv
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

from softprompts.backbone import Backbone
from softprompts.cli import main
from softprompts.cli.progress import CohortProgress
from softprompts.cli.tune import _default_folder
from softprompts.config import Member, TaskConfig, expand_lists, read_config
from softprompts.errors import UserError
from softprompts.files.tensors import read_tensors, write_tensors
from softprompts.tasks import Task, load_task
from softprompts.tuning import Run, Watcher
from softprompts.tuning.tune import tune_cohort
from softprompts.tuning.tuned import Tuned

QUICK = [
    *("--steps", "4", "--batch-size", "4", "--evaluate-every", "2", "--checkpoint-every", "2"),
    *("--prompt.length", "3", "--max-length", "40", "--device", "cpu"),
]
FILES = {
    "prompt.safetensors",
    "prompt.json",
    "embedding.safetensors",
    "metrics.jsonl",
    "predictions.json",
    "config.yaml",
    "checkpoint.safetensors",
}


def own_data(toy_csv: Path, folder: Path) -> list[str]:
    data = ["--train", str(toy_csv), "--text", "review", "--label", "mood"]
    return ["tune", *data, *QUICK, "--output", str(folder)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_same(one: Path, other: Path) -> None:
    """Two folders of one run, up to the order in which floats were added."""
    first, second = (lines(folder / "metrics.jsonl") for folder in (one, other))
    for entry, expected in zip(first, second, strict=True):
        assert entry.pop("loss") == pytest.approx(expected.pop("loss"), abs=1e-3)
        router = expected.pop("router", {})
        for name, value in entry.pop("router", {}).items():
            assert value == pytest.approx(router[name], abs=1e-3)
        assert entry == expected
    prompts = [read_tensors(folder / "prompt.safetensors")[0] for folder in (one, other)]
    torch.testing.assert_close(*prompts, rtol=1e-3, atol=1e-3)


# -- the runs of lists -----------------------------------------------------------------------------


def test_lists_make_a_product_with_tasks_first_and_seeds_last() -> None:
    layers = {
        "seed": "1,0",
        "tuning": {"lr": [0.1, "3e-1"]},
        "task": {"task": "helpdesk/intent+helpdesk/area, trec"},
        "preset": "smop",
    }
    members = expand_lists(layers)
    assert [(m.config.task.task, m.config.tuning.lr, m.config.seed) for m in members] == [
        (task, lr, seed)
        for task in ("helpdesk/intent+helpdesk/area", "trec")
        for lr in (0.1, 0.3)
        for seed in (1, 0)
    ]
    assert members[0].varied == {"task": "helpdesk/intent+helpdesk/area", "lr": 0.1, "seed": 1}
    assert members[0].name == "task=helpdesk-intent-helpdesk-area_lr=0.1_seed=1"
    assert {m.config.preset for m in members} == {"smop"}


def test_own_files_make_a_cohort_over_tasks(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files with the same columns as a list; others as mappings, beside named tasks."""
    second = tmp_path / "more,reviews.csv"  # a name may contain a comma
    rows = toy_csv.read_text().replace("review,mood", "body,feeling").splitlines()
    second.write_text("\n".join([rows[0], *reversed(rows[1:])]) + "\n")
    third = tmp_path / "third.csv"
    third.write_text(toy_csv.read_text())
    columns = ["--text", "review", "--label", "mood", *QUICK, "--quiet", "--no-baselines"]
    files = f"{toy_csv},{third}"
    assert main(["tune", "--train", files, *columns, "--output", str(tmp_path / "flags")]) == 0
    assert "train=reviews.csv" in capsys.readouterr().out
    folders = [tmp_path / "flags" / f"train={name}.csv" for name in ("reviews", "third")]
    cards = [json.loads((folder / "prompt.json").read_text()) for folder in folders]
    assert [card["task"]["name"] for card in cards] == ["reviews.csv:mood", "third.csv:mood"]
    one = {"name": "moods", "train": "reviews.csv", "text": "review", "label": "mood"}
    other = {"train": second.name, "text": "body", "label": "feeling"}
    file = tmp_path / "many.yaml"
    tasks = ["helpdesk/register", one, other]
    file.write_text(yaml.safe_dump({"task": tasks, "cap_validation": 8, "shots": 3}))
    command = ["tune", "--config", str(file), *QUICK, "--quiet", "--no-baselines", "--json"]
    assert main([*command, "--output", str(tmp_path / "file")]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    names = ["helpdesk/register", "moods", "more,reviews.csv:feeling"]
    assert [run["settings"]["task"] for run in runs] == names
    assert {path.name for path in (tmp_path / "file").iterdir() if path.is_dir()} == {
        *("task=helpdesk-register", "task=moods", "task=more-reviews.csv-feeling"),
    }
    again = tmp_path / "file" / "task=more-reviews.csv-feeling" / "config.yaml"
    (member,) = expand_lists(read_config(again))
    assert (member.config.task.label, member.config.task.shots) == ("feeling", 3)
    own = {"train": str(second), "text": "body", "label": "feeling"}
    assert not expand_lists({"task": own})[0].varied, "one file, whose name has a comma"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"train": ["a.csv", "a.csv"]}, "train lists a.csv twice"),
        (
            {"train": ["a.csv", "b.csv"], "validation": "c.csv"},
            "validation is one file, but train list",
        ),
        ({"task": [{"train": "a.csv", "txt": "b"}]}, "no setting txt; did you mean text?"),
        ({"task": ["trec", {"name": "x"}]}, "name its data with train"),
    ],
)
def test_a_wrong_list_of_own_data_is_refused(task: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        expand_lists({"task": task})


def test_every_preset_of_a_list_has_its_own_settings() -> None:
    mixture, residual = expand_lists({"preset": "mixture,residual"})
    assert (mixture.config.prompt.count, residual.config.prompt.count) == (16, 1)
    assert (mixture.name, residual.name) == ("preset=mixture", "preset=residual")


def test_kinds_and_their_options_may_be_lists() -> None:
    shapes = expand_lists(
        {
            "preset": "prompt-tuning",
            "prompt": {"shape": ["direct", {"kind": "residual", "bottleneck": 9}]},
        }
    )
    assert [m.config.prompt.shape.plain() for m in shapes] == [
        {"kind": "direct"},
        {"kind": "residual", "bottleneck": 9},
    ]
    assert [m.name for m in shapes] == ["shape=direct", "shape=residual-bottleneck-9"]
    rates = expand_lists(
        {"prompt": {"start": {"kind": "uniform", "low": "-0.5,0"}}},
        {"prompt": {"shape": {"kind": "residual,encoder"}}},
    )
    assert [m.name for m in rates] == [
        f"start.low={low}_shape={shape}"
        for low in ("-0.5", "0.0")
        for shape in ("residual", "encoder")
    ]
    over = expand_lists(
        {"prompt": {"shape": ["direct", "residual"]}}, {"prompt": {"shape": "encoder"}}
    )
    assert [m.varied for m in over] == [{}], "a flag overrides a file's list"


def test_texts_with_commas_are_not_lists() -> None:
    task = {
        "labels": "0=no,1=yes",
        "template": "a: {a}, b: {b}",
        "instruction": "Yes, or no?",
        "train": "a,b.csv",
        "label": "x,y",
    }
    start = {"kind": "prompt", "sources": "runs/a,runs/b", "weights": [0.3, 0.7]}
    (member,) = expand_lists({"task": task, "preset": "prompt-tuning", "prompt": {"start": start}})
    assert member.varied == {}
    assert member.config.task.labels == {"0": "no", "1": "yes"}
    assert (member.config.task.template, member.config.task.train) == (
        task["template"],
        task["train"],
    )
    assert member.config.prompt.start.options == {
        "sources": ["runs/a", "runs/b"],
        "weights": [0.3, 0.7],
    }
    (member,) = expand_lists({"prompt": {"start": {"kind": "text", "text": "one, two"}}})
    assert member.config.prompt.start.options == {"text": "one, two"}


def test_a_list_of_one_is_a_cohort_of_one() -> None:
    """So that its run is reused when the list grows."""
    assert [m.name for m in expand_lists({"seed": [3]})] == ["seed=3"]
    assert [m.name for m in expand_lists({"seed": 3})] == [""]


def test_folder_names_differ_and_are_safe() -> None:
    long = "+".join(
        f"superglue/{name}"
        for name in ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")
    )
    names = [
        m.name
        for m in expand_lists({"task": {"task": ["a/b", "a-b", "A+B", "../c", long, f"{long}+x"]}})
    ]
    assert len({name.lower() for name in names}) == 6
    assert all(
        len(name) <= 130 and not set(name) & set("/,\\ +") and not name.startswith(".")
        for name in names
    )


BAD = [
    (["--seed", "0,,1"], "--seed is '0,,1', which has an empty value"),
    (["--seed", "0,"], "which has an empty value"),
    (["--seed", "0,one"], "--seed is 'one'; give a whole number"),
    (["--lr", "0.1,-1"], "--lr is -1.0; it must be a positive number"),
    (["--seed", "0,0"], "--seed lists 0 twice"),
    (["--lr", "0.1,1e-1"], "--lr lists 0.1 twice"),
    (["--preset", "mixture,lora"], "There is no preset 'lora'"),
    (["--prompt.shape", "direct,cube"], "There is no shape 'cube'"),
    (["--schedule", "linear,square"], "choose one of constant, linear, cosine"),
    (
        ["--model", "t5-tiny,other"],
        "--model is 't5-tiny,other', but all runs of a command share one frozen model; give one",
    ),
    (["--dtype", "fp32,bf16"], "give one dtype"),
    (["--device", "cpu,cuda"], "give one device"),
    (["--preset", "mixture,model-tuning"], "cannot share it with others; tune it by itself"),
    (["--prompt.length", "5,600"], "lower --prompt.length, or raise --max-length"),
    (["--task", "helpdesk/intent,helpdesk/nothing"], "There is no task 'helpdesk/nothing'"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_a_bad_list_is_refused_before_anything_is_written(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = [] if "--task" in argv else ["--task", "helpdesk/register"]
    assert main(["tune", *task, *argv, "--output", str(tmp_path / "cohort")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "cohort").exists()


def test_lists_in_a_file_are_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, message in (
        ("seed: []", "has an empty value"),
        ("trust_remote_code: [true, false]", "share one frozen model"),
    ):
        (tmp_path / "c.yaml").write_text(f"{text}\ntask: {{task: helpdesk/register}}\n")
        command = ["tune", "--config", str(tmp_path / "c.yaml"), "--output", str(tmp_path / "x")]
        assert main(command) == 2
        assert message in capsys.readouterr().err


# -- a cohort --------------------------------------------------------------------------------------

TASKS = ["--task", "helpdesk/register,helpdesk/urgency", "--shots", "3", "--cap-validation", "8"]
COHORT = ["tune", *TASKS, *QUICK]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a cohort, and what --json printed."""
    folder = tmp_path_factory.mktemp("runs") / "cohort"
    loaded: list[str | None] = []

    def counted(config: TaskConfig, part: Callable[[TaskConfig], Task]) -> Task:
        loaded.append(config.task)
        return load_task(config, part)

    with (
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("softprompts.tuning.tune.load_task", counted)
        assert main([*COHORT, "--seed", "0,1", "--json", "--output", str(folder)]) == 0
    assert loaded == ["helpdesk/register", "helpdesk/urgency"], "once each"
    shown = err.getvalue()
    assert "seed 1: step 4 of 4" in shown, "a line per evaluation without a terminal"
    assert "\r" not in shown, "no bars"
    return folder, json.loads(out.getvalue())


def test_every_run_has_its_own_folder(cohort: tuple[Path, dict[str, Any]]) -> None:
    folder, result = cohort
    names = [
        f"task=helpdesk-{task}_seed={seed}" for task in ("register", "urgency") for seed in (0, 1)
    ]
    assert {path.name for path in folder.iterdir()} == {*names, "cohort.csv"}
    assert [run["folder"] for run in result["runs"]] == [str(folder / name) for name in names]
    for name in names:
        assert {path.name for path in (folder / name).iterdir()} == FILES
        config = yaml.safe_load((folder / name / "config.yaml").read_text())
        assert config == json.loads((folder / name / "prompt.json").read_text())["config"]
        assert isinstance(config["seed"], int)
        assert isinstance(config["task"]["task"], str)


def test_json_has_every_run_and_means_over_seeds(
    cohort: tuple[Path, dict[str, Any]],
) -> None:
    folder, result = cohort
    assert set(result) == {"runs", "summary"}
    for run in result["runs"]:
        card = json.loads((Path(run["folder"]) / "prompt.json").read_text())
        assert {name: run[name] for name in card if name != "prompt"} == {
            name: value for name, value in card.items() if name != "prompt"
        }
        assert run["settings"] == {"task": card["task"]["name"], "seed": card["seed"]}
    assert [group["settings"] for group in result["summary"]] == [
        {"task": "helpdesk/register"},
        {"task": "helpdesk/urgency"},
    ]
    for group, pair in zip(
        result["summary"], (result["runs"][:2], result["runs"][2:]), strict=True
    ):
        one, other = (run["metrics"]["accuracy"] for run in pair)
        assert (group["runs"], group["failed"]) == (2, 0)
        assert group["mean"]["accuracy"] == pytest.approx((one + other) / 2, abs=1e-3)
        assert group["std"]["accuracy"] == pytest.approx(abs(one - other) / 2**0.5, abs=1e-3)
    rows = list(csv.DictReader((folder / "cohort.csv").read_text().splitlines()))
    assert list(rows[0]) == [
        "task",
        "seed",
        "accuracy",
        "macro_f1",
        *("rows", "interval_low", "interval_high", "majority", "bag_of_words"),
        *("test", "test_rows", "test_interval_low", "test_interval_high", "p_vs_best"),
        "best_step",
        "stopped",
        "folder",
    ]
    assert [(row["task"], row["seed"]) for row in rows[4:]] == [
        (group["settings"]["task"], statistic)
        for group in result["summary"]
        for statistic in ("mean", "std")
    ]
    assert float(rows[4]["accuracy"]) == result["summary"][0]["mean"]["accuracy"]
    for row, run in zip(rows[:4], result["runs"], strict=True):
        assert int(row["rows"]) == run["scores"]["validation"]["rows"]
        assert float(row["interval_low"]) <= float(row["accuracy"]) <= float(row["interval_high"])
        assert float(row["majority"]) == run["majority"]["accuracy"]
        assert (row["task"], int(row["seed"])) == (run["settings"]["task"], run["settings"]["seed"])
        assert float(row["macro_f1"]) == run["metrics"]["macro_f1"]
        assert (folder / row["folder"] / "prompt.json").exists()


def test_the_config_of_a_member_reproduces_its_run_alone(
    cohort: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    member = cohort[0] / "task=helpdesk-urgency_seed=1"
    config, alone = str(member / "config.yaml"), str(tmp_path / "alone")
    assert main(["tune", "--config", config, "--output", alone, "--quiet"]) == 0
    assert_same(member, tmp_path / "alone")
    assert main(["predict", str(member), "--scoring", "labels", "Where is it?"]) == 0


def test_finished_runs_are_not_trained_again(
    cohort: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not when a list grows either; the table has all runs."""
    folder = tmp_path / "cohort"
    shutil.copytree(cohort[0], folder)
    before = (folder / "task=helpdesk-register_seed=1" / "prompt.safetensors").read_bytes()
    steps: list[tuple[str, int]] = []
    monkeypatch.setattr(
        "softprompts.cli.progress.CohortProgress.on_step",
        lambda self, run: steps.append((run.task.name, run.config.seed)),
    )
    assert main([*COHORT, "--seed", "0,1,2", "--output", str(folder)]) == 0
    assert sorted(steps) == [("helpdesk/register", 2)] * 4 + [("helpdesk/urgency", 2)] * 4
    assert (folder / "task=helpdesk-register_seed=1" / "prompt.safetensors").read_bytes() == before
    output = capsys.readouterr().out
    assert output.count("accuracy") == 6 + 2 + 1, "runs, means, and advice on one of them"
    header = output.splitlines()[0]
    assert re.split(r"  +", header) == [
        *("task", "seed", "score", "95 % interval", "rows", "majority class", "bag of words"),
        *("p vs best", "best step", "folder"),
    ]
    assert "mean ± standard deviation" in output


# -- resuming and failing --------------------------------------------------------------------------


def small(toy_csv: Path, **more: Any) -> list[Member]:
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    tuning = {
        "steps": 8,
        "batch_size": 6,
        "evaluate_every": 4,
        "max_length": 64,
        **more.pop("tuning", {}),
    }
    return expand_lists(
        {"preset": "prompt-tuning", "prompt": {"length": 4}, "task": task, "tuning": tuning, **more}
    )


class StepCounter(Watcher):
    """Counts the steps of each seed, and interrupts after `stop` steps of all runs."""

    def __init__(self, stop: int = -1) -> None:
        self.stop, self.steps = stop, Counter[int]()

    def on_step(self, run: Run) -> None:
        self.steps[run.config.seed] += 1
        if self.steps.total() == self.stop:
            raise KeyboardInterrupt


def test_every_run_of_an_interrupted_cohort_resumes_from_its_checkpoint(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    members = small(toy_csv, seed=[0, 1], tuning={"checkpoint_every": [2, 3]})
    tune_cohort(members, tmp_path / "uninterrupted", backbone=t5)
    for stop in (18, 7):
        with pytest.raises(KeyboardInterrupt):
            tune_cohort(members, tmp_path / "interrupted", watcher=StepCounter(stop), backbone=t5)
    steps = [
        read_tensors(tmp_path / "interrupted" / member.name / "checkpoint.safetensors")[1]["step"]
        for member in members
    ]
    assert all(steps)
    last = StepCounter()
    tune_cohort(members, tmp_path / "interrupted", watcher=last, backbone=t5)
    assert last.steps.total() == sum(8 - step for step in steps)
    for member in members:
        assert_same(
            tmp_path / "uninterrupted" / member.name, tmp_path / "interrupted" / member.name
        )
    overwritten = StepCounter()
    tune_cohort(members, tmp_path / "interrupted", overwrite=True, watcher=overwritten, backbone=t5)
    assert overwritten.steps.total() == 4 * 8
    with pytest.raises(UserError, match="other settings"):
        tune_cohort(
            small(toy_csv, seed=[0, 1], tuning={"checkpoint_every": [2, 3], "lr": 0.2}),
            tmp_path / "interrupted",
            backbone=t5,
        )


def test_hand_written_prompts_next_to_tuned_ones_are_evaluated_again(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    """They have no checkpoint, since they train nothing; other prompts in their folder are kept."""
    presets: dict[str, Any] = {
        "preset": ["prompt-design", "prompt-tuning"],
        "prompt": {},
        "tuning": {"scoring": "labels"},
    }
    first, again = (tune_cohort(small(toy_csv, **presets), tmp_path, backbone=t5) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert isinstance(one, Tuned)
        assert isinstance(other, Tuned)
        assert one.card == other.card
    with pytest.raises(UserError, match="already holds a prompt"):
        tune_cohort(small(toy_csv, **presets, seed=1), tmp_path, backbone=t5)


def test_a_run_that_fails_does_not_affect_others(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = [
        *("--lr", "1e30,0.1", "--seed", "0,1", "--schedule", "constant", "--warmup", "0"),
        *("--steps", "12", "--evaluate-every", "12"),
    ]
    command = [*own_data(toy_csv, tmp_path), *hot, "--preset", "prompt-tuning"]
    assert main([*command, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert [run["failed"] for run in result["runs"]] == [True, True, False, False]
    for run in result["runs"][:2]:
        assert "The run produced no prompt: the loss was not finite" in run["stopped"]
        assert "metrics" not in run
        assert not (Path(run["folder"]) / "prompt.json").exists()
    assert all(
        {path.name for path in Path(run["folder"]).iterdir()} == FILES for run in result["runs"][2:]
    )
    assert [(group["failed"], len(group["mean"])) for group in result["summary"]] == [
        (2, 0),
        (0, 2),
    ]
    rows = list(csv.DictReader((tmp_path / "cohort.csv").read_text().splitlines()))
    assert [row["accuracy"] != "" for row in rows[:4]] == [False, False, True, True]
    assert "lower --lr" in rows[0]["stopped"]
    assert main(command) == 1
    shown = capsys.readouterr().out
    assert "lr=1e30_seed=0 failed: The run produced no prompt" in shown
    assert shown.count("failed:") == 2


def test_the_default_folder_is_named_after_shared_and_varied_settings(
    toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = own_data(toy_csv, tmp_path)[:-2]
    assert main([*command, "--steps", "1", "--seed", "4,5"]) == 0
    assert {
        path.name for path in (tmp_path / "runs" / "reviews-mood-mixture-by-seed").iterdir()
    } == {"seed=4", "seed=5", "cohort.csv"}


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ({"train": "stars/train.csv"}, "stars-train-label"),
        ({"train": "train.csv"}, "train-label"),
        ({"train": "stars/reviews.csv"}, "reviews-label"),
        ({"train": "stars/train.csv", "name": "my stars"}, "my-stars"),
    ],
)
def test_the_default_folder_of_a_generic_file_is_named_after_its_folder(
    task: dict[str, str], name: str
) -> None:
    (member,) = expand_lists({"preset": "prompt-tuning", "task": {**task, "label": "label"}})
    assert _default_folder(member) == Path("runs") / f"{name}-prompt-tuning-seed0"


def test_the_name_of_a_task_in_a_list_is_on_its_card_and_may_change(toy_csv: Path) -> None:
    mine = {"train": str(toy_csv), "text": "review", "label": "mood"}
    named, unnamed = expand_lists({"task": {"task": [{"name": "moods", **mine}, mine]}})
    assert (named.name, unnamed.name) == ("task=moods", "task=reviews.csv-mood")
    assert load_task(named.config.task).name == "moods"
    assert load_task(unnamed.config.task).name == "reviews.csv:mood"
    assert named.config.changed(unnamed.config.plain()) is None


# -- progress and trackers -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_run_has_its_own_tracker(t5: Backbone, toy_csv: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    members = small(toy_csv, seed=[0, 1], tuning={"steps": 20, "evaluate_every": 10})
    results = tune_cohort(members, tmp_path, backbone=t5, trackers=["tensorboard"])
    for member, tuned in zip(members, results, strict=True):
        assert isinstance(tuned, Tuned)
        logs = EventAccumulator(str(tmp_path / member.name / "trackers" / "softprompts")).Reload()
        scores = {event.step: event.value for event in logs.Scalars("validation/accuracy")}
        assert set(scores) == {10, 20}
        assert scores[tuned.card.best_step] == pytest.approx(tuned.metrics["accuracy"], abs=1e-3)
        settings = next((tmp_path / member.name / "trackers").rglob("hparams.yml")).read_text()
        assert f"\nseed: {member.config.seed}\n" in settings


def test_a_terminal_shows_as_many_runs_as_fit(
    t5: Backbone, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=8)
    monkeypatch.setattr("softprompts.cli.progress.Console", lambda stderr: console)
    members = small(toy_csv, seed=[0, 1, 2], tuning={"steps": [4, 8]})
    frames: list[str] = []

    class Redrawn(CohortProgress):
        """Draws when half of the runs are finished, as the thread might."""

        def on_step(self, run: Run) -> None:
            if run.step == 6:
                begin = screen.tell()
                self.live.refresh()
                frames.append(screen.getvalue()[begin:])

    with Redrawn([member.varied for member in members]) as watcher:
        tune_cohort(members, None, watcher=watcher, backbone=t5)
    names = ("steps", "seed", "loss", "score", "best")
    for piece in (*names, "0/4", "6 runs", "36/36", "run-steps/s", "left"):
        assert piece in screen.getvalue()
    frame = frames[-1]
    assert frame.count("6/8") == 3
    assert frame.count("4/4") == 1
    assert frame.rindex("6/8") < frame.index("4/4"), "unfinished runs first"
    assert "accuracy" in frame
    assert "... and 2 more" in frame


def test_nothing_is_shown_if_quiet(
    t5: Backbone, toy_csv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = small(toy_csv, seed=[0, 1], tuning={"steps": 1})
    with CohortProgress([member.varied for member in members], quiet=True) as watcher:
        tune_cohort(members, None, watcher=watcher, backbone=t5)
    assert capsys.readouterr() == ("", "")


# -- nothing is lost -------------------------------------------------------------------------------


def test_overwriting_removes_nothing_before_every_folder_was_checked(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    tune_cohort(small(toy_csv, seed=[0, 1]), tmp_path, backbone=t5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    last = sorted(folder for folder in tmp_path.iterdir() if folder.is_dir())[-1]
    (last / "config.yaml").write_text("other: file\n")
    with pytest.raises(UserError, match="was not written by softprompts"):
        tune_cohort(small(toy_csv, seed=[0, 1]), tmp_path, overwrite=True, backbone=t5)
    (last / "config.yaml").write_bytes(before[last / "config.yaml"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_checkpoint_with_nan_does_not_replace_a_prompt(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    tune_cohort(small(toy_csv, seed=[0, 1]), tmp_path, backbone=t5)
    folder = sorted(folder for folder in tmp_path.iterdir() if folder.is_dir())[0]
    tensors, note = read_tensors(folder / "checkpoint.safetensors")
    good = (folder / "prompt.safetensors").read_bytes()
    corrupted = {
        name: value * float("nan") if name.startswith("best/") else value
        for name, value in tensors.items()
    }
    write_tensors(folder / "checkpoint.safetensors", corrupted, note)
    with pytest.raises(
        UserError, match=f"To start that run again, remove {re.escape(str(folder))}"
    ):
        tune_cohort(small(toy_csv, seed=[0, 1]), tmp_path, backbone=t5)
    assert (folder / "prompt.safetensors").read_bytes() == good


def test_too_many_runs_are_refused() -> None:
    with pytest.raises(UserError, match="100,000 runs"):
        expand_lists(
            {
                "seed": ",".join(map(str, range(1000))),
                "tuning": {"lr": [0.1 * (n + 1) for n in range(100)]},
            }
        )
