"""SPoT's translation tasks, scored by BLEU, and summarisation tasks, scored by ROUGE."""

from collections.abc import Iterator
from typing import Any

from ..errors import UserError
from .sources import Row
from .task_definition import Definition, Example, text_of

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}


def translation(name: str, hub: str, source: str, target: str) -> Definition:
    """`translate English to German: ...`, as in T5."""

    def preprocess(row: Row, split: str) -> Iterator[Example]:
        pair: Any = row.values.get("translation", row.values)
        if not isinstance(pair, dict) or not all(
            isinstance(pair.get(language), str) for language in (source, target)
        ):
            raise UserError(f"{row.location} has no pair of {source} and {target} texts.")
        yield Example(f"{LANGUAGES[source]} to {LANGUAGES[target]}: {pair[source]}", pair[target])

    return Definition(
        f"translation/{name}",
        hub,
        preprocess,
        ("bleu",),
        word="translate",
        columns=("translation",),
        answer_length=128,
    )


def summary(name: str, hub: str, document: str, target: str) -> Definition:
    """`summarize: ...`, as in T5, from the columns `document` and `target`."""

    def preprocess(row: Row, split: str) -> Iterator[Example]:
        yield Example(text_of(row, document), text_of(row, target))

    return Definition(
        name,
        hub,
        preprocess,
        ("rougeL", "rouge1", "rouge2"),
        word="summarize:",
        columns=(document,),
        answer_length=128,
    )


DEFINITIONS = [
    translation("wmt14_en_fr", "wmt/wmt14:fr-en", "en", "fr"),
    translation("wmt14_en_de", "wmt/wmt14:de-en", "en", "de"),
    translation("wmt16_en_ro", "wmt/wmt16:ro-en", "en", "ro"),
    summary("summarisation/cnn_dailymail", "abisee/cnn_dailymail:3.0.0", "article", "highlights"),
    summary("summarisation/xsum", "EdinburghNLP/xsum", "document", "summary"),
    summary("summarisation/samsum", "knkarthick/samsum", "dialogue", "summary"),
    summary("summarisation/multi_news", "alexfabbri/multi_news", "document", "summary"),
    summary("gem/wiki_lingua", "GEM/wiki_lingua:en", "source", "target"),
    summary("gem/common_gen", "GEM/common_gen", "concepts", "target"),
    summary("gem/dart", "GEM/dart", "tripleset", "target"),
    summary("gem/e2e_nlg", "GEM/e2e_nlg", "meaning_representation", "target"),
    summary("gem/schema_guided_dialog", "GEM/schema_guided_dialog", "prompt", "target"),
]
