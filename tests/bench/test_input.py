"""Benchmarks tell bad input in a sentence before they measure anything."""

from pathlib import Path

import pytest

from softprompts.bench import BENCHMARKS
from softprompts.bench import measure as measuring
from softprompts.cli import main as cli


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gets as far as a clock was not checked first."""

    def fail(*_: object) -> None:
        raise AssertionError("it measures")

    monkeypatch.setattr(measuring.Clock, "time", fail)


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["bench", *argv, "--device", "cpu"]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert told.err.count("\n") == 1
    return told.err


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--warmup", "-1"], "--warmup is -1; it must not be negative."),
        (["--seed", "-1"], "The seed is -1; it must be from 0"),
        (["--threads", "-3"], "--threads is -3; it must be from 1 to 1,024, or 0."),
        (["--threads", "99999999999"], "--threads is 99999999999"),
        (["--model", "t5-base", "--dtype", "fp64"], "choose fp32 or bf16."),
        (["--model", "llama-135m", "--dtype", "fp16"], "choose fp32 or bf16."),
    ],
)
def test_settings(
    name: str, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused([name, *flags], capsys)


def test_sizes_of_batches(capsys: pytest.CaptureFixture[str]) -> None:
    assert "numbers such as 1,16,64" in refused(["decoding", "--batches", "1,²"], capsys)


def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is a folder; name a file in it." in refused(
        ["training", "--output", str(tmp_path)], capsys
    )
    for place in (tmp_path / "file" / "out.json", tmp_path / "new" / "deep" / ("x" * 300)):
        assert "choose another path." in refused(["training", "--output", str(place)], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_looking_at_a_place_leaves_nothing_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(
        ["training", "--output", str(tmp_path / "new" / "out.json"), "--workload", "none"], capsys
    )
    assert not list(tmp_path.iterdir())
