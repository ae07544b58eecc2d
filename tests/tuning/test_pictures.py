"""The pictures in a run's folder: its learning curve and its confusion matrix."""

import datetime
from pathlib import Path
from typing import Any

import pytest

import softprompts
from softprompts.tasks.score_report import ScoreReport
from softprompts.tuning import pictures
from softprompts.tuning.pictures import confusion_figure, curve_figure

from ..conftest import drawing

pytest.importorskip("matplotlib")
HISTORY = [{"step": 100 * n, "loss": 3.0 / n, "accuracy": 20.0 * n} for n in (1, 2, 3)]
LEVELS = {"majority class": 14.7, "bag of words": 90.7}
TITLE = "demo: intent on t5-tiny"


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_scores_and_losses_have_their_own_panels_from_step_0() -> None:
    losses = [(10 * n, 3.0 / n) for n in range(1, 31)]
    untrained = {"step": 0, "accuracy": 99.0}
    figure = curve_figure([untrained, *HISTORY], losses, "accuracy", TITLE, LEVELS, 55.0)
    scores, loss = figure.axes
    assert scores.get_xlim() == loss.get_xlim()
    assert list(scores.lines[0].get_xdata()) == [0, 100, 200, 300]
    assert scores.lines[1].get_xdata() == [300], (
        "the untrained prompt is never the one that is kept"
    )
    (curve,) = loss.lines
    assert list(curve.get_ydata()) == [loss for _, loss in losses]
    assert list(curve.get_xdata())[:2] == [5.5, 15.5], "each in the middle of its interval"
    assert legend(scores) == [*("validation", "kept", "kept, test rows"), *LEVELS]
    assert figure.get_suptitle() == TITLE


def test_a_run_without_recorded_losses_shows_those_of_its_evaluations() -> None:
    scores, loss = curve_figure(HISTORY, [], "accuracy", TITLE, LEVELS).axes
    assert list(loss.lines[0].get_xdata()) == [50.5, 150.5, 250.5]
    assert "kept, test rows" not in legend(scores)


def test_a_run_of_no_steps_has_a_score_and_no_loss() -> None:
    scores, loss = curve_figure([{"step": 0, "loss": 0.0, "mcc": -40.0}], [], "mcc", "", {}).axes
    assert not loss.lines
    assert scores.get_ylim()[0] < -40


def test_long_labels_are_shortened_and_answers_without_a_label_have_a_column() -> None:
    labels = ["a" * 40, "b"]
    report = ScoreReport(
        rows=5,
        metrics={},
        intervals={},
        invalid=1,
        classes={label: {} for label in labels},
        confusion={labels[0]: {labels[0]: 3, "Monday": 1}, "b": {"b": 1}},
    )
    figure = confusion_figure(report, TITLE)
    axes = figure.axes[0]
    columns = [text.get_text() for text in axes.get_xticklabels()]
    assert columns == ["a" * 23 + "…", "b", "(no label)"]
    assert [text.get_text() for text in axes.texts] == ["3", "1", "1"]


@pytest.mark.parametrize(("steps", "first"), [(8, 0), (2, 2)])
def test_the_curve_of_a_run_begins_with_the_untrained_prompt_where_that_is_cheap(
    steps: int, first: int, toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    def recorded(*arguments: Any) -> Any:
        drawn.append(arguments)
        return curve_figure(*arguments)

    monkeypatch.setattr(pictures, "curve_figure", recorded)
    settings: dict[str, Any] = {
        "train": str(toy_csv),
        "text": "review",
        "label": "mood",
        "preset": "prompt-tuning",
        "prompt": {"length": 3},
        "steps": steps,
        "evaluate_every": 4,
        "batch_size": 4,
        "max_length": 40,
        "device": "cpu",
        "verbose": False,
        "output": tmp_path / "moods",
    }
    with drawing():
        softprompts.tune(**settings)
    ((history, losses, _, title, levels, _),) = drawn
    assert history[0]["step"] == first
    assert [step for step, _ in losses] == [*range(1, steps + 1)], "a short run has a curve too"
    assert title.splitlines() == [
        "moods: reviews.csv:mood on t5-tiny",
        f"prompt-tuning, seed 0, {datetime.date.today()}",
    ]
    assert list(levels) == ["majority class", "bag of words"]
    with drawing():
        softprompts.tune(**settings)
    assert len(drawn) == 1, "the pictures of a finished run are not drawn again"
