"""Several processes on one run, as `accelerate launch` starts them: two on the CPU (gloo), with the
frozen model sharded or not."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.cli import main
from softprompts.files.lock import exclusive
from softprompts.files.tensors import read_tensors
from softprompts.tuning import Run
from softprompts.tuning.checkpoint import save_checkpoint
from softprompts.tuning.team import Team

from ..models import random_model
from ..processes import COMMAND, ForkServer, Process

SETTINGS = [
    *("--text", "review", "--label", "mood", "--steps", "10", "--batch-size", "7"),
    *("--evaluate-every", "5", "--checkpoint-every", "5", "--prompt.length", "4", "--lr", "0.1"),
    *("--device", "cpu", "--quiet", "--max-length", "64"),
]
SHARDED = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
    *("--main_process_port", "0", "--use_fsdp", "--fsdp_version", "2"),
]

COUNTING = """
import json, os, sys
from softprompts import cli
from softprompts.tuning import cohort, evaluate, tuned
counts = {"written": [], "evaluated": 0, "read": []}
save, write = cohort.save_checkpoint, tuned.Tuned.save
cohort.save_checkpoint = lambda run, folder: (counts["written"].append(run.step), save(run, folder))
tuned.Tuned.save = lambda one, folder: (counts["written"].append("prompt"), write(one, folder))
answers = evaluate.Predictor.answers
def counted(self, rows, on_rows=lambda rows: None):
    counts["evaluated"] += len(rows)
    return answers(self, rows, on_rows)
evaluate.Predictor.answers = counted
from softprompts.backbone import EncoderDecoder
losses = EncoderDecoder.losses
def read(self, prompt, text, targets):
    counts["read"].append(len(targets))
    return losses(self, prompt, text, targets)
EncoderDecoder.losses = read
from softprompts.tuning import team
load = team.Parallel.load
def loaded(self, *arguments):
    backbone = load(self, *arguments)
    parameters = [p for block in backbone.blocks() for p in block.parameters()]
    sharded = [p for p in parameters if hasattr(p, "to_local")]
    counts["shards"] = [p.to_local().numel() / p.numel() for p in sharded]
    return backbone
team.Parallel.load = loaded
code = cli.main(sys.argv[2:])
path = os.path.join(sys.argv[1], "counts-" + os.environ.get("RANK", "0"))
open(path, "w").write(json.dumps(counts))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    made = random_model("t5")
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


def launch(start: list[str], folder: Path, *options: str, module: str) -> str:
    """Start a command with `accelerate launch`; returns what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*start, module, *options, "--output", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder.parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


RunTwo = Callable[..., list[Process]]


@pytest.fixture
def run_two(torch_server: ForkServer) -> RunTwo:
    """Starts a command in two processes, with the variables that `accelerate launch` sets."""

    def run(folder: Path, *options: str, code: str = COMMAND) -> list[Process]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        variables |= {"ACCELERATE_USE_CPU": "true"}
        argv = [*options, "--output", str(folder)]
        processes = [
            torch_server.start(argv, code, folder.parent, **variables, RANK=rank, LOCAL_RANK=rank)
            for rank in ("0", "1")
        ]
        for process in processes:
            process.wait()
        return processes

    return run


def same(one: Path, other: Path) -> None:
    """Two runs' prompts and histories, up to the order floats were added in."""
    first, second = (read_tensors(folder / "checkpoint.safetensors")[0] for folder in (one, other))
    assert first.keys() == second.keys()
    for name in first:
        if name.startswith(("state/", "best/")):
            torch.testing.assert_close(
                first[name],
                second[name],
                rtol=1e-3,
                atol=1e-3,
                msg=lambda m, name=name: f"{name}: {m}",
            )
    histories: list[list[dict[str, Any]]] = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (one, other)
    ]
    for mine, theirs in zip(*histories, strict=True):
        assert mine["accuracy"] == theirs["accuracy"]
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-3)
        for name, value in mine.get("router", {}).items():
            assert value == pytest.approx(theirs["router"][name], abs=1e-3)


def alone(folder: Path, *options: str) -> None:
    """The same command in this process."""
    assert main([*options, "--output", str(folder)]) == 0


@pytest.mark.slow
def test_two_processes_learn_the_same_as_one(
    model: Path, toy_csv: Path, tmp_path: Path, run_two: RunTwo
) -> None:
    """22 training rows in batches of 7: the last batch of an epoch has one row, so that one process
    has none. SMoP draws noise."""
    settings = [
        "tune",
        "--model",
        str(model),
        "--train",
        str(toy_csv),
        "--preset",
        "smop",
        *SETTINGS,
        "--accumulate",
        "2",
    ]
    alone(tmp_path / "one", *settings)
    two = run_two(tmp_path / "two", *settings)
    assert [process.returncode for process in two] == [0, 0], two[0].stderr
    assert [process.stdout.count("took ") for process in two] == [1, 0], "one process prints"
    same(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_sharded_backbone_learns_the_same(model: Path, toy_csv: Path, tmp_path: Path) -> None:
    settings = [
        "tune",
        "--model",
        str(model),
        "--train",
        str(toy_csv),
        "--preset",
        "prompt-tuning",
        *SETTINGS,
    ]
    alone(tmp_path / "one", *settings)
    (tmp_path / "counting.py").write_text(COUNTING)
    script = str(tmp_path / "counting.py")
    printed = launch(SHARDED, tmp_path / "two", str(tmp_path), *settings, module=script)
    assert printed.count("took ") == 1, "one process prints"
    for rank in (0, 1):
        shards = json.loads((tmp_path / f"counts-{rank}").read_text())["shards"]
        assert len(shards) == sum(
            1 for block in random_model("t5").blocks() for _ in block.parameters()
        )
        assert set(shards) == {0.5}, "every process holds half of every layer's weights"
    same(tmp_path / "one", tmp_path / "two")
    cards = [json.loads((tmp_path / name / "prompt.json").read_text()) for name in ("one", "two")]
    assert cards[0]["backbone"] == cards[1]["backbone"], "the fingerprint of the whole model"


@pytest.mark.slow
def test_rows_are_shared_out_and_files_written_once(
    model: Path, toy_csv: Path, tmp_path: Path, run_two: RunTwo
) -> None:
    settings = [
        "tune",
        "--model",
        str(model),
        "--train",
        str(toy_csv),
        "--preset",
        "residual",
        *SETTINGS,
        "--clip",
        "0.5",
    ]
    alone(tmp_path / "one", *settings)
    counted = [str(tmp_path), *settings, "--trackers", "tensorboard"]
    two = run_two(tmp_path / "two", *counted, code=COUNTING)
    assert [process.returncode for process in two] == [0, 0], two[0].stderr
    assert [process.stdout.count("took ") for process in two] == [1, 0], "one process prints"
    same(tmp_path / "one", tmp_path / "two")
    first, second = (json.loads((tmp_path / f"counts-{rank}").read_text()) for rank in (0, 1))
    assert first["written"] == [5, 10, "prompt"]
    assert second["written"] == []
    assert first["evaluated"] + second["evaluated"] == 2 * 2, (
        "two held-out rows, two evaluations, each row by one process"
    )
    pairs = list(zip(first["read"], second["read"], strict=True))
    assert set(pairs) <= {(4, 3), (1, 1)}, (
        "seven rows as four and three; of a single row the second process's copy weighs nothing"
    )


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_processes(
    model: Path,
    toy_csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_two: RunTwo,
) -> None:
    settings = [
        "tune",
        "--model",
        str(model),
        "--train",
        str(toy_csv),
        "--preset",
        "prompt-tuning",
        *SETTINGS,
    ]

    def stop(run: Run, folder: Path) -> None:
        save_checkpoint(run, folder)
        sys.exit(9)

    with monkeypatch.context() as patch:
        patch.setattr("softprompts.tuning.cohort.save_checkpoint", stop)
        with pytest.raises(SystemExit):
            alone(tmp_path / "parts", *settings)
    assert run_two(tmp_path / "parts", *settings)[0].returncode == 0
    alone(tmp_path / "whole", *settings)
    same(tmp_path / "whole", tmp_path / "parts")
    changed = [*settings[:-2], "--max-length", "63"]
    refused = {"holds a run with other settings": run_two(tmp_path / "parts", *changed)}
    with exclusive(tmp_path / "parts"):
        refused["Another process is using"] = run_two(tmp_path / "parts", *settings)
    for message, two in refused.items():
        assert [process.returncode for process in two] == [2, 2], "all of them end"
        assert [process.stderr.count(message) for process in two] == [1, 0], "reported once"


def test_a_single_process_is_a_team() -> None:
    team = Team()
    assert team.is_main
    assert team.share([1, 2, 3]) == team.gather([1, 2, 3]) == [1, 2, 3]
    assert team.on_main(lambda: 5) == 5
