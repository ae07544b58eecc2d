"""start: where do a prompt's numbers come from?

Lester 2021 §2.2 compares uniform numbers, sampled vocabulary and class labels. Vu 2022 (SPoT)
starts from prompts learned on other tasks. A start is a dataclass of its options; its `build` takes
what it may draw on, the sizes and a random generator, and gives K prompts of P vectors. The same
seed gives the same prompt.

Shape letters: K prompts in a mixture, P prompt tokens, H hidden, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..backbone import Backbone
from ..config import Choice, Settings, option, starts
from ..errors import UserError, setting


@dataclass(frozen=True)
class Source:
    """A trained prompt, folded: its vectors [K, P, H], and a mixture's router and route."""

    vectors: Tensor
    router: Mapping[str, Tensor] = field(default_factory=dict)
    """The folded router's tensors, by name; empty without a router."""
    route: Choice = Choice("single")


@dataclass(frozen=True)
class Material:
    """What a start may draw on: the backbone's vocabulary, the task's labels, trained prompts."""

    words: Backbone
    labels: Sequence[str] = ()
    fetch: Callable[[str], Source] | None = None
    """Loads a trained prompt by name."""
    features: int = 0
    """The width of what a linear head reads."""
    classes: int = 0
    """The number of classes a linear head predicts."""


class Begin(NamedTuple):
    """Vectors [K, P, H], and the source whose outputs they must reproduce at step 0 (transfer)."""

    vectors: Tensor
    source: Source | None = None


@dataclass(frozen=True)
class Start(Settings):
    """Base of all starts."""

    @abstractmethod
    def build(self, material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        """K = `count` prompts of P = `length` vectors."""


@starts.register("uniform")
@dataclass(frozen=True)
class Uniform(Start):
    """U[low, high). The paper says [-0.5, 0.5] (Lester 2021 §2.2); its code draws from [0, 0.5):
    `low: 0`."""

    low: float = option(-0.5, exclusiveMinimum=-1e6, exclusiveMaximum=1e6, below="high")
    high: float = option(0.5, exclusiveMinimum=-1e6, exclusiveMaximum=1e6)

    def build(self, material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        vectors = torch.empty(count, length, material.words.hidden)
        return Begin(vectors.uniform_(self.low, self.high, generator=rng))


@starts.register("normal")
@dataclass(frozen=True)
class Normal(Start):
    """N(0, std²): the default initialisation of embeddings in torch, PEFT and SMoP's code."""

    std: float = option(1.0, exclusiveMinimum=0, exclusiveMaximum=1e6)

    def build(self, material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        vectors = torch.empty(count, length, material.words.hidden)
        return Begin(vectors.normal_(0, self.std, generator=rng))


@starts.register("vocabulary")
@dataclass(frozen=True)
class SampledVocabulary(Start):
    """Embeddings of tokens drawn from the `population` most common usable ones (0: from all usable
    ones), without replacement.

    Lester 2021 §3.2. Which tokens are common and usable depends on the tokenizer:
    `backbone/vocabulary.py` states the rule. All K prompts are drawn at once, so none share a
    token if the population is large enough; only a prompt longer than the population repeats one.
    """

    population: int = option(5000, minimum=0)

    def build(self, material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        common = material.words.common_pieces(self.population)
        needed, size = count * length, len(common)
        if needed <= size:
            drawn = torch.randperm(size, generator=rng)[:needed]
        elif length <= size:
            drawn = torch.cat([torch.randperm(size, generator=rng)[:length] for _ in range(count)])
        else:
            drawn = torch.randint(size, (needed,), generator=rng)
        return Begin(material.words.input_embeddings(common[drawn.view(count, length)]))


@starts.register("labels")
@dataclass(frozen=True)
class Labels(Start):
    """One class label per token, its subwords averaged; the rest from sampled vocabulary (Lester
    2021 §3.2).

    `words` instead of the task's own labels serves tasks without any (the paper's footnote 7:
    ReCoRD, WSC). Labels beyond the prompt's length are dropped.
    """

    words: list[str] | None = None
    population: int = option(5000, minimum=0)

    def build(self, material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        words = list(self.words or material.labels)
        if not words:
            raise UserError(
                "This task has no class labels to start from; "
                f"give words with {setting('prompt.start.words')}, or start from vocabulary."
            )
        rows = [_mean_of_pieces(material.words, word) for word in words[:length]]
        return Begin(_fill_up(torch.stack(rows), material, count, length, rng, self.population))


@starts.register("text")
@dataclass(frozen=True)
class Text(Start):
    """Token k of a text starts row k; a text shorter than the prompt is filled up from sampled
    vocabulary, not repeated."""

    text: str
    population: int = option(5000, minimum=0)

    def build(self, material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        ids = material.words.pieces(self.text.strip())
        if not ids:
            raise UserError(
                f"The text to start from is empty; give some words with "
                f"{setting('prompt.start.text')}."
            )
        rows = material.words.input_embeddings(torch.tensor(ids[:length]))
        return Begin(_fill_up(rows, material, count, length, rng, self.population))


@starts.register("prompt")
@dataclass(frozen=True)
class TrainedPrompt(Start):
    """Another task's prompt, or the weighted mean of several (Vu 2022, SPoT).

    Weights are divided by their sum (SPoT's alpha). Length: a longer source gives its first P
    tokens, a shorter one is filled up from sampled vocabulary. Count: K prompts start K prompts,
    router included; one prompt starts K copies, which the router distinguishes (`TopRoute.level`);
    any other count is refused unless `index` picks one prompt of the mixture.
    """

    sources: list[str]
    weights: list[float] | None = None
    index: int | None = None
    population: int = option(5000, minimum=0)

    def build(self, material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        if material.fetch is None:
            raise UserError("Source prompts cannot be loaded here; choose another start.")
        if not self.sources:
            raise UserError(
                f"No source prompt is named; name one with {setting('prompt.start.sources')}."
            )
        sources = [self._pick(name, material.fetch(name)) for name in self.sources]
        if len(sources) > 1 and any(len(source.vectors) > 1 for source in sources):
            raise UserError(
                "Mixtures cannot be averaged, because their routers differ; "
                f"pick one prompt of each with {setting('prompt.start.index')}."
            )
        source = sources[0]
        if len(sources) > 1 or self.weights:
            mean = weighted_mean(self.sources, [each.vectors for each in sources], self.weights)
            source = replace(source, vectors=mean)
        held = len(source.vectors)
        if held not in (1, count):
            one = "a single prompt" if count == 1 else f"one of {count}"
            raise UserError(
                f"The source is a mixture of {held} prompts and cannot start {one}; "
                f"pick one of its prompts with {setting('prompt.start.index')}."
            )
        filled = _fill_up(source.vectors, material, count, length, rng, self.population)
        return Begin(filled, source)

    def _pick(self, name: str, source: Source) -> Source:
        if self.index is None:
            return source
        if not 0 <= self.index < len(source.vectors):
            raise UserError(
                f"{name} holds {len(source.vectors)} prompt(s), so there is no prompt "
                f"{self.index}; they are numbered from 0."
            )
        return Source(source.vectors[self.index : self.index + 1])


def weighted_mean(
    names: Sequence[str], vectors: Sequence[Tensor], weights: Sequence[float] | None
) -> Tensor:
    """Sum of alpha_r P_r with alpha_r = w_r / sum w, over prompts of one size (Vu 2022 §3)."""
    equal = [1.0] * len(vectors)
    share = torch.tensor(equal if weights is None else weights, dtype=torch.float64)
    if len(share) != len(vectors):
        raise UserError(
            f"There are {len(vectors)} source prompts but {len(share)} weights; "
            "give one weight per source."
        )
    if not bool(torch.isfinite(share).all()) or bool((share < 0).any()) or float(share.sum()) <= 0:
        raise UserError(
            "The weights of source prompts must be non-negative numbers with a positive sum."
        )
    sizes = {
        name: "x".join(map(str, vector.shape)) for name, vector in zip(names, vectors, strict=True)
    }
    if len(set(sizes.values())) > 1:
        raise UserError(f"Only prompts of one size can be averaged, but these differ: {sizes}.")
    stacked = torch.stack([vector.double() for vector in vectors])
    mean: Tensor = torch.tensordot(share / share.sum(), stacked, dims=1)
    return mean.to(vectors[0].dtype)


def _mean_of_pieces(words: Backbone, word: str) -> Tensor:
    ids = words.pieces(word)
    if not ids:
        raise UserError(
            f"The label {word!r} has no tokens in this vocabulary; "
            f"give it a word with {setting('task.labels')}."
        )
    return words.input_embeddings(torch.tensor(ids)).mean(0)


def _fill_up(
    rows: Tensor,
    material: Material,
    count: int,
    length: int,
    rng: torch.Generator,
    population: int,
) -> Tensor:
    """`rows` ([N, H], or [K, N, H], or [1, N, H]) first, sampled vocabulary after: [K, P, H]."""
    rows = (rows if rows.dim() == 3 else rows[None]).expand(count, -1, -1)[:, :length]
    sampled = SampledVocabulary(population=population)
    rest = sampled.build(material, count, length - rows.shape[1], rng).vectors
    return torch.cat([rows, rest], dim=1)
