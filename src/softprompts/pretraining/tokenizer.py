"""A Unigram tokenizer with T5's conventions: <pad> 0, </s> 1, <unk> 2, sentinels at the end, <extra_id_0> last, </s> after a text."""

import heapq
import random
from collections.abc import Iterable, Iterator
from typing import Any

from ..backbone.load import read_tokenizer, unloadable
from ..errors import UserError
from ..files.hub import silence_hub

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"


def sample(texts: Iterable[str], characters: int, seed: int) -> Iterator[str]:
    """About `characters` of the texts, every text as likely as any other, in one pass and no more memory than that."""
    rng = random.Random(seed)
    drawn: list[tuple[float, int, str]] = []
    held = 0
    for number, text in enumerate(texts):
        heapq.heappush(drawn, (rng.random(), number, text))
        held += len(text)
        while held > characters and len(drawn) > 1:
            held -= len(heapq.heappop(drawn)[2])
    yield from (text for _, _, text in sorted(drawn, key=lambda entry: entry[1]))


def train_tokenizer(
    texts: Iterable[str], vocabulary: int, sentinels: int, length: int = 512
) -> Any:
    """A transformers tokenizer of at most `vocabulary` pieces, made from texts, and `sentinels` sentinels."""
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

    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, EOS, UNK],
        unk_token=UNK,
        max_piece_length=16,
        show_progress=False,
    )
    try:
        made.train_from_iterator(_words(texts), trainer)
    except Exception as error:  # tokenizers has no kind of its own
        if "not large enough" not in str(error):
            raise
        raise UserError(
            f"A vocabulary of {vocabulary} pieces is too small for the characters of the text; raise --vocabulary."
        ) from None
    if made.get_vocab_size() < 4:
        raise UserError("The data holds no text to train a tokenizer on; name other files.")
    made.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(sentinels))])
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, 1)]
    )
    return wrapped(made, sentinels, length)


def _words(texts: Iterable[str]) -> Iterator[str]:
    """Lines: the trainer counts words, and a text as a whole only takes room."""
    for text in texts:
        yield from (line for line in text.splitlines() if line.strip())


def wrapped(made: Any, sentinels: int, length: int) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        extra_special_tokens=[f"<extra_id_{number}>" for number in range(sentinels)],
        model_max_length=length,
    )


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model, by its folder or a name that `load_backbone` knows."""
    silence_hub()
    try:
        tokenizer = read_tokenizer(name)
    except UserError:
        raise
    except Exception as error:  # the hub's many kinds
        raise unloadable(name, error) from None
    if (
        getattr(tokenizer, "backend_tokenizer", None) is None
        or tokenizer.eos_token_id is None
        or tokenizer.pad_token_id != 0
    ):
        raise UserError(
            f"The tokenizer of {name} is no T5's: it needs a tokenizer.json, an end mark and <pad> as its first token."
        )
    return tokenizer


def sentinel_ids(tokenizer: Any) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1> and so on, as far as they go."""
    known = tokenizer.get_vocab()
    ids: list[int] = []
    while (name := f"<extra_id_{len(ids)}>") in known:
        ids.append(known[name])
    return ids
