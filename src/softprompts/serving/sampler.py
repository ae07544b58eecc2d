"""The next token of each answer, greedy or sampled. Shape letters: B answers, V vocabulary."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..backbone import to_device
from .jobs import Answer
from .requests import TokenLogprob
from .row_pool import index_of

SPACES = "▁Ġ"
"""How tokenizers write a space at the start of a token."""

Choice = tuple[int, TokenLogprob | None]


def next_tokens(logits: Tensor, answers: Sequence[Answer]) -> list[Choice]:
    """A token for each answer from its logits [B, V], and its log-probability if asked for."""
    tokens = logits.argmax(-1)
    sampled = [row for row, answer in enumerate(answers) if answer.sampling.temperature > 0]
    if sampled:
        rows = index_of(sampled, logits.device)
        tokens[rows] = _sampled(logits[rows], [answers[row] for row in sampled])
    chosen = tokens.tolist()
    reported = [row for row, answer in enumerate(answers) if answer.sampling.logprobs is not None]
    details: list[TokenLogprob | None] = [None] * len(answers)
    if reported:
        rows = index_of(reported, logits.device)
        ids = [chosen[row] for row in reported]
        named = _logprobs(logits[rows], ids, [answers[row] for row in reported])
        for row, detail in zip(reported, named, strict=True):
            details[row] = detail
    return list(zip(chosen, details, strict=True))


def _sampled(logits: Tensor, answers: Sequence[Answer]) -> Tensor:
    """Tokens [B] drawn by each answer's own noise from the smallest set of tokens with `top_p` of
    the probability."""
    settings = [
        (answer.sampling.temperature, answer.sampling.top_p, answer.noise.random())
        for answer in answers
    ]
    columns = to_device(torch.tensor(settings, dtype=torch.float64), logits.device)
    temperature, top_p, noise = columns.unsqueeze(-1).unbind(1)
    logits = logits.double() - logits.amax(-1, keepdim=True)  # no temperature makes them infinite
    probabilities = (logits / temperature).softmax(-1)
    nucleus = [row for row, (_, top, _) in enumerate(settings) if top < 1]
    if nucleus:
        rows = index_of(nucleus, logits.device)
        probabilities[rows] = _most_probable(probabilities[rows], top_p[rows])
    # all draw in the vocabulary's order, so that a seed's token is the same beside any other row
    total = probabilities.cumsum(-1)
    drawn = (total <= noise * total[:, -1:]).sum(-1)
    return drawn.clamp(max=logits.shape[1] - 1)


def _most_probable(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """The probabilities [B, V] of the fewest tokens with `top_p` [B, 1] together, and zeros."""
    values, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = values.cumsum(-1) - values
    kept = values * ((before < top_p) | (before == 0))
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _logprobs(
    logits: Tensor, tokens: Sequence[int], answers: Sequence[Answer]
) -> list[TokenLogprob]:
    """The log-probabilities of chosen tokens, and of the most probable ones."""
    logs = logits.float().log_softmax(-1)
    most = max(answer.sampling.logprobs or 0 for answer in answers)
    values, ids = logs.topk(min(most, logs.shape[1]), dim=-1)
    chosen = logs.gather(-1, index_of(tokens, logs.device)[:, None])[:, 0]
    rows = zip(answers, tokens, chosen.tolist(), ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprob(
            token_text(answer.backbone.tokenizer, token),
            logprob,
            tuple(
                (token_text(answer.backbone.tokenizer, top), value)
                for top, value in zip(top_ids, top_values, strict=True)
            )[: answer.sampling.logprobs],
        )
        for answer, token, logprob, top_ids, top_values in rows
    ]


def token_text(tokenizer: Any, token: int) -> str:
    """A token as text, with the space that it begins with."""
    name = tokenizer.convert_ids_to_tokens(token) or ""
    text: str = tokenizer.decode([token])
    return f" {text}" if name[:1] in SPACES and name and text[:1] != " " else text
