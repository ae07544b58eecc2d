"""What the README promises of `make demo`: with the defaults, far above the majority class."""

import json
from pathlib import Path

import pytest

import softprompts
from softprompts.artifacts.card import Card
from softprompts.cli import main
from softprompts.cli.output import describe_report
from softprompts.config import TaskConfig, run_config
from softprompts.tasks import load_task, score
from softprompts.tasks.score_report import baseline_predictions

from .conftest import GOLDEN

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
QUESTION = "My parcel was due on Monday and has still not come. Where is it?"
DEMO = GOLDEN / "demo"
"""The prompt of `softprompts tune --task helpdesk/intent`, with all its steps."""


def test_the_demo_learns_from_its_first_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the number of steps as in `make demo`."""
    quick = ["--steps", "25", "--evaluate-every", "20", "--cap-validation", "20"]
    command = ["tune", "--task", "helpdesk/intent", *quick, "--device", "cpu"]
    assert main([*command, "--output", str(tmp_path / "demo")]) == 0
    card = json.loads((tmp_path / "demo" / "prompt.json").read_text())
    assert card["loss"]["last"] < card["loss"]["first"] - 2
    recorded = Card.of_folder(DEMO)
    different = {"steps", "evaluate_every"}
    for section in ("prompt", "tuning"):
        ours = {k: v for k, v in card["config"][section].items() if k not in different}
        theirs = (run_config().plain()[section] | recorded.config[section]).items()
        assert ours == {k: v for k, v in theirs if k not in different}, "the record is of today's"
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "demo"), QUESTION, "--device", "cpu"]) == 0
    assert capsys.readouterr().out.strip()


def test_the_recorded_demo_scores_what_the_readme_shows() -> None:
    """Thirty points above the majority class, and its answer to the README's question."""
    tuned = softprompts.load(DEMO, device="cpu")
    task = load_task(TaskConfig(task="helpdesk/intent"))
    report = tuned.card.scores["validation"]
    lines = describe_report(report, "validation")
    assert "\n".join(["", *lines, ""]) in README
    accuracy_shown, (low, high) = report["metrics"]["accuracy"], report["intervals"]["accuracy"]
    rows = task.validation[:100]
    answers = tuned.predictor()([example.input for example in rows])
    accuracy = score(["accuracy"], rows, answers, task.labels)["accuracy"]
    assert low - 5 <= accuracy <= high + 5, "a third of its rows"
    baselines = {
        name: score(["accuracy"], task.validation, predictions, task.labels)["accuracy"]
        for name, predictions in baseline_predictions(task, task.validation).items()
    }
    majority, words = baselines["majority"], baselines["bag_of_words"]
    assert min(accuracy, accuracy_shown) >= majority + 30
    assert f"majority class {majority:.1f} (p < 0.001), bag of words {words:.1f}" in lines[1]
    assert (
        f'$ softprompts predict runs/demo "{QUESTION}"\n{tuned.predict([QUESTION])[0]}\n' in README
    )
