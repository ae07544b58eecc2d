"""Recycling: a prompt of one backbone as a prompt of another, without training, by the words that both vocabularies share (Lester 2022,
"Reducing Retraining by Recycling Parameter-Efficient Prompts": v2v-lin and v2v-nn).

Shape letters: N shared words, H and G hidden widths of the source and of the target, K prompts of a mixture, P prompt tokens.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .. import __version__
from ..errors import UserError
from ..prompt.prompt import Prompt, plain, router_of
from ..tasks.sentinel import opened

if TYPE_CHECKING:
    from ..backbone import Backbone

PART = 4096
"""Words that are read at once."""


@dataclasses.dataclass(frozen=True)
class Recycling:
    """How a prompt is mapped."""

    method: str = "least-squares"
    """least-squares: a linear map from the source's embeddings of the shared words to the target's. words: the target's nearest words."""
    words: int = 0
    """Use so many of the commonest shared words; 0: all."""
    nearest: int = 1
    """Words that stand for one prompt vector, weighted by cosine."""
    ridge: float = 1e-6
    """What keeps the map small where words say little, as a share of the embeddings' mean square."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(
                f"There is no method {self.method!r}; choose one of {', '.join(METHODS)}."
            )
        if self.words < 0 or self.nearest < 1 or not 0 < self.ridge < math.inf:
            raise UserError(
                "Recycling takes 0 or more --words, 1 or more --nearest and a positive --ridge."
            )


def recycle(
    prompt: Prompt, source: "Backbone", target: "Backbone", how: Recycling | str = "least-squares"
) -> Prompt:
    """The target's prompt that means what `prompt` means to the source."""
    how = Recycling(how) if isinstance(how, str) else how
    folded = prompt.fold().cpu()
    vectors = folded.table.detach()
    if folded.head is not None:
        raise UserError(
            f"The prompt answers by a linear head that reads {source.name}'s states; only one that answers in words can be mapped."
        )
    if not vectors.numel():
        raise UserError(
            "The prompt has no vectors that could be mapped; tune the new model instead."
        )
    target.check_place(folded.config.place)
    pairs = shared_words(source, target, how.words)
    made, router = METHODS[how.method](folded, source, target, pairs, how)
    return plain(made, router, folded.config)


def shared_words(source: "Backbone", target: "Backbone", most: int = 0) -> Tensor:
    """The ids of each usable piece that both vocabularies spell alike [N, 2], the source's commonest first."""
    ours, theirs = _spelled(source), _spelled(target)
    pairs = [(index, theirs[text]) for text, index in ours.items() if text in theirs]
    return torch.tensor(pairs[: most or None], dtype=torch.long).reshape(-1, 2)


def _spelled(backbone: "Backbone") -> dict[str, int]:
    """Pieces as text, a space before those that begin a word, whatever mark the tokenizer has for that."""
    ids = backbone.common_pieces(0).tolist()
    pieces = backbone.tokenizer.convert_ids_to_tokens(ids)
    model = getattr(getattr(backbone.tokenizer, "backend_tokenizer", None), "model", None)
    if type(model).__name__ == "WordPiece":  # it marks what does not begin a word
        texts = [piece[2:] if piece.startswith("##") else f" {piece}" for piece in pieces]
    else:
        texts = [f" {piece[1:]}" if piece[:1] in "▁Ġ" else piece for piece in pieces]
    found: dict[str, int] = {}
    for text, index in zip(texts, ids, strict=True):
        found.setdefault(text, index)
    return found


Mapped = tuple[Tensor, Tensor | None]
"""Vectors [K, P, G], and a mixture's router [K, G]."""


def _by_least_squares(
    prompt: Prompt, source: "Backbone", target: "Backbone", pairs: Tensor, how: Recycling
) -> Mapped:
    """Embeddings [N, H] W = [N, G]. The router is mapped so that it tells the words apart as it did: [N, G] R' = [N, H] R."""
    needed = max(source.hidden, target.hidden if prompt.config.count > 1 else 0)
    if len(pairs) < needed:
        few = f"{source.name} and {target.name} share {len(pairs)} words that are used, and a linear map needs {needed}"
        raise UserError(f"{few}; use --method words.")
    here, there = pairs.T
    weight = least_squares(
        _parts(lambda rows: (source.vectors(here[rows]), target.vectors(there[rows])), len(pairs)),
        how.ridge,
    )
    vectors = (prompt.table.detach().double() @ weight).float()
    if prompt.config.count == 1:
        return vectors, None
    router = router_of(prompt.route).weight.detach()
    told = _parts(
        lambda rows: (target.vectors(there[rows]), source.vectors(here[rows]) @ router.T),
        len(pairs),
    )
    return vectors, least_squares(told, how.ridge).T.float()


def least_squares(parts: Iterable[tuple[Tensor, Tensor]], ridge: float) -> Tensor:
    """The W [H, G] of least |x W - y|² + ridge * mean(diagonal of x'x) * |W|², over parts of x [n, H] and y [n, G], in float64."""
    gram = cross = torch.zeros((), dtype=torch.float64)
    for x, y in parts:
        gram, cross = gram + x.double().T @ x.double(), cross + x.double().T @ y.double()
    small = ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    solved: Tensor = torch.linalg.solve(gram + small, cross)
    return solved


def _parts(
    read: Callable[[Tensor], tuple[Tensor, Tensor]], count: int
) -> Iterable[tuple[Tensor, Tensor]]:
    return (read(rows) for rows in torch.split(torch.arange(count), PART))


def _by_words(
    prompt: Prompt, source: "Backbone", target: "Backbone", pairs: Tensor, how: Recycling
) -> Mapped:
    """Each vector as the target's mean embedding of the shared words nearest to it at the source, weighted by cosine."""
    if prompt.config.count > 1:
        raise UserError("A mixture's router cannot be told in words; use --method least-squares.")
    if len(pairs) < how.nearest:
        raise UserError(
            f"{source.name} and {target.name} share {len(pairs)} words that are used; no prompt can be told in {how.nearest}."
        )
    here, there = pairs.T
    rows = normalize(prompt.table.detach()[0], dim=1)
    cosines = torch.cat(
        [rows @ normalize(source.vectors(part), dim=1).T for part in torch.split(here, PART)], dim=1
    )
    best, places = cosines.topk(how.nearest, dim=1)
    weight = best.clamp(min=1e-9)
    words = target.vectors(there[places])
    return ((weight / weight.sum(1, keepdim=True)).unsqueeze(-1) * words).sum(1)[None], None


METHODS: dict[str, Callable[[Prompt, "Backbone", "Backbone", Tensor, Recycling], Mapped]] = {
    "least-squares": _by_least_squares,
    "words": _by_words,
}


def recycled_card(
    card: dict[str, Any], name: str, prompt: Prompt, target: "Backbone", how: Recycling, words: int
) -> dict[str, Any]:
    """What a recycled prompt's card says: the task it is for and what it came from; how good it is, nobody knows yet."""
    from ..artifacts.card import backbone_card
    from ..tasks import Form
    from ..tuning import Predictor

    form = Form(**card["task"]["form"])
    opened([], target.tokenizer, target.name, form.sentinel)
    tuning = card["config"]["tuning"]
    longest = min(int(tuning["max_length"]), target.longest or math.inf)
    scoring = card["scoring"] if target.generates else "labels"
    Predictor(
        target, prompt.to(target.device), form.labels, scoring, int(longest)
    )  # tells of labels that the target cannot write
    return {
        "method": f"recycled by {how.method}",
        "backbone": backbone_card(target),
        "model": None,
        "task": card["task"],
        "metrics": {},
        "majority": {},
        "scoring": scoring,
        "config": {
            **card["config"],
            "model": target.name,
            "tuning": {**tuning, "max_length": int(longest)},
        },
        "lineage": {
            "recycled_from": name,
            "method": card.get("method"),
            "backbone": card["backbone"],
            "metrics": card.get("metrics", {}),
            "how": dataclasses.asdict(how) | {"words": words},
        },
        "version": __version__,
    }
