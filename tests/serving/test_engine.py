"""Many prompts on one model: each question is answered by the prompt it names as that prompt alone would, and all of them in one pass."""

import math
from pathlib import Path
from typing import Any

import pytest

from softprompts.artifacts.card import TaskCard
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone
from softprompts.config.choice import Choice
from softprompts.errors import UserError
from softprompts.serving import Engine
from softprompts.tasks import TextFormat
from softprompts.tuning.tuned import Tuned

from ..backbone.test_kv_cache import calls
from ..cards import card
from ..models import TOY, random_model
from ..tuning.test_evaluate import made

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
    prompt = made(backbone, seed, labels or MOODS, **head | choices).fold()
    return Tuned(prompt, backbone, described)


def prompts(backbone: Backbone) -> dict[str, Tuned]:
    some = {
        "mood": tuned(backbone, 1, MOODS, length=3),
        "mood by mixture": tuned(
            backbone, 2, MOODS, scoring="labels", length=2, count=3, route="top1"
        ),
        "mood at length": tuned(backbone, 3, MOODS, scoring="labels", length=9),
        "subject": tuned(
            backbone, 4, ["food", "film", "week"], "is it {kind} ? {text}", "labels", length=4
        ),
    }
    return some | ({"free": tuned(backbone, 5, [], length=5)} if backbone.generates else {})


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama", "bert", "minilm"])
def test_each_question_gets_the_answer_of_its_prompt(kind: str) -> None:
    backbone = random_model(kind)
    own = prompts(backbone)
    engine = Engine(backbone, own)
    rows: list[Any] = [{"text": text, "kind": "new"} for text in TEXTS]
    questions = [
        (name, rows[place] if name == "subject" else TEXTS[place])
        for place in (3, 0, 6)
        for name in own
    ]
    alone = [own[name].predict([question])[0] for name, question in questions]
    assert engine.answer(questions) == alone
    assert engine.answer(questions[::-1]) == alone[::-1]
    assert engine.answer([]) == []
    worded = [(name, question) for name, question in questions if own[name].form.labels]
    for (name, question), shares in zip(worded, engine.probabilities(worded), strict=True):
        assert shares == pytest.approx(own[name].probabilities([question])[0], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", ["t5", "llama", "bert", "minilm"])
def test_an_ensemble_is_one_batch_and_its_texts_are_tokenised_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = random_model(kind)
    own = {
        f"prompt {seed}": tuned(backbone, seed, MOODS, scoring="labels", length=3 + seed % 2)
        for seed in range(5)
    }
    engine = Engine(backbone, own)
    seen: list[str] = []
    view = type(engine.bank.predictors[0].backbone)
    whole = view.token_ids
    monkeypatch.setattr(view, "token_ids", lambda self, texts: seen.extend(texts) or whole(self, texts))
    engine.every(list(own), TEXTS)
    seen.clear()
    embedding = next(
        name for name, part in backbone.model.named_modules() if part is backbone.embedding
    )
    with calls(backbone, lambda name: name == embedding) as looked_up:
        told = engine.every(list(own), TEXTS)
    assert seen == TEXTS
    assert len(looked_up) <= 2, "the texts; and the candidates that a model writes"
    assert told == [tuned.predict(TEXTS) for tuned in own.values()]
    votes = [[answers[place] for answers in told] for place in range(len(TEXTS))]
    assert engine.ensemble(list(own), TEXTS) == [max(MOODS, key=each.count) for each in votes]
    shares = [tuned.probabilities(TEXTS) for tuned in own.values()]
    means = [
        {label: sum(math.log(each[place][label]) for each in shares) for label in MOODS}
        for place in range(len(TEXTS))
    ]
    assert engine.ensemble(list(own), TEXTS, by="mean") == [
        max(MOODS, key=lambda label: mean[label]) for mean in means
    ]


def test_where_votes_are_even_the_first_prompt_decides() -> None:
    backbone = random_model("t5")
    own = prompts(backbone)
    engine = Engine(backbone, own)
    names = ["free", "mood by mixture"]
    told = engine.every(names, TEXTS[:2])
    assert told[0] != told[1]
    assert engine.ensemble(names, TEXTS[:2]) == told[0]
    assert engine.ensemble(names[::-1], TEXTS[:2]) == told[1]


def test_what_cannot_be_is_one_sentence() -> None:
    backbone = random_model("t5")
    own = prompts(backbone)
    engine = Engine(backbone, own)
    with pytest.raises(UserError, match="no prompt 'modo' here; choose one of mood, "):
        engine.answer([("modo", "x")])
    with pytest.raises(UserError, match="writes freely and has no labels"):
        engine.probabilities([("free", "x")])
    with pytest.raises(UserError, match="choose among other labels"):
        engine.ensemble(["mood", "subject"], ["x"], by="mean")
    with pytest.raises(UserError, match="reads the columns kind, text"):
        engine.answer([("subject", "x")])
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
    with pytest.raises(UserError, match="name at least one"):
        Engine(backbone, {})
    with pytest.raises(
        UserError, match="mood was tuned on random-t5 and means nothing to another model"
    ):
        Engine(random_model("bart"), own)


def test_a_saved_prompt_serves_on_another_copy_of_its_model(tmp_path: Path) -> None:
    backbone = random_model("gpt2")
    here = tuned(backbone, 1, MOODS, length=3)
    here.save(tmp_path)
    prompt, saved = RunFolder(tmp_path).load()
    again = Tuned(prompt, random_model("gpt2"), saved)
    assert Engine(backbone, {"mood": again}).answer(
        [("mood", text) for text in TEXTS]
    ) == here.predict(TEXTS)
