"""`softprompts pretrain`: its flags, its output, and clear errors for bad settings."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.cli import main as softprompts
from softprompts.cli.pretrain import main
from softprompts.errors import UserError
from softprompts.pretraining.config import PretrainConfig
from softprompts.pretraining.run import Pretraining

MakeConfig = Callable[..., PretrainConfig]
SMALL_FLAGS = "--input-length 24 --batch-tokens 320 --d-model 16 --device cpu"


def test_a_diverged_run_fails(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    config = make_config()
    monkeypatch.setattr(
        Pretraining, "_losses", lambda _, inputs, __: (torch.full((len(inputs),), math.nan),) * 2
    )
    monkeypatch.setattr(torch.Tensor, "backward", lambda *_: None)
    files = ["--text", config.text[0], "--tokenizer", str(config.tokenizer)]
    output = ["--log-every", "1", "--output", str(tmp_path / "run")]
    assert softprompts(["pretrain", *files, *SMALL_FLAGS.split(), *output]) == 1
    assert "lower --lr" in capsys.readouterr().err


def test_the_command(make_config: MakeConfig, tmp_path: Path, capsys: Any) -> None:
    config = make_config()
    files = ["--text", config.text[0], "--tasks", config.tasks[0]]
    flags = (
        f"{SMALL_FLAGS} --objectives span=0.5,tasks=0.5 --vocabulary 150 --sentinels 9 "
        "--d-kv 8 --d-ff 16 --num-layers 1 --num-decoder-layers 1 --num-heads 2 "
        "--no-tie --no-compile --tokens 1500 --processes 1"
    )
    command = [*files, *flags.split(), "--output", str(tmp_path / "run")]
    assert main([*command, "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["finished"]
    assert card["tokens"] >= 1500 > card["tokens"] * (card["steps"] - 1) / card["steps"]
    assert card["config"]["tie"] is False
    assert main([*command, "--overwrite"]) == 0
    assert f"the model is in {tmp_path / 'run'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags", ["--size tiny", "--d-model 999", "--vocabulary 300", "--no-tie", "--sentinels 9"]
)
def test_settings_of_a_new_model_are_rejected_for_an_existing_one(
    make_config: MakeConfig, tmp_path: Path, flags: str
) -> None:
    command = ["--text", make_config().text[0], "--from", "t5-tiny", *flags.split()]
    with pytest.raises(UserError, match="is for a new model"):
        main([*command, "--output", str(tmp_path / "run")])


HERE = __file__


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--text gone.txt", "gone.txt does not exist"),
        ("", "name files with text"),
        ("--objectives tasks=1", "name files with tasks"),
        ("--text x --objectives mask=1", "no objective 'mask'"),
        ("--text x --objectives span=0", "No objective has a share"),
        ("--text x --objectives span", r"objectives is 'span'; .* such as span=1,prefix=1\.$"),
        ("--text x --objectives=", "No objective has a share of the batch; give one, such as"),
        ("--text x --sentinels 1 --input-length 128", "mask 7 spans, .* raise sentinels"),
        (f"--text {HERE} --vocabulary 3", "vocabulary of 3 pieces is too small"),
        (f"--text {HERE} --vocabulary 40", "pieces is too small .*; raise vocabulary"),
        ("--text x --target-length 50", "inputs of 512 tokens need at least 114"),
        ("--text x --batch-tokens 500", "one row takes 626"),
        ("--text x --batch-tokens 2000 --microbatches 2", "cannot be split into 2 equal parts"),
        (
            "--text x --batch-tokens 2000 --objectives span=1,prefix=0.01",
            "less than one of 3 rows",
        ),
        ("--text x --steps 0", "steps is 0"),
        ("--text x --lr nan", "lr is 'nan'"),
        ("--text x --optimizer sgd", "choose one of muon, adamw"),
        ("--text x --sizes 3", "did you mean --size?"),
        (f"--text {HERE} --from gone", "The model 'gone' cannot be loaded"),
        (f"--text {HERE} --device tpu9", "The device 'tpu9' is not available"),
        (f"--text {HERE} --definitions {HERE}", "cannot be read as JSON"),
    ],
)
def test_bad_settings_are_errors(tmp_path: Path, flags: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        main([*flags.split(), "--output", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_a_text_that_is_too_short_leaves_nothing_behind(tmp_path: Path) -> None:
    short, run = tmp_path / "short.txt", tmp_path / "run"
    short.write_text("the cat sat on the mat")
    with pytest.raises(UserError, match="too few tokens"):
        main(["--text", str(short), "--vocabulary", "40", "--device", "cpu", "--output", str(run)])
    assert not run.exists()


def test_help_shows_every_setting(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    assert "--from VALUE" in output
    assert "--batch-tokens" in output
