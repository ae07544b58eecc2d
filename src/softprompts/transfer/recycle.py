"""Recycling: a prompt of one backbone mapped to another, without training.

The map comes from the tokens that both vocabularies share (Lester 2022, "Reducing Retraining by
Recycling Parameter-Efficient Prompts": v2v-lin and v2v-nn).

Shape letters: N shared tokens, H and G hidden widths of source and target, K prompts of a
mixture, P prompt tokens.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..artifacts.card import UNTRAINED, BackboneCard, Card, Lineage, PromptCard
from ..backbone import Backbone, has_chat_template
from ..errors import UserError, setting
from ..prompt.prompt import Prompt, folded_prompt
from ..tasks import prepend_sentinel
from ..tuning import Predictor
from .settings import Recycling

CHUNK = 4096
"""Tokens whose embeddings are read at once."""


def recycle(
    prompt: Prompt, source: Backbone, target: Backbone, how: Recycling | str = "least-squares"
) -> Prompt:
    """`prompt`, mapped from the source's embedding space to the target's."""
    how = Recycling.of({"method": how}) if isinstance(how, str) else how
    folded = prompt.fold().cpu()
    if folded.head is not None:
        raise UserError(
            f"The prompt predicts with a linear head on {source.name}'s hidden states; "
            "only prompts that predict words can be mapped."
        )
    if not folded.table.numel():
        raise UserError("The prompt has no vectors to map; tune the new model instead.")
    target.check_place(folded.config.place)
    pairs = shared_words(source, target, how.words)
    if set(folded.router_tensors()) - {"weight"}:
        raise UserError("Only a prompt with a linear router, or with none, can be mapped.")
    vectors, router = METHODS[how.method](folded, source, target, pairs, how)
    return folded_prompt(vectors, None if router is None else {"weight": router}, folded.config)


def shared_words(source: Backbone, target: Backbone, limit: int = 0) -> Tensor:
    """The ids of usable tokens that both vocabularies have [N, 2], the most frequent first."""
    source_ids, target_ids = _piece_ids(source), _piece_ids(target)
    pairs = [(index, target_ids[text]) for text, index in source_ids.items() if text in target_ids]
    return torch.tensor(pairs[: limit or None], dtype=torch.long).reshape(-1, 2)


def _piece_ids(backbone: Backbone) -> dict[str, int]:
    """Ids of tokens by their text, with a space before those that begin a word."""
    ids = backbone.common_pieces(0).tolist()
    pieces = backbone.tokenizer.convert_ids_to_tokens(ids)
    model = getattr(getattr(backbone.tokenizer, "backend_tokenizer", None), "model", None)
    if type(model).__name__ == "WordPiece":  # which marks tokens that do not begin a word
        texts = [piece[2:] if piece.startswith("##") else f" {piece}" for piece in pieces]
    else:
        texts = [f" {piece[1:]}" if piece[:1] in "▁Ġ" else piece for piece in pieces]
    by_text: dict[str, int] = {}
    for text, index in zip(texts, ids, strict=True):
        by_text.setdefault(text, index)
    return by_text


Mapped = tuple[Tensor, Tensor | None]
"""Vectors [K, P, G], and a mixture's router [K, G]."""


def _by_least_squares(
    prompt: Prompt, source: Backbone, target: Backbone, pairs: Tensor, how: Recycling
) -> Mapped:
    """Embeddings [N, H] W = [N, G]; the router keeps its logits of tokens: [N, G] R' = [N, H] R."""
    needed = max(source.hidden, target.hidden if prompt.config.count > 1 else 0)
    if len(pairs) < needed:
        raise UserError(
            f"{source.name} and {target.name} share {len(pairs)} tokens, "
            f"and a linear map needs {needed}; use {setting('method', 'words')}."
        )

    def embeddings() -> Iterator[tuple[Tensor, Tensor]]:
        for ids in torch.split(pairs, CHUNK):
            yield source.input_embeddings(ids[:, 0]), target.input_embeddings(ids[:, 1])

    vectors = (prompt.table.detach().double() @ least_squares(embeddings(), how.ridge)).float()
    if prompt.config.count == 1:
        return vectors, None
    router = prompt.router_tensors()["weight"]
    logits = ((y, x @ router.T) for x, y in embeddings())
    return vectors, least_squares(logits, how.ridge).T.float()


def least_squares(chunks: Iterable[tuple[Tensor, Tensor]], ridge: float) -> Tensor:
    """The W [H, G] that minimises |x W - y|² + ridge * mean(diagonal of x'x) * |W|², in float64.

    Chunks are rows of x [n, H] and y [n, G].
    """
    gram = cross = torch.zeros((), dtype=torch.float64)
    for x, y in chunks:
        gram, cross = gram + x.double().T @ x.double(), cross + x.double().T @ y.double()
    penalty = ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weight: Tensor = torch.linalg.solve(gram + penalty, cross)
    return weight


def _by_words(
    prompt: Prompt, source: Backbone, target: Backbone, pairs: Tensor, how: Recycling
) -> Mapped:
    """Each vector becomes a mean of target embeddings, weighted by cosine.

    The tokens are the shared ones nearest to the vector in the source.
    """
    if prompt.config.count > 1:
        raise UserError(
            "The router of a mixture cannot be mapped by words; "
            f"use {setting('method', 'least-squares')}."
        )
    if len(pairs) < how.nearest:
        raise UserError(
            f"{source.name} and {target.name} share only {len(pairs)} tokens; "
            f"lower {setting('nearest')}."
        )
    source_ids, target_ids = pairs.T
    rows = normalize(prompt.table.detach()[0], dim=1)
    words = (source.input_embeddings(ids) for ids in torch.split(source_ids, CHUNK))
    cosines = torch.cat([rows @ normalize(chunk, dim=1).T for chunk in words], dim=1)
    best, nearest = cosines.topk(how.nearest, dim=1)
    weight = normalize(best.clamp(min=1e-9), p=1, dim=1)
    mapped = target.input_embeddings(target_ids[nearest])
    return (weight.unsqueeze(-1) * mapped).sum(1)[None], None


METHODS: dict[str, Callable[[Prompt, Backbone, Backbone, Tensor, Recycling], Mapped]] = {
    "least-squares": _by_least_squares,
    "words": _by_words,
}


def recycled_card(
    card: Card, name: str, prompt: Prompt, target: Backbone, how: Recycling, words: int
) -> Card:
    """The card of a recycled prompt: its task and origin; it has no scores yet."""
    answering = card.answering()
    prepend_sentinel([], target.tokenizer, target.name, answering.form.sentinel)
    max_length = min(answering.max_length, target.max_positions or answering.max_length)
    scoring = answering.scoring if target.generates else "labels"
    chat = answering.chat and has_chat_template(target)
    # Raises if the target cannot generate a label.
    Predictor(
        target, prompt.to(target.device), answering.form.labels, scoring, max_length, chat=chat
    )
    return Card(
        prompt=PromptCard.describing(prompt.config),
        method=f"recycled by {how.method}",
        backbone=BackboneCard.describing(target),
        task=card.task,
        scoring=scoring,
        config={
            **card.config,
            "model": target.name,
            "tuning": {**card.config["tuning"], "max_length": max_length, "chat": chat},
        },
        lineage=Lineage(
            recycled_from=name,
            method=card.method,
            backbone=card.backbone,
            metrics=card.metrics,
            how=dataclasses.asdict(how) | {"words": words},
        ),
        absent=UNTRAINED - {"model"},
    )
