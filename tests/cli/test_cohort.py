"""Lists on the command line: which runs they make, their folders, resuming, failing, summaries; and that each is the run it is alone."""

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
from softprompts.cli.progress import CohortWatcher
from softprompts.config import Member, TaskConfig, expand_lists
from softprompts.errors import UserError
from softprompts.files.tensors import read_tensors, write_tensors
from softprompts.tasks import Task, load_task
from softprompts.tuning import Run
from softprompts.tuning.tune import tune_cohort
from softprompts.tuning.tuned import Tuned

QUICK = ["--steps", "4", "--batch-size", "4", "--evaluate-every", "2", "--checkpoint-every", "2", "--prompt.length", "3",
         "--max-length", "40", "--device", "cpu"]  # fmt: skip
FILES = {
    "prompt.safetensors",
    "prompt.json",
    "embedding.safetensors",
    "metrics.jsonl",
    "curve.png",
    "config.yaml",
    "checkpoint.safetensors",
}


def own_data(toy_csv: Path, folder: Path) -> list[str]:
    return [
        "tune",
        "--train",
        str(toy_csv),
        "--text",
        "review",
        "--label",
        "mood",
        *QUICK,
        "--output",
        str(folder),
    ]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def same(one: Path, other: Path) -> None:
    """Two folders of one run, up to the order floats were added in."""
    for mine, theirs in zip(
        lines(one / "metrics.jsonl"), lines(other / "metrics.jsonl"), strict=True
    ):
        assert mine.pop("loss") == pytest.approx(theirs.pop("loss"), abs=1e-3)
        assert mine == theirs
    torch.testing.assert_close(
        *(read_tensors(place / "prompt.safetensors")[0] for place in (one, other)),
        rtol=1e-3,
        atol=1e-3,
    )


# -- which runs lists make ---------------------------------------------------------------------------------------------------


def test_lists_make_their_product_tasks_first_and_seeds_last() -> None:
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


def test_presets_in_a_list_bring_their_own_settings() -> None:
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
    assert [m.apart for m in over] == [{}], "a flag over a file's list"


def test_settings_with_commas_of_their_own_stay_as_they_are() -> None:
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
    """So that its run is found again when the list grows."""
    assert [m.name for m in expand_lists({"seed": [3]})] == ["seed=3"]
    assert [m.name for m in expand_lists({"seed": 3})] == [""]


def test_folders_differ_and_their_names_are_safe() -> None:
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
    (["--seed", "0,,1"], "seed is '0,,1', a list that lacks a value"),
    (["--seed", "0,"], "a list that lacks a value"),
    (["--seed", "0,one"], "seed is 'one'; give a whole number"),
    (["--lr", "0.1,-1"], "lr is -1.0; it must be a positive number"),
    (["--seed", "0,0"], "seed names 0 twice"),
    (["--lr", "0.1,1e-1"], "tuning.lr names 0.1 twice"),
    (["--preset", "mixture,lora"], "There is no preset 'lora'"),
    (["--prompt.shape", "direct,cube"], "There is no shape 'cube'"),
    (["--schedule", "linear,square"], "choose one of constant, linear, cosine"),
    (
        ["--model", "t5-tiny,other"],
        "model is 't5-tiny,other', but all runs of a command share one frozen model; give one model",
    ),
    (["--dtype", "fp32,bf16"], "give one dtype"),
    (["--device", "cpu,cuda"], "give one device"),
    (["--preset", "mixture,model-tuning"], "needs a model of its own; tune it by itself"),
    (["--prompt.length", "5,600"], "raise --max-length or shorten the prompt"),
    (["--task", "helpdesk/intent,helpdesk/nothing"], "There is no task 'helpdesk/nothing'"),
]


@pytest.mark.parametrize(("argv", "sentence"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_a_bad_list_is_one_sentence_before_anything_is_written(
    argv: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = [] if "--task" in argv else ["--task", "helpdesk/register"]
    assert main(["tune", *task, *argv, "--output", str(tmp_path / "study")]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "study").exists()


def test_lists_of_a_file_are_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, sentence in (
        ("seed: []", "lacks a value"),
        ("trust_remote_code: [true, false]", "share one frozen model"),
    ):
        (tmp_path / "c.yaml").write_text(f"{text}\ntask: {{task: helpdesk/register}}\n")
        assert (
            main(
                ["tune", "--config", str(tmp_path / "c.yaml"), "--output", str(tmp_path / "study")]
            )
            == 2
        )
        assert sentence in capsys.readouterr().err


# -- a study -----------------------------------------------------------------------------------------------------------------

STUDY = [
    "tune",
    "--task",
    "helpdesk/register,helpdesk/urgency",
    "--seed",
    "0,1",
    "--shots",
    "3",
    "--cap-validation",
    "8",
    *QUICK,
]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder, and what --json told."""
    folder = tmp_path_factory.mktemp("runs") / "study"
    read: list[str | None] = []

    def counted(config: TaskConfig, part: Callable[[TaskConfig], Task]) -> Task:
        read.append(config.task)
        return load_task(config, part)

    with (
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("softprompts.tuning.tune.load_task", counted)
        assert main([*STUDY, "--json", "--output", str(folder)]) == 0
    assert read == ["helpdesk/register", "helpdesk/urgency"], "once each"
    assert err.getvalue() == "", "nothing where there is no terminal"
    return folder, json.loads(out.getvalue())


def test_every_run_has_a_folder_of_its_own(study: tuple[Path, dict[str, Any]]) -> None:
    folder, told = study
    names = [
        f"task=helpdesk-{task}_seed={seed}" for task in ("register", "urgency") for seed in (0, 1)
    ]
    assert {path.name for path in folder.iterdir()} == {*names, "cohort.csv"}
    assert [run["folder"] for run in told["runs"]] == [str(folder / name) for name in names]
    for name in names:
        assert {path.name for path in (folder / name).iterdir()} == FILES
        config = yaml.safe_load((folder / name / "config.yaml").read_text())
        assert config == json.loads((folder / name / "prompt.json").read_text())["config"]
        assert isinstance(config["seed"], int)
        assert isinstance(config["task"]["task"], str)


def test_json_tells_every_run_as_if_alone_and_means_over_seeds(
    study: tuple[Path, dict[str, Any]],
) -> None:
    folder, told = study
    assert set(told) == {"runs", "summary"}
    for run in told["runs"]:
        card = json.loads((Path(run["folder"]) / "prompt.json").read_text())
        assert {name: run[name] for name in card if name != "prompt"} == {
            name: value for name, value in card.items() if name != "prompt"
        }
        assert run["settings"] == {"task": card["task"]["name"], "seed": card["seed"]}
    assert [group["settings"] for group in told["summary"]] == [
        {"task": "helpdesk/register"},
        {"task": "helpdesk/urgency"},
    ]
    for group, pair in zip(told["summary"], (told["runs"][:2], told["runs"][2:]), strict=True):
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
        "best_step",
        "stopped",
        "folder",
    ]
    for row, run in zip(rows, told["runs"], strict=True):
        assert (row["task"], int(row["seed"])) == (run["settings"]["task"], run["settings"]["seed"])
        assert float(row["macro_f1"]) == run["metrics"]["macro_f1"]
        assert (folder / row["folder"] / "prompt.json").exists()


def test_the_config_of_a_member_reproduces_its_run_alone(
    study: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    member = study[0] / "task=helpdesk-urgency_seed=1"
    assert (
        main(
            [
                "tune",
                "--config",
                str(member / "config.yaml"),
                "--output",
                str(tmp_path / "alone"),
                "--quiet",
            ]
        )
        == 0
    )
    same(member, tmp_path / "alone")
    assert main(["predict", str(member), "--scoring", "labels", "Where is it?"]) == 0


def test_a_finished_study_is_not_trained_again(
    study: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor are its finished runs when a list grows; the table has them all."""
    folder = tmp_path / "study"
    shutil.copytree(study[0], folder)
    before = (folder / "task=helpdesk-register_seed=1" / "prompt.safetensors").read_bytes()
    steps: list[tuple[str, int]] = []
    monkeypatch.setattr(
        "softprompts.cli.progress.CohortWatcher.on_step",
        lambda self, run: steps.append((run.task.name, run.config.seed)),
    )
    assert main([*STUDY[:4], "0,1,2", *STUDY[5:], "--output", str(folder)]) == 0
    assert sorted(steps) == [("helpdesk/register", 2)] * 4 + [("helpdesk/urgency", 2)] * 4
    assert (folder / "task=helpdesk-register_seed=1" / "prompt.safetensors").read_bytes() == before
    told = capsys.readouterr().out
    assert told.count("accuracy") == 6 + 2
    assert told.splitlines()[0].split() == [
        "task",
        "seed",
        "score",
        "majority",
        "class",
        "best",
        "step",
        "folder",
    ]
    assert "mean ± standard deviation" in told


# -- going on, going wrong ---------------------------------------------------------------------------------------------------


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


class Watch:
    """Counts the steps of each seed, and interrupts after so many of all."""

    def __init__(self, stop: int = -1) -> None:
        self.stop, self.steps = stop, Counter[int]()

    def on_step(self, run: Run) -> None:
        self.steps[run.config.seed] += 1
        if self.steps.total() == self.stop:
            raise KeyboardInterrupt

    def on_rows_answered(self, run: Run, rows: int) -> None: ...

    def on_evaluation(self, run: Run) -> None: ...


def test_an_interrupted_cohort_goes_on_each_run_from_its_own_checkpoint(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    members = small(toy_csv, seed=[0, 1], tuning={"checkpoint_every": [2, 3]})
    tune_cohort(members, tmp_path / "whole", backbone=t5)
    for stop in (18, 7):
        with pytest.raises(KeyboardInterrupt):
            tune_cohort(members, tmp_path / "parts", watcher=Watch(stop), backbone=t5)
    places = [
        read_tensors(tmp_path / "parts" / member.name / "checkpoint.safetensors")[1]["step"]
        for member in members
    ]
    assert all(places)
    last = Watch()
    tune_cohort(members, tmp_path / "parts", watcher=last, backbone=t5)
    assert last.steps.total() == sum(8 - step for step in places)
    for member in members:
        same(tmp_path / "whole" / member.name, tmp_path / "parts" / member.name)
    anew = Watch()
    tune_cohort(members, tmp_path / "parts", overwrite=True, watcher=anew, backbone=t5)
    assert anew.steps.total() == 4 * 8
    with pytest.raises(UserError, match="other settings"):
        tune_cohort(
            small(toy_csv, seed=[0, 1], tuning={"checkpoint_every": [2, 3], "lr": 0.2}),
            tmp_path / "parts",
            backbone=t5,
        )


def test_written_prompts_beside_learned_ones_are_judged_again(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    """They take no step, so they have no checkpoint to be known by; other work in their folder is still left alone."""
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


def test_a_run_that_fails_hinders_no_other(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = [
        "--lr",
        "1e30,0.1",
        "--seed",
        "0,1",
        "--schedule",
        "constant",
        "--warmup",
        "0",
        "--steps",
        "12",
        "--evaluate-every",
        "12",
    ]
    command = [*own_data(toy_csv, tmp_path), *hot, "--preset", "prompt-tuning"]
    assert main([*command, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [run["failed"] for run in told["runs"]] == [True, True, False, False]
    for run in told["runs"][:2]:
        assert "Nothing was learned that could be kept: the loss was not finite" in run["stopped"]
        assert "metrics" not in run
        assert not (Path(run["folder"]) / "prompt.json").exists()
    assert all(
        {path.name for path in Path(run["folder"]).iterdir()} == FILES for run in told["runs"][2:]
    )
    assert [(group["failed"], len(group["mean"])) for group in told["summary"]] == [(2, 0), (0, 2)]
    rows = list(csv.DictReader((tmp_path / "cohort.csv").read_text().splitlines()))
    assert [row["accuracy"] != "" for row in rows] == [False, False, True, True]
    assert "lower --lr" in rows[0]["stopped"]
    assert main(command) == 1
    shown = capsys.readouterr().out
    assert "lr=1e30_seed=0 failed: Nothing was learned" in shown
    assert shown.count("failed:") == 2


def test_without_output_a_cohort_is_named_by_what_it_shares_and_what_it_does_not(
    toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = own_data(toy_csv, tmp_path)[:-2]
    assert main([*command, "--steps", "1", "--seed", "4,5"]) == 0
    assert {
        path.name for path in (tmp_path / "runs" / "reviews-mood-mixture-by-seed").iterdir()
    } == {"seed=4", "seed=5", "cohort.csv"}


# -- who is told -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_run_has_its_own_track(t5: Backbone, toy_csv: Path, tmp_path: Path) -> None:
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


def test_a_terminal_sees_as_many_runs_as_it_is_high(
    t5: Backbone, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=8)
    monkeypatch.setattr("softprompts.cli.progress.Console", lambda stderr: console)
    members = small(toy_csv, seed=[0, 1, 2], tuning={"steps": [4, 8]})
    frames: list[str] = []

    class Looking(CohortWatcher):
        """Draws when half of the runs are finished, as the thread might."""

        def on_step(self, run: Run) -> None:
            if run.step == 6:
                begin = screen.tell()
                self.live.refresh()
                frames.append(screen.getvalue()[begin:])

    with Looking([member.varied for member in members]) as watcher:
        tune_cohort(members, None, watcher=watcher, backbone=t5, on_start=watcher.on_start)
    for piece in (
        "steps",
        "seed",
        "loss",
        "score",
        "best",
        "0/4",
        "6 runs",
        "36/36",
        "run-steps/s",
        "left",
    ):
        assert piece in screen.getvalue()
    frame = frames[-1]
    assert frame.count("6/8") == 3
    assert frame.count("4/4") == 1
    assert frame.rindex("6/8") < frame.index("4/4"), "the unfinished first"
    assert "accuracy" in frame
    assert "... and 2 more" in frame


def test_no_terminal_sees_nothing(
    t5: Backbone, toy_csv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = small(toy_csv, seed=[0, 1], tuning={"steps": 1})
    with CohortWatcher([member.varied for member in members]) as watcher:
        tune_cohort(members, None, watcher=watcher, backbone=t5, on_start=watcher.on_start)
    assert capsys.readouterr() == ("", "")


# -- nothing is lost ---------------------------------------------------------------------------------------------------------


def test_overwriting_removes_nothing_before_every_folder_was_looked_at(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    tune_cohort(small(toy_csv, seed=[0, 1]), tmp_path, backbone=t5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    last = sorted(folder for folder in tmp_path.iterdir() if folder.is_dir())[-1]
    (last / "config.yaml").write_text("somebody: else\n")
    with pytest.raises(UserError, match="not one of ours"):
        tune_cohort(small(toy_csv, seed=[0, 1]), tmp_path, overwrite=True, backbone=t5)
    (last / "config.yaml").write_bytes(before[last / "config.yaml"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_checkpoint_with_numbers_that_are_none_replaces_no_prompt(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    tune_cohort(small(toy_csv, seed=[0, 1]), tmp_path, backbone=t5)
    folder = sorted(folder for folder in tmp_path.iterdir() if folder.is_dir())[0]
    tensors, note = read_tensors(folder / "checkpoint.safetensors")
    good = (folder / "prompt.safetensors").read_bytes()
    ruined = {
        name: value * float("nan") if name.startswith("best/") else value
        for name, value in tensors.items()
    }
    write_tensors(folder / "checkpoint.safetensors", ruined, note)
    with pytest.raises(UserError, match=f"start that run anew: remove {re.escape(str(folder))}"):
        tune_cohort(small(toy_csv, seed=[0, 1]), tmp_path, backbone=t5)
    assert (folder / "prompt.safetensors").read_bytes() == good


def test_too_many_runs_are_refused_before_any_is_made() -> None:
    with pytest.raises(UserError, match="100,000 runs"):
        expand_lists(
            {
                "seed": ",".join(map(str, range(1000))),
                "tuning": {"lr": [0.1 * (n + 1) for n in range(100)]},
            }
        )
