"""The serving benchmark runs, and agrees with PEFT on a model of each family that generates."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from softprompts.errors import UserError

from ..models import random_model
from ..scripts import ROOT, load_script


@pytest.fixture(autouse=True)
def _modules_of_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def run(monkeypatch: pytest.MonkeyPatch, *command: str) -> int:
    monkeypatch.setattr(sys, "argv", ["serving.py", *command])
    return int(load_script("benchmarks/serving.py").main())


@pytest.mark.parametrize(
    ("kind", "prompts", "ways"),
    [("t5", "4", "labels,generate"), ("llama", "1,4", "generate")],
)
def test_ours_and_peft_are_asked_the_same_rows(
    kind: str,
    prompts: str,
    ways: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("peft")
    backbone = random_model(kind)
    backbone.model.save_pretrained(tmp_path / "model")
    backbone.tokenizer.save_pretrained(tmp_path / "model")
    sizes = {"new-tokens": 3, "length": 3, "characters": 40, "points": 1, "concurrency": 4}
    sizes["pairs"] = 1
    seconds = {"seconds-per-point": 0.2, "p99-labels": 0.1, "p99-generate": 0.1}
    options = [word for name, size in {**sizes, **seconds}.items() for word in (f"--{name}", size)]
    output = tmp_path / "result.json"
    command = ["--model", tmp_path / "model", "--device", "cpu", "--dtype", "fp32"]
    command += ["--prompts", prompts, "--kinds", ways, "--output", output, *options]
    assert run(monkeypatch, *map(str, command)) == 0
    printed = capsys.readouterr().out
    result = json.loads(output.read_text())
    assert result["same_answers"] == dict.fromkeys(ways.split(","), 1)
    assert result["mixed"]["labels"] == "ignores adapter_names"
    assert "adapter_names" in result["mixed"]["generate"]
    for pair in result.get("pairs", []):
        four, one = pair["rows_per_s"]["4"], pair["rows_per_s"]["1"]
        assert pair["ratio"] == pytest.approx(four[0] / one[0])
    assert len(result.get("pairs", [])) == (prompts == "1,4")
    cells = {
        (cell["kind"], cell["prompts"], cell["popularity"], cell["host"]): cell
        for cell in result["measurements"]
    }
    for way in ways.split(","):
        for host in ("ours", "switching", "batched"):
            for count in map(int, prompts.split(",")):
                cell = cells.pop((way, count, "uniform", host))
                assert cell["closed"]["rows_per_s"] > 0
                assert not cell["closed"]["errors"]
                assert cell["closed"]["mean_batch"] >= 1
                for point in cell["points"]:
                    assert not point["errors"]
                    assert point["answered"] == point["rows"] or not point["passed"]
                    assert f"{way}, {count} prompts (uniform), {host}" in printed
    assert {key[2:] for key in cells} == {("zipf", "ours"), ("zipf", "batched")}


@pytest.mark.parametrize(
    "names",
    [
        ("serving-t5-base-h200", "serving-t5-base-labels-h200", "serving-llama-1b-h200"),
        ("serving-t5-tiny-cpu",),
    ],
)
def test_the_page_has_the_tables_of_the_records(names: tuple[str, ...]) -> None:
    tables = load_script("benchmarks/serving_table.py")
    folder = ROOT / "benchmarks" / "results"
    records = [json.loads((folder / f"{name}.json").read_text()) for name in names]
    page = (ROOT / "results" / "serving.md").read_text()
    assert tables.table(*records) in page
    if len(records) == 1:
        assert tables.summary(*records) in page


def test_a_bad_number_of_prompts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--prompts is '1,x'"):
        run(monkeypatch, "--prompts", "1,x")


def test_what_does_not_fit_into_the_budget_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = str(tmp_path / "result.json")
    options = ["--no-peft", "--budget", "1", "--pairs", "0", "--device", "cpu", "--output", output]
    assert run(monkeypatch, "--prompts", "1,2", "--kinds", "labels", *options) == 0
    result = json.loads(Path(output).read_text())
    assert result["measurements"] == []
    assert result["left_out"][0] == "labels, 2 prompts (uniform), ours"


def load(**options: Any) -> Any:
    settings = {"address": "", "kind": "labels", "popularity": "uniform", "target": 0.1}
    return load_script("benchmarks/open_loop.py").Load(**{**settings, **options})


def test_arrivals_are_those_of_a_poisson_process() -> None:
    rows = load(prompts=100, seconds=20.0, rate=500.0).rows(7)
    assert len(rows) == 10_000
    gaps = [b.arrival - a.arrival for a, b in itertools.pairwise(rows)]
    assert min(gaps) >= 0
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance == pytest.approx(mean**2, rel=0.1), "as of an exponential distribution"
    assert {row.text for row in rows} == set(range(7))
    first = [sum(row.prompt == number for row in rows) for number in (0, 9)]
    assert first == pytest.approx([100, 100], rel=0.4)


def test_popular_prompts_are_asked_more_often() -> None:
    rows = load(prompts=100, seconds=20.0, rate=500.0, popularity="zipf").rows(7)
    first, tenth = (sum(row.prompt == number for row in rows) for number in (0, 9))
    assert first / tenth == pytest.approx(10, rel=0.3)


def test_latencies_count_from_the_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stalls is charged for what could not be sent meanwhile."""
    open_loop = load_script("benchmarks/open_loop.py")
    monkeypatch.setitem(sys.modules, "open_loop", open_loop)  # its annotations
    measurement = open_loop.Measurement(
        load(prompts=1, seconds=1.0, rate=100.0, target=0.5), ["a text"]
    )
    now = iter([0.0, *[1.2] * 10_000])
    monkeypatch.setattr(open_loop.time, "perf_counter", lambda: next(now))
    measurement.began = next(now) - 1.2

    class Sent:
        def send(self, numbers: Any) -> None:
            """All of them arrived while this process was stopped."""

    measurement.channel = Sent()
    measurement._send(len(measurement.rows))
    for number in range(len(measurement.rows)):
        measurement._reply(number, None)
    assert [round(took + came, 6) for came, took in measurement.latencies] == [2.4] * len(
        measurement.rows
    )
    assert not measurement._result()["passed"]
