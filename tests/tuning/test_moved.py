"""A run can be moved, alone or with its data, and be used from any directory."""

import shutil
from pathlib import Path

import pytest

import softprompts
from softprompts.artifacts.run_folder import RunFolder
from softprompts.cli import main
from softprompts.files import find_path

FLAGS = "--text text --label label --prompt.length 2 --steps 4 --batch-size 4 --max-length 40"
QUICK = [*FLAGS.split(), "--device", "cpu", "--quiet", "--checkpoint-every", "2"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `data/rows.csv`, in which a run was tuned by relative paths."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    rows = "".join(f"number {i},{'odd' if i % 2 else 'even'}\n" for i in range(20))
    (folder / "data" / "rows.csv").write_text("text,label\n" + rows)
    monkeypatch.chdir(folder)
    assert main(["tune", "--train", "data/rows.csv", *QUICK, "--output", "runs/parity"]) == 0
    return folder


def test_the_card_and_the_config_say_where_the_data_was(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(project / "data" / "rows.csv")
    run = RunFolder(project / "runs" / "parity")
    assert run.card().config["task"]["train"] == data
    assert f"train: {data}" in (run.path / "config.yaml").read_text()
    capsys.readouterr()
    assert main(["prompts", "show", "runs/parity"]) == 0
    assert data in capsys.readouterr().out


def test_evaluate_works_from_any_directory(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.move(project / "runs" / "parity", tmp_path / "alone")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["evaluate", "../alone", "--device", "cpu"]) == 0


def test_a_project_that_moved_is_found_again(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.move(project, tmp_path / "renamed")
    assert main(["evaluate", "renamed/runs/parity", "--device", "cpu"]) == 0
    config = "renamed/runs/parity/config.yaml"
    flags = ["--output", "renamed/runs/parity", "--quiet"]
    assert main(["tune", "--config", config, *flags]) == 0, "the finished run, found again"
    assert main(["tune", "--config", config, "--steps", "6", *flags]) == 0
    assert RunFolder(tmp_path / "renamed/runs/parity").card().steps == 6


def test_data_in_the_folder_that_holds_the_run(
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The new path shares no folder with the old one; other rows of that name are refused."""
    shutil.move("data/rows.csv", "rows.csv")
    assert main(["tune", "--train", "rows.csv", *QUICK, "--output", "run"]) == 0
    monkeypatch.chdir("/")
    moved = shutil.move(project, tmp_path / "renamed")
    assert main(["evaluate", f"{moved}/run", "--device", "cpu"]) == 0
    assert main(["predict", f"{moved}/run", "number 3", "--device", "cpu"]) == 0
    flags = ["--config", f"{moved}/run/config.yaml", "--steps", "6", "--output", f"{moved}/run"]
    assert main(["tune", *flags, "--quiet"]) == 0
    assert RunFolder(moved / "run").card().steps == 6
    rows = moved / "rows.csv"
    rows.write_text(rows.read_text().replace("number", "count"))
    capsys.readouterr()
    assert main(["evaluate", f"{moved}/run", "--device", "cpu"]) == 2
    assert "have changed since" in capsys.readouterr().err


def test_paths_in_a_config_file_start_from_its_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tune.yaml").write_text("train: data/rows.csv\ntext: text\nlabel: label\nsteps: 2\n")
    monkeypatch.chdir(tmp_path)
    flags = ["--device", "cpu", "--quiet", "--output", "out", "--max-length", "40"]
    assert main(["tune", "--config", "project/tune.yaml", *flags]) == 0


def test_a_moved_run_resumes_with_the_data_at_another_path_but_not_with_other_data(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*QUICK, "--output", "runs/parity"]
    shutil.copy("data/rows.csv", "rows.csv")
    assert main(["tune", "--train", "rows.csv", *settings]) == 0
    with open("rows.csv", "a") as file:
        file.write("number 21,odd\n")
    capsys.readouterr()
    assert main(["tune", "--train", "rows.csv", *settings]) == 2
    assert "The data of the run in runs/parity has changed since" in capsys.readouterr().err


def test_a_path_is_found_beside_the_file_or_above_it(tmp_path: Path) -> None:
    (tmp_path / "new/data").mkdir(parents=True)
    (tmp_path / "new/data/a.csv").touch()
    run = tmp_path / "new/runs/one"
    run.mkdir(parents=True)
    assert find_path("../../data/a.csv", run) == str(tmp_path / "new/data/a.csv")
    assert find_path("data/a.csv", run) == str(tmp_path / "new/data/a.csv"), "an older card"
    assert find_path("/old/project/data/a.csv", run) == str(tmp_path / "new/data/a.csv")
    (tmp_path / "new/b.csv").touch()
    assert find_path("/old/b.csv", run) == str(tmp_path / "new/b.csv"), "two folders above"
    (run / "deep/er").mkdir(parents=True)
    assert find_path("/old/b.csv", run / "deep/er") == "/old/b.csv", "would match too easily"
    assert find_path("glue/sst2", run) == "glue/sst2"


def test_a_model_folder_that_moved_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from softprompts.backbone.load import BUNDLED_MODELS

    (tmp_path / "old/models").mkdir(parents=True)
    (tmp_path / "old/models/t5").symlink_to(BUNDLED_MODELS["t5-tiny"])
    monkeypatch.chdir(tmp_path / "old")
    settings = {"steps": 2, "cap": 8, "cap_validation": 4, "max_length": 40, "device": "cpu"}
    softprompts.tune("helpdesk/register", model="models/t5", output="runs/one", **settings)
    monkeypatch.chdir(tmp_path)
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert softprompts.load("new/runs/one", device="cpu").predict(["hi"], scoring="labels")
