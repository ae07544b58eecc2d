"""The picture of a run's learning curve."""

import pytest

from softprompts.tuning.curve import curve_figure

pytest.importorskip("matplotlib")
HISTORY = [{"step": 100 * n, "loss": 3.0 / n, "accuracy": 20.0 * n} for n in (1, 2, 3)]


def test_scores_and_losses_have_their_own_panels_from_step_0() -> None:
    losses = [(10 * n, 3.0 / n) for n in range(1, 31)]
    scores, loss = curve_figure(HISTORY, losses, "accuracy", 14.7, "intent on t5-tiny").axes
    assert scores.get_xlim()[0] == loss.get_xlim()[0] == 0
    assert len(loss.lines[0].get_xdata()) == 30
    assert "majority class" in [text.get_text() for text in scores.get_legend().get_texts()]


def test_a_run_without_recorded_losses_shows_those_of_its_evaluations() -> None:
    _, loss = curve_figure(HISTORY, [], "accuracy", 14.7, "intent on t5-tiny").axes
    assert list(loss.lines[0].get_xdata()) == [100, 200, 300]
