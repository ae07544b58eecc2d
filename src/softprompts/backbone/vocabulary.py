"""Which pieces of a vocabulary are common and usable: the population that sampled-vocabulary starts draw from.

Lester 2021 §3.2 takes the 5,000 commonest pieces of T5's SentencePiece vocabulary. The order is known without counting:
- Unigram (T5, mT5): ids fall in probability, because SentencePiece writes its vocabulary sorted; so by id.
- BPE (BART, GPT-2, Llama): ids rise in the order the merges were learned, commonest first; so by id. The base alphabet comes before
  all merges and its order tells nothing, so single characters are left out.
- WordPiece (BERT): by id, which is the order of frequency after a block of single characters; those are left out.
- any other: by id.
Usable is a piece with at least one letter or digit that stands for itself: no special or added token, no sentinel, no raw byte
(`<0x0A>`), no `[unused7]`. (The official code's population includes <pad>, </s> and <unk>.)
"""

import re
from typing import Any

_RAW = re.compile(r"^\[unused\d+\]$|^<.*>$")
_MARKS = (
    "▁Ġ#"  # the marks for a word's beginning (SentencePiece, byte-level BPE) or middle (WordPiece)
)


def common_pieces(tokenizer: Any, size: int, population: int) -> list[int]:
    """Ids of the `population` commonest usable pieces, commonest first (0: all usable ones) among the first `size` embeddings."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    model = type(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)).__name__
    shortest = 2 if model in ("BPE", "WordPiece") else 1
    found: list[int] = []
    for piece, index in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1]):
        if index < size and index not in special and _usable(piece, shortest):
            found.append(index)
            if len(found) == population:
                break
    return found


def _usable(piece: str, shortest: int) -> bool:
    bare = piece.lstrip(_MARKS)
    return (
        len(piece.lstrip("#")) >= shortest
        and any(c.isalnum() for c in bare)
        and not _RAW.match(piece)
    )
