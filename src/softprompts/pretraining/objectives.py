"""Pretraining objectives: span corruption, prefix LM, task examples. All work on whole batches."""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from .config import noise_counts


def noise_runs(rows: int, length: int, noise: float, span: float, generator: Generator) -> Tensor:
    """[B, T]: the number of each token's run; even runs are kept, odd ones masked.

    As T5's `random_spans_noise_mask`.
    """
    masked, spans = noise_counts(length, noise, span)
    lengths = torch.stack(
        [
            _random_segments(rows, length - masked, spans, generator),
            _random_segments(rows, masked, spans, generator),
        ],
        2,
    )
    starts = lengths.flatten(1).cumsum(1)[:, :-1]
    first_tokens = torch.zeros(rows, length, dtype=torch.long, device=generator.device)
    return first_tokens.scatter_(1, starts, 1).cumsum(1)


def _random_segments(rows: int, items: int, parts: int, generator: Generator) -> Tensor:
    """[B, parts]: lengths of `parts` segments of at least one of `items`, all equally likely."""
    order = torch.rand(rows, items - 1, generator=generator, device=generator.device)
    edges = F.pad(order.topk(parts - 1, dim=1).indices.sort(1).values + 1, (1, 1))
    edges[:, -1] = items
    return edges.diff(dim=1)


def span_corruption(
    tokens: Tensor, runs: Tensor, counts: tuple[int, int], sentinels: Tensor, eos: int
) -> tuple[Tensor, Tensor]:
    """Inputs: texts [B, T] with a sentinel for each masked run; targets: the masked runs with a
    sentinel for each kept one (Raffel 2020, §3.1.4).

    `counts` are the masked tokens and spans of a row, from `noise_counts`.
    """
    masked, spans = counts
    inputs = _collapse_runs(tokens, runs, 1, sentinels, tokens.shape[1] - masked + spans)
    targets = _collapse_runs(tokens, runs, 0, sentinels, masked + spans)
    return F.pad(inputs, (0, 1), value=eos), F.pad(targets, (0, 1), value=eos)


def _collapse_runs(
    tokens: Tensor, runs: Tensor, parity: int, sentinels: Tensor, width: int
) -> Tensor:
    """[B, width]: the tokens, with each even (0) or odd (1) run replaced by one sentinel.

    Columns are counted rather than selected by a mask, which would synchronise with the GPU.
    """
    replaced = runs % 2 == parity
    first = runs.diff(dim=1, prepend=runs[:, :1] - 1) != 0
    kept = ~replaced | first
    values = torch.where(replaced, sentinels[runs // 2], tokens)
    columns = torch.where(kept, kept.cumsum(1) - 1, width)
    return tokens.new_zeros(len(tokens), width + 1).scatter_(1, columns, values)[:, :width]


def prefix_lm(
    tokens: Tensor, lengths: Tensor, input_length: int, target_length: int, eos: int
) -> tuple[Tensor, Tensor]:
    """Inputs: the first `lengths` [B] tokens of each text, an end-of-sequence token and pads;
    targets: the `target_length` tokens that follow."""
    columns = torch.arange(input_length, device=tokens.device)
    inputs = F.pad(tokens, (0, max(0, input_length - tokens.shape[1])))[:, :input_length]
    after = torch.where(columns == lengths[:, None], eos, 0)
    inputs = torch.where(columns < lengths[:, None], inputs, after)
    following = lengths[:, None] + torch.arange(target_length, device=tokens.device)
    return inputs, tokens.gather(1, following)


def end_truncated(tokens: Tensor, lengths: Tensor, eos: int) -> Tensor:
    """Texts [B, T]; those truncated, by their `lengths` [B], end with `eos` as T5's do."""
    last = torch.where(lengths > tokens.shape[1], eos, tokens[:, -1])
    return torch.cat([tokens[:, :-1], last[:, None]], 1)
