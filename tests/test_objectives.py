"""The recipe of the pretraining objectives, from start to end, in seconds."""

import json
import os
from pathlib import Path

import pytest

from softprompts.errors import UserError

from .scripts import BAD_FLAGS, load_script


def test_the_recipe_makes_every_backbone_and_a_report_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "cache"))
    objectives = load_script("recipes/objectives.py")
    out = tmp_path / "out"
    flags = (
        "--smoke --tokens 12000 --extra-tokens 28000 --tasks helpdesk/urgency --seeds 0 --steps 2 "
        "--batch-size 4 --length 2 --cap-validation 12 --device cpu --scoring generate"
    )
    command = [*flags.split(), "--output", str(out)]
    assert objectives.main(command) == 0
    page = capsys.readouterr().out
    report = json.loads((out / "objectives.json").read_text())
    models, variants = report["models"], report["variants"]
    tokens = {name: card["tokens"] for name, card in models.items()}
    step = tokens["lm-10"] / models["lm-10"]["steps"]
    assert tokens["span-100"] == tokens["lm-100"]
    for share in (10, 25, 50, 100):
        assert 0 <= tokens[f"lm-{share}"] - 280 * share < step, "rounded up to a step"
    assert list(variants) == list(objectives.VARIANTS)
    fingerprints = {name: record["fingerprint"] for name, record in variants.items()}
    assert fingerprints["span corruption"] == fingerprints["span corruption + sentinel"]
    assert len(set(fingerprints.values())) == 6
    marked = [name for name, record in variants.items() if record["settings"].get("sentinel")]
    assert marked == ["span corruption + sentinel"]
    for name in (*tokens, "helpdesk/urgency", "mean"):
        assert f"| {name} |" in page.replace("**", "")
    means = [record["mean"] for record in variants.values()]
    assert all(mean["best"] == {"0": 0.0} for mean in means), "such models generate no labels"
    assert all(0 < mean["labels"]["0"] < 100 for mean in means)
    assert "with label scoring" in page
    assert page.strip() == (out / "objectives.md").read_text().strip()
    assert (out / "objectives.png").stat().st_size > 1000

    written = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    assert objectives.main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == written
    assert capsys.readouterr().out == page
    assert objectives.main([*command, "--extra-tokens", "80000"]) == 2
    assert "trained with other settings" in capsys.readouterr().err


def test_missing_text_and_jobs_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objectives = load_script("recipes/objectives.py")
    assert objectives.main(["--output", str(tmp_path)]) == 2
    assert "name files with --text" in capsys.readouterr().err
    assert objectives.main(["--smoke", "--output", str(tmp_path), "--jobs", "0"]) == 2
    assert "--jobs is 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        *BAD_FLAGS,
        (
            ["--scoring", "label"],
            "scoring is 'label'; did you mean labels? The choices are auto, generate, labels.",
        ),
    ],
)
def test_settings_of_prompts_are_checked_before_a_model_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    objectives = load_script("recipes/objectives.py")
    command = ["--smoke", "--output", str(tmp_path / "out"), "--tokens", "9000", "--device", "cpu"]
    assert objectives.main([*command, *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def halve(number: int) -> dict[str, float]:
    if number < 0:
        os._exit(1)
    if number % 2:
        raise UserError(f"{number} is odd.")
    return {"tokens": number / 2, "seconds": 0}


def test_parallel_jobs_give_the_same_results_and_an_error_ends_them() -> None:
    objectives = load_script("recipes/objectives.py")
    results = objectives.run_jobs(2, halve, {"six": (6,), "two": (2,), "ten": (10,)})
    tokens = [(name, result["tokens"]) for name, result in results.items()]
    assert tokens == [("six", 3), ("two", 1), ("ten", 5)]
    with pytest.raises(UserError, match="3 is odd"):
        objectives.run_jobs(2, halve, {"three": (3,), "six": (6,)})
    with pytest.raises(UserError, match="lower jobs"):
        objectives.run_jobs(2, halve, {"dies": (-1,), "six": (6,)})
