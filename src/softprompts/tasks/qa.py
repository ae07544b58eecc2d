"""Question answering: SQuAD as T5 casts it, MRQA's sets in and out of domain, and multiple choice."""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import UserError
from .definition import (
    PREDICT,
    UNLABELLED,
    Definition,
    Example,
    Maker,
    collapsed,
    column_of,
    label_of,
    text_of,
)
from .sources import Row

_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")


def pad_punctuation(text: str) -> str:
    """Spaces around ASCII punctuation, then single spaces, as T5 does it."""
    return collapsed(_PUNCTUATION.sub(r" \1 ", text))


def answers_of(row: Row) -> list[str]:
    """From a list, from the hub's {"text": [...]}, from DROP's {"spans": [...]}, or from one text."""
    value: Any = row.values.get(
        "answers", row.values.get("answers_spans", row.values.get("answer"))
    )
    if isinstance(value, dict):
        value = value.get("text", value.get("spans", value.get("aliases")))
    if isinstance(value, str):
        value = [value]
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(answer, str) for answer in value)
    ):
        raise UserError(
            f"{row.where}: the column 'answers' holds no answers; it must be a list of texts."
        )
    return value


def span(row: Row, split: str) -> Iterator[Example]:
    """`question: ... context: ...`, the first answer as target, all of them for the metric."""
    asked_only = split == PREDICT and not {"answers", "answers_spans", "answer"} & row.values.keys()
    answers = (
        [UNLABELLED] if asked_only else [pad_punctuation(answer) for answer in answers_of(row)]
    )
    context = text_of(row, "context" if "context" in row.values else "passage")
    question = text_of(row, "question")
    text = collapsed(f"question: {pad_punctuation(question)} context: {pad_punctuation(context)}")
    yield Example(text, answers[0], {"answers": answers})


def choices(
    *keys: str,
    options: Sequence[str],
    count: int,
    label: Mapping[str, int] | None = None,
    others: Mapping[str, str] | None = None,
) -> Maker:
    """`key: value ... choice1: ... choice2: ...`, and choice1, choice2, ... as label words, as T5 does for COPA.

    `label` names the columns that may hold the answer, and the number each counts from.
    """
    words = [f"choice{number + 1}" for number in range(count)]
    columns = label or {"label": 0}

    def make(row: Row, split: str) -> Iterator[Example]:
        parts = [f"{key}: {text_of(row, column_of(row, key, others or {}))}" for key in keys]
        parts += [
            f"{word}: {option}"
            for word, option in zip(words, _options(row, options, count), strict=True)
        ]
        column = next((name for name in columns if name in row.values), "label")
        yield Example(
            collapsed(" ".join(parts)),
            label_of(_numbered(row, column, columns.get(column, 0)), column, words),
        )

    return make


def _options(row: Row, names: Sequence[str], count: int) -> list[str]:
    """The choices, from one column with a list or from one column each."""
    for name in names:
        value = row.values.get(name)
        if isinstance(value, list):
            if len(value) != count or not all(isinstance(option, str) for option in value):
                raise UserError(f"{row.where}: the column {name!r} must hold {count} texts.")
            return list(value)
    return [text_of(row, name) for name in names if name in row.values][:count] or [
        text_of(row, names[0])
    ]


def _numbered(row: Row, column: str, first: int) -> Row:
    """A letter (A, B, ...) or a number counted from `first` as a number from 0."""
    value = row.values.get(column)
    if isinstance(value, str) and len(value) == 1 and value in string.ascii_uppercase:
        return Row({column: string.ascii_uppercase.index(value)}, row.where)
    if first and value not in (None, ""):
        return Row({column: int(value) - first}, row.where)
    return row


def _choice_task(name: str, hub: str, make: Any, count: int, **options: Any) -> Definition:
    return Definition(
        name,
        hub,
        make,
        ("accuracy",),
        tuple(f"choice{number + 1}" for number in range(count)),
        **options,
    )


def _spans(name: str, hub: str, **options: Any) -> Definition:
    return Definition(name, hub, span, ("f1", "em"), columns=("question", "context"), **options)


MRQA = "mrqa-workshop/mrqa"

DEFINITIONS = [
    _spans("spot_sources/squad", "rajpurkar/squad"),
    _spans("spot_sources/drop", "ucinlp/drop"),
    *(
        _spans(f"mrqa_ood/{name}", f"{MRQA}:{name}", word=name, splits={"validation": "test"})
        for name in ("textbookqa", "bioasq")
    ),
    *(
        _spans(f"mrqa_ood/{name}", MRQA, word=name)
        for name in ("race", "relation_extraction", "duorc", "drop")
    ),
    *(
        _spans(f"mrqa/{name}", f"{MRQA}:{name}", word=name)
        for name in ("squad", "news_qa", "trivia_qa", "search_qa", "hotpot_qa", "natural_questions")
    ),
    _choice_task(
        "spot_sources/cosmosqa",
        "allenai/cosmos_qa",
        choices(
            "context",
            "question",
            count=4,
            options=("answers", "answer0", "answer1", "answer2", "answer3"),
        ),
        4,
        columns=("context", "question", "answers"),
    ),
    Definition(
        "spot_sources/cosmosqa_gen",
        "allenai/cosmos_qa",
        span,
        ("f1", "em"),
        word="cosmosqa",
        columns=("question", "context"),
    ),
    _choice_task(
        "spot_sources/hellaswag",
        "Rowan/hellaswag",
        choices("context", count=4, options=("endings",), others={"context": "ctx"}),
        4,
        columns=("context", "endings"),
    ),
    _choice_task(
        "spot_sources/race",
        "ehovy/race:all",
        choices(
            "article", "question", count=4, options=("options",), label={"label": 0, "answer": 0}
        ),
        4,
        columns=("article", "question", "options"),
    ),
    _choice_task(
        "spot_sources/winogrande",
        "allenai/winogrande:winogrande_xl",
        choices(
            "sentence", count=2, options=("option1", "option2"), label={"label": 0, "answer": 1}
        ),
        2,
        columns=("sentence", "option1", "option2"),
    ),
    _choice_task(
        "rainbow/piqa",
        "ybisk/piqa",
        choices("goal", count=2, options=("sol1", "sol2")),
        2,
        columns=("goal", "sol1", "sol2"),
    ),
    _choice_task(
        "rainbow/social_iqa",
        "allenai/social_i_qa",
        choices(
            "context",
            "question",
            count=3,
            options=("answerA", "answerB", "answerC"),
            label={"label": 1},
        ),
        3,
        columns=("context", "question", "answerA", "answerB", "answerC"),
    ),
    _choice_task(
        "rainbow/anli",
        "allenai/art",
        choices(
            "obs1",
            "obs2",
            count=2,
            options=("hyp1", "hyp2"),
            label={"label": 1},
            others={"obs1": "observation_1", "obs2": "observation_2"},
        ),
        2,
        columns=("obs1", "obs2", "hyp1", "hyp2"),
    ),
]
