"""`softprompts cost`: a table without weights, and errors without torch."""

import csv
import json
from pathlib import Path

import pytest

from softprompts.analysis.flops import FORMULA
from softprompts.cli import main

from .conftest import Start


def test_lists_make_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "cost.csv"
    command = [
        *("cost", "--model", "t5-tiny,bert-base", "--preset", "prompt-tuning,smop,model-tuning"),
        *("--prompt.length", "5,10", "--batch-size", "4", "--text", "8", "--output", str(output)),
    ]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert err == "softprompts: counting t5-tiny\nsoftprompts: counting bert-base\n"
    header, *lines, note = out.splitlines()
    assert header.split("  ")[0] == "model"
    assert len(lines) == 2 * (2 + 2 + 1), "model tuning has no prompt to vary"
    assert lines[0].split()[:6] == ["t5-tiny", "prompt-tuning", "1", "x", "5", "1,280"]
    assert note.startswith("rows of 8 text and 2 target tokens; training FLOPs and memory of a ")
    with output.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["length"] for row in table[:5]] == ["5", "10", "5", "10", "0"]
    assert table[4]["trained"] == table[4]["stored"] == table[4]["parameters"]


def test_json_states_the_formula(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["cost", "--model", "t5-tiny", "--preset", "residual", "--batch-size", "2"]
    assert main([*command, "--prompt.shape.bottleneck", "7", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["formula"] == FORMULA
    assert printed["rows"] == {"text": 128, "target": 2, "classes": 2, "dtype": "fp32"}
    (row,) = printed["costs"]
    assert row["trained"] == 10 * 256 + (256 * 7 + 7) + (7 * 256 + 256) + 2 * 256
    assert row["stored"] == 10 * 256


def test_an_unknown_model_names_the_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--model", "t5-bse", "--preset", "smop"]) == 2
    assert "Did you mean the shape t5-base? Known shapes are t5-small," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--preset", "smopp"], "There is no preset 'smopp'; did you mean smop?"),
        (["--text", "0"], "--text is 0; it must be from 1 to"),
        (["--dtype", "fp16"], "--dtype is 'fp16'; did you mean bf16?"),
        (["--model", "t5-base,"], "--model is 't5-base,', which has an empty name"),
        (["--prompt.length", "5,5"], "--prompt.length lists 5 twice"),
        (["--output", "x.txt"], "--output is 'x.txt'; name a file that ends in .csv"),
    ],
)
def test_wrong_input_is_refused_without_torch(argv: list[str], message: str, start: Start) -> None:
    process = start(["cost", *argv])
    assert process.returncode == 2
    error, imported = process.stderr.splitlines()
    assert message in error
    assert imported == "imported:"
