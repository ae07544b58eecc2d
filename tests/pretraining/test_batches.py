"""Batches by seed and step alone; every row once in a pass; what is held out is not learned from."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from softprompts.errors import UserError
from softprompts.pretraining.batches import Batches, Order, Tokens, Windows
from softprompts.pretraining.config import PretrainConfig
from softprompts.pretraining.corpus import Corpus, tokenised

CPU = torch.device("cpu")
Make = Callable[..., PretrainConfig]


def batches(config: PretrainConfig, words: Any, held: bool = False) -> Batches:
    corpora = {
        kind: tokenised(kind, files, words, {}, 1)
        for kind, files in (("text", config.text), ("tasks", config.tasks))
    }
    return Batches(
        config,
        corpora,
        {name: Tokens(corpus.ids, CPU) for name, corpus in corpora.items()},
        words,
        held,
    )


def test_a_batch_is_its_seed_and_step(make: Make, words: Any) -> None:
    made = batches(make(), words)
    seen = [made.at(step) for step in range(40)]  # many passes
    again = batches(make(), words)
    for step in (39, 0, 17):
        assert all(torch.equal(a, b) for a, b in zip(again.at(step), seen[step], strict=True))
    assert not torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(batches(make(seed=1), words).at(0)[0], seen[0][0])


def test_rows_are_as_the_objectives_say(make: Make, words: Any) -> None:
    config = make()
    inputs, targets = batches(config, words).at(5)
    assert inputs.shape == (config.rows, 24)
    assert targets.shape == (config.rows, config.written)
    span, prefix, tasks = config.rows_of.values()
    sentinels = words.convert_tokens_to_ids("<extra_id_0>")
    assert (inputs[:span, -1] == 1).all()  # exactly the input's length
    assert (inputs[:span] == sentinels).any(1).all()
    assert (targets[:span, 0] == sentinels).all()
    assert not (inputs[span:] > sentinels - 20).any()
    assert (targets[span : span + prefix] != 0).all()
    assert ((inputs == 0).cummax(1).values == (inputs == 0)).all()  # pads come last
    for asked, answer in zip(inputs[-tasks:].tolist(), targets[-tasks:].tolist(), strict=True):
        ends = [row[: row.index(1)] for row in (asked, answer)]
        if 0 in asked:  # not cut
            assert words.decode(ends[0]).split()[-1] == words.decode(ends[1])


def test_every_row_comes_once_in_a_pass() -> None:
    order = Order(10, 0)
    drawn = torch.cat([order.at(first, 4)[0] for first in range(0, 40, 4)])
    passes = drawn.view(4, 10)
    assert all(sorted(one) == list(range(10)) for one in passes.tolist())
    assert len({tuple(one) for one in passes.tolist()}) == 4
    assert torch.equal(Order(10, 0).at(7, 25)[0], drawn[7:32])


@pytest.mark.parametrize("size", [7, 9, 13, 14, 100, 103])
def test_windows_of_a_pass_do_not_overlap(size: int) -> None:
    windows = Windows(Tokens(np.arange(200, 400, dtype=np.uint16), CPU), 5, 5 + size, 7, (0,))
    count = windows.order.count
    for turn in range(5):
        seen = windows.at(turn * count, count).flatten()
        assert len(seen.unique()) == 7 * count
        assert seen.min() >= 205
        assert seen.max() < 205 + size
    assert size - 7 * count < 14


def test_what_is_held_out_is_not_learned_from(make: Make, words: Any) -> None:
    config = make(held_out=0.1)
    learned, unseen = batches(config, words), batches(config, words, held=True)
    edge = len(learned.tokens["text"].ids)
    assert learned.texts.begin == learned.passages.begin == 0
    assert unseen.texts.begin == unseen.passages.begin < edge
    reach = max(
        w.begin + w.order.count * w.length + w.shift - 1 for w in (learned.texts, learned.passages)
    )
    assert reach <= unseen.texts.begin
    assert not set(learned.examples.tolist()) & set(unseen.examples.tolist())
    assert len(learned.examples) + len(unseen.examples) == 40


def test_large_ids_stay_what_they_are() -> None:
    for dtype in (np.uint16, np.int32):
        tokens = Tokens(np.array([5, 40000, 65535, 7], dtype=dtype), CPU)
        assert tokens.take(torch.tensor([1, 3]), torch.tensor([2, 1]), 3).tolist() == [
            [40000, 65535, 0],
            [7, 0, 0],
        ]


def test_a_corpus_too_small_is_told(make: Make, words: Any) -> None:
    config = make(objectives={"span": 1})
    corpus = Corpus(np.arange(30, dtype=np.uint16), np.array([30]), "")
    with pytest.raises(UserError, match="too few tokens"):
        Batches(config, {"text": corpus}, {"text": Tokens(corpus.ids, CPU)}, words, False)


def test_too_few_sentinels_are_told(make: Make, words: Any) -> None:
    with pytest.raises(UserError, match="hide 28 spans, and the tokenizer has 20 sentinels"):
        batches(make(input_length=512, batch_tokens=10000), words)
