"""Many prompts on one model. Their rows share batches, each with its own prompt, of any length and
at any place, and its own labels or answer length; each gets the same answer as when run alone.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..backbone import Backbone, Generative, Place, PromptCache, Text, to_device
from ..prompt import Prompt
from .batches import MAX_PADDING, by_length

if TYPE_CHECKING:
    from .evaluate import Predictor

Pool = Literal["mean", "first"]
"""The hidden states that a linear head reads."""

OnRows = Callable[[int], object]
"""Called with the number of rows that have just been answered."""

Query = tuple[int, Sequence[int]]
"""The number of a prompt in the bank, and a row of ids for it."""


def ignore_rows(rows: int) -> None:
    """Do nothing."""


class BatchKind(NamedTuple):
    """What the rows of a batch share."""

    scoring: str
    pool: Pool | None
    """What their linear heads read; None: they have none."""
    cached: bool
    """Whether the model has read their prompts already."""
    chat: bool
    """Whether they are turns of a chat template."""


@dataclass
class RowHeads:
    """A head for each row: [B, F] -> logits [B, C], -inf where a row has fewer labels."""

    weight: Tensor
    bias: Tensor
    pool: Pool

    def __call__(self, features: Tensor) -> Tensor:
        return torch.einsum("bf,bcf->bc", features, self.weight) + self.bias


class PromptBank:
    """The prompts of several predictors on one model, stacked once."""

    @torch.no_grad()
    def __init__(self, predictors: "Sequence[Predictor]") -> None:
        self.predictors, self.backbone = list(predictors), predictors[0].backbone
        self.constant = [constant_vectors(predictor.prompt) for predictor in predictors]
        """Each prompt's vectors [P, H]; None if they depend on the text."""
        zeros = [torch.zeros_like(predictor.prompt.table[0]) for predictor in predictors]
        filled = [
            blank if vectors is None else vectors
            for vectors, blank in zip(self.constant, zeros, strict=True)
        ]
        self.vectors = pad_sequence(filled, batch_first=True)
        """All of them [N, P, H]; zeros where they depend on the text."""

    @torch.no_grad()
    def answers(
        self,
        queries: Sequence[Query],
        on_rows: OnRows = ignore_rows,
        batch_size: int = 64,
        probabilities: dict[int, dict[str, float]] | None = None,
    ) -> list[str]:
        """An answer to each row by its own prompt.

        The rows whose indices are in `probabilities` also get those of their labels there, from the
        same pass; not of every family, if they are generated.
        """
        answers, wanted = [""] * len(queries), {} if probabilities is None else probabilities
        scoring = [self.predictors[number].scoring for number, _ in queries]
        for kind, batch in self._batches(queries, scoring, batch_size):
            answer = self._choose if kind.scoring == "labels" else self._generate
            scored = [position for position, index in enumerate(batch) if index in wanted]
            answered, scores = answer(kind, [queries[index] for index in batch], scored)
            for index, text in zip(batch, answered, strict=True):
                answers[index] = text
            for position, values in zip(scored, scores.softmax(1).tolist(), strict=False):
                labels = self.predictors[queries[batch[position]][0]].labels
                wanted[batch[position]] = dict(zip(labels, values, strict=False))
            on_rows(len(batch))
        return answers

    def probabilities(
        self, queries: Sequence[Query], batch_size: int = 64
    ) -> list[dict[str, float]]:
        """The probabilities of the labels of its own prompt, which sum to 1, for each row."""
        return [
            {label: math.exp(value) for label, value in row.items()}
            for row in self.log_probabilities(queries, batch_size)
        ]

    @torch.no_grad()
    def log_probabilities(
        self, queries: Sequence[Query], batch_size: int = 64
    ) -> list[dict[str, float]]:
        """The logarithms of `probabilities`."""
        rows: list[dict[str, float]] = [{}] * len(queries)
        for kind, batch in self._batches(queries, ["labels"] * len(queries), batch_size):
            scores = self._scores(kind, [queries[index] for index in batch])
            for index, values in zip(batch, scores.log_softmax(1).tolist(), strict=True):
                labels = self.predictors[queries[index][0]].labels
                rows[index] = dict(zip(labels, values, strict=False))
        return rows

    def tokenise(self, texts: Sequence[tuple[int, str]]) -> list[Query]:
        """Texts for prompts as rows of ids, truncated to their prompts' budgets."""
        return [
            (number, self.predictors[number].truncate(row)) for number, row in self.token_ids(texts)
        ]

    def token_ids(self, texts: Sequence[tuple[int, str]]) -> list[Query]:
        """Texts for prompts as rows of ids, each text tokenised once for all its prompts."""
        backbones = [self.predictors[number].backbone for number, _ in texts]
        ids: dict[tuple[type[Backbone], str], list[int]] = {}
        for kind, backbone in {type(backbone): backbone for backbone in backbones}.items():
            pairs = zip(backbones, texts, strict=True)
            unique = list(dict.fromkeys(text for b, (_, text) in pairs if type(b) is kind))
            rows = backbone.token_ids(unique)
            ids |= {(kind, text): row for text, row in zip(unique, rows, strict=True)}
        return [
            (number, ids[type(backbone), text])
            for backbone, (number, text) in zip(backbones, texts, strict=True)
        ]

    def _choose(
        self, kind: BatchKind, rows: Sequence[Query], scored: Sequence[int]
    ) -> tuple[list[str], Tensor]:
        """The best label of each row, and the scores of the rows `scored`."""
        scores = self._scores(kind, rows)
        pairs = zip(rows, scores.argmax(1).tolist(), strict=True)
        labels = [self.predictors[number].labels[label] for (number, _), label in pairs]
        return labels, scores[list(scored)]

    def _scores(self, kind: BatchKind, rows: Sequence[Query]) -> Tensor:
        """The log-probability of each row's labels [B, C]."""
        prompt, text = self._prompts_and_text(kind, rows)
        candidates = [self.predictors[number].candidates for number, _ in rows]
        return self._backbone(kind, rows).scores(prompt, text, candidates)

    def _generate(
        self, kind: BatchKind, rows: Sequence[Query], scored: Sequence[int]
    ) -> tuple[list[str], Tensor]:
        """Each row's answer, and the scores of the labels of the rows `scored`, where the model can
        continue from one state to both."""
        prompt, text = self._prompts_and_text(kind, rows)
        predictors = [self.predictors[number] for number, _ in rows]
        lengths = [predictor.answer_length for predictor in predictors]
        backbone, scores = predictors[0].backbone, torch.zeros(0, 1)
        if scored and isinstance(backbone, Generative):
            state = backbone.prefill(prompt, text)
            part = state
            if len(scored) < len(rows):
                part = state.rows(to_device(torch.tensor(scored), self.backbone.device))
            scores = backbone.scores_after(part, [predictors[row].candidates for row in scored])
            ids = backbone.generate_after(state, lengths)
        else:
            ids = backbone.generate(prompt, text, lengths)
        answers = [
            predictor.spellings.get(answer, answer)
            for predictor, answer in zip(predictors, backbone.decode(ids), strict=True)
        ]
        return answers, scores

    # -- batches -----------------------------------------------------------------------------------

    def _batches(
        self, queries: Sequence[Query], scoring: Sequence[str], size: int
    ) -> Iterator[tuple[BatchKind, list[int]]]:
        """All rows once: those of one kind together, and among these, those of similar length."""
        kinds: dict[BatchKind, list[int]] = {}
        for index, cached in enumerate(self._cached(queries)):
            predictor = self.predictors[queries[index][0]]
            pool = None if predictor.prompt.head is None else predictor.prompt.head.pool
            chat = bool(predictor.backbone.chat_template)
            kind = BatchKind(scoring[index], pool, cached, chat)
            kinds.setdefault(kind, []).append(index)
        max_padding = MAX_PADDING if self.backbone.device.type == "cpu" else math.inf
        for kind, indices in kinds.items():
            rows = [(self.predictors[queries[i][0]], queries[i][1]) for i in indices]
            lengths = [predictor.prompt.config.length + len(row) for predictor, row in rows]
            generates = kind.scoring == "generate"
            # rows with long answers together: the others of a batch would wait for them
            priorities = [p.answer_length.bit_length() if generates else 0 for p, _ in rows]
            for batch in by_length(lengths, size, max_padding, priorities):
                yield kind, [indices[row] for row in batch]

    def _prompts_and_text(
        self, kind: BatchKind, rows: Sequence[Query]
    ) -> tuple[Tensor | PromptCache, Text]:
        """The rows' prompts, and their embedded texts."""
        numbers = [number for number, _ in rows]
        if kind.cached:
            rest = [row[len(self._opening(number) or ()) :] for number, row in rows]
            text = self._embed(self.backbone, rest, ["prefix"] * len(rows))
            return self._cached_prompts(numbers), text
        backbone = self.predictors[numbers[0]].backbone
        prompts = [self.predictors[number].prompt for number in numbers]
        places = [prompt.config.place for prompt in prompts]
        text = self._embed(backbone, [row for _, row in rows], places)
        lengths = [prompt.config.length for prompt in prompts]
        differ = len(set(lengths)) > 1
        return (
            self._row_vectors(numbers, text, backbone),
            text._replace(prompt_lengths=torch.tensor(lengths) if differ else None),
        )

    def _row_vectors(self, numbers: Sequence[int], text: Text, backbone: Backbone) -> Tensor:
        """The prompt of each row [B, P, H], for the longest of them."""
        index = to_device(torch.tensor(numbers), self.backbone.device)
        lengths = [self.predictors[number].prompt.config.length for number in numbers]
        vectors = self.vectors[index, : max(lengths)]
        by_text = [number for number in numbers if self.constant[number] is None]
        self._route_rows(vectors, by_text, numbers, text, backbone)
        return vectors

    def _route_rows(
        self,
        vectors: Tensor,
        by_text: Iterable[int],
        numbers: Sequence[int],
        text: Text,
        backbone: Backbone,
    ) -> None:
        """Fill in the vectors of the prompts `by_text`, which depend on the text."""
        for number in set(by_text):
            indices = [row for row, other in enumerate(numbers) if other == number]
            part, prompt = text.rows(indices), self._prompt(number)
            mask = backbone.content_mask(part)
            vectors[indices, : prompt.config.length] = prompt(part.embeds, mask)

    def _prompt(self, number: int) -> Prompt:
        return self.predictors[number].prompt

    def _embed(
        self, backbone: Backbone, rows: Sequence[Sequence[int]], places: Sequence[Place]
    ) -> Text:
        """Each text once, however many prompts it is for, with the places of the prompts."""
        unique = {row: number for number, row in enumerate(dict.fromkeys(map(tuple, rows)))}
        numbers = [unique[tuple(row)] for row in rows]
        text = self.backbone.embed_rows(list(unique))
        if len(unique) < len(rows):
            text = text.rows(numbers)
        kinds = list(dict.fromkeys(places))
        if kinds == ["prefix"]:
            return text
        ids, mask = self.backbone.collate(list(unique))
        columns = [backbone.prompt_columns(ids, mask, place) for place in kinds]
        first = mask.new_zeros(len(mask))
        insert_at = torch.stack([first if column is None else column for column in columns])
        return text._replace(insert_at=insert_at[[kinds.index(place) for place in places], numbers])

    def _backbone(self, kind: BatchKind, rows: Sequence[Query]) -> Backbone:
        """The model as it answers these rows: by its words, or by each row's own head."""
        backbone = self.predictors[rows[0][0]].backbone
        if kind.pool is None:
            return backbone
        weight, bias = self._row_heads([number for number, _ in rows])
        return backbone.with_head(RowHeads(weight, bias, kind.pool), [])

    def _row_heads(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Each row's head: weights [B, C, F] and biases [B, C]."""
        index = to_device(torch.tensor(numbers), self.backbone.device)
        weight, bias = self.heads
        return weight[index], bias[index]

    @cached_property
    def heads(self) -> tuple[Tensor, Tensor]:
        """The heads' weights [N, C, F] and biases [N, C]; -inf beyond a head's own labels."""
        return stacked_heads(self.predictors, self.vectors)

    # -- prompts that the model has read already ---------------------------------------------------

    def _cached(self, queries: Sequence[Query]) -> list[bool]:
        """Whether each row can use the cache.

        Its prompt is in it, some text is left to read, and the model sees all of it at the end of
        the answer.
        """
        if not queries or self.cache is None:
            return [False] * len(queries)
        limit = math.inf
        if self.cache.max_columns is not None:
            answer = max(self.predictors[number].answer_length for number, _ in queries)
            limit = self.cache.max_columns - max(map(len, self.cached_vectors)) - answer
        rows = [(self.openings[number], row) for number, row in queries]
        return [
            ids is not None and list(row[: len(ids)]) == ids and len(ids) < len(row) < limit
            for ids, row in rows
        ]

    @cached_property
    def cache(self) -> PromptCache | None:
        """The prompts that come before every text, as read by the model; None if it cannot."""
        lengths = torch.tensor([len(v) for v in self.cached_vectors], device=self.backbone.device)
        vectors = pad_sequence(self.cached_vectors, batch_first=True)
        return self.backbone.cache_prompts(vectors, lengths)

    def _cached_prompts(self, numbers: Sequence[int]) -> PromptCache:
        """The keys and values of each row's prompt."""
        assert self.cache is not None
        index = to_device(torch.tensor(numbers), self.backbone.device)
        return self.cache.rows(index, max(len(self.cached_vectors[number]) for number in numbers))

    def _opening(self, number: int) -> list[int] | None:
        return self.openings[number]

    @cached_property
    def openings(self) -> list[list[int] | None]:
        """`opening_ids` of each prompt."""
        return [
            opening_ids(predictor, vectors is not None)
            for vectors, predictor in zip(self.constant, self.predictors, strict=True)
        ]

    @cached_property
    def cached_vectors(self) -> list[Tensor]:
        """Each prompt after the ids before it [., H]; empty if it cannot be cached."""
        return [
            self.vectors[0, :0]
            if ids is None or vectors is None
            else self._after_opening(ids, vectors)
            for ids, vectors in zip(self.openings, self.constant, strict=True)
        ]

    def _after_opening(self, ids: Sequence[int], vectors: Tensor) -> Tensor:
        opening = torch.tensor(ids, dtype=torch.long, device=self.backbone.device)
        return torch.cat([self.backbone.embedding(opening), vectors])


def constant_vectors(prompt: Prompt) -> Tensor | None:
    """A prompt's vectors [P, H] if they are the same for every text; otherwise None."""
    if prompt.reads_text:
        return None
    any_text = prompt.table.new_zeros(1, 1, prompt.table.shape[2])
    vectors: Tensor = prompt(any_text, any_text[..., 0])
    return vectors[0]


def opening_ids(predictor: "Predictor", constant: bool) -> list[int] | None:
    """The ids before a prompt in every text.

    None if they, or the prompt, are not the same for all texts.
    """
    config, backbone = predictor.prompt.config, predictor.backbone
    if not constant or not config.length or config.place == "suffix":
        return None
    count = 0 if config.place == "prefix" else backbone.special_token_counts[0]
    return backbone.token_ids(["x"])[0][:count] if count else []


def stacked_heads(predictors: "Sequence[Predictor]", like: Tensor) -> tuple[Tensor, Tensor]:
    """The weights [N, C, F] and biases [N, C] of heads, where `like` is; -inf beyond a head's own
    labels."""
    heads = [predictor.prompt.head for predictor in predictors]
    empty = like.new_zeros(0, predictors[0].backbone.feature_size)
    weights = [empty if head is None else head.weight.to(like.device) for head in heads]
    biases = [empty[:, 0] if head is None else head.bias.to(like.device) for head in heads]
    return (
        pad_sequence(weights, batch_first=True),
        pad_sequence(biases, batch_first=True, padding_value=-torch.inf),
    )
