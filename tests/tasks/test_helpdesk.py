"""The starter data has the sizes, classes and variety that its README promises."""

import csv
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

import softprompts.tasks.starter as starter
from softprompts.cli import main
from softprompts.config import TaskConfig
from softprompts.tasks import load_task
from softprompts.tasks.named import named_split
from softprompts.tasks.registry import definition

FOLDER = Path(starter.__file__).parent / "helpdesk"
CLASSES = {"intent": 8, "urgency": 3, "sentiment": 3, "area": 5, "answerable": 2, "register": 2}


def messages() -> list[dict[str, str]]:
    return [
        json.loads(line)
        for name in ("train", "validation")
        for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize("label", CLASSES)
def test_sizes_and_classes(label: str) -> None:
    task = load_task(TaskConfig(task=f"helpdesk/{label}"))
    assert len(task.train) >= 800
    assert len(task.validation) >= 200
    assert len(task.labels) == CLASSES[label]
    assert set(task.labels) == {e.target for e in task.train} == {e.target for e in task.validation}
    counts = Counter(e.target for e in task.train).most_common()
    assert counts[-1][1] >= len(task.train) / 12, "no class is rare"


@pytest.mark.parametrize("label", CLASSES)
def test_the_definition_is_the_task_that_is_tuned(label: str) -> None:
    task = load_task(TaskConfig(task=f"helpdesk/{label}"))
    defined = definition(f"helpdesk/{label}")
    assert list(defined.labels) == task.labels
    assert defined.metrics == task.metrics
    assert named_split(defined, "train", None) == task.train
    assert named_split(defined, "validation", None) == task.validation


def test_the_tasks_command_knows_the_starter_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are the only tasks that need no download."""
    assert main(["tasks", "show", "helpdesk/intent"]) == 0
    shown = capsys.readouterr().out
    assert "its rows are included" in shown
    assert "[Voicemail, partly garbled]" in shown
    assert main(["tasks", "show", "helpdesk/intent", "--json"]) == 0
    task = json.loads(capsys.readouterr().out)
    assert (task["labels"][0], task["columns"], task["word"], task["examples"]) == (
        "cancel",
        ["text"],
        None,
        1905,
    )
    assert main(["tasks", "export", "helpdesk/intent", "--split", "validation"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 300
    (tmp_path / "gold.txt").write_text("".join(line["target"] + "\n" for line in lines))
    assert (
        main(["tasks", "score", "helpdesk/intent", "--predictions", str(tmp_path / "gold.txt")])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == {"accuracy": 100.0, "macro_f1": 100.0}
    table = tmp_path / "intent.csv"
    export = ["tasks", "export", "helpdesk/intent", "--split", "validation", "--output"]
    assert main([*export, str(table)]) == 0
    with table.open(newline="") as file:
        assert list(csv.DictReader(file)) == lines
    assert main([*export, str(tmp_path / "intent.txt")]) == 2
    capsys.readouterr()
    assert main(["tasks", "export", "helpdesk/intent", "--split", "test"]) == 2
    assert (
        "helpdesk/intent has no split 'test'; it has train, validation." in capsys.readouterr().err
    )


def test_near_duplicates_are_under_one_per_cent() -> None:
    def grams(text: str) -> frozenset[tuple[str, ...]]:
        words = re.sub(r"\W+", " ", text.lower()).split()
        return frozenset(tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2)))

    texts = [grams(message["text"]) for message in messages()]
    holders: dict[tuple[str, ...], list[int]] = {}
    for index, text_grams in enumerate(texts):
        for gram in text_grams:
            holders.setdefault(gram, []).append(index)
    pairs = {pair for indices in holders.values() for pair in itertools.combinations(indices, 2)}
    similar = [
        pair
        for pair in pairs
        if len(texts[pair[0]] & texts[pair[1]]) / len(texts[pair[0]] | texts[pair[1]]) > 0.4
    ]
    assert len(similar) < 0.01 * len(texts)


def test_long_and_short() -> None:
    words = sorted(len(message["text"].split()) for message in messages())
    assert words[len(words) // 5] <= 12
    assert words[-len(words) // 10] >= 50
    openings = Counter(" ".join(message["text"].lower().split()[:3]) for message in messages())
    assert openings.most_common(1)[0][1] < 0.02 * len(words)
