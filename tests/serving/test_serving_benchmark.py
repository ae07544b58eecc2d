"""The engine's benchmark runs, and agrees with PEFT on a model of each family that generates."""

import json
import sys
from pathlib import Path

import pytest

from ..models import random_model
from ..scripts import load_script


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_ours_and_peft_give_the_same_answers(
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("peft")
    backbone = random_model(kind)
    backbone.model.save_pretrained(tmp_path / "model")
    backbone.tokenizer.save_pretrained(tmp_path / "model")
    sizes = {"rows": 12, "generated-rows": 6, "peft-rows": 6, "new-tokens": 5, "length": 3}
    sizes["characters"] = 40
    options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    output = tmp_path / "result.json"
    command = ["--model", str(tmp_path / "model"), "--device", "cpu", "--dtype", "fp32"]
    command += ["--prompts", "1,4", "--concurrency", "4", "--output", str(output), *options]
    monkeypatch.setattr(sys, "argv", ["serving_engine.py", *command])
    assert load_script("benchmarks/serving_engine.py").main() == 0
    printed = capsys.readouterr().out
    assert "labels: with 4 prompts" in printed
    assert "generate: with 4 prompts" in printed
    for count in json.loads(output.read_text())["counts"]:
        for way in ("labels", "generate"):
            assert count[way]["ours"]["rows_per_s"] > 0
            assert count[way]["switching"]["same_answers"] == 1
            assert count[way]["batched"]["same_answers"] == 1
            assert count[way]["switching"]["ratio"] == pytest.approx(
                count[way]["ours"]["rows_per_s"] / count[way]["switching"]["rows_per_s"]
            )
