"""Tasks and metrics of other packages work like those of this one."""

import json
from pathlib import Path

import pytest

from softprompts.cli import main
from softprompts.config import TaskConfig, plugins
from softprompts.errors import UserError
from softprompts.tasks import (
    Example,
    load_task,
    metrics,
    register_metric,
    register_task,
    registry,
)
from softprompts.tasks.load import preview_task
from softprompts.tasks.metrics import has_metric, score
from softprompts.tasks.named import has_rows

PLUGIN = '''
from softprompts.tasks import Example, register_metric, register_task

def load(split):
    sizes = {"train": 40, "validation": 10}
    return [{"number": n, "parity": ("even", "odd")[n % 2]} for n in range(sizes.get(split, 0))]

@register_task(
    "mine/parity", rows=load, labels=("even", "odd"), columns=("number",), metrics=("first", "f1")
)
def parity(row, split):
    yield Example(f"number: {row.values['number']}", row.values["parity"])

@register_metric("first")
def first(examples, predictions, labels):
    """Whether the first letters agree."""
    pairs = zip(examples, predictions, strict=True)
    return 100 * sum(e.target[0] == p[:1] for e, p in pairs) / len(examples)
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin in a file of its own, which nothing has imported yet."""
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    monkeypatch.setenv(plugins.VARIABLE, str(path))
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("name", ["mine/parity", "parity"])
def test_a_task_of_a_plugin_is_loaded_with_its_own_rows_and_metric(name: str) -> None:
    task = load_task(TaskConfig(task=name))
    assert task.name == "mine/parity"
    assert (len(task.train), len(task.validation)) == (40, 10)
    assert task.train[3] == Example("parity number: 3", "odd")
    assert task.metrics == ("first", "f1")
    assert task.score(["e", "o"] * 5)["first"] == 100.0
    assert has_rows(name, None)
    capped = load_task(TaskConfig(task=name, cap=5, splits="smop", task_word=False))
    assert (len(capped.train), len(capped.validation), len(capped.test)) == (5, 4, 10)
    assert capped.test[1].input == "number: 1"
    assert len(preview_task(TaskConfig(task=name)).train) == 1


@pytest.mark.usefixtures("plugin")
def test_a_task_of_a_plugin_can_be_mixed() -> None:
    mixed = load_task(TaskConfig(task="mine/parity+helpdesk/urgency", shots=2))
    assert mixed.member_sizes == (4, 6)
    assert "mine/parity:first" in mixed.metrics


@pytest.mark.usefixtures("plugin")
def test_a_metric_of_a_plugin_can_be_chosen_for_any_task() -> None:
    assert has_metric("first")
    task = load_task(TaskConfig(task="helpdesk/urgency", metric="first"))
    assert task.metrics == ("first", "accuracy", "macro_f1")
    assert set(task.majority()) == {"first", "accuracy", "macro_f1"}


@pytest.mark.usefixtures("plugin")
def test_the_tasks_command_knows_the_tasks_of_plugins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "list", "--json"]) == 0
    assert "mine/parity" in json.loads(capsys.readouterr().out)["tasks"]
    assert main(["tasks", "export", "mine/parity", "--split", "validation"]) == 0
    examples = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    predictions = tmp_path / "predictions.txt"
    predictions.write_text("".join(example["target"] + "\n" for example in examples))
    assert main(["tasks", "score", "parity", "--predictions", str(predictions)]) == 0
    assert json.loads(capsys.readouterr().out) == {"first": 100.0, "f1": 100.0}
    assert main(["tasks", "show", "mine/parity", "--split", "test"]) == 2
    assert "mine/parity has no split 'test'" in capsys.readouterr().err


def test_without_the_plugin_its_names_are_unknown() -> None:
    with pytest.raises(UserError, match="There is no task 'mine/parity'"):
        load_task(TaskConfig(task="mine/parity"))
    with pytest.raises(UserError, match="There is no metric 'first'; choose one of accuracy"):
        score(("first",), [], [], [])
    assert not has_metric("first")


def test_names_of_the_package_cannot_be_taken() -> None:
    for name in ("superglue/rte", "helpdesk/intent", "a+b"):
        with pytest.raises(UserError, match="choose another name without a"):
            register_task(name, hub="x")
    with pytest.raises(UserError, match="register it with rows, files or hub"):
        register_task("mine/nothing")
    with pytest.raises(UserError, match="There already is a metric 'f1'"):
        register_metric("f1")(lambda examples, predictions, labels: 0.0)
