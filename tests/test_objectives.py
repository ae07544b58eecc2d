"""The recipe of the pretraining objectives, whole, at a scale of seconds."""

import json
import os
import sys
from pathlib import Path

import pytest

from softprompts.errors import UserError

from .conftest import MISTAKES

RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.mark.usefixtures("no_curves")
def test_the_recipe_makes_every_backbone_and_a_report_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "cache"))
    sys.path.insert(0, str(RECIPES))
    import objectives

    out = tmp_path / "out"
    command = [
        "--smoke", "--output", str(out), "--tokens", "12000", "--extra-tokens", "28000", "--tasks", "helpdesk/urgency", "--seeds", "0",
        "--steps", "2", "--batch-size", "4", "--length", "2", "--cap-validation", "12", "--device", "cpu", "--scoring", "generate",
    ]  # fmt: skip
    assert objectives.main(command) == 0
    told = capsys.readouterr().out
    found = json.loads((out / "objectives.json").read_text())
    tokens = {name: card["tokens"] for name, card in found["models"].items()}
    step = tokens["lm-10"] / found["models"]["lm-10"]["steps"]
    assert tokens["span-100"] == tokens["lm-100"]
    assert all(
        0 <= tokens[f"lm-{share}"] - 280 * share < step for share in (10, 25, 50, 100)
    )  # up to a whole step
    assert list(found["variants"]) == list(objectives.VARIANTS)
    prints = {name: record["fingerprint"] for name, record in found["variants"].items()}
    assert prints["span corruption"] == prints["span corruption + sentinel"]
    assert len(set(prints.values())) == 6
    marked = [
        name for name, record in found["variants"].items() if record["settings"].get("sentinel")
    ]
    assert marked == ["span corruption + sentinel"]
    assert all(
        f"| {name} |" in told.replace("**", "") for name in (*tokens, "helpdesk/urgency", "mean")
    )
    assert all(record["mean"]["best"] == {"0": 0.0} for record in found["variants"].values()), (
        "such models write no labels"
    )
    assert all(0 < record["mean"]["labels"]["0"] < 100 for record in found["variants"].values())
    assert "the likeliest label" in told
    assert told.strip() == (out / "objectives.md").read_text().strip()
    assert (out / "objectives.png").stat().st_size > 1000

    made = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    assert objectives.main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == made
    assert capsys.readouterr().out == told
    assert objectives.main([*command, "--extra-tokens", "80000"]) == 2
    assert "trained with other settings" in capsys.readouterr().err


def test_without_text_there_is_nothing_to_learn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.insert(0, str(RECIPES))
    import objectives

    assert objectives.main(["--output", str(tmp_path)]) == 2
    assert "name files with --text" in capsys.readouterr().err
    assert objectives.main(["--smoke", "--output", str(tmp_path), "--jobs", "0"]) == 2
    assert "--jobs is 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        *MISTAKES,
        (["--scoring", "label"], "scoring is 'label'; choose one of auto, generate, labels."),
    ],
)
def test_what_prompts_cannot_be_tuned_with_is_told_before_a_model_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    sys.path.insert(0, str(RECIPES))
    import objectives

    assert (
        objectives.main(
            [
                "--smoke",
                "--output",
                str(tmp_path / "out"),
                "--tokens",
                "9000",
                "--device",
                "cpu",
                *flags,
            ]
        )
        == 2
    )
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def halved(number: int) -> dict[str, float]:
    if number < 0:
        os._exit(1)
    if number % 2:
        raise UserError(f"{number} is odd.")
    return {"tokens": number / 2, "seconds": 0}


def test_several_at_once_come_to_the_same_and_an_error_ends_them() -> None:
    sys.path.insert(0, str(RECIPES))
    import objectives

    found = objectives.each(2, halved, {"six": (6,), "two": (2,), "ten": (10,)})
    assert [(name, told["tokens"]) for name, told in found.items()] == [
        ("six", 3),
        ("two", 1),
        ("ten", 5),
    ]
    with pytest.raises(UserError, match="3 is odd"):
        objectives.each(2, halved, {"three": (3,), "six": (6,)})
    with pytest.raises(UserError, match="lower --jobs"):
        objectives.each(2, halved, {"gone": (-1,), "six": (6,)})
