"""Unigram tokenizers with T5's conventions.

<pad> is 0, </s> 1, <unk> 2; sentinels come last, in reverse; </s> ends every text.
"""

import heapq
import random
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from ..backbone.load import load_errors, load_tokenizer, model_path
from ..errors import UserError, setting
from ..files.hub import prepare_hub

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"


def sample(texts: Iterable[str], characters: int, seed: int) -> Iterator[str]:
    """A uniform sample of the texts, of about `characters` in all, in one pass."""
    rng = random.Random(seed)
    drawn: list[tuple[float, int, str]] = []
    size = 0
    for number, text in enumerate(texts):
        heapq.heappush(drawn, (rng.random(), number, text))
        size += len(text)
        while size > characters and len(drawn) > 1:
            size -= len(heapq.heappop(drawn)[2])
    yield from (text for _, _, text in sorted(drawn, key=lambda entry: entry[1]))


def train_tokenizer(
    texts: Iterable[str], vocabulary: int, sentinels: int, length: int = 512
) -> Any:
    """A transformers tokenizer with at most `vocabulary` pieces and `sentinels` sentinels."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, EOS, UNK],
        unk_token=UNK,
        max_piece_length=16,
        show_progress=False,
    )
    # The trainer counts words; lines take less memory than whole texts.
    lines = (line for text in texts for line in text.splitlines() if line.strip())
    try:
        tokenizer.train_from_iterator(lines, trainer)
    except Exception as error:  # tokenizers raises no class of its own
        if "not large enough" not in str(error):
            raise
        raise UserError(
            f"A vocabulary of {vocabulary} pieces is too small for the characters of the text; "
            f"raise {setting('vocabulary')}."
        ) from None
    if tokenizer.get_vocab_size() < 4:
        raise UserError("The data holds no text to train a tokenizer on; name other files.")
    names = [f"<extra_id_{number}>" for number in range(sentinels)]
    tokenizer.add_special_tokens(names[::-1])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        extra_special_tokens=names,
        model_max_length=length,
    )


def load_t5_tokenizer(name: str) -> Any:
    """The tokenizer of a model, by its folder or a name that `load_backbone` knows."""
    prepare_hub(model_path(name))
    with load_errors(name):
        tokenizer = load_tokenizer(name)
    if (
        getattr(tokenizer, "backend_tokenizer", None) is None
        or tokenizer.eos_token_id is None
        or tokenizer.pad_token_id != 0
    ):
        raise UserError(
            f"The tokenizer of {name} cannot be used; T5 needs a tokenizer.json, an "
            "end-of-sequence token, and <pad> as its first token."
        )
    return tokenizer


def sentinel_ids(tokenizer: Any) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1> and so on."""
    vocabulary = tokenizer.get_vocab()
    ids: list[int] = []
    while (name := f"<extra_id_{len(ids)}>") in vocabulary:
        ids.append(vocabulary[name])
    return ids
