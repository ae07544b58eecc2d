"""What a study looks at before anything runs, and when a cell begins."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softprompts.backbone import load_backbone
from softprompts.backbone.load import meta_backbone
from softprompts.cli import main as cli
from softprompts.cli.study_progress import StudyBars
from softprompts.errors import UserError
from softprompts.study import workers
from softprompts.study.cells import open_cell, place
from softprompts.study.checks import words_of_a_study
from softprompts.study.leases import Claims
from softprompts.study.plan import plan, read_study
from softprompts.study.workers import State
from softprompts.tasks import load_task
from softprompts.config.task import TaskConfig
from softprompts.tuning import Cohort, Run
from softprompts.config.run import run_config
from softprompts.tuning.checkpoint import save_checkpoint

from ..models import random_model
from .conftest import FEW, QUICK, Write, planned, results

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    (
        {"target": {"max_length": 3}},
        "baseline/helpdesk-urgency/seed0 cannot run: The prompt leaves 0 tokens for the text; raise max_length",
    ),
    (
        {"target": {"shots": 10**6}},
        "The rows of helpdesk/urgency cannot be used: The class .* fewer than the 1000000 shots .*; lower shots",
    ),
    (
        {"target": {"metric": "f1"}},
        "The rows of helpdesk/urgency cannot be used: metric f1 is of two classes",
    ),
    ({"target": {"splits": "smop"}}, "cannot be used: splits smop is for named tasks"),
    (
        {"settings": {**QUICK, "prompt": {"length": 3, "place": "after-bos"}}},
        "leave prompt.place out",
    ),
    (
        {"settings": {**QUICK, "prompt": {"length": 3, "head": "linear"}}},
        "source/helpdesk-intent/seed0 cannot run: .* leave prompt.head out",
    ),
    (
        {"target": {"prompt": {"shape": {"kind": "residual", "bottleneck": 0}}}},
        "bottleneck must be at least 1",
    ),
    (
        {"target": {"prompt": {"start": {"kind": "prompt", "sources": ["gone"]}}}},
        "cannot run: There is no prompt at gone",
    ),
    ({"target": {"prompt": {"length": 10**9}}}, "prompt tokens are more than a model can read"),
    (
        {"source": {"preset": "smop", "prompt": {"count": 4, "route": "top1"}}},
        "cannot start from .*: it is a mixture of 4 .* cannot start 1",
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
        "one has a prompt, and the other has none",
    ),
]


@pytest.mark.parametrize(
    ("changes", "sentence"), IMPOSSIBLE, ids=[json.dumps(changes) for changes, _ in IMPOSSIBLE]
)
def test_settings_that_no_run_can_have_are_told_before_anything_is_written(
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
        cli.main(
            ["study", "run", str(study), "--output", str(tmp_path / "study"), "--device", "cpu"]
        )
        == 2
    )
    told = capsys.readouterr().err
    assert re.search(sentence, told), told
    assert len(told.strip().splitlines()) == 1
    assert " --" not in told, "a study has no such flags"
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
def test_settings_that_fit_are_not_refused(
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
        cli.main(
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


HOW: list[dict[str, Any]] = [
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
def test_a_model_without_weights_takes_and_refuses_what_the_real_one_does(
    kind: str, tmp_path: Path
) -> None:
    real = random_model(kind)
    real.model.save_pretrained(tmp_path)
    real.tokenizer.save_pretrained(tmp_path)
    task = load_task(TaskConfig(task="helpdesk/register")).brief
    told = []
    for how in HOW:
        length = 0 if how["preset"] in ("model-tuning", "prompt-design") else 3
        config = run_config(how, {"model": str(tmp_path), "prompt": {"length": length}})
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
        assert both[0] == both[1], how
        told.append(both[0])
    assert "fits" in told


@pytest.fixture
def begun(write: Write, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A study with data of its own, whose baselines are done."""
    own = {"name": "mine", "train": str(toy_csv), "text": "review", "label": "mood"}
    study = write(**FEW, sources=["helpdesk/intent"], targets=[own])
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
    assert cli.main([*argv, "--only", "source,baseline"]) == 0
    capsys.readouterr()
    return tmp_path / "study"


def test_rows_that_change_amid_a_study_are_told_and_nothing_is_run(
    begun: Path, toy_csv: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rows = results(begun), toy_csv.read_text()
    toy_csv.write_text(rows + "another text that came later,happy\n" * 4)
    files = {path: path.stat().st_mtime_ns for path in begun.rglob("*")}
    for _ in range(2):
        assert cli.main(["study", "run", str(begun), "--device", "cpu"]) == 2
        told = capsys.readouterr().err
        assert "The rows of mine have changed since" in told
        assert "put the old rows back, or run the study anew with another --output" in told
        assert {path: path.stat().st_mtime_ns for path in begun.rglob("*")} == files
    monkeypatch.setattr("softprompts.study.checks.check_rows", lambda *given: None)
    assert cli.main(["study", "run", str(begun), "--device", "cpu"]) == 2, (
        "a worker that was not asked to look notices too"
    )
    assert "have changed since" in capsys.readouterr().err
    assert results(begun) == before
    monkeypatch.undo()
    toy_csv.write_text(rows)
    assert cli.main(["study", "run", str(begun), "--device", "cpu", "--quiet"]) == 0
    assert len(results(begun)) == len(before) + 1


def named_rows(folder: Path) -> Path:
    """A data folder with a few made-up rows of RTE; where they are."""
    home = folder / "glue" / "rte"
    home.mkdir(parents=True)
    for split, many in (("train", 30), ("validation", 12)):
        rows = [
            {"sentence1": f"a {n} b", "sentence2": f"c {n}", "label": n % 2, "idx": n}
            for n in range(many)
        ]
        (home / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def test_a_named_tasks_rows_that_change_are_told_when_the_next_cell_begins(
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
    assert cli.main([*argv, "--only", "source,baseline"]) == 0
    shutil.copy(home / "validation.jsonl", home / "train.jsonl")
    assert cli.main(argv) == 2
    assert "The rows of glue/rte have changed since" in capsys.readouterr().err
    assert len(results(tmp_path / "study")) == 2


def test_a_cell_is_rerun_with_its_rows_elsewhere(
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
    assert cli.main([*argv, "--quiet", "--data-dir", str(tmp_path / "data")]) == 0
    (tmp_path / "data").rename(tmp_path / "moved")
    again = [
        "study",
        "rerun",
        str(tmp_path / "study"),
        next(iter(results(tmp_path / "study"))),
        "--output",
        str(tmp_path / "again"),
    ]
    assert cli.main(again) == 2
    assert "name another with --data-dir" in capsys.readouterr().err
    assert cli.main([*again, "--data-dir", str(tmp_path / "moved")]) == 0


def test_a_cell_that_was_begun_with_other_rows_is_told_before_anything_runs(
    write: Write, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"name": "mine", "train": str(toy_csv), "text": "review", "label": "mood"}
    study, folder = write(**FEW, sources=["helpdesk/intent"], targets=[own]), tmp_path / "study"
    (cell,) = (cell for cell in plan(read_study(study), "cpu") if cell.stage == "baseline")
    open_cell(cell, cell.config, folder)
    run = Run(
        cell.config, load_task(cell.config.task), load_backbone(cell.config.model, "fp32", "cpu")
    )
    Cohort([run], [None]).step()
    save_checkpoint(run, place(folder, cell.name))
    (folder / "study.yaml").write_text(study.read_text())
    toy_csv.write_text(toy_csv.read_text() + "another text that came later,happy\n" * 4)
    assert cli.main(["study", "run", str(study), "--output", str(folder), "--device", "cpu"]) == 2
    assert (
        f"The rows of mine have changed since {cell.name} was begun; put the old rows back"
        in capsys.readouterr().err
    )
    assert not results(folder)


def test_of_two_that_began_with_different_rows_one_commits(
    write: Write, toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows change after one worker began; another begins and ends, then the first ends."""
    own = {"name": "mine", "train": str(toy_csv), "text": "review", "label": "mood"}
    cells = {
        cell.name: cell
        for cell in plan(
            read_study(write(**{**FEW, "seeds": [0, 1]}, sources=[], targets=[own])), "cpu"
        )
    }
    first, second = cells.values()
    tune = workers.tune_cohort

    def meanwhile(*given: Any, **how: Any) -> Any:
        found = tune(*given, **how)
        monkeypatch.setattr(workers, "tune_cohort", tune)
        toy_csv.write_text(toy_csv.read_text() + "another text that came later,happy\n" * 4)
        with Claims(tmp_path / "study") as others:
            assert others.take(second.name)
            workers.run_cohort(others, [second], cells)
        return found

    monkeypatch.setattr(workers, "tune_cohort", meanwhile)
    with Claims(tmp_path / "study") as claims:
        assert claims.take(first.name)
        with pytest.raises(UserError, match="The rows of mine have changed since"):
            workers.run_cohort(claims, [first], cells)
    assert list(results(tmp_path / "study")) == [second.name]


def test_a_cell_is_not_rerun_on_other_rows(
    begun: Path, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cell,) = (name for name in results(begun) if "/baseline/" in name)
    toy_csv.write_text(toy_csv.read_text() + "another text that came later,happy\n" * 4)
    assert cli.main(["study", "rerun", str(begun), cell, "--output", str(tmp_path / "again")]) == 2
    assert "have changed since" in capsys.readouterr().err


def test_the_time_left_is_told_while_the_first_cohort_runs_and_goes_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("softprompts.cli.study_progress.time.monotonic", lambda: now[0])
    cells = planned(
        retrieval={}, sources=["helpdesk/intent"], targets=["helpdesk/urgency"], seeds=[0, 1]
    )  # 2 x 4, 2 x 2 and 2 x 2 steps
    bars = StudyBars(cells, quiet=True)
    bars.looked(State())
    assert bars.news() == "", "nothing is known yet"
    runs: list[Any] = [SimpleNamespace(step=0, steps=4, finished=False) for _ in range(2)]
    bars.on_start(runs)
    for run in runs:
        run.step = 1
    now[0] += 10  # 2 of 16 run-steps took 10 seconds
    assert bars.news() == "left 1 min 10 s"
    runs[0].step = runs[1].step = 2
    now[0] += 10
    assert bars.news() == "left 1 min 0 s"
    done = {
        cell.name: {"score": 1.0, "steps": 4, "begun": 0.0, "finished": 40.0}
        for cell in cells
        if cell.stage == "source"
    }
    bars.looked(State(results=done))
    assert bars.news() == "3.0 cells/min  left 40 s"
    bars.on_start([SimpleNamespace(step=0, steps=2, finished=False)])  # type: ignore[list-item]
    now[0] += 15
    assert bars.news() == "3.0 cells/min  left 25 s"


def test_flags_of_tune_become_entries_and_those_of_a_study_stay() -> None:
    sentence = r"^x--text: raise max_length, prompt.length or dtype; or give --data-dir and another --output$"
    with pytest.raises(UserError, match=sentence), words_of_a_study("x--text: "):
        raise UserError(
            "raise --max-length, --prompt.length or --dtype; or give --data-dir and another --output"
        )
