"""A cohort: many runs, one forward and backward pass, each with its result when run alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from softprompts.backbone import Backbone, load_backbone
from softprompts.backbone.dropout import row_uniforms
from softprompts.config import run_config
from softprompts.errors import UserError
from softprompts.tasks import load_task
from softprompts.tuning import Cohort, Run, microbatch
from softprompts.tuning.watch import Watcher

from ..models import random_model

MIXED: list[dict[str, Any]] = [
    {"preset": "prompt-tuning", "prompt": {"length": 1}, "seed": 0},
    {
        "preset": "prompt-tuning",
        "prompt": {"length": 20},
        "seed": 1,
        "tuning": {"lr": 0.1, "clip": 0.5},
    },
    {
        "preset": "prompt-tuning",
        "prompt": {"length": 100},
        "seed": 2,
        "tuning": {"schedule": "constant", "optimizer": "adafactor"},
    },
    {"preset": "residual", "prompt": {"length": 5}, "seed": 3, "tuning": {"batch_size": 3}},
    {
        "preset": "smop",
        "prompt": {"length": 2, "count": 3},
        "seed": 4,
        "tuning": {"accumulate": 2, "batch_size": 4},
    },
    {"preset": "mixture", "prompt": {"length": 4}, "seed": 5, "tuning": {"z_loss": 1e-3}},
    {"preset": "p-tuning", "prompt": {"length": 3}, "seed": 6, "tuning": {"steps": 3}},
    {"preset": "prompt-tuning", "prompt": {"length": 6, "place": "suffix"}, "seed": 7},
]
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make(csv: Path, backbone: Backbone, *settings: dict[str, Any], **tuning: Any) -> list[Run]:
    runs = []
    for own in settings:
        task = {"train": str(csv), "text": "review", "label": "mood"}
        base = {
            "task": task,
            "tuning": {
                "steps": 4,
                "batch_size": 8,
                "max_length": 128,
                "evaluate_every": 2,
                **tuning,
            },
        }
        config = run_config(base, own)
        runs.append(Run(config, load_task(config.task), backbone))
    return runs


def assert_same(one: Run, other: Run, tolerance: float = 1e-4) -> None:
    assert (one.step, one.stopped, len(one.history)) == (
        other.step,
        other.stopped,
        len(other.history),
    )
    for left, right in zip(one.history, other.history, strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=tolerance)
        assert left[one.metric] == right[one.metric]
    if one.failed:
        return
    # by norm: Adam takes full steps for gradients that are zero up to rounding
    for name, value in one.state().items():
        distance = (value - other.state()[name]).norm() / other.state()[name].norm().clamp(min=1e-6)
        assert float(distance) < 10 * tolerance, name


def compare(
    csv: Path,
    backbone: Backbone,
    settings: list[dict[str, Any]],
    tolerance: float = 1e-4,
    **tuning: Any,
) -> list[Run]:
    together, alone = (
        make(csv, backbone, *settings, **tuning),
        make(csv, backbone, *settings, **tuning),
    )
    Cohort(together, [None] * len(together)).train()
    for run in alone:
        Cohort([run], [None]).train()
    for one, other in zip(together, alone, strict=True):
        assert_same(one, other, tolerance)
    return together


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama", "bert", "deberta", "minilm"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_each_run_equals_the_run_alone(kind: str, dropout: float, toy_csv: Path) -> None:
    """Lengths, methods, optimisers, schedules, clipping, accumulation and places mixed.

    With dropout, too: what a row drops follows from its run's seed, so it does not depend on the
    other runs.
    """
    runs = compare(toy_csv, random_model(kind), MIXED, dropout=dropout)
    assert [run.step for run in runs] == [4] * 6 + [3] + [4]


@gpu
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_each_run_equals_the_run_alone_on_a_gpu_with_dropout(kind: str, toy_csv: Path) -> None:
    backbone = random_model(kind)
    backbone.model.to("cuda")
    compare(toy_csv, backbone, MIXED, tolerance=1e-3, dropout=0.1)


def test_one_pass_reads_the_rows_of_all_runs(
    t5: Backbone, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = type(t5).gradients

    def counted(self: Backbone, vectors: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        sizes.append(len(vectors))
        return real(self, vectors, *rest)

    monkeypatch.setattr(type(t5), "gradients", counted)
    runs = make(toy_csv, t5, *({"preset": "prompt-tuning", "seed": seed} for seed in range(5)))
    Cohort(runs, [None] * 5).step()
    assert sizes == [40]


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_failed_run_stops_and_does_not_affect_the_others(kind: str, toy_csv: Path) -> None:
    settings = [
        {
            "preset": "prompt-tuning",
            "prompt": {"length": 4},
            "tuning": {"lr": lr, "schedule": "constant", "steps": 30},
        }
        for lr in (0.1, 1e30, 0.2)
    ]
    backbone = random_model(kind)
    good, bad, other = compare(toy_csv, backbone, settings, evaluate_every=15)
    assert bad.failed
    assert bad.stopped is not None
    assert bad.step < 30
    assert good.step == other.step == 30
    assert not good.failed
    assert not other.failed
    for run in (good, other):
        assert all(bool(value.isfinite().all()) for value in run.state().values())


def test_nan_from_the_first_step_does_not_affect_the_others(t5: Backbone, toy_csv: Path) -> None:
    settings = [
        {"preset": "prompt-tuning", "prompt": {"length": 4}, "seed": seed} for seed in range(3)
    ]
    runs, alone = make(toy_csv, t5, *settings, steps=20), make(toy_csv, t5, *settings, steps=20)
    with torch.no_grad():
        runs[1].prompt.table[0, 0, 0] = float("nan")
    Cohort(runs, [None] * 3).train()
    for index in (0, 2):
        Cohort([alone[index]], [None]).train()
        assert_same(runs[index], alone[index])
    assert runs[1].failed


def test_a_run_that_runs_out_of_patience_stops(toy_csv: Path, t5: Backbone) -> None:
    settings = [
        {"preset": "prompt-tuning", "tuning": {"patience": 1, "lr": 1e-9, "shape_lr": None}},
        {"preset": "residual", "seed": 1},
    ]
    runs = compare(toy_csv, t5, settings, steps=12)
    assert runs[0].stopped is not None
    assert runs[0].step < runs[1].step == 12


@pytest.mark.parametrize("kind", ["t5", "gpt2", "minilm"])
def test_rows_that_do_not_fit_into_memory_are_split(
    kind: str, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = random_model(kind)
    settings = MIXED[:5]
    together, alone = make(toy_csv, backbone, *settings), make(toy_csv, backbone, *settings)
    seen: list[int] = []
    for family in type(backbone).__mro__:
        if "gradients" in vars(family):
            real = vars(family)["gradients"]

            def small(self: Backbone, vectors: Tensor, *rest: Any, real: Any = real) -> Any:
                if len(vectors) > 6:
                    seen.append(len(vectors))
                    raise torch.OutOfMemoryError("out of memory")
                return real(self, vectors, *rest)

            monkeypatch.setattr(family, "gradients", small)
            break
    cohort = Cohort(together, [None] * len(together))
    cohort.step()
    first = len(seen)
    cohort.train()
    monkeypatch.undo()
    for run in alone:
        Cohort([run], [None]).train()
    for one, other in zip(together, alone, strict=True):
        assert_same(one, other)
    assert first > 0
    assert len(seen) < 4 * first, "what did not fit is remembered"


def test_rows_that_cannot_be_embedded_together_are_split(
    t5: Backbone, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, alone = make(toy_csv, t5, *MIXED[:5]), make(toy_csv, t5, *MIXED[:5])
    most = max(run.config.tuning.batch_size for run in together)
    real, refused = type(t5).embed_rows, []

    def small(self: Backbone, rows: Any, *rest: Any) -> Any:
        if len(rows) > most:
            refused.append(len(rows))
            raise torch.OutOfMemoryError("out of memory")
        return real(self, rows, *rest)

    monkeypatch.setattr(type(t5), "embed_rows", small)
    Cohort(together, [None] * len(together)).train()
    monkeypatch.undo()
    assert refused
    for one, other in zip(together, alone, strict=True):
        Cohort([other], [None]).train()
        assert_same(one, other)


def test_a_row_that_never_fits_is_a_clear_error(
    t5: Backbone, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(type(t5), "gradients", never)
    with pytest.raises(UserError, match="A single row does not fit"):
        Cohort(make(toy_csv, t5, MIXED[1]), [None]).step()


@pytest.mark.parametrize("kind", ["t5", "bart", "llama", "bert"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recomputed_activations_change_nothing(kind: str, dropout: float, toy_csv: Path) -> None:
    check_recomputed(toy_csv, random_model(kind), dropout, 1e-5)


@gpu
def test_recomputed_activations_change_nothing_on_a_gpu_with_dropout(toy_csv: Path) -> None:
    check_recomputed(toy_csv, load_backbone(dtype="fp32", device="cuda"), 0.1, 1e-3)


def check_recomputed(csv: Path, backbone: Backbone, dropout: float, tolerance: float) -> None:
    (kept,), (again,) = (
        make(csv, backbone, MIXED[5], recompute=flag, dropout=dropout) for flag in (False, True)
    )
    for run in (kept, again):
        Cohort([run], [None]).train()
    assert_same(kept, again, tolerance)


def test_seeded_dropout_has_its_rate_and_no_pattern() -> None:
    chance = row_uniforms(torch.arange(64), (33, 47))
    assert 0 <= float(chance.min()) <= float(chance.max()) <= 1
    for rate in (0.1, 0.5):
        kept = (chance >= rate).float()
        assert float(kept.mean()) == pytest.approx(1 - rate, abs=0.005)
        for side in (0, 1, 2):
            means = kept.mean(dim=[other for other in range(3) if other != side])
            assert (
                float(means.std())
                < 3 * (rate * (1 - rate) / (kept.numel() / kept.shape[side])) ** 0.5
            )
        centred = kept - kept.mean()
        for shift in ((0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, -1), (1, -1, 0)):
            assert (
                abs(float((centred * centred.roll(shift, (0, 1, 2))).mean()))
                < 0.01 * rate * (1 - rate) * 3
            )


def test_the_passes_of_a_padded_family_have_little_padding(toy_csv: Path) -> None:
    runs = make(toy_csv, random_model("bart"), MIXED[0], MIXED[2])
    text = runs[0].backbone.embed_rows([[5] * size for size in (3, 4, 90, 95)])
    rows = [microbatch._Row(runs[0], index, [1], 1.0, 0) for index in range(4)]
    together = microbatch._split(rows, torch.zeros(4, 1, 32), text, microbatch.TokenBudget())
    assert [[row.position for row in group] for group in together] == [[0, 1, 2, 3]], (
        "too few tokens to split"
    )
    limited = microbatch._split(rows, torch.zeros(4, 1, 32), text, microbatch.TokenBudget(100))
    assert sorted(row.position for group in limited for row in group) == [0, 1, 2, 3]
    assert all(
        len(group) * max(int(text.lengths[row.position]) + 1 for row in group) <= 100
        for group in limited
    )  # type: ignore[index]


def test_whole_models_are_tuned_one_at_a_time(toy_csv: Path) -> None:
    backbone = random_model("t5")
    whole = make(toy_csv, backbone, {"preset": "model-tuning"})
    with pytest.raises(UserError, match="one at a time"):
        Cohort([*whole, *whole], [None, None])


def test_a_tuned_model_is_packed_again(toy_csv: Path) -> None:
    """What was computed from its weights before they changed is computed again."""
    backbone = random_model("t5")
    text, vectors = backbone.embed_rows([[5, 6, 7, 1], [8, 1]]), torch.randn(2, 3, backbone.hidden)
    asked = (vectors, text, [[9, 1], [10, 1]], torch.ones(2), torch.zeros(2))
    backbone.gradients(*asked)
    (run,) = make(toy_csv, backbone, {"preset": "model-tuning"}, lr=0.1)
    Cohort([run], [None]).train()
    run.restore_best()
    text = backbone.embed_rows([[5, 6, 7, 1], [8, 1]])
    plain = Backbone.padded_gradients(backbone, vectors, text, *asked[2:])
    torch.testing.assert_close(
        backbone.gradients(vectors, text, *asked[2:])[0], plain[0], rtol=1e-5, atol=1e-5
    )


def test_evaluation_uses_smaller_batches_when_memory_is_short(
    t5: Backbone, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wanted,), (run,) = (make(toy_csv, t5, MIXED[1]) for _ in range(2))
    Cohort([wanted], [None]).train()
    real = type(t5).generate

    def small(self: Backbone, prompt: Tensor, text: Any, limit: Any) -> Tensor:
        if len(text.mask) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return real(self, prompt, text, limit)

    monkeypatch.setattr(type(t5), "generate", small)
    Cohort([run], [None]).train()
    assert_same(run, wanted)


def test_steps_are_recorded_only_if_enough_of_them_are_left(
    toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 in one of the runs, not counting those that a resumed run has done."""
    runs = make(toy_csv, random_model("gpt2"), MIXED[0], MIXED[1])
    calls: list[dict[str, bool]] = []
    monkeypatch.setattr(runs[0].backbone, "accelerate", lambda **options: calls.append(options))
    for steps, done, expected in ((49, 0, 0), (50, 0, 1), (59, 10, 0), (60, 10, 1)):
        runs[1].steps, runs[1].step = steps, done
        calls.clear()
        Cohort(runs, [None, None])
        assert calls == [{}] * expected, "recorded, not compiled"


def test_layers_are_compiled_only_if_much_training_is_left(
    toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 steps took 10 s; compiling pays off if 75 s or more are left."""
    (run,) = make(toy_csv, random_model("gpt2"), MIXED[0])
    packed = SimpleNamespace(recorded=True, compiled=False, graphs=SimpleNamespace(seconds=2.0))
    calls: list[bool] = []
    monkeypatch.setattr(run.backbone, "accelerate", lambda compile: calls.append(compile))
    messages: list[str] = []
    watcher = Watcher()
    watcher.on_message = messages.append  # type: ignore[method-assign]
    cohort = Cohort([run], [None], watcher)
    run.backbone.packed = packed  # type: ignore[assignment]
    monkeypatch.setattr(cohort.phases, "seconds", lambda: {"train": 12.0})
    for steps, expected in ((740, 0), (760, 1)):
        run.steps = steps
        cohort._compile_if_long([run], 100)
        assert len(calls) == expected
    assert messages == ["compiling the model, because about 76 s of training are left"]
    packed.compiled = True
    cohort._compile_if_long([run], 100)
    assert len(calls) == 1, "not again"
