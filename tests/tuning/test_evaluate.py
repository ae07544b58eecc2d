"""Rows of many prompts in one batch: every row gets the same answer as from its prompt alone."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from softprompts.backbone import Backbone
from softprompts.config import Choice, PromptConfig
from softprompts.prompt import Material, Prompt
from softprompts.prompt.prompt import build_prompt
from softprompts.tuning.bank import PromptBank
from softprompts.tuning.evaluate import Predictor, answer_all

from ..backbone.test_kv_cache import calls
from ..models import CAUSALS, KINDS, TOY, random_model

TEXTS = [text for text, _ in TOY]


def random_prompt(
    backbone: Backbone, seed: int, labels: Sequence[str] = (), **choices: Any
) -> Prompt:
    """A random prompt; `route` and `shape` by their names."""
    named = {
        name: Choice(value) if name in ("route", "shape") else value
        for name, value in choices.items()
    }
    config = PromptConfig(start=Choice("normal"), **named)
    prompt = build_prompt(
        config, Material(backbone, list(labels), None, backbone.feature_size), seed, backbone.unit
    ).eval()
    prompt.table.data.normal_(0, 3, generator=torch.Generator().manual_seed(seed))
    return prompt


def predictors(backbone: Backbone) -> list[Predictor]:
    """Tasks that differ in everything that can differ."""
    two, three, one = ["positive", "negative"], ["food", "film", "week"], ["great", "worst"]
    head = {"head": Choice("linear")} if backbone.default_head(two) == "linear" else {}
    after = "after-bos" if backbone.special_token_counts[0] else "prefix"

    def predictor(
        seed: int, labels: list[str], scoring: str, longest: int | None = None, **choices: Any
    ) -> Predictor:
        prompt = random_prompt(backbone, seed, labels or two, **head | choices)
        return Predictor(
            backbone,
            prompt,
            labels,
            scoring if backbone.generates else "labels",
            64,
            answer_length=longest,
        )

    cases = [
        predictor(1, two, "labels", length=3),
        predictor(2, three, "labels", length=6, shape="residual"),
        predictor(3, two, "generate", length=5),
        predictor(4, three, "labels", length=2, count=3, route="top1"),
        predictor(5, one, "labels", length=4, place="suffix"),
        predictor(6, one, "labels", length=4, place=after),
        predictor(7, two, "generate", length=1, count=2, route="soft", place=after),
        predictor(8, two, "labels", length=0),
        predictor(9, two, "generate", longest=7, length=3, count=2, route="stochastic"),
    ]
    if backbone.generates:
        cases += [
            predictor(10, [], "generate", longest=5, length=2, place=after),
            predictor(11, [], "generate", longest=3, length=2),
        ]
    if head:
        first = {"head": Choice("linear", {"pool": "first"})}
        cases += [
            predictor(12, three, "labels", length=3, **first),
            predictor(13, two, "labels", length=3, place=after, **first),
        ]
    return cases


def answer_alone(predictor: Predictor, row: Sequence[int]) -> str:
    """The answer to one row by itself, without any cache."""
    if predictor.scoring == "labels":
        scores = probabilities_alone(predictor, row)
        return max(scores, key=lambda label: scores[label])
    backbone, text = (
        predictor.backbone,
        predictor.backbone.embed_rows([row], predictor.prompt.config.place),
    )
    generated = backbone.decode(
        backbone.generate(predictor.prompt(text.embeds, text.mask), text, predictor.answer_length)
    )[0]
    return predictor.spellings.get(generated, generated)


@torch.no_grad()
def probabilities_alone(predictor: Predictor, row: Sequence[int]) -> dict[str, float]:
    """The probabilities of the labels, without any cache."""
    text = predictor.backbone.embed_rows([row], predictor.prompt.config.place)
    vectors = predictor.prompt(text.embeds, text.mask)
    losses = [
        predictor.backbone.losses(vectors, text, [candidate]).nll
        for candidate in predictor.candidates
    ]
    return dict(zip(predictor.labels, (-torch.cat(losses)).softmax(0).tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_batches_give_the_answers_of_each_prompt_alone(kind: str) -> None:
    backbone = random_model(kind)
    jobs = [
        (
            predictor,
            predictor.backbone.tokenise(TEXTS[number % 3 : number % 3 + 5], predictor.budget),
        )
        for number, predictor in enumerate(predictors(backbone))
    ]
    answered: list[int] = []
    together = answer_all(jobs, answered.append, batch_size=16)
    assert together == [[answer_alone(predictor, row) for row in rows] for predictor, rows in jobs]
    assert together == [predictor.answers(rows) for predictor, rows in jobs]
    assert sum(answered) == sum(len(rows) for _, rows in jobs)
    assert max(answered) == 16 or not backbone.generates
    scored: dict[int, list[dict[str, float]]] = {
        number: [] for number, (predictor, _) in enumerate(jobs) if predictor.labels and number > 1
    }
    assert answer_all(jobs, batch_size=16, probabilities=scored) == together
    for number, scores in scored.items():
        predictor, rows = jobs[number]
        for row, probabilities in zip(rows, scores, strict=True):
            assert probabilities == pytest.approx(probabilities_alone(predictor, row), abs=1e-4)
    bank = PromptBank([predictor for predictor, _ in jobs])
    queries = [
        (number, row)
        for number, (predictor, rows) in enumerate(jobs)
        if predictor.labels
        for row in rows[:2]
    ]
    for (number, row), shares in zip(
        queries, bank.probabilities(queries, batch_size=16), strict=True
    ):
        assert shares == pytest.approx(
            probabilities_alone(bank.predictors[number], row), rel=1e-4, abs=1e-5
        )


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama", "bert", "minilm"])
def test_many_tasks_of_one_row_are_one_batch(kind: str) -> None:
    """64 prompts: all rows in one pass; the prompts are stacked and read only the first time."""
    backbone = random_model(kind)
    labels = ["positive", "negative"]
    head = {"head": Choice(backbone.default_head(labels))}
    prompts = [
        random_prompt(backbone, seed, labels, length=1 + seed % 5, **head) for seed in range(64)
    ]
    bank = PromptBank([Predictor(backbone, prompt, labels, "labels", 64) for prompt in prompts])
    queries = bank.tokenise([(number, TEXTS[number % len(TEXTS)]) for number in range(64)])
    first = bank.answers(queries)
    block = next(
        name for name, part in backbone.model.named_modules() if part is backbone.blocks()[0]
    )
    with calls(backbone, lambda name: name == block) as seen:
        assert bank.answers(queries) == first
    assert len(seen) == (2 if kind in CAUSALS else 1), (
        "the texts; and where the model itself writes on, the candidates"
    )
    if kind in CAUSALS:
        assert seen[0][1] == max(len(row) for _, row in queries), "no column of a prompt is read"


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_an_empty_text_is_answered_too(kind: str) -> None:
    """There is nothing to read after the prompt, so the cache cannot be used."""
    backbone = random_model(kind)
    place = "after-bos" if backbone.special_token_counts[0] else "prefix"
    predictor = Predictor(
        backbone,
        random_prompt(backbone, 1, length=4, place=place),
        [],
        max_length=64,
        answer_length=4,
    )
    rows = backbone.tokenise(["", "never again"], 20)
    assert len(rows[0]) == backbone.special_token_counts[0]
    vectors = predictor.prompt.fold().table.detach()
    alone = [
        backbone.decode(backbone.generate(vectors, backbone.embed_rows([row], place), 4))[0]
        for row in rows
    ]
    assert predictor.answers(rows) == alone


def test_rows_longer_than_the_attention_window_do_not_use_the_cache() -> None:
    backbone = random_model("gemma2")
    predictor = Predictor(
        backbone, random_prompt(backbone, 1, length=4), ["positive", "negative"], "labels", 64
    )
    rows = backbone.tokenise([TEXTS[0], " ".join(TEXTS)], predictor.budget)
    with calls(backbone, lambda name: name == "model.layers.0") as seen:
        answers = predictor.answers(rows)
    assert answers == [answer_alone(predictor, row) for row in rows]
    longest = predictor.answer_length - 1
    assert sorted(columns for _, columns in seen) == sorted(
        [4, len(rows[0]), longest, 4 + len(rows[1]), longest]
    ), "a short row is not"


def test_a_prompt_is_read_once_by_its_predictor() -> None:
    backbone = random_model("gpt2")
    predictor = Predictor(
        backbone, random_prompt(backbone, 1, length=50), ["positive", "negative"], "labels", 100
    )
    rows = predictor.backbone.tokenise(TEXTS, predictor.budget)
    with calls(backbone, lambda name: name == "transformer.h.0") as seen:
        for _ in range(2):
            predictor.answers(rows)
    assert [columns for _, columns in seen].count(50) == 1
    assert all(columns <= max(map(len, rows)) for _, columns in seen[1:])


def test_jobs_on_several_models_and_without_rows() -> None:
    one, other = random_model("t5"), random_model("gpt2")
    jobs = [
        (
            Predictor(
                backbone,
                random_prompt(backbone, 1, length=2),
                ["positive", "negative"],
                max_length=64,
            ),
            backbone.tokenise(texts, 40),
        )
        for backbone, texts in ((one, TEXTS[:2]), (other, TEXTS), (one, []), (one, TEXTS[2:]))
    ]
    assert answer_all(jobs) == [predictor.answers(rows) for predictor, rows in jobs]
    assert answer_all([]) == []
