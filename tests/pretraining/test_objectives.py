"""Span corruption against T5's own code, repeated here row by row; prefix LM; truncation."""

from typing import Any

import pytest
import torch

from softprompts.errors import UserError
from softprompts.pretraining.config import noise_counts, span_lengths
from softprompts.pretraining.objectives import end_truncated, noise_runs, prefix_lm, span_corruption

EOS = 1
SENTINELS = list(range(999, 899, -1))


def t5_lengths(inputs_length: int, density: float = 0.15, mean: float = 3.0) -> tuple[int, int]:
    """t5.data.preprocessors.random_spans_helper."""

    def lengths(tokens: int) -> tuple[int, int]:
        noise = round(tokens * density)
        spans = round(noise / mean)
        return tokens - noise + spans + 1, noise + spans + 1

    tokens = inputs_length
    while lengths(tokens + 1)[0] <= inputs_length:
        tokens += 1
    return tokens, lengths(tokens)[1]


def t5_sentinels(tokens: list[int], mask: list[bool]) -> list[int]:
    """t5.data.preprocessors.noise_span_to_unique_sentinel."""
    out, spans, before = [], 0, False
    for token, noise in zip(tokens, mask, strict=True):
        if noise and not before:
            out.append(SENTINELS[spans])
            spans += 1
        elif not noise:
            out.append(token)
        before = noise
    return out


def restored(inputs: list[int], targets: list[int]) -> list[int]:
    """The text that an input and its target were made from."""
    spans: dict[int, list[int]] = {}
    for token in targets[:-1]:
        if token in SENTINELS:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    return [piece for token in inputs[:-1] for piece in spans.get(token, [token])]


@pytest.mark.parametrize("length", [16, 64, 100, 256, 512, 1024])
def test_lengths_match_t5(length: int) -> None:
    assert span_lengths(length, 0.15, 3.0) == t5_lengths(length)


def test_lengths_match_the_paper() -> None:
    assert span_lengths(512, 0.15, 3.0) == (568, 114)


def test_an_impossible_length_is_an_error() -> None:
    with pytest.raises(UserError, match="No text corrupts"):
        span_lengths(64, 0.9, 1.0)


@pytest.mark.parametrize(
    ("length", "noise", "span"), [(568, 0.15, 3.0), (71, 0.15, 3.0), (40, 0.5, 2.0), (9, 0.15, 3.0)]
)
def test_span_corruption_matches_t5(length: int, noise: float, span: float) -> None:
    rows = 16
    generator = torch.Generator().manual_seed(3)
    runs = noise_runs(rows, length, noise, span, generator)
    tokens = torch.randint(3, 800, (rows, length), generator=generator)
    masked, spans = noise_counts(length, noise, span)
    inputs, targets = span_corruption(tokens, runs, (masked, spans), torch.tensor(SENTINELS), EOS)
    assert inputs.shape == (rows, length - masked + spans + 1)
    assert targets.shape == (rows, masked + spans + 1)
    for row in range(rows):
        mask, text = (runs[row] % 2 == 1).tolist(), tokens[row].tolist()
        assert sum(mask) == masked
        assert runs[row, 0] == 0
        assert runs[row, -1] == 2 * spans - 1
        assert inputs[row].tolist() == [*t5_sentinels(text, mask), EOS]
        assert targets[row].tolist() == [*t5_sentinels(text, [not noise for noise in mask]), EOS]
        assert restored(inputs[row].tolist(), targets[row].tolist()) == text
        for side in (inputs, targets):
            sentinels = [token for token in side[row].tolist() if token in SENTINELS]
            assert sentinels == SENTINELS[:spans]
    assert spans == 1 or len({tuple(row) for row in runs.tolist()}) > 1


def test_all_segmentations_are_equally_likely() -> None:
    """Of 20 tokens at 15 %, three are masked, in two spans: one and two, or two and one."""
    runs = noise_runs(4000, 20, 0.15, 1.5, torch.Generator().manual_seed(0))
    first = (runs == 1).sum(1)
    assert set(first.tolist()) == {1, 2}
    assert abs((first == 1).float().mean().item() - 0.5) < 0.03
    kept = (runs == 0).sum(1).float()
    assert kept.min() == 1
    assert kept.max() == 16
    assert abs(kept.mean().item() - 8.5) < 0.3


def test_prefix_lm_targets_follow_the_prefix() -> None:
    tokens = torch.arange(100, 100 + 2 * 11).view(2, 11)
    inputs, targets = prefix_lm(tokens, torch.tensor([3, 7]), 8, 4, EOS)
    assert inputs.tolist() == [[100, 101, 102, EOS, 0, 0, 0, 0], [*range(111, 118), EOS]]
    assert targets.tolist() == [[103, 104, 105, 106], [118, 119, 120, 121]]


def test_a_truncated_text_ends_with_eos() -> None:
    tokens: Any = torch.tensor([[5, 6, 7], [5, EOS, 0], [5, 6, EOS]])
    assert end_truncated(tokens, torch.tensor([9, 2, 3]), EOS).tolist() == [
        [5, 6, EOS],
        [5, EOS, 0],
        [5, 6, EOS],
    ]
