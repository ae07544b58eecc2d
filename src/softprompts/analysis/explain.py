"""What a prompt has learned: the vocabulary near its tokens, what each token is worth, and which
inputs a mixture sends where (Lester 2021, §7).

Shape letters: K prompts of a mixture, P prompt tokens, H hidden, V vocabulary, B rows.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..backbone import Backbone, Text
from ..errors import UserError
from ..tasks import Example
from ..tuning.evaluate import Predictor
from ..tuning.tuned import Tuned

NEIGHBOURS = 5
DUPLICATE = 0.95
"""The cosine from which two tokens of a prompt count as near-duplicates."""
EXAMPLES = 3
"""Inputs to show for each prompt of a mixture."""
MAX_ROWS, MAX_PASSES = 128, 4_000
"""The most rows that the worth of tokens is measured on, and the most passes of a row: a prompt of
many tokens is measured on fewer rows."""
BATCH = 32


@dataclass(frozen=True)
class Neighbour:
    """A vocabulary entry near a prompt token."""

    word: str
    cosine: float


@dataclass(frozen=True)
class TokenReport:
    """One token of a prompt."""

    prompt: int
    position: int
    neighbours: list[Neighbour]
    moved: float | None = None
    """The distance from its start, over the start's norm; None if the start is not known."""
    loss_without: float | None = None
    """How much the loss rises when the token is left out; None without labelled rows."""


@dataclass(frozen=True)
class RoutingReport:
    """Which inputs one prompt of a mixture takes."""

    prompt: int
    rows: int
    classes: dict[str, int]
    examples: list[str]


@dataclass(frozen=True)
class RouterStep:
    """A mixture's router at one evaluation of the training, on the validation rows."""

    step: int
    confidence: float
    """Its mean probability of the prompt it chooses."""
    entropy: float
    """The mean entropy of its probabilities, as a share of the largest possible."""
    load: list[float]
    """The share of rows that each prompt takes."""


@dataclass(frozen=True)
class Explanation:
    """All that is known about a prompt."""

    tokens: list[TokenReport]
    duplicates: list[list[list[int]]]
    """Groups of near-duplicate tokens, each as [prompt, position]."""
    labels: dict[str, int]
    """In how many tokens' neighbours each class label is."""
    shared: dict[str, int]
    """Neighbours of several tokens, and of how many."""
    nearest_cosine: float
    """The mean cosine between a token and its nearest neighbour."""
    random_cosine: float
    """The same for random vectors: what chance gives."""
    loss: float | None = None
    """The mean loss of the rows that tokens were left out for."""
    rows: int = 0
    routing: list[RoutingReport] = field(default_factory=list)
    confidence: float | None = None
    """The router's mean probability of the prompt it chooses."""
    entropy: float | None = None
    """The mean entropy of the router's probabilities, as a share of the largest possible."""
    neighbour_cosine: float | None = None
    """The mean cosine among the neighbours of a token: how tight a cluster they form."""
    random_neighbour_cosine: float | None = None
    """The same for random vectors."""
    random_words_shared: float | None = None
    """Of as many random vectors, the share that have a neighbour in common with another."""
    router_steps: list[RouterStep] = field(default_factory=list)
    """The router over training; empty if the prompt has no record of it."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def explain(
    tuned: Tuned,
    examples: Sequence[Example] = (),
    start: Tensor | None = None,
    on_token: Callable[[int], object] = lambda count: None,
    worth: bool = True,
    history: Sequence[Mapping[str, Any]] = (),
) -> Explanation:
    """Explain a tuned prompt. `examples` are labelled rows of its task, for what each token is
    worth and for a mixture's routing; `start` [K, P, H] are the vectors that training began from;
    `history` are the run's evaluations, which say what a mixture's router did over training.

    `on_token` is called with the number of tokens done, which the rows make slow; without `worth`,
    no token is left out.
    """
    vectors = tuned.prompt.table.detach().float().cpu()
    if vectors.shape[1] == 0:
        raise UserError("A prompt of length 0 has no tokens to explain.")
    neighbours, tightness = nearest_words(tuned.backbone, vectors.flatten(0, 1))
    chance = torch.randn(vectors.flatten(0, 1).shape, generator=torch.Generator().manual_seed(0))
    random_neighbours, random_tightness = nearest_words(tuned.backbone, chance)
    moved = _moved(vectors, start)
    count, length = vectors.shape[:2]
    measured = examples[: min(MAX_ROWS, 1 + MAX_PASSES // (count * length))] if worth else ()
    loss, without = _worth(tuned, measured, on_token)
    tokens = [
        TokenReport(k, p, neighbours[k * length + p], moved[k][p], without[k][p])
        for k in range(count)
        for p in range(length)
    ]
    common = _shared(random_neighbours)
    return Explanation(
        tokens,
        _duplicates(vectors),
        {label: _tokens_near(tuned.backbone, label, neighbours) for label in tuned.form.labels},
        _shared(neighbours),
        _mean([own[0].cosine for own in neighbours]),
        _mean([own[0].cosine for own in random_neighbours]),
        loss,
        len(measured),
        *_routing(tuned, examples),
        tightness,
        random_tightness,
        _mean([any(plain_word(n.word) in common for n in own) for own in random_neighbours]),
        [RouterStep(entry["step"], **entry["router"]) for entry in history if "router" in entry],
    )


@torch.no_grad()
def nearest_words(
    backbone: Backbone, vectors: Tensor, count: int = NEIGHBOURS
) -> tuple[list[list[Neighbour]], float]:
    """The vocabulary entries with the largest cosine to each vector [N, H] -> N lists, and the mean
    cosine among those of one vector."""
    special = set(backbone.tokenizer.all_special_ids)
    ids = torch.tensor(
        [index for index in range(min(backbone.vocab_size, len(backbone.tokenizer)))
         if index not in special]
    )  # fmt: skip
    directions = torch.nn.functional.normalize(backbone.input_embeddings(ids), dim=1)
    cosines = torch.nn.functional.normalize(vectors, dim=1) @ directions.T
    best = cosines.topk(min(count, len(ids)), dim=1)
    words = iter(backbone.tokenizer.convert_ids_to_tokens(ids[best.indices.flatten()].tolist()))
    near = [
        [Neighbour(next(words), round(value, 4)) for value in row] for row in best.values.tolist()
    ]
    size = best.indices.shape[1]
    norms = directions[best.indices].sum(1).square().sum(1)  # all pairs, and each with itself
    return near, round(float((norms - size).mean()) / max(1, size * (size - 1)), 4)


def plain_word(piece: str) -> str:
    """A vocabulary entry without its tokenizer's marks for spaces."""
    return piece.strip("▁Ġ#").lower()


def _shared(neighbours: Sequence[Sequence[Neighbour]]) -> dict[str, int]:
    """The words that are neighbours of several tokens, and of how many."""
    words = Counter(
        word for own in neighbours for word in dict.fromkeys(plain_word(n.word) for n in own)
    )
    return {word: times for word, times in words.most_common() if times > 1 and word}


def _tokens_near(backbone: Backbone, label: str, neighbours: Sequence[Sequence[Neighbour]]) -> int:
    """The number of tokens with a piece of the label among their neighbours."""
    pieces = backbone.tokenizer.convert_ids_to_tokens(backbone.word_pieces(label))
    wanted = {plain_word(piece) for piece in pieces} - {""}
    return sum(any(plain_word(near.word) in wanted for near in own) for own in neighbours)


def _duplicates(vectors: Tensor) -> list[list[list[int]]]:
    """Groups of tokens that are connected by cosines from `DUPLICATE` on."""
    count, length, _ = vectors.shape
    directions = torch.nn.functional.normalize(vectors.flatten(0, 1), dim=1)
    near = (directions @ directions.T >= DUPLICATE).fill_diagonal_(True)
    first, before = torch.arange(count * length), torch.tensor([])
    while not first.equal(before):  # until all tokens of a group know the first of them
        first, before = torch.where(near, first, len(near)).amin(1), first
    groups = [
        torch.nonzero(first == token).flatten().tolist() for token in sorted(set(first.tolist()))
    ]
    return [[list(divmod(token, length)) for token in group] for group in groups if len(group) > 1]


def _moved(vectors: Tensor, start: Tensor | None) -> list[list[float | None]]:
    count, length, _ = vectors.shape
    if start is None or start.shape != vectors.shape:
        return [[None] * length for _ in range(count)]
    distance = (vectors - start).norm(dim=2) / start.norm(dim=2).clamp(min=1e-12)
    return [[round(part, 4) for part in row] for row in distance.tolist()]


@torch.no_grad()
def _worth(
    tuned: Tuned, examples: Sequence[Example], on_token: Callable[[int], object]
) -> tuple[float | None, list[list[float | None]]]:
    """The mean loss per target token, and how much it rises without each token [K][P].

    A single prompt is shortened by the token; in a mixture it is zero, because other prompts keep
    theirs.
    """
    prompt, count, length = tuned.prompt, *tuned.prompt.table.shape[:2]
    if not examples:
        return None, [[None] * length for _ in range(count)]
    predictor = tuned.predictor()
    backbone, batches = predictor.backbone, _batches(predictor, examples)
    ablated = copy.deepcopy(prompt)

    def loss(left_out: tuple[int, int] | None) -> float:
        total = tokens = 0.0
        for text, targets in batches:
            ablated.table.copy_(prompt.table)
            if left_out is not None and count > 1:
                ablated.table[left_out] = 0
            vectors = ablated(text.embeds, backbone.content_mask(text))
            if left_out is not None and count == 1:
                _, at = left_out
                vectors = torch.cat([vectors[:, :at], vectors[:, at + 1 :]], dim=1)
            losses = backbone.losses(vectors, text, targets)
            total += float(losses.nll.sum())
            tokens += float(losses.tokens.sum())
        return total / tokens

    whole = loss(None)
    rises: list[list[float | None]] = [[] for _ in range(count)]
    for done, token in enumerate(product(range(count), range(length)), 1):
        rises[token[0]].append(round(loss(token) - whole, 5))
        on_token(done)
    return round(whole, 5), rises


def _batches(
    predictor: Predictor, examples: Sequence[Example]
) -> list[tuple[Text, list[list[int]]]]:
    """Rows of similar length, with their targets."""
    backbone, place = predictor.backbone, predictor.prompt.config.place
    rows = backbone.tokenise([example.input for example in examples], predictor.budget)
    targets = backbone.tokenise_targets([example.target for example in examples])
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    return [
        (backbone.embed_rows([rows[row] for row in part], place), [targets[row] for row in part])
        for part in parts
    ]


@torch.no_grad()
def _routing(
    tuned: Tuned, examples: Sequence[Example]
) -> tuple[list[RoutingReport], float | None, float | None]:
    """Which rows each prompt of a mixture takes, and how sure the router is."""
    prompt, predictor = tuned.prompt, tuned.predictor()
    count, backbone = len(prompt.table), predictor.backbone
    if count == 1 or prompt.route.router is None or not examples:
        return [], None, None
    parts = []
    for start in range(0, len(examples), 64):
        inputs = [example.input for example in examples[start : start + 64]]
        text = backbone.embed_rows(backbone.tokenise(inputs, predictor.budget))
        parts.append(prompt.router_probabilities(text.embeds, backbone.content_mask(text)))
    probabilities = torch.cat(parts)
    chosen = probabilities.argmax(1).tolist()
    reports = []
    for k in range(count):
        own = [example for example, to in zip(examples, chosen, strict=True) if to == k]
        classes = Counter(example.target for example in own if tuned.form.labels)
        shown = [example.input for example in own[:EXAMPLES]]
        reports.append(RoutingReport(k, len(own), dict(classes.most_common()), shown))
    confidence = float(probabilities.amax(1).mean())
    entropy = -float((probabilities * probabilities.clamp(min=1e-12).log()).sum(1).mean())
    return reports, round(confidence, 4), round(entropy / math.log(count), 4)


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)
