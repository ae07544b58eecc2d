"""The named tasks, those that plugins register, and the benchmarks that group them."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..config import PLUGIN_HINT, load_plugins
from ..errors import UserError, closest
from . import classification, generation, glue, qa, starter, superglue
from .sources import Row
from .task_definition import PREDICT, Definition, Example, Preprocessor

BENCHMARKS: Mapping[str, tuple[str, ...]] = {
    "superglue": tuple(
        f"superglue/{name}"
        for name in ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")
    ),
    "glue": tuple(
        f"glue/{name}" for name in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
    ),
    # Vu 2022, Table 2: 16 sources and 10 targets, no task in both. C4, the first source, is the
    # task `prefix-lm` on raw text.
    "spot-sources": (
        "spot_sources/squad",
        "spot_sources/drop",
        "superglue/record",
        "glue/mnli",
        "nli/doc_nli",
        "glue/qnli",
        "spot_sources/hellaswag",
        "spot_sources/winogrande",
        "spot_sources/cosmosqa",
        "spot_sources/race",
        "glue/sst2",
        "superglue/multirc",
        "glue/qqp",
        "spot_sources/cxc_sts",
        "spot_sources/yelp2",
    ),
    "spot-targets": (
        "superglue/boolq",
        "superglue/cb",
        "glue/cola",
        "superglue/copa",
        "textcls/cr",
        "glue/mrpc",
        "glue/rte",
        "glue/stsb",
        "superglue/wic",
        "superglue/wsc",
    ),
    # Vu 2022, Table 1: the groups of source tasks.
    "nli": (
        "glue/mnli",
        "glue/qnli",
        "glue/rte",
        "nli/snli",
        "nli/anli_r1",
        "nli/anli_r2",
        "nli/anli_r3",
        "nli/doc_nli",
        "superglue/cb",
    ),
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
        "rainbow/anli",
        "spot_sources/cosmosqa",
        "spot_sources/hellaswag",
        "rainbow/piqa",
        "rainbow/social_iqa",
        "spot_sources/winogrande",
    ),
    "translation": (
        "translation/wmt14_en_fr",
        "translation/wmt14_en_de",
        "translation/wmt16_en_ro",
    ),
    "summarisation": (
        "summarisation/aeslc",
        "summarisation/billsum",
        "summarisation/gigaword",
        "summarisation/cnn_dailymail",
        "summarisation/multi_news",
        "summarisation/samsum",
        "summarisation/newsroom",
    ),
    "gem": (
        "summarisation/xsum",
        "gem/wiki_lingua",
        "gem/common_gen",
        "gem/dart",
        "gem/e2e_nlg",
        "gem/schema_guided_dialog",
    ),
    "classification": tuple(
        f"textcls/{name}" for name in ("agnews", "trec", "imdb", "mr", "sst5", "yelp5", "cr")
    ),
}

_TASKS: dict[str, Definition] = {
    task.name: task
    for module in (superglue, glue, qa, classification, generation)
    for task in module.DEFINITIONS
}
_STARTERS = {task.name: task for task in starter.DEFINITIONS}
_BUILT_IN = frozenset((*_TASKS, *_STARTERS))


def register_task(name: str, **options: Any) -> Callable[[Preprocessor], Preprocessor]:
    """Add a named task, by decorating the function that turns a row into examples.

        @register_task("mine/spam", rows=load, labels=("no", "yes"), columns=("mail",))
        def spam(row, split):
            yield Example(f"mail: {row.values['mail']}", row.values["spam"])

    `options` are the fields of `Definition`. One of them says where the rows are: `rows`, a
    function from the name of a split to its rows as dictionaries, `files`, or `hub`. The default
    of `metrics` is accuracy. The name can then be used like that of any other task.
    """
    options = {"hub": "", "metrics": ("accuracy",), **options}
    if name in _BUILT_IN or "+" in name:
        raise UserError(f"The task {name!r} cannot be registered; choose another name without a +.")
    if not any(options.get(source) for source in ("rows", "files", "hub")):
        raise UserError(f"The task {name!r} has no rows; register it with rows, files or hub.")

    def register(preprocess: Preprocessor) -> Preprocessor:
        tolerant = _without_label(preprocess, options.get("columns", ()))
        _TASKS[name] = Definition(name=name, preprocess=tolerant, **options)
        return preprocess

    return register


def _without_label(preprocess: Preprocessor, inputs: Sequence[str]) -> Preprocessor:
    """The preprocessor for rows to predict too: they lack a label, which it may read."""

    def tolerant(row: Row, split: str) -> Iterator[Example]:
        if split == PREDICT:
            missing = [column for column in inputs if column not in row.values]
            if missing:
                raise UserError(f"{row.location} has no column {missing[0]!r}.")
            row = Row(defaultdict(str, row.values), row.location)
        return preprocess(row, split)

    return tolerant


def definitions() -> dict[str, Definition]:
    """All named tasks but the starter tasks, with those of plugins."""
    load_plugins()
    return dict(_TASKS)


def definition(name: str) -> Definition:
    """The task of a full name (`superglue/boolq`), or of its last part if unique (`boolq`)."""
    if len(_matches(name)) != 1:
        load_plugins()
    if len(matches := _matches(name)) == 1:
        return matches[0]
    starters = {full.rpartition("/")[2]: full for full in _STARTERS}
    short = [full.rpartition("/")[2] for full in _TASKS]
    similar = closest(name, [*_STARTERS, *_TASKS, *short, *starters])
    hint = f"list them all with `softprompts tasks list`; {PLUGIN_HINT}."
    if matches:
        hint = f"it could be {', '.join(task.name for task in matches)}."
    elif similar is not None:
        hint = f"did you mean {starters.get(similar, similar)}?"
    raise UserError(f"There is no task {name!r}; {hint}")


def _matches(name: str) -> list[Definition]:
    exact = _TASKS.get(name) or _STARTERS.get(name)
    if exact is not None:
        return [exact]
    return [task for task in _TASKS.values() if task.name.rpartition("/")[2] == name]
