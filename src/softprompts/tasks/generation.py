"""Translation and summarisation, SPoT's groups of them: by hub name only, scored by BLEU (sacrebleu) and ROUGE (rouge-score)."""

from collections.abc import Iterator
from typing import Any

from ..errors import UserError
from .definition import Definition, Example, Maker, text_of
from .sources import Row

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}


def translation(source: str, target: str) -> Maker:
    """`translate English to German: ...`, T5's words."""

    def make(row: Row, split: str) -> Iterator[Example]:
        pair: Any = row.values.get("translation", row.values)
        if (
            not isinstance(pair, dict)
            or not isinstance(pair.get(source), str)
            or not isinstance(pair.get(target), str)
        ):
            raise UserError(f"{row.where} holds no pair of {source} and {target}.")
        yield Example(f"{LANGUAGES[source]} to {LANGUAGES[target]}: {pair[source]}", pair[target])

    return make


def summary(text: str, short: str) -> Maker:
    def make(row: Row, split: str) -> Iterator[Example]:
        yield Example(text_of(row, text), text_of(row, short))

    return make


def _translation(name: str, hub: str, source: str, target: str) -> Definition:
    made = translation(source, target)
    return Definition(
        f"translation/{name}",
        hub,
        made,
        ("bleu",),
        word="translate",
        columns=("translation",),
        answer_length=128,
    )


def _summary(name: str, hub: str, text: str, short: str) -> Definition:
    made = summary(text, short)
    return Definition(
        name,
        hub,
        made,
        ("rougeL", "rouge1", "rouge2"),
        word="summarize:",
        columns=(text,),
        answer_length=128,
    )


DEFINITIONS = [
    _translation("wmt14_en_fr", "wmt/wmt14:fr-en", "en", "fr"),
    _translation("wmt14_en_de", "wmt/wmt14:de-en", "en", "de"),
    _translation("wmt16_en_ro", "wmt/wmt16:ro-en", "en", "ro"),
    _summary("summarisation/cnn_dailymail", "abisee/cnn_dailymail:3.0.0", "article", "highlights"),
    _summary("summarisation/xsum", "EdinburghNLP/xsum", "document", "summary"),
    _summary("summarisation/samsum", "knkarthick/samsum", "dialogue", "summary"),
    _summary("summarisation/multi_news", "alexfabbri/multi_news", "document", "summary"),
    _summary("gem/wiki_lingua", "GEM/wiki_lingua:en", "source", "target"),
    _summary("gem/common_gen", "GEM/common_gen", "concepts", "target"),
    _summary("gem/dart", "GEM/dart", "tripleset", "target"),
    _summary("gem/e2e_nlg", "GEM/e2e_nlg", "meaning_representation", "target"),
    _summary("gem/schema_guided_dialog", "GEM/schema_guided_dialog", "prompt", "target"),
]
