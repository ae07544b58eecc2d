"""Common, usable tokens: the rule for each kind of tokenizer."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from softprompts.backbone import Backbone
from softprompts.backbone.vocabulary import common_pieces

TEXT = [
    "the cat sat on the mat and the dog sat on the log",
    "a cat and a dog, 12 mats and 7 logs!",
    "the the the of of and",
] * 20


def trained(kind: str) -> PreTrainedTokenizerFast:
    if kind == "BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer: object = trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
    elif kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordPieceTrainer(
            vocab_size=80, special_tokens=["[PAD]", "[unused0]", "[UNK]", "[CLS]"]
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=60, special_tokens=["<pad>", "</s>", "<unk>", "<0x0A>"], unk_token="<unk>"
        )
    tokenizer.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("kind", ["Unigram", "BPE", "WordPiece"])
def test_common_tokens_are_usable_and_in_order(kind: str) -> None:
    tokenizer = trained(kind)
    ids = common_pieces(tokenizer, len(tokenizer), 0)
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert ids == sorted(ids)
    assert not any(
        piece.startswith(("<", "[")) or piece in (",", "!", "Ġ", "▁") for piece in pieces
    )
    assert any(
        piece.strip("▁Ġ#") in ("the", "cat", "dog", "and", "th", "he", "at") for piece in pieces
    )
    if kind != "Unigram":
        assert all(len(piece.lstrip("#")) > 1 for piece in pieces), (
            "the base alphabet is not sorted by frequency"
        )
    assert common_pieces(tokenizer, len(tokenizer), 3) == ids[:3]
    assert common_pieces(tokenizer, ids[3], 0) == ids[:3], (
        "ids beyond the embedding table are left out"
    )


def test_the_included_models_most_common_tokens_are_common_words(tiny: Backbone) -> None:
    ids = tiny.common_pieces(5000)
    assert len(ids) == 5000
    first = tiny.tokenizer.convert_ids_to_tokens(ids[:20].tolist())
    assert {"▁the", "▁of", "▁and", "▁in", "▁to"} <= set(first)
    special = set(tiny.tokenizer.all_special_ids)
    assert not special & set(ids.tolist())
    assert not any(
        piece.startswith("<extra_id")
        for piece in tiny.tokenizer.convert_ids_to_tokens(tiny.common_pieces(0).tolist())
    )
