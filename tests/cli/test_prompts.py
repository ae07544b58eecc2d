"""`softprompts prompts`: list, show, search, import, export, and errors for bad input."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.artifacts.peft import write_adapter
from softprompts.backbone import Backbone
from softprompts.cli import main
from softprompts.config import PromptConfig
from softprompts.library.library import Library
from softprompts.prompt import Material
from softprompts.prompt.prompt import build_prompt

from ..library.prompts import make_prompt

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Three prompts of one backbone and one of another, in the default folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOFTPROMPTS_LIBRARY", raising=False)
    axes, library = torch.eye(4)[:, None, None], Library(Path("library"))
    for name, vectors, card in (
        ("near", axes[0] + 0.5 * axes[1], {"task": {"name": "helpdesk/near"}}),
        ("target", axes[0], {"task": {"name": "helpdesk/target"}}),
        ("far", axes[1], {"task": {"name": "other/far"}}),
    ):
        library.add(make_prompt(tmp_path / "runs" / name, vectors, embedding=vectors, **card))
    library.add(make_prompt(tmp_path / "runs" / "foreign", axes[0], fingerprint="e" * 32))
    return library


def result_of(capsys: Capture, *argv: str) -> Any:
    assert main(["prompts", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error_of(capsys: Capture, *argv: str) -> str:
    assert main(["prompts", *argv]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.parametrize(
    "action", ["list", "show", "search", "import", "export", "recycle", "remove", "rename"]
)
def test_every_action_has_help_with_an_example(action: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["prompts", action, "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert f"examples:\n  softprompts prompts {action}" in shown
    assert "--json" in shown
    assert "--library" in shown


def test_list_filters(library: Library, capsys: Capture) -> None:
    def names(*argv: str) -> list[str]:
        return [prompt["name"] for prompt in result_of(capsys, "list", *argv)["prompts"]]

    assert names() == ["far", "foreign", "near", "target"]
    assert names("--task", "helpdesk/*") == ["near", "target"]
    assert names("--backbone", "e" * 32) == ["foreign"]
    assert names("--task", "other/far", "--backbone", "toy") == ["far"]
    assert main(["prompts", "list", "--task", "other/*"]) == 0
    row = "far other/far accuracy 61.5 toy prompt-tuning 1 x 1 step 5"
    assert " ".join(capsys.readouterr().out.splitlines()[1].split()) == row
    assert main(["prompts", "list", "--task", "nothing"]) == 0
    assert (
        capsys.readouterr().out
        == "The library library holds no prompt of that task and backbone.\n"
    )


def test_a_test_score_is_listed_where_there_is_one(library: Library, capsys: Capture) -> None:
    path = library.folder / "far" / "prompt.json"
    far = json.loads(path.read_text())
    path.write_text(json.dumps(far | {"test": {"accuracy": 58.25}}))
    assert main(["prompts", "list", "--task", "other/far"]) == 0
    assert "  other/far  test accuracy 58.2  toy " in capsys.readouterr().out
    report = {"rows": 103, "intervals": {"accuracy": [48.6, 67.3]}}
    path.write_text(json.dumps(far | {"test": {"accuracy": 58.25}, "scores": {"test": report}}))
    for command in (["list", "--task", "other/far"], ["show", "far"]):
        assert main(["prompts", *command]) == 0
        assert "58.2 [48.6, 67.3], 103 rows" in capsys.readouterr().out
    (prompt,) = result_of(capsys, "list", "--task", "other/far")["prompts"]
    assert (prompt["test"], prompt["metrics"]) == ({"accuracy": 58.25}, far["metrics"])


def test_listing_a_folder_writes_nothing(tmp_path: Path, capsys: Capture) -> None:
    assert main(["prompts", "list", "--library", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"The library {tmp_path} holds no prompt.\n"
    assert list(tmp_path.iterdir()) == []


def test_the_library_is_named_by_flag_or_environment(
    library: Library, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("library").rename("elsewhere")
    assert "There is no library at library" in error_of(capsys, "list")
    assert len(result_of(capsys, "list", "--library", "elsewhere")["prompts"]) == 4
    monkeypatch.setenv("SOFTPROMPTS_LIBRARY", "elsewhere")
    assert len(result_of(capsys, "list")["prompts"]) == 4
    assert "The library has no name" in error_of(capsys, "list", "--library", "")


def test_show_prints_scores_and_lineage(library: Library, capsys: Capture) -> None:
    start = {"kind": "prompt", "sources": ["library/near", "library/far"], "weights": [0.75, 0.25]}
    make_prompt(Path("runs/child"), torch.ones(1, 2, 4), config={"prompt": {"start": start}})
    shown = result_of(capsys, "show", "runs/child")
    assert shown["lineage"] == {
        "started_from": ["library/near", "library/far"],
        "weights": [0.75, 0.25],
        "recycled_from": None,
    }
    assert shown["card"]["metrics"] == {"accuracy": 61.5}
    assert main(["prompts", "show", "runs/child"]) == 0
    text = capsys.readouterr().out
    for piece in (
        "library/near, library/far, weighted 0.75, 0.25",
        "61.5 (majority class 50.0)",
        "1 x 2 vectors",
        "f" * 32,
    ):
        assert piece in text
    assert result_of(capsys, "show", "near")["folder"] == "library/near"


@pytest.mark.parametrize(
    "card",
    [
        {"config": {"prompt": {"start": "text"}}},
        {"majority": None},
        {"config": {}, "method": None},
    ],
)
def test_show_accepts_a_card_that_lacks_parts(
    library: Library, capsys: Capture, card: dict[str, Any]
) -> None:
    make_prompt(Path("runs/edited"), torch.ones(1, 2, 4), **card)
    assert main(["prompts", "show", "runs/edited"]) == 0
    text = capsys.readouterr().out
    assert "61.5" in text
    assert ("majority" in text) == ("majority" not in card), "only what the card holds"


@pytest.mark.parametrize("card", [{"stopped": 5}, {"config": []}, {"seed": "one"}])
def test_a_corrupted_card_is_reported(
    library: Library, capsys: Capture, card: dict[str, Any]
) -> None:
    make_prompt(Path("runs/edited"), torch.ones(1, 2, 4), **card)
    assert f"is corrupted ({next(iter(card))} is " in error_of(capsys, "show", "runs/edited")


def test_search_ranks_the_other_prompts_of_the_backbone(library: Library, capsys: Capture) -> None:
    def names(*argv: str) -> list[str]:
        return [match["name"] for match in result_of(capsys, "search", *argv)["found"]]

    result = result_of(capsys, "search", "target")
    assert names("target") == ["near", "far"]
    assert result["found"][0]["similarity"] == pytest.approx(1 / 1.25**0.5, abs=1e-6)
    assert result["similarity"] == "per_token_average_cosine"
    assert (result["fingerprint"], result["step"]) == ("f" * 32, 5)
    assert names("runs/target", "--top", "1") == ["target"]
    assert names("library/target", "--top", "1") == ["near"], "not itself"
    assert main(["prompts", "search", "target", "--by", "cosine_of_average_tokens"]) == 0
    text = capsys.readouterr().out
    assert "most similar to target (embedded at step 5) by cosine_of_average_tokens, on toy" in text
    assert "different steps" not in text
    library.add(make_prompt(Path("runs/later"), torch.ones(1, 2, 4)))
    assert main(["prompts", "search", "target"]) == 0
    text = capsys.readouterr().out
    assert "different steps" in text
    assert "different seeds" not in text
    library.add(make_prompt(Path("runs/reseeded"), torch.ones(1, 2, 4), seed=1))
    assert main(["prompts", "search", "target"]) == 0
    assert "different seeds" in capsys.readouterr().out
    assert main(["prompts", "search", "foreign"]) == 0
    none = "library holds no other prompt of toy to compare with"
    advice = "map prompts with `softprompts prompts recycle"
    assert f"{none}: 5 were tuned on other versions of it; {advice}" in capsys.readouterr().out
    make_prompt(
        Path("runs/lone"), torch.ones(1, 2, 4), backbone={"name": "lone", "fingerprint": "d" * 32}
    )
    assert main(["prompts", "search", "runs/lone"]) == 0
    assert capsys.readouterr().out == f"{none.replace('toy', 'lone')}.\n"


def test_a_folder_without_a_prompt_is_reported_and_the_rest_is_listed(
    library: Library, capsys: Capture
) -> None:
    (library.folder / "notes").mkdir()
    assert main(["prompts", "list", "--json"]) == 0
    output = capsys.readouterr()
    assert len(json.loads(output.out)["prompts"]) == 4
    assert output.err.startswith("softprompts: library/notes holds no prompt.json")
    assert output.err.count("\n") == 1


def test_many_folders_without_a_prompt_are_reported_together(
    library: Library, capsys: Capture
) -> None:
    for number in range(9):
        (library.folder / f"note{number}").mkdir()
    (library.folder / "near/prompt.json").write_text("{")
    for argv in (["list"], ["search", "target"]):
        assert main(["prompts", *argv]) == 0
        together, corrupted = capsys.readouterr().err.splitlines()
        assert together.startswith("softprompts: 9 folders in library hold no prompt.json")
        assert together.endswith(", note4 and 4 more.")
        assert "near/prompt.json cannot be read" in corrupted


def test_import_of_a_run_and_of_a_cohort(library: Library, capsys: Capture) -> None:
    for seed in (0, 1):
        make_prompt(Path(f"study/lr=0.1_seed={seed}"), torch.ones(1, 2, 4))
    Path("study/lr=0.1_seed=2").mkdir()
    Path("study/lr=0.1_seed=2/config.yaml").touch()
    Path("study/cohort.csv").write_text("")
    result = result_of(capsys, "import", "study")
    assert [prompt["name"] for prompt in result["imported"]] == [
        "study-lr0.1-seed0",
        "study-lr0.1-seed1",
    ]
    assert result["left_out"] == ["study/lr=0.1_seed=2"]
    again = result_of(capsys, "import", "runs/near", "--name", "again")
    assert [prompt["name"] for prompt in again["imported"]] == ["again"]
    before = sorted(path.name for path in library.folder.iterdir())
    make_prompt(Path("study/a"), torch.ones(1, 2, 4))
    shutil.rmtree("study/lr=0.1_seed=0")
    make_prompt(Path("study/lr=0.1_seed=0"), torch.zeros(1, 2, 4))
    assert "already holds study-lr0.1-seed0" in error_of(capsys, "import", "study")
    assert sorted(path.name for path in library.folder.iterdir()) == before, "all or none"
    assert len(result_of(capsys, "import", "study", "--overwrite")["imported"]) == 3
    make_prompt(Path("study/lr0.1_seed=0"), torch.ones(1, 2, 4))
    assert "would both be named study-lr0.1-seed0" in error_of(
        capsys, "import", "study", "--overwrite"
    )


def test_a_repeated_import_adds_only_what_is_new(library: Library, capsys: Capture) -> None:
    make_prompt(Path("study/a"), torch.ones(1, 2, 4))
    result_of(capsys, "import", "study")
    make_prompt(Path("study/b"), torch.ones(1, 2, 4))
    again = result_of(capsys, "import", "study")
    assert [prompt["name"] for prompt in again["imported"]] == ["b"]
    assert again["already_there"] == ["a"]
    assert main(["prompts", "import", "study"]) == 0
    assert capsys.readouterr().out == "a, b are already in the library library (2 prompts)\n"


@pytest.mark.parametrize(
    ("folder", "runs", "names"),
    [
        ("runs2", ["stars", "topics"], ["stars", "topics"]),
        ("all", ["task=shop-age", "task=shop-my_mood"], ["shop-age", "shop-my_mood"]),
        ("all", ["task=shop-age_preset=smop_seed=0"], ["shop-age-smop-seed0"]),
        ("stars", ["seed=0", "seed=1"], ["stars-seed0", "stars-seed1"]),
        ("all", ["preset=smop_lr=0.1"], ["all-smop-lr0.1"]),
        ("all", ["cohort/task=a"], ["all-cohort-a"]),
    ],
)
def test_imported_runs_have_short_names(
    folder: str, runs: list[str], names: list[str], library: Library, capsys: Capture
) -> None:
    for run in runs:
        make_prompt(Path(folder) / run, torch.ones(1, 2, 4))
    result = result_of(capsys, "import", folder)
    assert [prompt["name"] for prompt in result["imported"]] == names
    named = result_of(capsys, "import", folder, "--name", "x")
    assert all(prompt["name"].startswith("x-") for prompt in named["imported"])


def test_import_finds_runs_at_any_depth(library: Library, capsys: Capture) -> None:
    cells = Path("spot/cells/t5-tiny")
    for number in range(12):
        make_prompt(cells / "source/glue-mnli" / f"seed{number}", torch.ones(1, 2, 4))
    make_prompt(cells / "transfer/a--b/seed0", torch.ones(1, 2, 4))
    make_prompt(cells / "transfer/a--b/seed0/runs/probe", torch.ones(1, 2, 4))
    make_prompt(cells / ".once/seed0", torch.ones(1, 2, 4))
    for left in (cells / "transfer/a--b/seed1", Path("spot/report")):
        left.mkdir()
    (cells / "transfer/a--b/seed1/config.yaml").touch()
    (cells / "round").symlink_to(Path("spot").resolve())
    (cells / "linked").symlink_to(Path("runs/near").resolve())
    result = result_of(capsys, "import", "spot")
    names = {prompt["name"] for prompt in result["imported"]}
    sources = {f"spot-cells-t5-tiny-source-glue-mnli-seed{number}" for number in range(12)}
    assert names == sources | {
        "spot-cells-t5-tiny-transfer-a--b-seed0",
        "spot-cells-t5-tiny-linked",
    }
    assert result["left_out"] == ["spot/cells/t5-tiny/transfer/a--b/seed1"]
    assert main(["prompts", "import", str(cells / "source"), "--name", "study"]) == 0
    assert capsys.readouterr().out.startswith("study-glue-mnli-seed0, study-glue-mnli-seed1, ")
    assert library.entry("study-glue-mnli-seed11")


def test_import_skips_the_library_itself(library: Library, capsys: Capture) -> None:
    result = result_of(capsys, "import", ".", "--name", "all")
    assert [prompt["name"] for prompt in result["imported"]] == [
        "all-runs-far",
        "all-runs-foreign",
        "all-runs-near",
        "all-runs-target",
    ]


def test_two_paths_with_the_same_name_are_refused(library: Library, capsys: Capture) -> None:
    for name in ("a/b-c", "a-b/c"):
        make_prompt(Path("study") / name, torch.ones(1, 2, 4))
    assert "would both be named study-a-b-c" in error_of(capsys, "import", "study")


def test_a_cohort_with_a_corrupted_run_is_not_imported(library: Library, capsys: Capture) -> None:
    for name in "ab":
        make_prompt(Path("study") / name, torch.ones(1, 2, 4))
    Path("study/b/prompt.safetensors").write_bytes(b"half")
    assert "study/b/prompt.safetensors is corrupted" in error_of(capsys, "import", "study")
    assert [entry.name for entry in library.entries()] == ["far", "foreign", "near", "target"]


def test_a_run_without_vectors_is_left_out(library: Library, capsys: Capture) -> None:
    make_prompt(Path("study") / "tuned", torch.ones(1, 2, 4))
    make_prompt(Path("study") / "written", torch.ones(1, 0, 4))
    assert main(["prompts", "import", "study", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (
        "Left out: study/written has no prompt vectors, because its run tuned the model or" in err
    )
    assert "name a run" not in err, "the others are imported"
    assert [entry["name"] for entry in json.loads(out)["imported"]] == ["tuned"]
    assert json.loads(out)["left_out"] == ["study/written"]
    assert "has no prompt vectors" in error_of(capsys, "import", "study/written")


def test_import_of_an_adapter(tiny: Backbone, library: Library, capsys: Capture) -> None:
    prompt = build_prompt(PromptConfig(length=5), Material(tiny), 0, tiny.unit).fold()
    write_adapter(Path("adapter"), prompt, tiny.family, "t5-tiny")
    result_of(
        capsys, "import", "adapter", "--name", "adapter-1", "--labels", "no,yes", "--device", "cpu"
    )
    entry = library.entry("adapter-1")
    torch.testing.assert_close(entry.vectors(), prompt.table.data)
    assert (entry.card.backbone.name, entry.card.embedded_at) == ("t5-tiny", None)
    capsys.readouterr()
    assert main(["prompts", "show", "adapter-1"]) == 0
    shown = capsys.readouterr().out
    assert "started from  unknown" in shown
    assert "None" not in shown
    assert "already holds adapter-1" in error_of(capsys, "import", "adapter", "--name", "adapter-1")
    assert (
        main(["predict", "library/adapter-1", "is it?", "--device", "cpu", "--scoring", "labels"])
        == 0
    )
    assert capsys.readouterr().out.strip() in ("no", "yes")


def test_export_of_a_name_and_of_a_folder(library: Library, capsys: Capture) -> None:
    assert result_of(capsys, "export", "near", "--output", "adapter")["task_type"] == "SEQ_2_SEQ_LM"
    assert {path.name for path in Path("adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    result_of(capsys, "export", "near", "--as", "folder", "--output", "copy")
    copies = {path.name: path.read_bytes() for path in Path("copy").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in Path("runs/near").iterdir()}
    assert "already holds" in error_of(
        capsys, "export", "runs/far", "--as", "folder", "--output", "copy"
    )
    result_of(capsys, "export", "runs/far", "--as", "folder", "--output", "copy", "--overwrite")
    assert Path("copy/prompt.json").read_bytes() == Path("runs/far/prompt.json").read_bytes()
    assert "is where the prompt is" in error_of(
        capsys, "export", "copy", "--as", "folder", "--output", "copy", "--overwrite"
    )
    assert Path("copy/prompt.json").exists()


def test_export_of_a_folder_asks_before_it_writes_among_other_files(
    library: Library, capsys: Capture
) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter.tex").write_text("precious")
    message = error_of(capsys, "export", "near", "--as", "folder", "--output", "thesis")
    assert "thesis holds other files (chapter.tex)" in message
    assert os.listdir("thesis") == ["chapter.tex"]
    result_of(capsys, "export", "near", "--as", "folder", "--output", "thesis", "--overwrite")
    assert Path("thesis/chapter.tex").read_text() == "precious"
    assert Path("thesis/prompt.json").exists()


def test_prompts_are_removed_and_renamed(library: Library, capsys: Capture) -> None:
    names = {entry.name for entry in library.entries()}
    result_of(capsys, "search", "target")  # writes an index
    renamed = result_of(capsys, "rename", "near", "nearest")
    assert renamed == {"name": "nearest", "folder": "library/nearest"}
    assert {entry.name for entry in library.entries()} == names - {"near"} | {"nearest"}
    found = result_of(capsys, "search", "target")["found"]
    assert "nearest" in {match["name"] for match in found}
    for new in ("far", "nearest"):
        error = error_of(capsys, "rename", "nearest", new)
        assert f"already holds {new}; choose another." in error
    assert "There is no prompt near in" in error_of(capsys, "rename", "near", "nearby")
    assert "cannot be the name of a prompt" in error_of(capsys, "rename", "far", "../far")
    error_of(capsys, "remove", "far", "nobody")
    assert Path("library/far").exists(), "all or none"
    assert result_of(capsys, "remove", "far", "nearest")["removed"] == ["far", "nearest"]
    assert {entry.name for entry in library.entries()} == names - {"near", "far"}
    assert Path("runs/far/prompt.json").exists(), "the run stays"
    assert not [name for name in os.listdir("library") if name.startswith(".new-")]


BAD = [
    (
        ["show", "../secret"],
        "There is no prompt at ../secret; name a folder that `softprompts tune` wrote, or a",
    ),
    (["show", ""], "The prompt has no name"),
    (["show", "nobody"], "There is no prompt nobody in the library library; "),
    (["show", "./runs"], "runs holds no prompt.json"),
    (["show", "runs"], "There is no prompt runs in the library"),
    (["import", "runs", "--name", ""], "cannot be the name of a prompt"),
    (["search", "target", "--by", "taste"], "--by is 'taste'; choose one of"),
    (["search", "target", "--top", "0"], "--top is 0; it must be at least 1"),
    (["search", "target", "--top", "few"], "--top is 'few'; give a whole number."),
    (["search", "target", "--library", "nowhere"], "There is no library at nowhere"),
    (["show", "target", "--library", "nowhere"], "There is no library at nowhere; name one"),
    (["import", "runs/near", "--name", "../x"], "cannot be the name of a prompt"),
    (["import", "runs/near", "--name", ""], "cannot be the name of a prompt"),
    (["import", "runs/near", "--name", "far"], "already holds far"),
    (["import", "runs/near", "--output", "x"], "--output is for PEFT adapters"),
    (["import", "nowhere"], "There is no prompt at nowhere"),
    (["import", "library/.index"], "holds no prompt, no finished run and no PEFT adapter"),
    (["export", "nobody", "--output", "x"], "There is no prompt nobody in the library"),
    (["export", "near", "--as", "pickle", "--output", "x"], "--as is 'pickle'; choose one of"),
    (["show", "x" * 300], "xxx... cannot be accessed (File name too long)"),
    (["import", "x" * 300], "cannot be accessed (File name too long)"),
    (["list", "--library", "x" * 300], "cannot be accessed (File name too long)"),
    (["export", "mixture", "--output", "new"], "cannot be exported"),
    (["export", "near", "--output", "library/.lock"], "The output library/.lock is not a folder"),
    (["send"], "There is no action 'send'"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=[" ".join(argv)[:60] for argv, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    library: Library, capsys: Capture, argv: list[str], message: str
) -> None:
    (library.folder / ".index").mkdir(exist_ok=True)
    library.add(make_prompt(Path("made/mixture"), torch.ones(2, 1, 4)))
    before = sorted(Path().rglob("*"))
    assert message in error_of(capsys, *argv)
    assert sorted(Path().rglob("*")) == before, "no partial files"
