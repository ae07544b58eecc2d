"""Predictions with prompts: greedy generation, or the label word of highest log-probability.

Rows of many prompts share a batch: each brings its own prompt, of any length and at any place, and its own labels or length of answer,
and gets the answer it would have had alone.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..backbone import Backbone, Text
from ..backbone.device import sent
from ..backbone.memory import Memory
from ..backbone.rows import Place
from ..errors import UserError
from ..prompt import Prompt
from ..tasks.sentinel import opened
from .batches import by_length

WASTE = 1.25
"""The most that padding may make of a batch on a CPU, where it costs what a word costs; a GPU would rather have few batches."""
FREE_LENGTH = 32
"""The most tokens of an answer where there are no labels to say how long one is."""

Tick = Callable[[int], object]
"""Told how many rows have been answered."""

Asked = tuple[int, Sequence[int]]
"""The number of a prompt and a row of ids for it."""


def unseen(rows: int) -> None:
    """A tick that nobody looks at."""


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
        sentinel: bool = False,
    ) -> None:
        if scoring not in ("auto", "generate", "labels"):
            raise UserError(f"There is no scoring {scoring!r}; choose generate or labels.")
        if scoring == "generate" and not backbone.generates:
            raise UserError(
                f"{backbone.name} cannot write freely; let it choose among the labels with --scoring labels."
            )
        backbone = backbone.answering(prompt.head, labels)
        backbone.check_place(prompt.config.place)
        self.backbone, self.prompt, self.labels, self.batch_size = (
            backbone,
            prompt,
            list(labels),
            batch_size,
        )
        self.scoring = backbone.best_scoring if scoring == "auto" else scoring
        if not self.labels and self.scoring == "labels":
            raise UserError(
                "This prompt knows no labels to choose among; name them with --labels when it is imported."
            )
        plain = backbone.tokenise_targets(self.labels)
        self.candidates = opened(plain, backbone.tokenizer, backbone.name, sentinel)
        self.answer_length = (max([*map(len, plain), answer_length or 0]) or FREE_LENGTH) + sentinel
        self.budget = backbone.budget(prompt.config.length, max_length, self.answer_length)
        self.spelled = spellings(backbone, self.labels, self.candidates)

    def __call__(self, texts: Sequence[str], tick: Tick = unseen) -> list[str]:
        """Answers; by generation an answer can be no label at all."""
        return self.answers(self.backbone.tokenise(texts, self.budget), tick) if texts else []

    def answers(self, rows: Sequence[Sequence[int]], tick: Tick = unseen) -> list[str]:
        """The same for texts already tokenised."""
        return self._alone.answers([(0, row) for row in rows], tick, self.batch_size)

    def probabilities(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """How likely each label word is, among the label words, for every text."""
        if not self.labels:
            raise UserError(
                "This prompt writes freely and has no labels to choose among; ask it for an answer."
            )
        rows = self.backbone.tokenise(texts, self.budget) if texts else []
        return self._alone.probabilities([(0, row) for row in rows], self.batch_size)

    @cached_property
    def _alone(self) -> "Bank":
        """The prompt as it is when it is first asked; when it has learned since, another predictor is made."""
        return Bank([self])


def answer_all(
    jobs: Sequence[tuple[Predictor, Sequence[Sequence[int]]]],
    tick: Tick = unseen,
    batch_size: int = 64,
) -> list[list[str]]:
    """Every predictor's answers to its own rows, in their order. Those on one model share batches."""
    told: list[list[str]] = [[] for _ in jobs]
    for model in dict.fromkeys(id(predictor.backbone.model) for predictor, _ in jobs):
        own = [
            number
            for number, (predictor, _) in enumerate(jobs)
            if id(predictor.backbone.model) == model
        ]
        asked = [(place, row) for place, number in enumerate(own) for row in jobs[number][1]]
        answers = Bank([jobs[number][0] for number in own]).answers(asked, tick, batch_size)
        for (place, _), answer in zip(asked, answers, strict=True):
            told[own[place]].append(answer)
    return told


class Kind(NamedTuple):
    """What the rows of a batch share: how they are answered, what their heads read, and whether their prompts are remembered."""

    scoring: str
    pool: Literal["mean", "first"] | None
    remembered: bool


@dataclass
class RowHeads:
    """A head for each row: [B, F] -> logits [B, C], -inf where a row has fewer labels."""

    weight: Tensor
    bias: Tensor
    pool: Literal["mean", "first"]

    def __call__(self, features: Tensor) -> Tensor:
        return torch.einsum("bf,bcf->bc", features, self.weight) + self.bias


class Bank:
    """The prompts of several predictors on one model, stacked once, so that rows of all of them share batches."""

    @torch.no_grad()
    def __init__(self, predictors: Sequence[Predictor]) -> None:
        self.predictors, self.backbone = list(predictors), predictors[0].backbone
        self.same = [constant(predictor.prompt) for predictor in predictors]
        """Each prompt's vectors [P, H], where they are the same for every text."""
        blank = [torch.zeros_like(predictor.prompt.table[0]) for predictor in predictors]
        filled = [
            zeros if own is None else own for own, zeros in zip(self.same, blank, strict=True)
        ]
        self.vectors = pad_sequence(filled, batch_first=True)
        """All of them [N, P, H]; zeros where they depend on the text."""

    @torch.no_grad()
    def answers(
        self, asked: Sequence[Asked], tick: Tick = unseen, batch_size: int = 64
    ) -> list[str]:
        """An answer to each row by its own prompt."""
        told = [""] * len(asked)
        for kind, batch in self._batches(
            asked, [self.predictors[number].scoring for number, _ in asked], batch_size
        ):
            rows = [asked[place] for place in batch]
            answers = (
                self._chosen(kind, rows) if kind.scoring == "labels" else self._written(kind, rows)
            )
            for place, answer in zip(batch, answers, strict=True):
                told[place] = answer
            tick(len(batch))
        return told

    def probabilities(self, asked: Sequence[Asked], batch_size: int = 64) -> list[dict[str, float]]:
        """How likely each label word of its own prompt is, among these words, for every row."""
        return [
            {label: math.exp(share) for label, share in row.items()}
            for row in self.log_probabilities(asked, batch_size)
        ]

    @torch.no_grad()
    def log_probabilities(
        self, asked: Sequence[Asked], batch_size: int = 64
    ) -> list[dict[str, float]]:
        """The logarithms of these."""
        found: list[dict[str, float]] = [{}] * len(asked)
        for kind, batch in self._batches(asked, ["labels"] * len(asked), batch_size):
            shares = self._scores(kind, [asked[place] for place in batch]).log_softmax(1).tolist()
            for place, share in zip(batch, shares, strict=True):
                found[place] = dict(
                    zip(self.predictors[asked[place][0]].labels, share, strict=False)
                )
        return found

    def tokenised(self, texts: Sequence[tuple[int, str]]) -> list[Asked]:
        """Texts as rows of ids: each is tokenised once, however many prompts it is for, and cut to its prompt's budget."""
        views = [self.predictors[number].backbone for number, _ in texts]
        whole: dict[tuple[type[Backbone], str], list[int]] = {}
        for view in {
            type(view): view for view in views
        }.values():  # with a head a text is read without a mask
            words = list(
                dict.fromkeys(
                    text
                    for other, (_, text) in zip(views, texts, strict=True)
                    if type(other) is type(view)
                )
            )
            whole |= {
                (type(view), text): ids for text, ids in zip(words, view.whole(words), strict=True)
            }
        rows = zip(views, texts, strict=True)
        return [
            (number, view.cut(whole[type(view), text], self.predictors[number].budget))
            for view, (number, text) in rows
        ]

    def _chosen(self, kind: Kind, rows: Sequence[Asked]) -> list[str]:
        best = self._scores(kind, rows).argmax(1).tolist()
        return [
            self.predictors[number].labels[label]
            for (number, _), label in zip(rows, best, strict=True)
        ]

    def _scores(self, kind: Kind, rows: Sequence[Asked]) -> Tensor:
        """The log-probability of each row's labels: [B, C]."""
        prompt, text = self._prompted(kind, rows)
        return self._view(kind, rows).scores(
            prompt, text, [self.predictors[number].candidates for number, _ in rows]
        )

    def _written(self, kind: Kind, rows: Sequence[Asked]) -> list[str]:
        prompt, text = self._prompted(kind, rows)
        asked = [self.predictors[number] for number, _ in rows]
        written = self.backbone.generate(
            prompt, text, [predictor.answer_length for predictor in asked]
        )
        return [
            predictor.spelled.get(told, told)
            for predictor, told in zip(asked, self.backbone.decode(written), strict=True)
        ]

    # -- batches -------------------------------------------------------------------------------------------------------------

    def _batches(
        self, asked: Sequence[Asked], scoring: Sequence[str], size: int
    ) -> Iterator[tuple[Kind, list[int]]]:
        """All rows once: of one kind together, and of these the ones of like length."""
        kinds: dict[Kind, list[int]] = {}
        for place, remembered in enumerate(self._remembered(asked)):
            head = self.predictors[asked[place][0]].prompt.head
            kinds.setdefault(
                Kind(scoring[place], None if head is None else head.pool, remembered), []
            ).append(place)
        for kind, places in kinds.items():
            own = [(self.predictors[asked[place][0]], asked[place][1]) for place in places]
            lengths = [predictor.prompt.config.length + len(row) for predictor, row in own]
            waits = [
                predictor.answer_length.bit_length() if kind.scoring == "generate" else 0
                for predictor, _ in own
            ]
            for batch in by_length(
                lengths, size, WASTE if self.backbone.device.type == "cpu" else math.inf, waits
            ):
                yield kind, [places[row] for row in batch]

    def _prompted(self, kind: Kind, rows: Sequence[Asked]) -> tuple[Tensor | Memory, Text]:
        """The rows' prompts, and their texts embedded."""
        who = [number for number, _ in rows]
        index = sent(torch.tensor(who), self.backbone.device)
        if kind.remembered and self.memory is not None:
            text = self._embedded(
                [row[len(self.leads[number] or ()) :] for number, row in rows],
                ["prefix"] * len(rows),
            )
            return self.memory.rows(index, max(len(self.led[number]) for number in who)), text
        prompts = [self.predictors[number].prompt for number in who]
        text = self._embedded([row for _, row in rows], [prompt.config.place for prompt in prompts])
        lengths = [prompt.config.length for prompt in prompts]
        vectors = self.vectors[index, : max(lengths)]
        for number in {number for number in who if self.same[number] is None}:
            own = [place for place, other in enumerate(who) if other == number]
            some = text.rows(own)
            vectors[own, : lengths[own[0]]] = self.predictors[number].prompt(some.embeds, some.mask)
        return vectors, text._replace(
            given=torch.tensor(lengths) if len(set(lengths)) > 1 else None
        )

    def _embedded(self, rows: Sequence[Sequence[int]], places: Sequence[Place]) -> Text:
        """Each text once, however many prompts it is for; a prompt goes in where its place is."""
        known = {row: number for number, row in enumerate(dict.fromkeys(map(tuple, rows)))}
        which = [known[tuple(row)] for row in rows]
        text = self.backbone.embed_rows(list(known))
        if len(known) < len(rows):
            text = text.rows(which)
        kinds = list(dict.fromkeys(places))
        if kinds == ["prefix"]:
            return text
        ids, mask = self.backbone.collate(list(known))
        columns = [self.backbone.at(ids, mask, place) for place in kinds]
        at = torch.stack(
            [mask.new_zeros(len(mask)) if column is None else column for column in columns]
        )
        return text._replace(at=at[[kinds.index(place) for place in places], which])

    def _view(self, kind: Kind, rows: Sequence[Asked]) -> Backbone:
        """The model as it answers these rows: by its words, or by each row's own head."""
        view = self.predictors[rows[0][0]].backbone
        if kind.pool is None:
            return view
        index = sent(torch.tensor([number for number, _ in rows]), view.device)
        weight, bias = self.heads
        return view.answering(RowHeads(weight[index], bias[index], kind.pool), [])

    @cached_property
    def heads(self) -> tuple[Tensor, Tensor]:
        """The heads' weights [N, C, F] and biases [N, C]; -inf beyond a head's own labels."""
        none = (self.vectors.new_zeros(0, self.backbone.features), self.vectors.new_zeros(0))
        heads = [
            none if head is None else (head.weight, head.bias)
            for head in (predictor.prompt.head for predictor in self.predictors)
        ]
        weights, biases = [weight for weight, _ in heads], [bias for _, bias in heads]
        return pad_sequence(weights, batch_first=True), pad_sequence(
            biases, batch_first=True, padding_value=-torch.inf
        )

    # -- memory --------------------------------------------------------------------------------------------------------------

    def _remembered(self, asked: Sequence[Asked]) -> list[bool]:
        """Which rows need not read their prompts: some text is left to read, and all before it is seen from the answer's end."""
        if not asked or self.memory is None:
            return [False] * len(asked)
        around = max(map(len, self.led)) + max(
            self.predictors[number].answer_length for number, _ in asked
        )
        room = math.inf if self.memory.room is None else self.memory.room - around
        rows = [(self.leads[number], row) for number, row in asked]
        return [
            lead is not None and list(row[: len(lead)]) == lead and len(lead) < len(row) < room
            for lead, row in rows
        ]

    @cached_property
    def memory(self) -> Memory | None:
        """The prompts that stand before every text, as the model remembers them; None where it cannot."""
        given = torch.tensor([len(part) for part in self.led], device=self.backbone.device)
        return self.backbone.remember(pad_sequence(self.led, batch_first=True), given)

    @cached_property
    def leads(self) -> list[list[int] | None]:
        """The ids before each prompt in every text; None where they, or the prompt, are not the same for all of them."""
        opening = self.backbone.whole(["x"])[0][: self.backbone.surround[0]]
        ahead: dict[str, list[int]] = {"prefix": [], "after-bos": opening}
        parts = zip(self.same, self.predictors, strict=True)
        return [
            None if own is None or not len(own) else ahead.get(predictor.prompt.config.place)
            for own, predictor in parts
        ]

    @cached_property
    def led(self) -> list[Tensor]:
        """Each prompt with the ids before it, as vectors [., H]; nothing where it cannot be remembered."""
        kept = [
            self.vectors[0, :0] if lead is None or own is None else own
            for lead, own in zip(self.leads, self.same, strict=True)
        ]
        before = [
            torch.tensor(lead or [], dtype=torch.long, device=self.backbone.device)
            for lead in self.leads
        ]
        return [
            torch.cat([self.backbone.embedding(ids), own])
            for ids, own in zip(before, kept, strict=True)
        ]


def constant(prompt: Prompt) -> Tensor | None:
    """A prompt's vectors [P, H] where they are the same for every text; None where they depend on it."""
    if prompt.route.router is not None and len(prompt.table) > 1:
        return None
    any_text = prompt.table.new_zeros(1, 1, prompt.table.shape[2])
    vectors: Tensor = prompt(any_text, any_text[..., 0])
    return vectors[0]


def spellings(
    backbone: Backbone, labels: Sequence[str], candidates: Sequence[Sequence[int]]
) -> dict[str, str]:
    """Each label as the model would spell it (a tokenizer may change case or spaces) to the label; one it cannot write is a sentence."""
    spelled: dict[str, str] = {}
    for label, ids in zip(labels, candidates, strict=True):
        text = backbone.decode(torch.tensor([ids]))[0]
        if not text or backbone.unknown in ids:
            raise UserError(
                f"{backbone.name} cannot write the label {label!r}; give it a word that it can with --labels {label}=WORD."
            )
        if text in spelled:
            raise UserError(
                f"{backbone.name} writes the labels {spelled[text]!r} and {label!r} alike; give one another word with --labels."
            )
        spelled[text] = label
    return spelled
