"""Benchmarks report bad input before they measure anything."""

from pathlib import Path

import pytest

from softprompts.bench.measure import Clock
from softprompts.cli import main
from softprompts.cli.bench import ACTIONS


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a benchmark gets as far as timing something."""

    def fail(*_: object) -> None:
        raise AssertionError("it measures already")

    monkeypatch.setattr(Clock, "time", fail)


def error_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["bench", *argv, "--device", "cpu"]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--warmup", "-1"], "--warmup is -1; it must not be negative."),
        (["--seed", "-1"], "--seed is -1; it must be from 0 to below 2,147,483,648."),
        (["--threads", "-3"], "--threads is -3; it must be from 0 to 1,024."),
        (["--threads", "99999999999"], "--threads is 99,999,999,999"),
        (
            ["--model", "t5-base", "--dtype", "fp64"],
            "auto, fp32, bf16, int8, int4.",
        ),
        (
            ["--model", "llama-135m", "--dtype", "fp16"],
            "auto, fp32, bf16, int8, int4.",
        ),
    ],
)
def test_settings(
    name: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of([name, *flags], capsys)


def test_sizes_of_batches(capsys: pytest.CaptureFixture[str]) -> None:
    assert "numbers such as 1,16,64" in error_of(["decoding", "--batches", "1,²"], capsys)


def test_an_output_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("text")
    assert "is a folder; name a file in it." in error_of(
        ["training", "--output", str(tmp_path)], capsys
    )
    for path in (tmp_path / "file" / "out.json", tmp_path / "new" / "deep" / ("x" * 300)):
        assert "choose another path." in error_of(["training", "--output", str(path)], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_checking_the_output_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error_of(
        ["training", "--output", str(tmp_path / "new" / "out.json"), "--workload", "none"], capsys
    )
    assert not list(tmp_path.iterdir())
