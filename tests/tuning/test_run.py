"""The training loop: it learns, resumes bit for bit, survives a kill, stops failing runs, and keeps
runs apart."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone, load_backbone
from softprompts.cli import main
from softprompts.config import PRESETS, RunConfig, TaskConfig, run_config
from softprompts.errors import UserError
from softprompts.files import atomic as files
from softprompts.files.tensors import read_tensors, write_tensors
from softprompts.tasks import load_task
from softprompts.tuning import Cohort, Run, RunFailedError, Watcher
from softprompts.tuning.evaluate import label_spellings
from softprompts.tuning.microbatch import MicroBatch, TokenBudget, backward
from softprompts.tuning.run import check_losses
from softprompts.tuning.tune import tune_config

from ..conftest import write_toy
from ..models import random_model
from ..processes import ForkServer


def config(toy: Path, preset: str = "prompt-tuning", seed: int = 0, **tuning: Any) -> RunConfig:
    settings = {
        "steps": 12,
        "batch_size": 6,
        "evaluate_every": 4,
        "checkpoint_every": 4,
        "lr": 0.1,
        **tuning,
    }
    task = {"train": str(toy), "text": "review", "label": "mood"}
    length = 0 if preset == "model-tuning" else 4
    return run_config(
        {
            "preset": preset,
            "task": task,
            "tuning": settings,
            "seed": seed,
            "prompt": {"length": length},
        }
    )


class Watch(Watcher):
    """Records the steps it sees, and interrupts at one, like Ctrl-C."""

    def __init__(self, stop: int = -1, during: str = "step") -> None:
        self.stop, self.during, self.steps = stop, during, list[int]()

    def on_step(self, run: Run) -> None:
        self.steps.append(run.step)
        if run.step == self.stop and self.during == "step":
            raise KeyboardInterrupt

    def on_rows_answered(self, run: Run, rows: int) -> None:
        if run.step == self.stop and self.during == "evaluation":
            raise KeyboardInterrupt

    def on_evaluation(self, run: Run) -> None: ...


LEARNING = [name for name in PRESETS if name != "prompt-design"]


def model_for(preset: str) -> Backbone:
    return random_model("minilm" if preset == "residual-bert" else "t5")


@pytest.mark.parametrize("preset", LEARNING)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dropout": 0.1, "accumulate": 2, "clip": 1.0, "z_loss": 1e-4},
        {"optimizer": "adafactor"},
    ],
    ids=str,
)
def test_an_interrupted_run_resumes_bit_for_bit(
    toy_csv: Path, tmp_path: Path, preset: str, settings: dict[str, Any]
) -> None:
    wanted = config(toy_csv, preset, **settings)
    whole = tune_config(wanted, tmp_path / "whole", backbone=model_for(preset))
    for stop in (Watch(7), Watch(8, "evaluation"), Watch(12, "evaluation")):
        with pytest.raises(KeyboardInterrupt):
            tune_config(wanted, tmp_path / "parts", watcher=stop, backbone=model_for(preset))
    last = Watch()
    parts = tune_config(wanted, tmp_path / "parts", watcher=last, backbone=model_for(preset))
    assert last.steps == [9, 10, 11, 12], (
        "it goes on from the checkpoint of step 8, not from the start"
    )
    assert (whole.cost or {})["from_step"] == 0
    assert (parts.cost or {})["from_step"] == 8
    for name in ("checkpoint.safetensors", "prompt.safetensors"):
        one, other = (read_tensors(tmp_path / place / name)[0] for place in ("whole", "parts"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    assert (tmp_path / "whole" / "metrics.jsonl").read_bytes() == (
        tmp_path / "parts" / "metrics.jsonl"
    ).read_bytes()
    assert whole.card == parts.card


def test_a_finished_run_is_not_run_again(t5: Backbone, toy_csv: Path, tmp_path: Path) -> None:
    first = tune_config(config(toy_csv), tmp_path, backbone=t5)
    watch = Watch()
    assert tune_config(config(toy_csv), tmp_path, watcher=watch, backbone=t5).card == first.card
    assert watch.steps == []


def test_data_that_changed_since_is_noticed(t5: Backbone, toy_csv: Path, tmp_path: Path) -> None:
    tune_config(config(toy_csv), tmp_path / "r", backbone=t5)
    with toy_csv.open("a") as file:
        file.write("so so,mixed\n" * 9)
    with pytest.raises(UserError, match=r"The data of the run in .* has changed"):
        tune_config(config(toy_csv), tmp_path / "r", backbone=t5)


def test_parameters_that_are_not_finite_never_reach_a_checkpoint(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    class Ruin(Watch):
        def on_step(self, run: Run) -> None:
            if run.step == 7:
                run.prompt.table.data.fill_(float("nan"))

    with pytest.raises(RunFailedError):
        tune_config(config(toy_csv, evaluate_every=100), tmp_path, watcher=Ruin(), backbone=t5)
    tensors, note = read_tensors(tmp_path / "checkpoint.safetensors")
    assert note["step"] == 4
    assert bool(torch.isfinite(tensors["state/prompt/table"]).all())


def test_accumulation_equals_one_large_batch(t5: Backbone, toy_csv: Path) -> None:
    task = load_task(config(toy_csv).task)
    one = Run(config(toy_csv, batch_size=24, steps=3), task, t5)
    many = Run(config(toy_csv, batch_size=24, steps=3), task, t5)
    for _ in range(3):
        Cohort([one], [None]).step()
    full = many.batches[0]
    for step in range(3):  # the same 24 rows in four parts
        rows = many.batches[step]
        tokens = sum(map(len, many.targets.read(rows)))
        for part in range(4):
            own = rows[part * 6 : part * 6 + 6]
            backward(
                [
                    MicroBatch(
                        many,
                        many.inputs.read(own),
                        many.targets.read(own),
                        tokens,
                    )
                ],
                TokenBudget(),
            )
        for group, like in zip(
            many.optimizer.param_groups, one.optimizer.param_groups, strict=True
        ):
            from softprompts.tuning.optim import learning_rate

            group["lr"] = learning_rate(many.config.tuning, step, 3) * like["base_lr"]
        many.optimizer.step()
        many.optimizer.zero_grad()
    assert len(full) == len(task.train)
    torch.testing.assert_close(many.prompt.table, one.prompt.table, rtol=1e-4, atol=1e-5)


def test_a_run_that_becomes_nan_is_stopped_and_does_not_affect_the_others(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    task = load_task(config(toy_csv).task)
    good, bad = (
        Run(config(toy_csv, seed=1), task, t5),
        Run(config(toy_csv, lr=1e30, schedule="constant", warmup=0), task, t5),
    )
    Cohort([good, bad], [None, RunFolder(tmp_path)]).train()
    assert good.stopped is None
    assert good.step == 12
    assert bad.failed
    assert bad.stopped is not None
    assert "lower lr (now 1e+30)" in bad.stopped
    assert not (tmp_path / "checkpoint.safetensors").exists(), "ruined numbers are not saved"
    with pytest.raises(RunFailedError, match="The run produced no prompt: the loss was not finite"):
        bad.restore_best()


def test_an_exploding_loss_is_stopped(t5: Backbone, toy_csv: Path) -> None:
    run = Run(config(toy_csv), load_task(config(toy_csv).task), t5)
    run._unchecked = [torch.tensor(3.0)] * 10
    check_losses([run])
    assert run.stopped is None
    run._unchecked = [torch.tensor(500.0)] * 10
    check_losses([run])
    assert run.stopped is not None
    assert "exploded to 500.0" in run.stopped


def test_the_learning_curve_has_the_mean_loss_of_each_interval(t5: Backbone, toy_csv: Path) -> None:
    run = Run(config(toy_csv, steps=250), load_task(config(toy_csv).task), t5)
    assert run.loss_ends() == {}
    for step in range(10, 41, 10):
        run.step = step
        run._unchecked = [torch.tensor(float(loss)) for loss in range(step - 10, step)]
        check_losses([run])
    assert [step for step, _ in run.losses] == [*range(3, 40, 3), 40], "a hundred of three steps"
    assert [loss for _, loss in run.losses][:2] == [1.0, 4.0]
    assert run.losses[-1] == (40, 39.0), "an interval that has begun"
    assert run.loss_ends() == {"first": 4.0, "last": pytest.approx((34 + 37 + 39) / 3)}


def test_patience_stops_and_the_best_prompt_is_kept(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    tuned = tune_config(
        config(toy_csv, steps=400, evaluate_every=1, patience=3, lr=1e-9), tmp_path, backbone=t5
    )
    assert tuned.card.stopped == "no better accuracy in 3 evaluations"
    assert (tuned.card.steps, tuned.card.best_step) == (4, 1)
    watch = Watch()
    again = tune_config(
        config(toy_csv, steps=400, evaluate_every=1, patience=3, lr=1e-9),
        tmp_path,
        watcher=watch,
        backbone=t5,
    )
    assert again.card == tuned.card
    assert watch.steps == [], "a run that stopped is not run on"


def test_the_best_prompt_is_what_is_saved(t5: Backbone, toy_csv: Path) -> None:
    run = Run(config(toy_csv, steps=30, evaluate_every=3), load_task(config(toy_csv).task), t5)
    Cohort([run], [None]).train()
    run.restore_best()
    predictions = run.predictor().answers(run.held_out)
    assert (
        run.task.score(predictions)["accuracy"]
        == run.best_entry["accuracy"]
        == max(e["accuracy"] for e in run.history)
    )


def test_dropout_draws_from_the_runs_own_generator(t5: Backbone, toy_csv: Path) -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(int(time.time() * 1e6) % 2**31)
        run = Run(config(toy_csv, dropout=0.3), load_task(config(toy_csv).task), t5)
        torch.rand(3)
        Cohort([run], [None]).train()
        runs.append(run)
    assert torch.equal(runs[0].prompt.table, runs[1].prompt.table)
    quiet = Run(config(toy_csv), load_task(config(toy_csv).task), t5)
    Cohort([quiet], [None]).train()
    assert not torch.equal(runs[0].prompt.table, quiet.prompt.table)


def test_other_settings_in_the_same_folder_are_refused(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    tune_config(config(toy_csv), tmp_path, backbone=t5)
    with pytest.raises(UserError, match=r"other settings \(lr was 0.1 and is now 0.2\)"):
        tune_config(config(toy_csv, lr=0.2), tmp_path, backbone=t5)
    replaced = tune_config(config(toy_csv, lr=0.2), tmp_path, overwrite=True, backbone=t5)
    assert replaced.card.config["tuning"]["lr"] == 0.2


def test_a_truncated_checkpoint_is_a_clear_error(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune_config(config(toy_csv), tmp_path, watcher=Watch(7), backbone=t5)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="corrupted"):
        tune_config(config(toy_csv), tmp_path, backbone=t5)


def test_a_prompt_longer_than_the_budget_is_a_clear_error(
    t5: Backbone, bart: Backbone, toy_csv: Path
) -> None:
    task = load_task(config(toy_csv).task)
    with pytest.raises(UserError, match="leaves 1 tokens"):
        Run(config(toy_csv, max_length=5), task, t5)
    with pytest.raises(UserError, match="takes at most 128 tokens"):
        Run(config(toy_csv, max_length=512), task, bart)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """A command, and the folder of its run, which was not killed."""
    home = tmp_path_factory.mktemp("uninterrupted")
    command = [
        *("tune", "--train", str(write_toy(home)), "--text", "review", "--label", "mood"),
        *("--steps", "30", "--batch-size", "4", "--evaluate-every", "5", "--checkpoint-every", "5"),
        *("--prompt.length", "4", "--max-length", "32", "--device", "cpu", "--output"),
    ]
    assert main([*command, str(home / "whole")]) == 0
    return command, home / "whole"


def test_kill_9_loses_at_most_the_steps_since_the_last_checkpoint(
    uninterrupted: tuple[list[str], Path], tmp_path: Path, torch_server: ForkServer
) -> None:
    """A real process, killed at any moment, twice; the same command then finishes with the same
    result."""
    parts, whole = tmp_path / "parts", uninterrupted[1]
    command, steps = [*uninterrupted[0], str(parts)], [0]
    for moment in (0.05, 0.3):
        with torch_server.start(command) as victim:
            deadline = time.time() + 60
            while victim.poll() is None and time.time() < deadline:
                if checkpoint_step(parts) > steps[-1]:
                    break
                time.sleep(0.01)
            time.sleep(moment)
        steps.append(checkpoint_step(parts))
    assert all(step % 5 == 0 for step in steps)
    assert 0 < steps[1] <= steps[2]
    left = files.temporary_path(parts / "checkpoint.safetensors", 999999999)
    left.write_bytes(b"left by a killed process")
    assert main(command) == 0
    one, other = (
        read_tensors(folder / "prompt.safetensors")[0]["vectors"] for folder in (parts, whole)
    )
    assert torch.equal(one, other)
    assert json.loads((parts / "prompt.json").read_text()) == json.loads(
        (whole / "prompt.json").read_text()
    )
    assert not left.exists()


def checkpoint_step(folder: Path) -> int:
    path = folder / "checkpoint.safetensors"
    return int(read_tensors(path)[1]["step"]) if path.exists() else 0


def test_tuning_leaves_the_backbone_as_it_was(t5: Backbone, toy_csv: Path) -> None:
    before = [p.clone() for p in t5.model.parameters()]
    tune_config(config(toy_csv, dropout=0.1), None, backbone=t5)
    assert all(torch.equal(a, b) for a, b in zip(before, t5.model.parameters(), strict=True))
    assert all(p.grad is None for p in t5.model.parameters())


def test_task_config_defaults_are_for_own_data() -> None:
    with pytest.raises(UserError, match="No training data is given"):
        load_task(TaskConfig())
    with pytest.raises(UserError, match="leave one out"):
        load_task(TaskConfig(task="helpdesk/intent", train="x.csv"))


def test_a_bf16_backbone_keeps_a_float32_prompt_and_learns(toy_csv: Path) -> None:
    backbone = load_backbone(dtype="bf16", device="cpu")
    run = Run(config(toy_csv, steps=12), load_task(config(toy_csv).task), backbone)
    assert run.prompt.table.dtype == torch.float32
    Cohort([run], [None]).train()
    assert run.prompt.table.dtype == torch.float32
    assert run.history[-1]["loss"] < run.history[0]["loss"]


def test_a_label_the_model_cannot_generate_is_a_clear_error(t5: Backbone, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(
        "".join(
            json.dumps({"review": f"t{i}", "mood": "𓂀" if i % 2 else "bad"}) + "\n"
            for i in range(20)
        )
    )
    message = r"cannot generate the label '𓂀'.*labels='bad=WORD,𓂀=WORD', or .*model='google/mt5"
    with pytest.raises(UserError, match=message):
        Run(config(path), load_task(config(path).task), t5)


def test_labels_are_matched_as_the_tokenizer_spells_them(t5: Backbone) -> None:
    ids = t5.tokenise_targets(["two  words", "other"])
    assert label_spellings(t5, ["two  words", "other"], ids) == {
        "two words": "two  words",
        "other": "other",
    }
    with pytest.raises(UserError, match="the same"):
        label_spellings(
            t5, ["two  words", "two words"], t5.tokenise_targets(["two  words", "two words"])
        )


def test_a_text_length_leaves_the_text_its_tokens_whatever_the_prompt(toy_csv: Path) -> None:
    t5, bert = random_model("t5"), random_model("bert")

    def budget(backbone: Backbone, length: int, **tuning: Any) -> int:
        plain = config(toy_csv, **tuning).plain()
        asked = run_config({**plain, "prompt": {"length": length}})
        return Run(asked, load_task(asked.task), backbone).predictor().budget

    assert budget(t5, 4) == 508
    assert budget(t5, 4, text_length=600) == budget(t5, 700, text_length=600) == 600
    assert budget(t5, 4, text_length=600, max_length=64) == 60
    assert bert.max_positions is not None
    assert budget(bert, 4, text_length=10_000) == bert.max_positions - 4


def test_only_truncated_texts_are_counted(t5: Backbone, toy_csv: Path) -> None:
    task = load_task(config(toy_csv).task)
    longest = max(len(ids) for ids in t5.tokenise([e.input for e in task.train], 400))
    for budget, truncates in ((longest + 4, False), (longest + 3, True)):
        run = Run(config(toy_csv, max_length=budget), task, t5)
        assert run.cut_texts == 0, "none is read yet"
        run.step = run.steps
        assert bool(run.cut_texts) == truncates


def test_epochs_are_never_cut_short(t5: Backbone, toy_csv: Path) -> None:
    task = load_task(config(toy_csv).task)
    assert len(task.train) == 22
    assert Run(config(toy_csv, epochs=1, batch_size=5, accumulate=2), task, t5).steps == 3
    assert Run(config(toy_csv, epochs=2, batch_size=11), task, t5).steps == 4


@pytest.mark.parametrize("preset", LEARNING)
def test_two_threads_give_the_same_run_twice(toy_csv: Path, preset: str) -> None:
    torch.set_num_threads(2)
    try:
        tables = []
        for _ in range(2):
            run = Run(
                config(toy_csv, preset, batch_size=22),
                load_task(config(toy_csv).task),
                model_for(preset),
            )
            Cohort([run], [None]).train()
            tables.append(run.prompt.table.detach().clone())
    finally:
        torch.set_num_threads(1)
    assert torch.equal(*tables)


def test_a_resumed_run_does_not_need_its_source(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    source = tune_config(config(toy_csv), tmp_path / "source", backbone=t5)
    assert source.folder is not None
    started = {
        "prompt": {"length": 4, "start": {"kind": "prompt", "sources": [str(source.folder)]}}
    }
    wanted = run_config(config(toy_csv).plain(), started)
    with pytest.raises(KeyboardInterrupt):
        tune_config(wanted, tmp_path / "target", watcher=Watch(7), backbone=t5)
    shutil.rmtree(source.folder)
    assert tune_config(wanted, tmp_path / "target", backbone=t5).card.steps == 12


@pytest.mark.parametrize(
    "change", [{"step": -5}, {"step": "x"}, {"history": 5}, {"first": None, "step": 99}], ids=str
)
def test_an_edited_checkpoint_is_a_clear_error(
    t5: Backbone, toy_csv: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune_config(config(toy_csv), tmp_path, watcher=Watch(7), backbone=t5)
    tensors, note = read_tensors(tmp_path / "checkpoint.safetensors")
    write_tensors(tmp_path / "checkpoint.safetensors", tensors, note | change)
    with pytest.raises(UserError, match="restart all runs with overwrite"):
        tune_config(config(toy_csv), tmp_path, backbone=t5)
