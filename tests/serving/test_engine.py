"""Many prompts on one model: each question gets the answer of its prompt, in shared batches."""

import math
from pathlib import Path
from typing import Any

import pytest

from softprompts.artifacts.card import TaskCard
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone
from softprompts.config import Choice
from softprompts.errors import UserError
from softprompts.serving.engine import Combination, Engine, ensemble, probabilities
from softprompts.tasks import TextFormat
from softprompts.tuning.tuned import Tuned

from ..backbone.test_kv_cache import calls
from ..cards import card
from ..models import TOY, random_model
from ..tuning.test_evaluate import random_prompt

TEXTS = [text for text, _ in TOY]
MOODS = ["positive", "negative"]


def tuned(
    backbone: Backbone,
    seed: int,
    labels: list[str],
    template: str = "{text}",
    scoring: str | None = None,
    **choices: Any,
) -> Tuned:
    """A prompt with the card of a tuned one."""
    form = TextFormat(template, "label", {label: label for label in labels})
    described = card(
        backbone,
        task=TaskCard(name="mood", form=form, answer_length=None if labels else 4),
        scoring=scoring or backbone.default_scoring,
        config={"tuning": {"max_length": 64}},
    )
    head = {"head": Choice(backbone.default_head(MOODS))}
    prompt = random_prompt(backbone, seed, labels or MOODS, **head | choices).fold()
    return Tuned(prompt, backbone, described)


def prompts(backbone: Backbone) -> dict[str, Tuned]:
    classifiers = {
        "mood": tuned(backbone, 1, MOODS, length=3),
        "mood by mixture": tuned(
            backbone, 2, MOODS, scoring="labels", length=2, count=3, route="top1"
        ),
        "mood at length": tuned(backbone, 3, MOODS, scoring="labels", length=9),
        "subject": tuned(
            backbone, 4, ["food", "film", "week"], "is it {kind} ? {text}", "labels", length=4
        ),
    }
    free = {"free": tuned(backbone, 5, [], length=5)} if backbone.generates else {}
    return classifiers | free


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama", "bert", "minilm"])
def test_each_question_gets_the_answer_of_its_prompt(kind: str) -> None:
    backbone = random_model(kind)
    all_prompts = prompts(backbone)
    engine = Engine(backbone, all_prompts)
    rows: list[Any] = [{"text": text, "kind": "new"} for text in TEXTS]
    questions = [
        (name, rows[index] if name == "subject" else TEXTS[index])
        for index in (3, 0, 6)
        for name in all_prompts
    ]
    alone = [all_prompts[name].predict([question])[0] for name, question in questions]
    assert engine.answer(questions) == alone
    assert engine.answer(questions[::-1]) == alone[::-1]
    assert engine.answer([]) == []
    labelled = [pair for pair in questions if all_prompts[pair[0]].form.labels]
    for (name, question), row in zip(labelled, engine.probabilities(labelled), strict=True):
        expected = all_prompts[name].probabilities([question])[0]
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", ["t5", "llama", "bert", "minilm"])
def test_an_ensemble_is_one_batch_and_its_texts_are_tokenised_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = random_model(kind)
    members = {
        f"prompt {seed}": tuned(backbone, seed, MOODS, scoring="labels", length=3 + seed % 2)
        for seed in range(5)
    }
    engine = Engine(backbone, members)
    tokenised: list[str] = []
    kind_of_backbone = type(engine.bank.predictors[0].backbone)
    token_ids = kind_of_backbone.token_ids

    def recorded(self: Backbone, texts: list[str]) -> list[list[int]]:
        tokenised.extend(texts)
        return token_ids(self, texts)

    monkeypatch.setattr(kind_of_backbone, "token_ids", recorded)
    engine.every(list(members), TEXTS)
    tokenised.clear()
    embedding = next(
        name for name, part in backbone.model.named_modules() if part is backbone.embedding
    )
    with calls(backbone, lambda name: name == embedding) as looked_up:
        answers = engine.every(list(members), TEXTS)
    assert tokenised == TEXTS
    assert len(looked_up) <= 2, "the texts, and the candidates of a generative model"
    assert answers == [tuned.predict(TEXTS) for tuned in members.values()]
    votes = list(zip(*answers, strict=True))
    expected = [max(MOODS, key=labels.count) for labels in votes]
    assert engine.ensemble(list(members), TEXTS) == expected
    rows = [tuned.probabilities(TEXTS) for tuned in members.values()]
    means = [
        {label: sum(math.log(row[label]) for row in text) for label in MOODS}
        for text in zip(*rows, strict=True)
    ]
    assert engine.ensemble(list(members), TEXTS, by="mean") == [
        max(MOODS, key=lambda label: mean[label]) for mean in means
    ]


def test_the_first_prompt_decides_ties() -> None:
    backbone = random_model("t5")
    engine = Engine(backbone, prompts(backbone))
    names = ["free", "mood by mixture"]
    first, second = engine.every(names, TEXTS[:2])
    assert first != second
    assert engine.ensemble(names, TEXTS[:2]) == first
    assert engine.ensemble(names[::-1], TEXTS[:2]) == second


def test_one_text_or_row_is_one_question() -> None:
    backbone = random_model("t5")
    engine = Engine(backbone, prompts(backbone))
    names, text = ["mood", "mood at length"], TEXTS[0]
    answers, means = engine.every(names, [text]), engine.mean_probabilities(names, [text])
    questions: list[Any] = [text, {"text": text}]
    for question in questions:
        assert engine.every(names, question) == answers
        assert engine.ensemble(names, question) == answers[0]
        assert engine.mean_probabilities(names, question) == means
        assert probabilities(engine.tuned["mood"], question) == engine.probabilities(
            [("mood", text)]
        )
        assert ensemble([engine.tuned["mood"]], question) == answers[0]


def test_bad_questions_are_clear_errors() -> None:
    backbone = random_model("t5")
    all_prompts = prompts(backbone)
    engine = Engine(backbone, all_prompts)
    with pytest.raises(UserError, match="no prompt 'modo'; did you mean mood\\?"):
        engine.answer([("modo", "x")])
    with pytest.raises(UserError, match="generates its answers and has no labels"):
        engine.probabilities([("free", "x")])
    combinations: list[Combination] = ["vote", "mean"]
    for by in combinations:
        with pytest.raises(UserError, match=r"^text 2: the column 'text' is empty"):
            engine.ensemble(["mood", "mood at length"], ["x", ""], by=by)
    with pytest.raises(UserError, match="name at least one"):
        engine.mean_probabilities([], ["x"])
    with pytest.raises(UserError, match="The prompt free generates its answers and has no labels"):
        engine.mean_probabilities(["free"], ["x"])
    with pytest.raises(UserError, match="have different labels"):
        engine.ensemble(["mood", "subject"], ["x"], by="mean")
    with pytest.raises(UserError, match="reads the columns kind, text"):
        engine.answer([("subject", "x")])
    with pytest.raises(UserError, match="text 2"):
        engine.answer([("subject", {"kind": "a", "text": "x"}), ("subject", {"kind": "a"})])
    for question in (None, 3, ["x"]):
        with pytest.raises(
            UserError, match=r"Question 2 is .*; a question is a text, or a mapping of columns"
        ):
            engine.answer([("mood", "x"), ("mood", question)])  # type: ignore[list-item]
    with pytest.raises(
        UserError, match=r"Question 1 is 'x'; give pairs of a prompt's name and a question"
    ):
        engine.probabilities(["x"])  # type: ignore[list-item]
    with pytest.raises(UserError, match="name at least one"):
        engine.ensemble([], ["x"])
    with pytest.raises(UserError, match="needs at least one prompt"):
        Engine(backbone, {})
    with pytest.raises(
        UserError, match="mood was tuned on random-t5 and does not work with another model"
    ):
        Engine(random_model("bart"), all_prompts)


def test_a_saved_prompt_works_on_another_copy_of_its_model(tmp_path: Path) -> None:
    backbone = random_model("gpt2")
    original = tuned(backbone, 1, MOODS, length=3)
    original.save(tmp_path)
    prompt, saved = RunFolder(tmp_path).load()
    loaded = Tuned(prompt, random_model("gpt2"), saved)
    assert Engine(backbone, {"mood": loaded}).answer(
        [("mood", text) for text in TEXTS]
    ) == original.predict(TEXTS)
