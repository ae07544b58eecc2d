"""SPoT's translation tasks, scored by BLEU, and summarisation tasks, scored by ROUGE."""

from collections.abc import Iterator
from typing import Any

from ..errors import UserError
from .definition import Definition, Example, Preprocessor, text_of
from .sources import Row

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}


def translation(source: str, target: str) -> Preprocessor:
    """`translate English to German: ...`, as in T5."""

    def preprocess(row: Row, split: str) -> Iterator[Example]:
        pair: Any = row.values.get("translation", row.values)
        if (
            not isinstance(pair, dict)
            or not isinstance(pair.get(source), str)
            or not isinstance(pair.get(target), str)
        ):
            raise UserError(f"{row.location} has no pair of {source} and {target} texts.")
        yield Example(f"{LANGUAGES[source]} to {LANGUAGES[target]}: {pair[source]}", pair[target])

    return preprocess


def summary(document: str, summary: str) -> Preprocessor:
    """`summarize: ...`, as in T5, from the columns `document` and `summary`."""

    def preprocess(row: Row, split: str) -> Iterator[Example]:
        yield Example(text_of(row, document), text_of(row, summary))

    return preprocess


def _translation(name: str, hub: str, source: str, target: str) -> Definition:
    return Definition(
        f"translation/{name}",
        hub,
        translation(source, target),
        ("bleu",),
        word="translate",
        columns=("translation",),
        answer_length=128,
    )


def _summary(name: str, hub: str, document: str, target: str) -> Definition:
    return Definition(
        name,
        hub,
        summary(document, target),
        ("rougeL", "rouge1", "rouge2"),
        word="summarize:",
        columns=(document,),
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
