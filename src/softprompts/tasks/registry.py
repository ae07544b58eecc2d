"""All named tasks, and the benchmarks that are lists of them."""

from collections.abc import Mapping
from functools import cache

from ..errors import UserError
from . import classification, generation, glue, qa, starter, superglue
from .definition import Definition

SUPERGLUE = tuple(
    f"superglue/{name}"
    for name in ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")
)
GLUE = tuple(
    f"glue/{name}" for name in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
)
_NLI = (
    "glue/mnli",
    "glue/qnli",
    "glue/rte",
    "nli/snli",
    "nli/anli_r1",
    "nli/anli_r2",
    "nli/anli_r3",
    "nli/doc_nli",
    "superglue/cb",
)

BENCHMARKS: Mapping[str, tuple[str, ...]] = {
    "superglue": SUPERGLUE,
    "glue": GLUE,
    # Vu 2022, Table 2: 16 sources and 10 targets, none of them both. C4, the first source, is the task `prefix-lm` on raw text.
    "spot-sources": (
        *(
            "spot_sources/squad",
            "spot_sources/drop",
            "superglue/record",
            "glue/mnli",
            "nli/doc_nli",
            "glue/qnli",
        ),
        *(
            "spot_sources/hellaswag",
            "spot_sources/winogrande",
            "spot_sources/cosmosqa",
            "spot_sources/race",
        ),
        *(
            "glue/sst2",
            "superglue/multirc",
            "glue/qqp",
            "spot_sources/cxc_sts",
            "spot_sources/yelp2",
        ),
    ),
    "spot-targets": (
        *("superglue/boolq", "superglue/cb", "glue/cola", "superglue/copa", "textcls/cr"),
        *("glue/mrpc", "glue/rte", "glue/stsb", "superglue/wic", "superglue/wsc"),
    ),
    # Vu 2022, Table 1: the groups of source tasks.
    "nli": _NLI,
    "paraphrase": ("glue/mrpc", "glue/qqp", "glue/stsb", "spot_sources/cxc_sts", "similarity/paws"),
    "sentiment": (
        "textcls/cr",
        "textcls/imdb",
        "glue/sst2",
        "sentiment/sentiment140",
        "spot_sources/yelp2",
    ),
    "mrqa": tuple(
        f"mrqa/{name}"
        for name in ("squad", "news_qa", "trivia_qa", "search_qa", "hotpot_qa", "natural_questions")
    ),
    "mrqa-out-of-domain": tuple(
        f"mrqa_ood/{name}"
        for name in ("textbookqa", "bioasq", "race", "relation_extraction", "duorc", "drop")
    ),
    "rainbow": (
        *(
            "rainbow/anli",
            "spot_sources/cosmosqa",
            "spot_sources/hellaswag",
            "rainbow/piqa",
            "rainbow/social_iqa",
        ),
        "spot_sources/winogrande",
    ),
    "translation": (
        "translation/wmt14_en_fr",
        "translation/wmt14_en_de",
        "translation/wmt16_en_ro",
    ),
    "summarisation": tuple(
        f"summarisation/{name}" for name in ("cnn_dailymail", "xsum", "samsum", "multi_news")
    ),
    "gem": tuple(
        f"gem/{name}"
        for name in ("wiki_lingua", "common_gen", "dart", "e2e_nlg", "schema_guided_dialog")
    ),
    "classification": tuple(
        f"textcls/{name}" for name in ("agnews", "trec", "imdb", "mr", "sst5", "yelp5", "cr")
    ),
}


@cache
def definitions() -> dict[str, Definition]:
    """The tasks whose rows are elsewhere, by name."""
    modules = (superglue, glue, qa, classification, generation)
    return {definition.name: definition for module in modules for definition in module.DEFINITIONS}


def definition(name: str) -> Definition:
    """By full name (`superglue/boolq`), or by the last part where only one task has it (`boolq`)."""
    known = definitions()
    exact = known | {task.name: task for task in starter.DEFINITIONS}
    if name in exact:
        return exact[name]
    found = [task for task in known if task.rpartition("/")[2] == name]
    if len(found) == 1:
        return known[found[0]]
    hint = f"it could be {', '.join(found)}" if found else "softprompts tasks list tells them all"
    raise UserError(f"There is no task {name!r}; {hint}.")
