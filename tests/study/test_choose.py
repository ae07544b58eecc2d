"""Settings chosen on held-out rows, models in other folders, and evaluation without training."""

import json
from pathlib import Path
from typing import Any

import pytest

from softprompts.analysis.runs import read_runs
from softprompts.analysis.study_explain import explain_study, unexplained
from softprompts.analysis.summary import summarize
from softprompts.artifacts.study_folder import CellResult, StudyFolder
from softprompts.cli import main as cli
from softprompts.config import TaskConfig
from softprompts.errors import UserError
from softprompts.study.cells import commit, resolve_start, saved_config
from softprompts.study.checks import check_unchanged
from softprompts.study.config import StudyConfig, check_study
from softprompts.study.plan import Cell, plan
from softprompts.study.study import Study
from softprompts.tasks import load_task

from .conftest import QUICK, SHORT, as_runs

CHOOSE: dict[str, Any] = {
    "name": "choice",
    "targets": ["helpdesk/urgency"],
    "seeds": [0, 1],
    "settings": {**QUICK, "steps": 2},
    "choose": {"lr": [0.1, 9.0]},
}


def planned(**changes: Any) -> list[Cell]:
    return plan(StudyConfig.of({**CHOOSE, **changes}))


def test_each_subject_has_one_run_per_candidate_on_held_out_rows() -> None:
    cells = planned(sources=["helpdesk/intent"])
    by_stage: dict[str, list[Cell]] = {}
    for cell in cells:
        by_stage.setdefault(cell.stage, []).append(cell)
    assert {stage: len(part) for stage, part in by_stage.items()} == {
        "source-choice": 2,
        "choice": 2,
        "source": 2,
        "baseline": 2,
        "transfer": 2,
    }
    low, high = by_stage["choice"]
    assert (low.name, high.seed) == ("t5-tiny/choice/helpdesk-urgency/lr-0.1/seed0", 0)
    assert (low.config.tuning.lr, high.config.tuning.lr) == (0.1, 9.0)
    assert {cell.config.task.hold_out for cell in by_stage["choice"]} == {0.1}
    names = tuple(cell.name for cell in by_stage["choice"])
    assert {cell.choices for cell in by_stage["baseline"]} == {names}
    assert {cell.choices for cell in by_stage["transfer"]} == {names}
    assert by_stage["source"][0].choices == tuple(cell.name for cell in by_stage["source-choice"])
    assert {cell.config.task.hold_out for cell in by_stage["baseline"]} == {None}


def test_runs_take_the_settings_with_the_best_held_out_score(tmp_path: Path) -> None:
    cells, folder = planned(), StudyFolder(tmp_path)
    by_name = {cell.name: cell for cell in cells}
    baseline = next(cell for cell in cells if cell.stage == "baseline")
    assert not baseline.is_blocked({baseline.choices[0]}), "one candidate is enough"
    assert baseline.is_blocked(set(baseline.choices))
    for name, score in zip(baseline.choices, (40.0, 60.0), strict=True):
        commit(folder, CellResult(name, **by_name[name].identity(), score=score))
    config, chosen = resolve_start(baseline, by_name, folder)
    assert (config.tuning.lr, chosen) == (9.0, [])
    assert config.seed == baseline.config.seed
    assert config.task.hold_out is None


def test_choices_do_not_decide_which_rows_a_task_is_judged_by() -> None:
    choice = CellResult("c", stage="choice", target="a", score=1.0)
    tested = CellResult("b", stage="baseline", target="a", score=2.0, test=3.0)
    runs = as_runs([choice, tested])
    assert [runs.split(run) for run in runs.records] == ["validation", "test"]


def test_a_study_with_choices_runs_and_is_reported(tmp_path: Path, model: str) -> None:
    study = Study(StudyConfig.of({**CHOOSE, "backbones": ["some/name"]}))
    status = study.run(output=tmp_path, models={"some/name": model}, device="cpu", verbose=False)
    assert (status["done"], status["total"]) == (4, 4)
    (baselines,) = {
        cell.name.rpartition("/")[0] for cell in study.cells() if cell.stage == "baseline"
    }
    assert baselines == "some-name/baseline/helpdesk-urgency"
    config = study.folder.cell(f"{baselines}/seed0").config()
    assert config.model == model
    assert config.tuning.lr in (0.1, 9.0)
    results = [study.folder.cell(f"{baselines}/seed{seed}").result() for seed in (0, 1)]
    assert {result.backbone for result in results if result} == {"some/name"}
    runs = read_runs(tmp_path)
    assert [run.stage for run in runs.records].count("choice") == 2
    tried = summarize(runs)["choices"]
    assert [choice["settings"] for choice in tried] == ["lr-0.1", "lr-9.0"]
    (best,) = [choice["settings"] for choice in tried if choice["best"]]
    assert best == f"lr-{config.tuning.lr}", "the report names what the runs took"
    # elsewhere, the same model may be in another folder
    check_unchanged(study.cells(models={"some/name": "other/folder"}), study.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choose": {"lr": 0.1}}, "give a list of at least two values"),
        ({"choose": {"lrr": [1, 2]}}, "did you mean lr"),
        ({"choose": {"lr": [0.1, "fast"]}}, "lr is 'fast'; give a number"),
        ({"choose": {"seed": [0, 1]}}, "seed is set by the study"),
    ],
)
def test_bad_choices_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_study(StudyConfig.of({**CHOOSE, **changes}))


def test_a_model_that_the_study_does_not_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps({**CHOOSE, "backbones": ["t5-tiny"]}))
    argv = ["study", "run", str(file), "--output", str(tmp_path / "new")]
    assert cli([*argv, "--model", f"t5-tinny={tmp_path}"]) == 2
    assert "The study has no backbone t5-tinny; did you mean t5-tiny?" in capsys.readouterr().err
    assert cli([*argv, "--model", "t5-tiny=nowhere"]) == 2
    assert "give the name of a backbone and its folder" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


# -- evaluation without training: a shift of domain ------------------------------------------------

SHIFT: dict[str, Any] = {
    "name": "shift",
    "sources": ["helpdesk/intent"],
    "targets": ["helpdesk/area"],
    "settings": {**SHORT, "scoring": "labels", "steps": 2, "evaluate_every": 2},
    "target": {"trains": "nothing"},
    "choose": {"lr": [0.1, 0.2]},
    "variants": {
        "prompt": {},
        "model": {"settings": {"preset": "model-tuning", "prompt": {"length": 0}}},
    },
}


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory, model: str) -> Study:
    study = Study(StudyConfig.of({**SHIFT, "backbones": [model], "choose": {}}))
    folder = tmp_path_factory.mktemp("shift")
    study.run(output=folder, device="cpu", verbose=False)
    return study


def test_runs_that_train_nothing_choose_nothing() -> None:
    stages = {cell.stage for cell in plan(StudyConfig.of(SHIFT))}
    assert stages == {"source-choice", "source", "baseline", "transfer"}


def test_a_source_is_evaluated_on_the_targets_rows_unchanged(shifted: Study, model: str) -> None:
    cells = {(cell.variant, cell.stage): cell for cell in shifted.cells()}
    folders = {key: shifted.folder.cell(cell.name) for key, cell in cells.items()}
    source = folders["prompt", "source"].task_vectors()
    assert (folders["prompt", "transfer"].task_vectors() == source).all()
    assert folders["prompt", "transfer"].card().steps == 0
    assert folders["prompt", "transfer"].card().task.name == "helpdesk/area"
    tuned_model = folders["model", "source"].model
    assert tuned_model.is_dir()
    assert folders["model", "transfer"].config().model == str(tuned_model)
    assert folders["model", "baseline"].config().model == model
    result = folders["model", "transfer"].result()
    assert result is not None
    assert saved_config(shifted.folder, result).model == str(tuned_model), "for a rerun"


def test_prompts_of_a_study_are_explained_once(
    shifted: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = unexplained(shifted)
    assert {cell.variant for cell in cells} == {"prompt"}, "a tuned model has no prompt"
    explain_study(shifted, cells[:1], "cpu")
    assert len(unexplained(shifted)) == len(cells) - 1
    assert cli(["study", "explain", str(shifted.folder.path), "--device", "cpu", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["explained"]) == len(cells) - 1
    explained = [run for run in read_runs(shifted.folder.path).records if run.explanation]
    assert len(explained) == len(cells)
    assert explained[0].explanation["nearest_cosine"] > 0


# -- tasks -----------------------------------------------------------------------------------------


def test_rows_are_held_out_of_the_training_rows_alone() -> None:
    everything = load_task(TaskConfig(task="helpdesk/urgency"))
    held_out = load_task(TaskConfig(task="helpdesk/urgency", hold_out=0.1))
    assert len(held_out.train) + len(held_out.validation) == len(everything.train)
    assert len(held_out.validation) == pytest.approx(len(everything.train) / 10, abs=3)
    assert not {e.input for e in held_out.validation} & {e.input for e in held_out.train}
    few = load_task(TaskConfig(task="helpdesk/urgency", hold_out=0.1, shots=5))
    assert len(few.train) + len(few.validation) == 5 * len(few.labels)


def test_label_words_of_a_named_task_can_be_replaced(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        path = tmp_path / "glue" / "qqp" / f"{split}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"question1": "a", "question2": f"b{n}", "label": n % 2, "idx": n} for n in range(4)
        ]
        path.write_text("\n".join(map(json.dumps, rows)))
    words = {"duplicate": "equivalent", "not_duplicate": "not_equivalent"}
    folder = str(tmp_path)
    task = load_task(TaskConfig(task="glue/qqp", data_dir=folder, labels=words))
    assert {e.target for e in task.train} == {"equivalent", "not_equivalent"}
    assert set(task.labels) == {"equivalent", "not_equivalent"}
    right = [e.target for e in task.validation]
    assert task.score(right)["accuracy"] == 100
    assert task.score(right) == load_task(TaskConfig(task="glue/qqp", data_dir=folder)).score(
        ["duplicate" if word == "equivalent" else "not_duplicate" for word in right]
    )
    with pytest.raises(UserError, match="has no label 'same' to replace"):
        load_task(TaskConfig(task="glue/qqp", data_dir=folder, labels={"same": "x"}))
