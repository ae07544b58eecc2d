"""Batches depend on seed and step alone, use every row once per epoch, and skip held-out data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from softprompts.errors import UserError
from softprompts.pretraining.batches import Batches, Order, Tokens, Windows
from softprompts.pretraining.config import PretrainConfig
from softprompts.pretraining.corpus import Corpus, load_corpus

CPU = torch.device("cpu")
MakeConfig = Callable[..., PretrainConfig]


def batches(config: PretrainConfig, tokenizer: Any, held_out: bool = False) -> Batches:
    corpora = {
        kind: load_corpus(kind, files, tokenizer, {}, 1)
        for kind, files in (("text", config.text), ("tasks", config.tasks))
    }
    tokens = {name: Tokens(corpus.ids, CPU) for name, corpus in corpora.items()}
    return Batches(config, corpora, tokens, tokenizer, held_out)


def test_a_batch_depends_on_seed_and_step_alone(make_config: MakeConfig, tokenizer: Any) -> None:
    first = batches(make_config(), tokenizer)
    in_order = [first.at(step) for step in range(40)]  # many epochs
    again = batches(make_config(), tokenizer)
    for step in (39, 0, 17):
        assert all(torch.equal(a, b) for a, b in zip(again.at(step), in_order[step], strict=True))
    assert not torch.equal(in_order[0][0], in_order[1][0])
    assert not torch.equal(batches(make_config(seed=1), tokenizer).at(0)[0], in_order[0][0])


def test_rows_follow_the_objectives(make_config: MakeConfig, tokenizer: Any) -> None:
    config = make_config()
    inputs, targets = batches(config, tokenizer).at(5)
    assert inputs.shape == (config.rows, 24)
    assert targets.shape == (config.rows, config.target_tokens)
    span, prefix, tasks = config.rows_by_objective.values()
    sentinel = tokenizer.convert_tokens_to_ids("<extra_id_0>")
    assert (inputs[:span, -1] == 1).all()  # exactly the input length
    assert (inputs[:span] == sentinel).any(1).all()
    assert (targets[:span, 0] == sentinel).all()
    assert not (inputs[span:] > sentinel - 20).any()
    assert (targets[span : span + prefix] != 0).all()
    assert ((inputs == 0).cummax(1).values == (inputs == 0)).all()  # pads come last
    for source, target in zip(inputs[-tasks:].tolist(), targets[-tasks:].tolist(), strict=True):
        text, answer = (tokenizer.decode(row[: row.index(1)]) for row in (source, target))
        if 0 in source:  # not truncated
            assert text.split()[-1] == answer


def test_every_row_comes_once_per_epoch() -> None:
    order = Order(10, 0)
    drawn = torch.cat([order.at(first, 4)[0] for first in range(0, 40, 4)])
    epochs = drawn.view(4, 10).tolist()
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert torch.equal(Order(10, 0).at(7, 25)[0], drawn[7:32])


@pytest.mark.parametrize("size", [7, 9, 13, 14, 100, 103])
def test_windows_of_an_epoch_do_not_overlap(size: int) -> None:
    windows = Windows(Tokens(np.arange(200, 400, dtype=np.uint16), CPU), 5, 5 + size, 7, (0,))
    count = windows.order.count
    for epoch in range(5):
        tokens = windows.at(epoch * count, count).flatten()
        assert len(tokens.unique()) == 7 * count
        assert tokens.min() >= 205
        assert tokens.max() < 205 + size
    assert size - 7 * count < 14


def test_held_out_data_is_not_trained_on(make_config: MakeConfig, tokenizer: Any) -> None:
    config = make_config(held_out=0.1)
    trained, held_out = batches(config, tokenizer), batches(config, tokenizer, held_out=True)
    begin = held_out.span_windows.begin
    assert trained.span_windows.begin == trained.prefix_windows.begin == 0
    assert begin == held_out.prefix_windows.begin < len(trained.tokens["text"].ids)
    for windows in (trained.span_windows, trained.prefix_windows):
        assert windows.order.count * windows.length + windows.shifts - 1 <= begin
    assert not set(trained.examples.tolist()) & set(held_out.examples.tolist())
    assert len(trained.examples) + len(held_out.examples) == 40


def test_large_ids_are_read_unchanged() -> None:
    for dtype in (np.uint16, np.int32):
        tokens = Tokens(np.array([5, 40000, 65535, 7], dtype=dtype), CPU)
        assert tokens.take(torch.tensor([1, 3]), torch.tensor([2, 1]), 3).tolist() == [
            [40000, 65535, 0],
            [7, 0, 0],
        ]


def test_a_corpus_that_is_too_small_is_an_error(make_config: MakeConfig, tokenizer: Any) -> None:
    config = make_config(objectives={"span": 1})
    corpus = Corpus(np.arange(30, dtype=np.uint16), np.array([30]), "")
    with pytest.raises(UserError, match="too few tokens"):
        Batches(config, {"text": corpus}, {"text": Tokens(corpus.ids, CPU)}, tokenizer, False)


def test_too_few_sentinels_are_an_error(make_config: MakeConfig, tokenizer: Any) -> None:
    with pytest.raises(UserError, match="mask 28 spans, and the tokenizer has 20 sentinels"):
        batches(make_config(input_length=512, batch_tokens=10000), tokenizer)
