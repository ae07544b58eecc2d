"""Predictions with a prompt: greedy generation, or the label word of highest log-probability."""

from collections.abc import Callable, Sequence

import torch

from ..backbone import Backbone
from ..errors import UserError
from ..prompt import Prompt
from .batches import by_length

FREE_LENGTH = 32
"""The most tokens of an answer where there are no labels to say how long one is."""


class Predictor:
    """A prompt in use on its backbone; rows go in as texts and come out as answers, in their order."""

    def __init__(
        self,
        backbone: Backbone,
        prompt: Prompt,
        labels: Sequence[str],
        scoring: str = "auto",
        max_length: int = 512,
        batch_size: int = 64,
        answer_length: int | None = None,
    ) -> None:
        if scoring not in ("auto", "generate", "labels"):
            raise UserError(f"There is no scoring {scoring!r}; choose generate or labels.")
        if scoring == "generate" and not backbone.generates:
            raise UserError(f"{backbone.name} cannot write freely; let it choose among the labels with --scoring labels.")
        backbone = backbone.answering(prompt.head, labels)
        backbone.check_place(prompt.config.place)
        self.backbone, self.prompt, self.labels, self.batch_size = backbone, prompt, list(labels), batch_size
        self.scoring = backbone.best_scoring if scoring == "auto" else scoring
        if not self.labels and self.scoring == "labels":
            raise UserError("This prompt knows no labels to choose among; name them with --labels when it is imported.")
        self.candidates = backbone.tokenise_targets(self.labels)
        self.answer_length = max([*map(len, self.candidates), answer_length or 0]) or FREE_LENGTH
        self.budget = backbone.budget(prompt.config.length, max_length, self.answer_length)
        self.spelled = spellings(backbone, self.labels, self.candidates)

    def __call__(self, texts: Sequence[str], tick: Callable[[int], object] = lambda rows: None) -> list[str]:
        """Answers; by generation an answer can be no label at all."""
        return self.answers(self.backbone.tokenise(texts, self.budget), tick) if texts else []

    @torch.no_grad()
    def answers(self, rows: Sequence[Sequence[int]], tick: Callable[[int], object] = lambda rows: None) -> list[str]:
        """The same for texts already tokenised."""
        answers = [""] * len(rows)
        for batch in by_length([len(row) for row in rows], self.batch_size):
            text = self.backbone.embed_rows([rows[i] for i in batch], self.prompt.config.place)
            vectors = self.prompt(text.embeds, text.mask)
            if self.scoring == "labels":
                best = self.backbone.scores(vectors, text, self.candidates).argmax(1).tolist()
                told = [self.labels[i] for i in best]
            else:
                written = self.backbone.decode(self.backbone.generate(vectors, text, self.answer_length))
                told = [self.spelled.get(answer, answer) for answer in written]
            for index, answer in zip(batch, told, strict=True):
                answers[index] = answer
            tick(len(batch))
        return answers

    @torch.no_grad()
    def probabilities(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """How likely each label word is, among the label words, for every text."""
        rows = self.backbone.tokenise(texts, self.budget) if texts else []
        found: list[dict[str, float]] = [{}] * len(rows)
        for batch in by_length([len(row) for row in rows], self.batch_size):
            text = self.backbone.embed_rows([rows[i] for i in batch], self.prompt.config.place)
            shares = self.backbone.scores(self.prompt(text.embeds, text.mask), text, self.candidates).softmax(1)
            for index, share in zip(batch, shares.tolist(), strict=True):
                found[index] = dict(zip(self.labels, share, strict=True))
        return found


def spellings(backbone: Backbone, labels: Sequence[str], candidates: Sequence[Sequence[int]]) -> dict[str, str]:
    """Each label as the model would spell it (a tokenizer may change case or spaces) to the label; one it cannot write is a sentence."""
    spelled: dict[str, str] = {}
    for label, ids in zip(labels, candidates, strict=True):
        text = backbone.decode(torch.tensor([ids]))[0]
        if not text or backbone.unknown in ids:
            raise UserError(f"{backbone.name} cannot write the label {label!r}; give it a word that it can with --labels {label}=WORD.")
        if text in spelled:
            raise UserError(
                f"{backbone.name} writes the labels {spelled[text]!r} and {label!r} alike; give one another word with --labels."
            )
        spelled[text] = label
    return spelled
