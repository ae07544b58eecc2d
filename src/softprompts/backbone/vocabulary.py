"""Common, usable tokens of a vocabulary: what sampled-vocabulary starts draw from.

Lester 2021 §3.2 takes the 5,000 most common tokens of T5's SentencePiece vocabulary. No counting is
needed, because every vocabulary is sorted:
- Unigram (T5, mT5): SentencePiece writes its vocabulary by falling probability, so by id.
- BPE (BART, GPT-2, Llama): ids rise in the order the merges were learned, most common first, so by
  id. The base alphabet precedes all merges in no particular order, so single characters are left
  out.
- WordPiece (BERT): by id, which is the order of frequency after a block of single characters;
  these are left out.
- Any other: by id.

A token is usable if it stands for itself and has a letter or digit: no special or added token, no
sentinel, no raw byte (`<0x0A>`), no `[unused7]`. (The official code's 5,000 include <pad>, </s> and
<unk>.)
"""

import itertools
import re
from typing import Any

_PLACEHOLDER = re.compile(r"^\[unused\d+\]$|^<.*>$")
_MARKS = "▁Ġ#"  # of a word's start (SentencePiece, byte-level BPE) or of its inside (WordPiece)


def common_pieces(tokenizer: Any, size: int, population: int) -> list[int]:
    """Ids of the `population` most common usable tokens (0: of all) below `size`, in order."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    model = type(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)).__name__
    min_length = 2 if model in ("BPE", "WordPiece") else 1
    usable = (
        index
        for piece, index in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        if index < size and index not in special and _usable(piece, min_length)
    )
    return list(itertools.islice(usable, population or None))


def _usable(piece: str, min_length: int) -> bool:
    return (
        len(piece.lstrip("#")) >= min_length
        and any(c.isalnum() for c in piece.lstrip(_MARKS))
        and not _PLACEHOLDER.match(piece)
    )
