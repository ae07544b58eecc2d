"""What a model is asked: hidden spans, the rest of a text, a task's answer. All on whole batches, with no row done by itself."""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from .config import noise_counts


def noise_runs(rows: int, length: int, noise: float, span: float, generator: Generator) -> Tensor:
    """[B, T]: the number of the run that each token is in, from 0, by turns kept and hidden (T5's `random_spans_noise_mask`)."""
    hidden, spans = noise_counts(length, noise, span)
    lengths = torch.stack(
        [
            _segments(rows, length - hidden, spans, generator),
            _segments(rows, hidden, spans, generator),
        ],
        2,
    )
    starts = lengths.flatten(1).cumsum(1)[:, :-1]
    return (
        torch.zeros(rows, length, dtype=torch.long, device=generator.device)
        .scatter_(1, starts, 1)
        .cumsum(1)
    )


def _segments(rows: int, items: int, parts: int, generator: Generator) -> Tensor:
    """[B, parts]: `items` cut into parts of at least one, every way to cut them as likely as any other."""
    cuts = (
        torch.rand(rows, items - 1, generator=generator, device=generator.device)
        .topk(parts - 1, dim=1)
        .indices.sort(1)
        .values
        + 1
    )
    edges = F.pad(cuts, (1, 1))
    edges[:, -1] = items
    return edges.diff(dim=1)


def span_corruption(
    tokens: Tensor, runs: Tensor, counts: tuple[int, int], sentinels: Tensor, eos: int
) -> tuple[Tensor, Tensor]:
    """Texts [B, T] with a sentinel for each hidden run, and the hidden runs with a sentinel for each kept one (Raffel 2020, §3.1.4).

    `counts` are the hidden tokens and spans of a row, as `noise_counts` says.
    """
    hidden, spans = counts
    inputs = _collapsed(tokens, runs, 1, sentinels, tokens.shape[1] - hidden + spans)
    return F.pad(inputs, (0, 1), value=eos), F.pad(
        _collapsed(tokens, runs, 0, sentinels, hidden + spans), (0, 1), value=eos
    )


def _collapsed(tokens: Tensor, runs: Tensor, parity: int, sentinels: Tensor, width: int) -> Tensor:
    """[B, width]: each even (0) or odd (1) run as one sentinel. Placed by count, because a mask as index would wait for the GPU."""
    replaced = runs % 2 == parity
    kept = ~replaced | (runs.diff(dim=1, prepend=runs[:, :1] - 1) != 0)
    values = torch.where(replaced, sentinels[runs // 2], tokens)
    places = torch.where(kept, kept.cumsum(1) - 1, width)
    return tokens.new_zeros(len(tokens), width + 1).scatter_(1, places, values)[:, :width]


def prefix_lm(
    tokens: Tensor, lengths: Tensor, input_length: int, target_length: int, eos: int
) -> tuple[Tensor, Tensor]:
    """The first `lengths` [B] tokens of each text and an end mark, then pads; and the `target_length` tokens that go on from there."""
    places = torch.arange(input_length, device=tokens.device)
    inputs = F.pad(tokens, (0, max(0, input_length - tokens.shape[1])))[:, :input_length]
    inputs = torch.where(
        places < lengths[:, None], inputs, torch.where(places == lengths[:, None], eos, 0)
    )
    return inputs, tokens.gather(
        1, lengths[:, None] + torch.arange(target_length, device=tokens.device)
    )


def cut(tokens: Tensor, lengths: Tensor, eos: int) -> Tensor:
    """Texts [B, T] of which those longer than T, by `lengths` [B], end in an end mark all the same, as T5 trims."""
    last = torch.where(lengths > tokens.shape[1], eos, tokens[:, -1])
    return torch.cat([tokens[:, :-1], last[:, None]], 1)
