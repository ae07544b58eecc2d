"""What version 0.1.0 saved still loads, answers alike and goes on; `saved/make.py` made it."""

import contextlib
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import softprompts
from softprompts.cli import main

SAVED = Path(__file__).parent / "saved"
EXPECTED: dict[str, Any] = json.loads((SAVED / "expected.json").read_text(encoding="utf-8"))
TEXTS: list[str] = EXPECTED["texts"]
COMMANDS: dict[str, list[str]] = EXPECTED["commands"]
RUNS = sorted(EXPECTED["evaluated"])
STOPPED = 6
"""The step that the interrupted runs have their last checkpoint of."""
QUIET = ["--quiet", "--json"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all of it; what a test changes there, no other looks at."""
    place = tmp_path_factory.mktemp("saved") / "home"
    shutil.copytree(SAVED, place, ignore=shutil.ignore_patterns("make.py", "__pycache__"))
    return place


@pytest.fixture(autouse=True)
def _there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths in the files are relative."""
    monkeypatch.chdir(home)


def said(*argv: str) -> str:
    """What a command prints; it must succeed."""
    out, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
        code = main(list(argv))
    assert code == 0, (argv, wrong.getvalue())
    return out.getvalue()


def told(*argv: str) -> Any:
    """The same as JSON."""
    return json.loads(said(*argv))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_answers(folder: str | Path, expected: Sequence[dict[str, Any]]) -> None:
    found = said("predict", str(folder), *TEXTS, "--device", "cpu", *QUIET).splitlines()
    for line, one in zip(map(json.loads, found), expected, strict=True):
        assert line["prediction"] == one["prediction"]
        assert line["probabilities"] == pytest.approx(one["probabilities"], abs=1e-4)


def check_same(folder: Path, expected: Path) -> None:
    """Two folders of one run hold the same numbers, up to rounding."""
    for mine, theirs in zip(
        lines(folder / "metrics.jsonl"), lines(expected / "metrics.jsonl"), strict=True
    ):
        mine.pop("router", None)  # which earlier versions did not record
        assert mine == pytest.approx(theirs, rel=1e-4)
    for name in ("prompt.safetensors", "embedding.safetensors", "model/model.safetensors"):
        assert (folder / name).exists() == (expected / name).exists()
        if (expected / name).exists():
            mine, theirs = load_file(folder / name), load_file(expected / name)
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    card, old = (json.loads((place / "prompt.json").read_text()) for place in (folder, expected))
    for name in ("method", "metrics", "majority", "best_step", "steps", "embedding", "backbone"):
        assert (
            card[name] == pytest.approx(old[name]) if name == "metrics" else card[name] == old[name]
        )


# -- prompts in use --------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", sorted(EXPECTED["answers"]))
def test_a_saved_prompt_answers_as_it_did(folder: str) -> None:
    check_answers(folder, EXPECTED["answers"][folder])


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_prompt_scores_as_it_did(name: str) -> None:
    found = told("evaluate", f"finished/{name}", "--device", "cpu", *QUIET)
    for part, old in EXPECTED["evaluated"][name].items():
        assert found[part] == (pytest.approx(old) if isinstance(old, dict) else old)


@pytest.mark.parametrize("name", RUNS)
def test_python_loads_and_saves_a_saved_prompt(name: str) -> None:
    tuned, expected = softprompts.load(f"finished/{name}", device="cpu"), EXPECTED["answers"]
    for shares, one in zip(tuned.probabilities(TEXTS), expected[f"finished/{name}"], strict=True):
        assert shares == pytest.approx(one["probabilities"], abs=1e-4)
    assert tuned.predict(TEXTS) == [one["prediction"] for one in expected[f"finished/{name}"]]
    assert tuned.metrics == EXPECTED["evaluated"][name]["metrics"]
    if name != "model-tuning":  # whose model stays where it is
        check_answers(tuned.save(f"copies/{name}"), expected[f"finished/{name}"])


def test_a_saved_prompt_starts_another() -> None:
    """A run that hardly learns from there on answers as its source did."""
    made = softprompts.tune(
        train="data/reviews.csv",
        text="text",
        label="mood",
        model="models/t5",
        preset="prompt-tuning",
        prompt={"length": 4, "start": {"kind": "prompt", "sources": ["finished/prompt-tuning"]}},
        steps=1,
        lr=1e-6,
        scoring="labels",
        max_length=56,
        device="cpu",
    )
    expected = EXPECTED["answers"]["finished/prompt-tuning"]
    for shares, one in zip(made.probabilities(TEXTS), expected, strict=True):
        assert shares == pytest.approx(one["probabilities"], abs=1e-3)


# -- runs that go on -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_resumes(name: str) -> None:
    folder = f"interrupted/{name}"
    result = told("tune", "--config", f"{folder}/config.yaml", "--output", folder, *QUIET)
    if name != "prompt-design":  # in which there is nothing to learn
        assert result["cost"]["from_step"] == STOPPED
    check_same(Path(folder), SAVED / "finished" / name)
    check_answers(folder, EXPECTED["answers"][f"finished/{name}"])


@pytest.mark.parametrize("name", RUNS)
def test_a_finished_run_is_not_run_again(name: str) -> None:
    folder = Path("ended") / name
    shutil.copytree(SAVED / "finished" / name, folder)
    result = told("tune", "--config", f"{folder}/config.yaml", "--output", str(folder), *QUIET)
    assert result["cost"] is None
    check_same(folder, SAVED / "finished" / name)


@pytest.mark.parametrize("name", ["prompt-tuning", "smop", "residual-bert"])
def test_a_saved_config_makes_the_same_run(name: str) -> None:
    again = Path("again") / name
    told("tune", "--config", f"finished/{name}/config.yaml", "--output", str(again), *QUIET)
    check_same(again, SAVED / "finished" / name)


@pytest.mark.parametrize(("folder", "steps"), [("cohort", None), ("cohort-half", [3, 6])])
def test_a_cohort_resumes(folder: str, steps: list[int] | None) -> None:
    """The finished one stays as it is; of the other, two runs have a later checkpoint."""
    runs = told(*COMMANDS["cohort"], "--output", folder)["runs"]
    if steps is None:
        assert [run["cost"] for run in runs] == [None] * 4
    else:
        assert sorted({run["cost"]["from_step"] for run in runs}) == steps
    for run in runs:
        check_same(Path(run["folder"]), SAVED / "cohort" / Path(run["folder"]).name)
    rows = [
        (place / "cohort.csv").read_text().splitlines()
        for place in (Path(folder), SAVED / "cohort")
    ]
    means = 2 * 2 if "seed" in rows[1][0].split(",") else 0
    assert [len(table) for table in rows] == [5 + means, 5]
    columns, older = (table[0].split(",") for table in rows)
    assert [name for name in columns if name in older] == older


# -- the library -----------------------------------------------------------------------------------


def test_the_library_lists_and_shows_its_prompts() -> None:
    assert told("prompts", "list", "--library", "library", "--json") == EXPECTED["library"]["list"]
    shown = told("prompts", "show", "gpt2", "--library", "library", "--json")
    assert shown["card"] == json.loads((SAVED / "library" / "gpt2" / "prompt.json").read_text())


def test_the_library_ranks_as_it_did() -> None:
    for asked, ranked in EXPECTED["library"]["search"].items():
        name, by = asked.split()
        found = told("prompts", "search", name, "--library", "library", "--by", by, "--json")[
            "found"
        ]
        assert [one["name"] for one in found] == [one[0] for one in ranked]
        near = [one["similarity"] for one in found]
        assert near == pytest.approx([one[1] for one in ranked], abs=1e-5)


def test_a_saved_run_goes_into_a_saved_library() -> None:
    shutil.copytree(SAVED / "library", "grown")
    told("prompts", "import", "finished/smop", "--library", "grown", "--name", "other", "--json")
    names = [e["name"] for e in told("prompts", "list", "--library", "grown", "--json")["prompts"]]
    assert set(names) == {e["name"] for e in EXPECTED["library"]["list"]["prompts"]} | {"other"}
    check_answers("grown/other", EXPECTED["answers"]["finished/smop"])


# -- PEFT ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["finished/prompt-tuning", "prompt-tuning"])
def test_an_adapter_is_exported_as_it_was(prompt: str, tmp_path: Path) -> None:
    told("prompts", "export", prompt, "--library", "library", "--output", str(tmp_path), "--json")
    ours = SAVED / "peft" / "ours"
    name, config = "adapter_model.safetensors", "adapter_config.json"
    torch.testing.assert_close(load_file(tmp_path / name), load_file(ours / name), rtol=0, atol=0)
    before, now = (json.loads((folder / config).read_text()) for folder in (ours, tmp_path))
    assert now == before | {"num_layers": 1, "num_attention_heads": 1}, "which PEFT asks for"


@pytest.mark.parametrize(
    ("adapter", "like"), [("theirs", "peft/imported"), ("ours", "finished/prompt-tuning")]
)
def test_an_adapter_is_imported_as_it_was(adapter: str, like: str) -> None:
    asked = [f"peft/{adapter}" if part == "peft/theirs" else part for part in COMMANDS["import"]]
    told(*asked, "--output", f"taken/{adapter}")
    found = softprompts.load(f"taken/{adapter}", device="cpu").probabilities(TEXTS)
    for shares, one in zip(found, EXPECTED["answers"][like], strict=True):
        assert shares == pytest.approx(one["probabilities"], abs=1e-4)


# -- studies, transfers, pretraining ---------------------------------------------------------------


def test_a_half_done_study_resumes() -> None:
    half, expected = EXPECTED["study"]["half"], EXPECTED["study"]
    status = told("study", "status", "study", "--json")
    assert {name: status[name] for name in half} == half
    done = {cell: Path("study/cells", cell, "result.json") for cell in half["finished"]}
    before = {cell: (path.read_bytes(), path.stat().st_mtime_ns) for cell, path in done.items()}
    begun = {p.parent for p in Path("study").rglob("checkpoint.safetensors")}
    ended = told("study", "run", "study.yaml", "--output", "study", *QUIET)
    assert (ended["done"], ended["missing"]) == (half["total"], [])
    assert before == {cell: (p.read_bytes(), p.stat().st_mtime_ns) for cell, p in done.items()}
    for cell in begun:
        result = json.loads((cell / "result.json").read_text())
        assert result["cell"] in result["resumed"]
    told("study", "report", "study", "--output", "report", "--json")
    records = json.loads(Path("report/records.json").read_text())
    for record, old in zip(records, expected["records"], strict=True):
        for name in old.keys() - {"chosen", "cohort", "metrics"}:
            assert record[name] == old[name], (old["cell"], name)
        assert record["metrics"] == pytest.approx(old["metrics"], abs=1e-3)
        assert [one["cell"] for one in record["chosen"]] == [one["cell"] for one in old["chosen"]]
        for mine, theirs in zip(record["chosen"], old["chosen"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5)
    for folder, answers in expected["answers"].items():
        check_answers(folder, answers)


def test_a_half_done_transfer_resumes() -> None:
    """The choice that was made stands; the runs from it end."""
    expected = EXPECTED["transfer"]
    probe = lines(Path("transfer/runs/probe/metrics.jsonl"))
    choice = told(*COMMANDS["transfer"])
    assert [row["name"] for row in choice["ranked"]] == [
        row["name"] for row in expected["choice"]["ranked"]
    ]
    for name in ("chosen", "runs", "kept"):
        assert choice[name] == expected["choice"][name]
    runs, saved = ([*c["results"], c["baseline"]] for c in (choice, expected["choice"]))
    for now, then in zip(runs, saved, strict=True):
        assert now == then | {"rows": 4, "interval": now["interval"]}
    assert choice["gain"] == expected["choice"]["gain"] | {"p": 1.0, "rows": 4}
    assert lines(Path("transfer/runs/probe/metrics.jsonl")) == probe
    check_answers("transfer", expected["answers"])


def test_half_done_pretraining_resumes() -> None:
    """What was logged before is still there, times included."""
    before = lines(Path("pretrained/metrics.jsonl"))
    card = told(*COMMANDS["pretrain"])
    assert card["finished"]
    assert lines(Path("pretrained/metrics.jsonl"))[: len(before)] == before
    for name, losses in EXPECTED["pretrained"].items():
        assert card["losses"][name] == pytest.approx(losses, abs=1e-3)
