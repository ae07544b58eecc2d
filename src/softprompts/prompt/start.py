"""start: where do a prompt's numbers come from?

Lester 2021 §2.2 compares uniform numbers, sampled vocabulary and class labels; Vu 2022 (SPoT) starts from prompts learned on other
tasks. A start is a closure: its options go in first, then what it may draw on, the sizes and a random generator, and out come K
prompts of P vectors. The same seed gives the same prompt.

Shape letters: K prompts in a mixture, P prompt tokens, H hidden, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..config.choice import Choice
from ..errors import UserError


class Words(Protocol):
    """What a start may ask of a backbone."""

    @property
    def hidden(self) -> int: ...

    def common_pieces(self, population: int) -> Tensor:
        """Ids of the commonest usable pieces [N], all of them when `population` is 0."""

    def pieces(self, text: str) -> list[int]:
        """Ids of a text, without the special tokens a tokenizer adds."""

    def vectors(self, ids: Tensor) -> Tensor:
        """Rows of the input embeddings, in float32: [...] -> [..., H]."""


class Source(NamedTuple):
    """A trained prompt, folded: its vectors [K, P, H], and a mixture's router [K, H] and route."""

    vectors: Tensor
    router: Tensor | None = None
    route: Choice = Choice("single")


@dataclass(frozen=True)
class Material:
    """What a start may draw on: the backbone's words, the task's label words, and a way to fetch a trained prompt by name."""

    words: Words
    labels: Sequence[str] = ()
    fetch: Callable[[str], Source] | None = None
    features: int = 0
    """The width of what a linear head reads."""
    classes: int = 0
    """The number of classes a linear head tells."""


class Begin(NamedTuple):
    """What a start gives: vectors [K, P, H], and the source whose outputs they must reproduce at step 0 (transfer)."""

    vectors: Tensor
    source: Source | None = None


Start = Callable[[Material, int, int, torch.Generator], Begin]


def uniform(*, low: float = -0.5, high: float = 0.5) -> Start:
    """U[low, high). The paper says [-0.5, 0.5] (Lester 2021 §2.2); its code draws from [0, 0.5): `low: 0`."""

    if not -1e6 < low < high < 1e6:
        raise UserError(f"A uniform start needs low below high, but they are {low} and {high}.")

    def start(material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        return Begin(
            torch.empty(count, length, material.words.hidden).uniform_(low, high, generator=rng)
        )

    return start


def normal(*, std: float = 1.0) -> Start:
    """N(0, std²): what torch, PEFT and SMoP's code give an embedding nobody initialised."""

    if not 0 < std < 1e6:
        raise UserError(f"A normal start needs a positive std, but it is {std}.")

    def start(material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        return Begin(
            torch.empty(count, length, material.words.hidden).normal_(0, std, generator=rng)
        )

    return start


def vocabulary(*, population: int = 5000) -> Start:
    """Embeddings of words drawn from the `population` commonest usable pieces (0: of all usable pieces), without replacement.

    Lester 2021 §3.2. Which pieces are common and usable is the tokenizer's to say: `backbone/vocabulary.py` states the rule.
    All K prompts are drawn at once, so none share a word; only a prompt longer than the population repeats one.
    """

    if population < 0:
        raise UserError(
            f"The population to draw words from is {population}; it must be a number of pieces, or 0 for all."
        )

    def start(material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        common = material.words.common_pieces(population)
        needed = count * length
        enough = needed <= len(common)
        drawn = (
            torch.randperm(len(common), generator=rng)[:needed]
            if enough
            else torch.randint(len(common), (needed,), generator=rng)
        )
        return Begin(
            material.words.vectors(common[drawn]).view(count, length, material.words.hidden)
        )

    return start


def labels(*, words: list[str] | None = None, population: int = 5000) -> Start:
    """One class label per token, its pieces averaged; the rest from sampled vocabulary (Lester 2021 §3.2).

    `words` instead of the task's own labels serves tasks without any (the paper's footnote 7: ReCoRD, WSC). Labels beyond the
    prompt's length are dropped.
    """

    def start(material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        chosen = list(words or material.labels)
        if not chosen:
            raise UserError(
                "This task has no class labels to start from; name words with --prompt.start.words, or start from vocabulary."
            )
        rows = [_mean_of_pieces(material.words, word) for word in chosen[:length]]
        return _lead(torch.stack(rows), material, count, length, rng, population)

    return start


def text(*, text: str, population: int = 5000) -> Start:
    """Token k of a text starts row k; a text shorter than the prompt is filled up from sampled vocabulary, not repeated."""

    def start(material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        ids = material.words.pieces(text.strip())
        if not ids:
            raise UserError(
                "The text to start from is empty; give some words with --prompt.start.text."
            )
        return _lead(
            material.words.vectors(torch.tensor(ids[:length])),
            material,
            count,
            length,
            rng,
            population,
        )

    return start


def prompt(
    *,
    sources: list[str],
    weights: list[float] | None = None,
    index: int | None = None,
    population: int = 5000,
) -> Start:
    """Another task's prompt, or the weighted mean of several (Vu 2022, SPoT).

    Weights are divided by their sum (SPoT's alpha). Length: a longer source gives its first P tokens, a shorter one is filled up
    from sampled vocabulary. Count: K prompts go to K prompts with their router; one prompt goes to K as copies, which the
    router tells apart (`route.Top.level`); any other count is refused unless `index` picks one prompt of the mixture.
    """

    def start(material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        if material.fetch is None:
            raise UserError("There is nowhere to fetch a source prompt from.")
        if not sources:
            raise UserError("No source prompt is named; give one with --prompt.start.sources.")
        found = [_one_of(name, material.fetch(name), index) for name in sources]
        if len(found) > 1 and any(len(source.vectors) > 1 for source in found):
            raise UserError(
                "Mixtures cannot be averaged, because their routers differ; pick one prompt of each with --prompt.start.index."
            )
        mean = (
            weighted_mean(sources, [s.vectors for s in found], weights)
            if len(found) > 1 or weights
            else None
        )
        source = found[0] if mean is None else found[0]._replace(vectors=mean)
        held = source.vectors.shape[0]
        if held not in (1, count):
            raise UserError(
                f"The source is a mixture of {held} prompts and cannot start {count}; pick one of it with --prompt.start.index."
            )
        filled = _lead(source.vectors, material, count, length, rng, population).vectors
        return Begin(filled, source)

    return start


STARTS: dict[str, Callable[..., Start]] = {
    "uniform": uniform,
    "normal": normal,
    "vocabulary": vocabulary,
    "labels": labels,
    "text": text,
    "prompt": prompt,
}


def weighted_mean(
    names: Sequence[str], vectors: Sequence[Tensor], weights: Sequence[float] | None
) -> Tensor:
    """Sum of alpha_r P_r with alpha_r = w_r / sum w, over prompts of one size (Vu 2022 §3)."""
    share = torch.tensor(
        list(weights) if weights is not None else [1.0] * len(vectors), dtype=torch.float64
    )
    if len(share) != len(vectors):
        raise UserError(
            f"There are {len(vectors)} source prompts but {len(share)} weights; give one weight per source."
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


def _one_of(name: str, source: Source, index: int | None) -> Source:
    if index is None:
        return source
    if not 0 <= index < len(source.vectors):
        raise UserError(
            f"{name} holds {len(source.vectors)} prompt(s), so there is no prompt {index} in it; they count from 0."
        )
    return Source(source.vectors[index : index + 1])


def _mean_of_pieces(words: Words, word: str) -> Tensor:
    ids = words.pieces(word)
    if not ids:
        raise UserError(
            f"The label {word!r} has no pieces in this vocabulary; give it a word with --labels."
        )
    return words.vectors(torch.tensor(ids)).mean(0)


def _lead(
    rows: Tensor, material: Material, count: int, length: int, rng: torch.Generator, population: int
) -> Begin:
    """`rows` ([N, H], or [K, N, H], or [1, N, H]) first, and sampled vocabulary after them: [K, P, H]."""
    rows = (rows if rows.dim() == 3 else rows[None]).expand(count, -1, -1)[:, :length]
    rest = vocabulary(population=population)(material, count, length - rows.shape[1], rng).vectors
    return Begin(torch.cat([rows, rest], dim=1))
