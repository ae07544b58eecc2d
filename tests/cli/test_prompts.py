"""`softprompts prompts` as a stranger uses it: list, show, search, import, export, and sentences for what cannot be."""

import json
import subprocess
import sys
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
    """Three prompts of one backbone and one of another, in the default place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOFTPROMPTS_LIBRARY", raising=False)
    axes, found = torch.eye(4)[:, None, None], Library(Path("library"))
    for name, vectors, card in (
        ("near", axes[0] + 0.5 * axes[1], {"task": {"name": "helpdesk/near"}}),
        ("target", axes[0], {"task": {"name": "helpdesk/target"}}),
        ("far", axes[1], {"task": {"name": "other/far"}}),
    ):
        found.add(make_prompt(tmp_path / "runs" / name, vectors, embedding=vectors, **card))
    found.add(make_prompt(tmp_path / "runs" / "stranger", axes[0], fingerprint="e" * 32))
    return found


def told(capsys: Capture, *argv: str) -> Any:
    assert main(["prompts", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: Capture, *argv: str) -> str:
    assert main(["prompts", *argv]) == 2
    heard = capsys.readouterr()
    assert heard.out == ""
    assert heard.err.count("\n") == 1
    return heard.err


@pytest.mark.parametrize("action", ["list", "show", "search", "import", "export", "recycle"])
def test_every_action_has_help_with_an_example(action: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["prompts", action, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"examples:\n  softprompts prompts {action}" in shown
    assert "--json" in shown
    assert "--library" in shown


@pytest.mark.parametrize("action", ["list", "recycle"])
def test_help_does_not_wait_for_torch(action: str) -> None:
    code = "import sys; from softprompts.library.command import main; assert 'torch' not in sys.modules; main([sys.argv[1], '--help'])"
    hear = "import atexit; atexit.register(lambda: print('torch' in sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys; {hear}; {code}", action],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.endswith("False\n")


def test_list_filters(library: Library, capsys: Capture) -> None:
    def names(*argv: str) -> list[str]:
        return [one["name"] for one in told(capsys, "list", *argv)["prompts"]]

    assert names() == ["far", "near", "stranger", "target"]
    assert names("--task", "helpdesk/*") == ["near", "target"]
    assert names("--backbone", "e" * 32) == ["stranger"]
    assert names("--task", "other/far", "--backbone", "toy") == ["far"]
    assert main(["prompts", "list", "--task", "other/*"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "far", "other/far", "accuracy", "61.5", "toy", "prompt-tuning", "1", "x", "1", "step", "5",
    ]  # fmt: skip
    assert main(["prompts", "list", "--task", "nothing"]) == 0
    assert (
        capsys.readouterr().out
        == "The library library holds no prompt of that task and backbone.\n"
    )


def test_to_look_into_a_folder_leaves_no_trace_in_it(tmp_path: Path, capsys: Capture) -> None:
    assert main(["prompts", "list", "--library", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"The library {tmp_path} holds no prompt.\n"
    assert list(tmp_path.iterdir()) == []


def test_the_library_is_named_by_flag_or_environment(
    library: Library, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("library").rename("elsewhere")
    assert "There is no library at library" in refused(capsys, "list")
    assert len(told(capsys, "list", "--library", "elsewhere")["prompts"]) == 4
    monkeypatch.setenv("SOFTPROMPTS_LIBRARY", "elsewhere")
    assert len(told(capsys, "list")["prompts"]) == 4
    assert "The library has no name" in refused(capsys, "list", "--library", "")


def test_show_tells_scores_and_lineage(library: Library, capsys: Capture) -> None:
    start = {"kind": "prompt", "sources": ["library/near", "library/far"], "weights": [0.75, 0.25]}
    make_prompt(Path("runs/child"), torch.ones(1, 2, 4), config={"prompt": {"start": start}})
    shown = told(capsys, "show", "runs/child")
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
    assert told(capsys, "show", "near")["folder"] == "library/near"


@pytest.mark.parametrize(
    "card",
    [
        {"config": {"prompt": {"start": "text"}}},
        {"majority": None},
        {"config": {}, "method": None},
    ],
)
def test_show_takes_a_card_that_lacks_parts(
    library: Library, capsys: Capture, card: dict[str, Any]
) -> None:
    make_prompt(Path("runs/edited"), torch.ones(1, 2, 4), **card)
    assert main(["prompts", "show", "runs/edited"]) == 0
    text = capsys.readouterr().out
    assert "61.5" in text
    assert ("majority" in text) == ("majority" not in card), (
        "nothing is told that the card does not tell"
    )


@pytest.mark.parametrize("card", [{"stopped": 5}, {"config": []}, {"seed": "one"}])
def test_a_corrupted_card_is_reported(
    library: Library, capsys: Capture, card: dict[str, Any]
) -> None:
    make_prompt(Path("runs/edited"), torch.ones(1, 2, 4), **card)
    assert f"is corrupted ({next(iter(card))} is " in refused(capsys, "show", "runs/edited")


def test_search_ranks_the_others_of_the_same_backbone(library: Library, capsys: Capture) -> None:
    found = told(capsys, "search", "target")
    assert [one["name"] for one in found["found"]] == ["near", "far"]
    assert found["found"][0]["similarity"] == pytest.approx(1 / 1.25**0.5, abs=1e-6)
    assert (found["similarity"], found["fingerprint"], found["step"]) == (
        "per_token_average_cosine",
        "f" * 32,
        5,
    )
    assert [
        one["name"] for one in told(capsys, "search", "runs/target", "--top", "1")["found"]
    ] == ["target"]
    assert [
        one["name"] for one in told(capsys, "search", "library/target", "--top", "1")["found"]
    ] == ["near"], "not itself"
    assert main(["prompts", "search", "target", "--by", "cosine_of_average_tokens"]) == 0
    text = capsys.readouterr().out
    assert "most like target (embedded at step 5) by cosine_of_average_tokens, on toy" in text
    assert "different steps" not in text
    library.add(make_prompt(Path("runs/later"), torch.ones(1, 2, 4)))
    assert main(["prompts", "search", "target"]) == 0
    heard = capsys.readouterr().out
    assert "different steps" in heard
    assert "different seeds" not in heard
    library.add(make_prompt(Path("runs/reseeded"), torch.ones(1, 2, 4), seed=1))
    assert main(["prompts", "search", "target"]) == 0
    assert "different seeds" in capsys.readouterr().out
    assert main(["prompts", "search", "stranger"]) == 0
    none = "library holds no other prompt of toy to compare with"
    assert (
        f"{none}: 5 were tuned on other versions of it; map prompts with `softprompts prompts recycle"
        in capsys.readouterr().out
    )
    make_prompt(
        Path("runs/lone"), torch.ones(1, 2, 4), backbone={"name": "lone", "fingerprint": "d" * 32}
    )
    assert main(["prompts", "search", "runs/lone"]) == 0
    assert capsys.readouterr().out == f"{none.replace('toy', 'lone')}.\n"


def test_a_folder_that_is_no_prompt_is_one_sentence_and_the_rest_is_told(
    library: Library, capsys: Capture
) -> None:
    (library.folder / "notes").mkdir()
    assert main(["prompts", "list", "--json"]) == 0
    heard = capsys.readouterr()
    assert len(json.loads(heard.out)["prompts"]) == 4
    assert (
        heard.err
        == "softprompts: library/notes holds no prompt.json, so it is no prompt, or its run has not finished.\n"
    )


def test_many_folders_that_are_no_prompts_are_one_sentence(
    library: Library, capsys: Capture
) -> None:
    for number in range(9):
        (library.folder / f"note{number}").mkdir()
    (library.folder / "near/prompt.json").write_text("{")
    for argv in (["list"], ["search", "target"]):
        assert main(["prompts", *argv]) == 0
        told, damaged = capsys.readouterr().err.splitlines()
        assert told.startswith(
            "softprompts: 9 folders in library hold no prompt.json, so they are no prompts, or unfinished: note0, "
        )
        assert told.endswith(", note4 and 4 more.")
        assert "near/prompt.json cannot be read" in damaged


def test_import_takes_a_run_and_a_cohort(library: Library, capsys: Capture) -> None:
    for seed in (0, 1):
        make_prompt(Path(f"study/lr=0.1_seed={seed}"), torch.ones(1, 2, 4))
    Path("study/lr=0.1_seed=2").mkdir()
    Path("study/lr=0.1_seed=2/config.yaml").touch()
    Path("study/cohort.csv").write_text("")
    taken = told(capsys, "import", "study")
    assert [one["name"] for one in taken["imported"]] == [
        "study-lr-0.1_seed-0",
        "study-lr-0.1_seed-1",
    ]
    assert taken["left_out"] == ["study/lr=0.1_seed=2"]
    assert [
        one["name"] for one in told(capsys, "import", "runs/near", "--name", "again")["imported"]
    ] == ["again"]
    before = sorted(path.name for path in library.folder.iterdir())
    make_prompt(Path("study/a"), torch.ones(1, 2, 4))
    assert "already holds study-lr-0.1_seed-0" in refused(capsys, "import", "study")
    assert sorted(path.name for path in library.folder.iterdir()) == before, (
        "none, where one cannot be"
    )
    assert len(told(capsys, "import", "study", "--overwrite")["imported"]) == 3
    make_prompt(Path("study/lr-0.1_seed=0"), torch.ones(1, 2, 4))
    assert "would both be named study-lr-0.1_seed-0" in refused(
        capsys, "import", "study", "--overwrite"
    )


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
    taken = told(capsys, "import", "spot")
    names = {one["name"] for one in taken["imported"]}
    sources = {f"spot-cells-t5-tiny-source-glue-mnli-seed{number}" for number in range(12)}
    assert names == sources | {
        "spot-cells-t5-tiny-transfer-a--b-seed0",
        "spot-cells-t5-tiny-linked",
    }
    assert taken["left_out"] == ["spot/cells/t5-tiny/transfer/a--b/seed1"]
    assert main(["prompts", "import", str(cells / "source"), "--name", "mine"]) == 0
    assert capsys.readouterr().out.startswith("mine-glue-mnli-seed0, mine-glue-mnli-seed1, ")
    assert library.entry("mine-glue-mnli-seed11")


def test_import_does_not_take_the_library_into_itself(library: Library, capsys: Capture) -> None:
    taken = told(capsys, "import", ".", "--name", "all")
    assert [one["name"] for one in taken["imported"]] == [
        "all-runs-far",
        "all-runs-near",
        "all-runs-stranger",
        "all-runs-target",
    ]


def test_two_paths_that_make_one_name_are_refused(library: Library, capsys: Capture) -> None:
    for name in ("a/b-c", "a-b/c"):
        make_prompt(Path("study") / name, torch.ones(1, 2, 4))
    assert "would both be named study-a-b-c" in refused(capsys, "import", "study")


def test_a_cohort_with_a_damaged_run_is_refused_as_a_whole(
    library: Library, capsys: Capture
) -> None:
    for name in "ab":
        make_prompt(Path("study") / name, torch.ones(1, 2, 4))
    Path("study/b/prompt.safetensors").write_bytes(b"half")
    assert "study/b/prompt.safetensors is corrupted" in refused(capsys, "import", "study")
    assert [entry.name for entry in library.entries()] == ["far", "near", "stranger", "target"]


def test_a_run_without_vectors_is_left_out_and_the_others_come_in(
    library: Library, capsys: Capture
) -> None:
    make_prompt(Path("study") / "tuned", torch.ones(1, 2, 4))
    make_prompt(Path("study") / "written", torch.ones(1, 0, 4))
    assert main(["prompts", "import", "study", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "study/written has no prompt vectors" in err
    assert [entry["name"] for entry in json.loads(out)["imported"]] == ["study-tuned"]
    assert json.loads(out)["left_out"] == ["study/written"]
    assert "has no prompt vectors" in refused(capsys, "import", "study/written")


def test_an_adapter_goes_into_the_library(
    tiny: Backbone, library: Library, capsys: Capture
) -> None:
    prompt = build_prompt(PromptConfig(length=5), Material(tiny), 0, tiny.unit).fold()
    write_adapter(Path("adapter"), prompt, tiny.family, "t5-tiny")
    told(capsys, "import", "adapter", "--name", "theirs", "--labels", "no,yes", "--device", "cpu")
    entry = library.entry("theirs")
    torch.testing.assert_close(entry.vectors(), prompt.table.data)
    assert (entry.card.backbone.name, entry.card.embedded_at) == ("t5-tiny", None)
    capsys.readouterr()
    assert main(["prompts", "show", "theirs"]) == 0
    shown = capsys.readouterr().out
    assert "started from  unknown" in shown
    assert "None" not in shown
    assert "already holds theirs" in refused(capsys, "import", "adapter", "--name", "theirs")
    assert (
        main(["predict", "library/theirs", "is it?", "--device", "cpu", "--scoring", "labels"]) == 0
    )
    assert capsys.readouterr().out.strip() in ("no", "yes")


def test_export_takes_a_name_or_a_folder(library: Library, capsys: Capture) -> None:
    assert told(capsys, "export", "near", "--output", "adapter")["task_type"] == "SEQ_2_SEQ_LM"
    assert {path.name for path in Path("adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    told(capsys, "export", "near", "--as", "folder", "--output", "copy")
    copies = {path.name: path.read_bytes() for path in Path("copy").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in Path("runs/near").iterdir()}
    assert "already holds" in refused(
        capsys, "export", "runs/far", "--as", "folder", "--output", "copy"
    )
    told(capsys, "export", "runs/far", "--as", "folder", "--output", "copy", "--overwrite")
    assert Path("copy/prompt.json").read_bytes() == Path("runs/far/prompt.json").read_bytes()
    assert "is where the prompt is" in refused(
        capsys, "export", "copy", "--as", "folder", "--output", "copy", "--overwrite"
    )
    assert Path("copy/prompt.json").exists()


BAD = [
    (
        ["show", "../secret"],
        "There is no prompt at ../secret; name a folder that tune or import wrote, or a prompt of the library.",
    ),
    (["show", ""], "The prompt has no name"),
    (
        ["show", "nobody"],
        "softprompts: No folder nobody holds a prompt, and there is no prompt nobody in the library library; "
        "softprompts prompts list --library library tells which there are.\n",
    ),
    (["show", "./runs"], "./runs holds no prompt.json"),
    (["show", "runs"], "No folder runs holds a prompt, and there is no prompt runs in the library"),
    (["import", "runs", "--name", ""], "cannot be a prompt's name"),
    (["search", "target", "--by", "taste"], "There is no similarity 'taste'; choose one of"),
    (["search", "target", "--top", "0"], "at least 1"),
    (["search", "target", "--top", "few"], "invalid int value"),
    (["search", "target", "--library", "nowhere"], "There is no library at nowhere"),
    (
        ["show", "target", "--library", "nowhere"],
        "No folder target holds a prompt, and there is no library at nowhere; name one",
    ),
    (["import", "runs/near", "--name", "../x"], "cannot be a prompt's name"),
    (["import", "runs/near", "--name", ""], "cannot be a prompt's name"),
    (["import", "runs/near"], "already holds near"),
    (["import", "runs/near", "--output", "x"], "--output is for PEFT adapters"),
    (["import", "nowhere"], "There is no prompt at nowhere"),
    (
        ["import", "library/.index"],
        "holds no prompt, no run that has finished, and no PEFT adapter",
    ),
    (["export", "nobody", "--output", "x"], "there is no prompt nobody in the library"),
    (["export", "near", "--as", "pickle", "--output", "x"], "invalid choice"),
    (["show", "x" * 300], "xxx... cannot be accessed (File name too long)"),
    (["import", "x" * 300], "cannot be accessed (File name too long)"),
    (["list", "--library", "x" * 300], "cannot be accessed (File name too long)"),
    (["export", "mixture", "--output", "new"], "a mixture cannot be exported"),
    (["export", "near", "--output", "library/.lock"], "The output library/.lock is not a folder"),
    (["send"], "There is no action 'send'"),
]


@pytest.mark.parametrize(("argv", "sentence"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(
    library: Library, capsys: Capture, argv: list[str], sentence: str
) -> None:
    (library.folder / ".index").mkdir(exist_ok=True)
    library.add(make_prompt(Path("made/mixture"), torch.ones(2, 1, 4)))
    before = sorted(Path().rglob("*"))
    assert sentence in refused(capsys, *argv)
    assert sorted(Path().rglob("*")) == before, "nothing half-written is left"
