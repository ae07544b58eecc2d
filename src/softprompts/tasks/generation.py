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


def text_generation(
    name: str, hub: str, source: str, target: str, verb: str = "summarize: "
) -> Definition:
    """`xsum summarize: ...`, as in SPoT's code, from the columns `source` and `target`."""

    def preprocess(row: Row, split: str) -> Iterator[Example]:
        yield Example(f"{verb}{text_of(row, source)}", text_of(row, target))

    return Definition(
        name,
        hub,
        preprocess,
        ("rougeLsum", "rouge1", "rouge2"),
        columns=(source,),
        answer_length=128,
    )


DEFINITIONS = [
    translation("wmt14_en_fr", "wmt/wmt14:fr-en", "en", "fr"),
    translation("wmt14_en_de", "wmt/wmt14:de-en", "en", "de"),
    translation("wmt16_en_ro", "wmt/wmt16:ro-en", "en", "ro"),
    text_generation("summarisation/aeslc", "Yale-LILY/aeslc", "email_body", "subject_line"),
    text_generation("summarisation/billsum", "FiscalNote/billsum", "text", "summary"),
    text_generation("summarisation/gigaword", "Harvard/gigaword", "document", "summary"),
    text_generation(
        "summarisation/cnn_dailymail", "abisee/cnn_dailymail:3.0.0", "article", "highlights"
    ),
    text_generation("summarisation/multi_news", "alexfabbri/multi_news", "document", "summary"),
    text_generation("summarisation/samsum", "knkarthick/samsum", "dialogue", "summary"),
    text_generation("summarisation/newsroom", "lil-lab/newsroom", "text", "summary"),
    text_generation("summarisation/xsum", "EdinburghNLP/xsum", "document", "summary"),
    text_generation("gem/wiki_lingua", "GEM/wiki_lingua:en", "source", "target"),
    text_generation("gem/common_gen", "GEM/common_gen", "concepts", "target", ""),
    text_generation("gem/dart", "GEM/dart", "tripleset", "target", ""),
    text_generation("gem/e2e_nlg", "GEM/e2e_nlg", "meaning_representation", "target", ""),
    text_generation("gem/schema_guided_dialog", "GEM/schema_guided_dialog", "prompt", "target", ""),
]
