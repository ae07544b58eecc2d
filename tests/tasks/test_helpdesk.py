"""The embedded starter data keeps its promises."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

import softprompts.tasks.starter as starter
from softprompts.tasks import TaskConfig, load_task

FOLDER = Path(starter.__file__).parent / "helpdesk"
CLASSES = {"intent": 8, "urgency": 3, "sentiment": 3, "area": 5, "answerable": 2, "register": 2}


def messages() -> list[dict[str, str]]:
    return [json.loads(line) for name in ("train", "validation") for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("label", CLASSES)
def test_sizes_and_classes(label: str) -> None:
    task = load_task(TaskConfig(task=f"helpdesk/{label}"))
    assert len(task.train) >= 800
    assert len(task.validation) >= 200
    assert len(task.labels) == CLASSES[label]
    assert set(task.labels) == {e.target for e in task.train} == {e.target for e in task.validation}
    share = Counter(e.target for e in task.train).most_common()
    assert share[-1][1] >= len(task.train) / 12, "no class is a rarity"


def test_near_duplicates_are_under_one_per_cent() -> None:
    def grams(text: str) -> frozenset[tuple[str, ...]]:
        words = re.sub(r"\W+", " ", text.lower()).split()
        return frozenset(tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2)))

    texts = [grams(message["text"]) for message in messages()]
    holders: dict[tuple[str, ...], list[int]] = {}
    for index, found in enumerate(texts):
        for gram in found:
            holders.setdefault(gram, []).append(index)
    pairs = {pair for indices in holders.values() for pair in itertools.combinations(indices, 2)}
    alike = [pair for pair in pairs if len(texts[pair[0]] & texts[pair[1]]) / len(texts[pair[0]] | texts[pair[1]]) > 0.4]
    assert len(alike) < 0.01 * len(texts)


def test_long_and_short() -> None:
    words = sorted(len(message["text"].split()) for message in messages())
    assert words[len(words) // 5] <= 12
    assert words[-len(words) // 10] >= 50
    openings = Counter(" ".join(message["text"].lower().split()[:3]) for message in messages())
    assert openings.most_common(1)[0][1] < 0.02 * len(words)
