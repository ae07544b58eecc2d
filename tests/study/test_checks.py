"""What a study checks before anything runs, and when a cell starts."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softprompts.artifacts.study_folder import CellResult, StudyFolder
from softprompts.backbone import load_backbone
from softprompts.backbone.load import meta_backbone
from softprompts.cli import main as cli
from softprompts.cli.study_progress import StudyBars
from softprompts.config import TaskConfig, run_config
from softprompts.errors import UserError, setting
from softprompts.study import workers
from softprompts.study.cells import open_cell, task_key
from softprompts.study.config import StudyError, read_study, study_errors
from softprompts.study.leases import Leases
from softprompts.study.plan import plan
from softprompts.study.state import StudyState
from softprompts.tasks import load_task
from softprompts.tuning import Cohort, Run
from softprompts.tuning.checkpoint import save_checkpoint

from ..models import random_model
from .conftest import FEW, QUICK, Write, planned, results

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    (
        {"target": {"max_length": 3}},
        "The target helpdesk/urgency cannot be used: prompt.length is 3, but .* max_length",
    ),
    (
        {"target": {"shots": 10**6}},
        "The rows of helpdesk/urgency cannot be used: .* 1000000 .* lower shots",
    ),
    (
        {"target": {"metric": "f1"}},
        "The rows of helpdesk/urgency cannot be used: metric: f1 is for two classes",
    ),
    ({"target": {"splits": "smop"}}, "cannot be used: splits: smop is for named tasks"),
    (
        {"settings": {**QUICK, "prompt": {"length": 3, "place": "after-bos"}}},
        "leave out prompt.place",
    ),
    (
        {"settings": {**QUICK, "prompt": {"length": 3, "head": "linear"}}},
        "source/helpdesk-intent/seed0 cannot run: .* leave out prompt.head",
    ),
    (
        {"target": {"prompt": {"shape": {"kind": "residual", "bottleneck": 0}}}},
        "prompt.shape.bottleneck is 0; it must be from 1",
    ),
    (
        {"target": {"prompt": {"start": {"kind": "prompt", "sources": ["gone"]}}}},
        "cannot run: There is no prompt at gone",
    ),
    ({"target": {"prompt": {"length": 10**9}}}, "tokens do not fit into memory; lower prompt.l"),
    (
        {"source": {"preset": "smop", "prompt": {"count": 4, "route": "top1"}}},
        "cannot start from .*: it is a mixture of 4 .* cannot start a single prompt",
    ),
    (
        {
            "source": {"prompt": {"count": 4, "route": "top1"}},
            "target": {"prompt": {"count": 4, "route": "soft"}},
        },
        "cannot start from .*: it is a mixture routed by top1 and cannot start one routed by soft",
    ),
    (
        {"source": {"preset": "model-tuning", "prompt": {"length": 0}, "dtype": "fp32"}},
        "it has no prompt vectors",
    ),
]


@pytest.mark.parametrize(
    ("changes", "sentence"), IMPOSSIBLE, ids=[json.dumps(changes) for changes, _ in IMPOSSIBLE]
)
def test_impossible_settings_are_reported_before_anything_is_written(
    write: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    sentence: str,
) -> None:
    study = write(
        **{**FEW, "sources": ["helpdesk/intent"], "targets": ["helpdesk/urgency"], **changes}
    )
    assert (
        cli(["study", "run", str(study), "--output", str(tmp_path / "study"), "--device", "cpu"])
        == 2
    )
    message = capsys.readouterr().err
    assert re.search(sentence, message), message
    assert len(message.strip().splitlines()) == 1
    assert " --" not in message, "settings are keys of the study file"
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"prompt": {"count": 4, "route": "stochastic"}, "steps": 1}},
        {"target": {"trains": "nothing"}},
        {"source": {"prompt": {"length": 5}, "steps": 1}},
        {"target": {"prompt": {"count": 2, "route": "top1"}, "steps": 1}},
        {
            "target": {"prompt": {"count": 2, "route": "soft"}, "steps": 1},
            "seeds": [0, 1],
            "retrieval": {"average": [2]},
        },
    ],
    ids=json.dumps,
)
def test_possible_settings_are_not_refused(
    write: Write, tmp_path: Path, changes: dict[str, Any]
) -> None:
    study = write(
        **{
            **FEW,
            "sources": ["helpdesk/intent"],
            "targets": ["helpdesk/urgency"],
            "source": {"steps": 1},
            **changes,
        }
    )
    assert (
        cli(
            [
                "study",
                "run",
                str(study),
                "--output",
                str(tmp_path / "study"),
                "--device",
                "cpu",
                "--quiet",
            ]
        )
        == 0
    )
    assert len(results(tmp_path / "study")) == (8 if "retrieval" in changes else 3)


SETTINGS: list[dict[str, Any]] = [
    {"preset": "prompt-tuning"},
    {"preset": "residual"},
    {"preset": "smop"},
    {"preset": "model-tuning", "dtype": "fp32"},
    {"preset": "prompt-design"},
    {"preset": "prompt-tuning", "prompt": {"start": "labels"}},
    {"preset": "prompt-tuning", "prompt": {"place": "after-bos"}},
    {"preset": "prompt-tuning", "prompt": {"head": "linear"}},
    {"preset": "prompt-tuning", "tuning": {"max_length": 12}},
    {"preset": "prompt-tuning", "tuning": {"scoring": "generate"}},
]


@pytest.mark.parametrize("kind", ["gpt2", "bert", "bart", "t5"])
def test_a_model_without_weights_refuses_the_same_settings(kind: str, tmp_path: Path) -> None:
    real = random_model(kind)
    real.model.save_pretrained(tmp_path)
    real.tokenizer.save_pretrained(tmp_path)
    task = load_task(TaskConfig(task="helpdesk/register")).truncated
    result = []
    for settings in SETTINGS:
        length = 0 if settings["preset"] in ("model-tuning", "prompt-design") else 3
        config = run_config(settings, {"model": str(tmp_path), "prompt": {"length": length}})
        both = []
        for backbone in (
            load_backbone(str(tmp_path), "fp32", "cpu"),
            meta_backbone(str(tmp_path), "fp32"),
        ):
            try:
                Run(config, task, backbone)
                both.append("fits")
            except UserError as error:
                both.append(str(error))
        assert both[0] == both[1], settings
        result.append(both[0])
    assert "fits" in result


@pytest.fixture
def half_done(
    write: Write, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A study of a user's own data, whose baselines are done."""
    user_data = {"name": "mine", "train": str(toy_csv), "text": "review", "label": "mood"}
    study = write(**FEW, sources=["helpdesk/intent"], targets=[user_data])
    argv = [
        "study",
        "run",
        str(study),
        "--output",
        str(tmp_path / "study"),
        "--device",
        "cpu",
        "--quiet",
    ]
    assert cli([*argv, "--only", "source,baseline"]) == 0
    capsys.readouterr()
    return tmp_path / "study"


def test_changed_rows_are_reported_and_nothing_runs(
    half_done: Path,
    toy_csv: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, rows = results(half_done), toy_csv.read_text()
    toy_csv.write_text(rows + "another text that came later,happy\n" * 4)
    files = {path: path.stat().st_mtime_ns for path in half_done.rglob("*")}
    for _ in range(2):
        assert cli(["study", "run", str(half_done), "--device", "cpu"]) == 2
        message = capsys.readouterr().err
        assert "The rows of mine have changed since" in message
        assert "restore the old rows, or run the study again with another --output" in message
        assert {path: path.stat().st_mtime_ns for path in half_done.rglob("*")} == files
    monkeypatch.setattr("softprompts.study.checks.check_rows", lambda *arguments: None)
    assert cli(["study", "run", str(half_done), "--device", "cpu"]) == 2, (
        "workers check when they start a cell, too"
    )
    assert "have changed since" in capsys.readouterr().err
    assert results(half_done) == before
    monkeypatch.undo()
    toy_csv.write_text(rows)
    assert cli(["study", "run", str(half_done), "--device", "cpu", "--quiet"]) == 0
    assert len(results(half_done)) == len(before) + 1


def named_rows(folder: Path) -> Path:
    """Writes a few made-up rows of RTE to a data folder; returns their folder."""
    home = folder / "glue" / "rte"
    home.mkdir(parents=True)
    for split, count in (("train", 30), ("validation", 12)):
        rows = [
            {"sentence1": f"a {n} b", "sentence2": f"c {n}", "label": n % 2, "idx": n}
            for n in range(count)
        ]
        (home / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def test_changed_rows_of_a_named_task_are_reported_when_the_next_cell_starts(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = named_rows(tmp_path / "data")
    argv = [
        "study",
        "run",
        str(write(**FEW, sources=["helpdesk/intent"], targets=["glue/rte"])),
        "--output",
        str(tmp_path / "study"),
    ]
    argv += ["--device", "cpu", "--quiet", "--data-dir", str(tmp_path / "data")]
    assert cli([*argv, "--only", "source,baseline"]) == 0
    shutil.copy(home / "validation.jsonl", home / "train.jsonl")
    assert cli(argv) == 2
    assert "The rows of glue/rte have changed since" in capsys.readouterr().err
    assert len(results(tmp_path / "study")) == 2


def test_a_cell_is_rerun_with_moved_rows(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named_rows(tmp_path / "data")
    argv = [
        "study",
        "run",
        str(write(**FEW, sources=[], targets=["glue/rte"])),
        "--output",
        str(tmp_path / "study"),
        "--device",
        "cpu",
    ]
    assert cli([*argv, "--quiet", "--data-dir", str(tmp_path / "data")]) == 0
    (tmp_path / "data").rename(tmp_path / "moved")
    again = [
        "study",
        "rerun",
        str(tmp_path / "study"),
        next(iter(results(tmp_path / "study"))),
        "--output",
        str(tmp_path / "again"),
    ]
    assert cli(again) == 2
    assert "name another with --data-dir" in capsys.readouterr().err
    assert cli([*again, "--data-dir", str(tmp_path / "moved")]) == 0


def test_a_checkpoint_of_other_rows_is_reported_before_anything_runs(
    write: Write, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user_data = {"name": "mine", "train": str(toy_csv), "text": "review", "label": "mood"}
    study, folder = (
        write(**FEW, sources=["helpdesk/intent"], targets=[user_data]),
        tmp_path / "study",
    )
    (cell,) = (cell for cell in plan(read_study(study), "cpu") if cell.stage == "baseline")
    open_cell(cell, cell.config, StudyFolder(folder))
    run = Run(
        cell.config, load_task(cell.config.task), load_backbone(cell.config.model, "fp32", "cpu")
    )
    Cohort([run], [None]).step()
    save_checkpoint(run, StudyFolder(folder).cell(cell.name))
    (folder / "study.yaml").write_text(study.read_text())
    toy_csv.write_text(toy_csv.read_text() + "another text that came later,happy\n" * 4)
    assert cli(["study", "run", str(study), "--output", str(folder), "--device", "cpu"]) == 2
    assert (
        f"The rows of mine have changed since {cell.name} was started; restore the old rows"
        in capsys.readouterr().err
    )
    assert not results(folder)


def test_only_one_of_two_workers_with_different_rows_commits(
    write: Write, toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows change after one worker started; another starts and ends, then the first ends."""
    user_data = {"name": "mine", "train": str(toy_csv), "text": "review", "label": "mood"}
    cells = {
        cell.name: cell
        for cell in plan(
            read_study(write(**{**FEW, "seeds": [0, 1]}, sources=[], targets=[user_data])), "cpu"
        )
    }
    first, second = cells.values()
    tune = workers.tune_cohort

    def tune_with_changes(*arguments: Any, **options: Any) -> Any:
        outcomes = tune(*arguments, **options)
        monkeypatch.setattr(workers, "tune_cohort", tune)
        toy_csv.write_text(toy_csv.read_text() + "another text that came later,happy\n" * 4)
        with Leases(StudyFolder(tmp_path / "study")) as other:
            assert other.acquire(second.name)
            workers.run_cohort(other, [second], cells)
        return outcomes

    monkeypatch.setattr(workers, "tune_cohort", tune_with_changes)
    with Leases(StudyFolder(tmp_path / "study")) as leases:
        assert leases.acquire(first.name)
        with pytest.raises(UserError, match="The rows of mine have changed since"):
            workers.run_cohort(leases, [first], cells)
    assert list(results(tmp_path / "study")) == [second.name]


def test_a_cell_is_not_rerun_on_other_rows(
    half_done: Path, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cell,) = (name for name in results(half_done) if "/baseline/" in name)
    toy_csv.write_text(toy_csv.read_text() + "another text that came later,happy\n" * 4)
    assert cli(["study", "rerun", str(half_done), cell, "--output", str(tmp_path / "again")]) == 2
    assert "have changed since" in capsys.readouterr().err


def test_the_time_left_is_shown_during_the_first_cohort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("softprompts.study.progress.time.monotonic", lambda: now[0])
    cells = planned(
        retrieval={}, sources=["helpdesk/intent"], targets=["helpdesk/urgency"], seeds=[0, 1]
    )  # 2 x 4, 2 x 2 and 2 x 2 steps
    bars = StudyBars(cells, quiet=True)
    bars.on_update(StudyState())
    assert bars.info() == "", "unknown yet"
    runs: list[Any] = [SimpleNamespace(step=0, steps=4, finished=False) for _ in range(2)]
    bars.on_start(runs)
    for run in runs:
        run.step = 1
    now[0] += 10  # 2 of 16 run-steps took 10 seconds
    assert bars.info() == "left 1 min 10 s"
    runs[0].step = runs[1].step = 2
    now[0] += 10
    assert bars.info() == "left 1 min 0 s"
    done = {
        cell.name: CellResult(cell.name, score=1.0, steps=4, begun=0.0, finished=40.0)
        for cell in cells
        if cell.stage == "source"
    }
    bars.on_update(StudyState(results=done))
    assert bars.info() == "3.0 cells/min  left 40 s"
    bars.on_start([SimpleNamespace(step=0, steps=2, finished=False)])  # type: ignore[list-item]
    now[0] += 15
    assert bars.info() == "3.0 cells/min  left 25 s"


def test_a_study_spells_settings_as_keys_and_its_options_as_flags() -> None:
    with pytest.raises(StudyError) as caught, study_errors("A cell cannot run: "):
        raise UserError(
            f"raise {setting('tuning.max_length')} or {setting('prompt.length')}; "
            f"use {setting('tuning.scoring', 'labels')}, {setting('task.data_dir')} "
            f"or another {setting('output')}"
        )
    keys = "A cell cannot run: raise max_length or prompt.length; use scoring: labels"
    assert str(caught.value) == f"{keys}, data_dir or another output"
    flags = caught.value.spelled(caught.value.spelling)
    assert flags == f"{keys}, --data-dir or another --output"


def test_a_task_of_an_older_result_is_recognised() -> None:
    """Older results lack newer settings and hold relative paths."""
    task = TaskConfig(train="mine.csv", text="a", label="b")
    older = {"train": "mine.csv", "text": "a", "label": "b", "data_dir": "elsewhere"}
    assert task_key(TaskConfig.of(older)) == task_key(task)
