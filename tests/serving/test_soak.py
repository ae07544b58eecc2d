"""A server at its limit while its prompts change: benchmarks/soak.py, for half a minute."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from softprompts.library.library import Library

from ..scripts import ROOT, load_script


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = load_script("benchmarks/soak.py")
    monkeypatch.setitem(sys.modules, "soak", module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_at_its_limit_answers_as_predict_does(soak: Any, tmp_path: Path) -> None:
    output = tmp_path / "soak.json"
    soak.MOST_GROWTH = 0.1  # half a minute is too short for more
    assert soak.main(["--minutes", "0.5", "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    assert record["problems"] == []
    assert record["statuses"].keys() == {"200", "404", "429"}
    assert record["answers_checked"] == record["statuses"]["200"] > 50
    assert record["changes"] >= 10


def test_wrong_replies_are_noticed(soak: Any, tmp_path: Path) -> None:
    probabilities = [[{"yes": 0.2 * version, "no": 1 - 0.2 * version}] for version in range(3)]
    expected = soak.Expected(["text"], probabilities, [["a"], ["b"], ["c"]])
    prompts, now = soak.Prompts(Library(tmp_path), tmp_path), time.monotonic()
    prompts.lives = {
        "steady": [soak.Life(0, now - 60)],
        "replaced": [soak.Life(0, now - 60, now - 30), soak.Life(1, now - 30)],
        "removed": [soak.Life(0, now - 60, now - 30)],
    }
    seen = soak.Soak(prompts, expected, "http://127.0.0.1:1", 0)

    def label(version: int) -> dict[str, Any]:
        row = probabilities[version][0]
        return {"data": [{"labels": list(row), "probs": list(row.values())}]}

    def text(answer: str) -> dict[str, Any]:
        return {"choices": [{"text": answer}]}

    right = [
        ("classify", "steady", 200, label(0)),
        ("completions", "steady", 200, text("a")),
        ("classify", "replaced", 200, label(1)),
        ("classify", "removed", 404, {}),
        ("classify", "steady", 429, {}),
    ]
    wrong = [
        ("classify", "steady", 200, label(1)),
        ("completions", "replaced", 200, text("a")),
        ("classify", "replaced", 200, label(0)),
        ("classify", "removed", 200, label(0)),
        ("classify", "steady", 404, {}),
        ("classify", "steady", 500, {}),
    ]
    for kind, name, status, reply in right:
        seen.seen(kind, name, 0, now, status, reply)
    assert seen.problems == []
    for kind, name, status, reply in wrong:
        seen.seen(kind, name, 0, now, status, reply)
    assert len(seen.problems) == len(wrong)
    seen.memory = [100.0] * 50 + [120.0] * 50
    seen.check_end(0)
    assert "the server's memory grew by 20.0%" in seen.problems[-1]
