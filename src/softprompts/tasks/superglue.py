"""SuperGLUE in T5's format. Lester 2021 trains without the task word, Vu 2022 with it."""

import re
from collections.abc import Iterator
from typing import Any

from ..errors import UserError
from .sources import Row
from .task_definition import UNLABELLED, Definition, Example, classification, label_of, text_of

HUB = "aps/super_glue"
TRUTH = ("False", "True")


def multirc(row: Row, split: str) -> Iterator[Example]:
    """One example per answer; `<br>` becomes a space and `<b>` is removed, as in T5."""
    for paragraph, question, answer, label, idx in _multirc_rows(row):
        text = f"question: {question} answer: {answer} paragraph: {paragraph}".replace("<br>", " ")
        flat = Row({"label": label}, row.location)
        yield Example(re.sub("</?b>", "", text), label_of(flat, "label", TRUTH), {"question": idx})


def _multirc_rows(row: Row) -> Iterator[tuple[str, str, str, Any, Any]]:
    """From the official nested format, or from the flat one of the Hub."""
    passage = row.values.get("passage")
    if not isinstance(passage, dict):
        idx = row.values.get("idx")
        group = idx.get("question") if isinstance(idx, dict) else idx
        yield (
            text_of(row, "paragraph"),
            text_of(row, "question"),
            text_of(row, "answer"),
            row.values.get("label"),
            group,
        )
        return
    try:
        for question in passage["questions"]:
            for answer in question["answers"]:
                yield (
                    passage["text"],
                    question["question"],
                    answer["text"],
                    answer.get("label"),
                    question["idx"],
                )
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{row.location} is not a MultiRC row: its passage has no {error}."
        ) from None


def record(row: Row, split: str) -> Iterator[Example]:
    """One example per distinct answer, also in evaluation, where a question counts once."""
    for passage, query, entities, answers, idx in _record_rows(row):
        passage = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", passage)
        passage = passage.replace("\n@highlight\n", ". ")
        text = f"query: {query} entities: {', '.join(entities)} passage: {passage}"
        for answer in answers or [UNLABELLED]:
            yield Example(text, answer, {"answers": answers, "group": idx})


def _record_rows(row: Row) -> Iterator[tuple[str, str, list[str], list[str], Any]]:
    """From the official nested format, or the flat one of the Hub; names are unique and sorted."""
    passage, idx = row.values.get("passage"), row.values.get("idx")
    try:
        if not isinstance(passage, dict):
            entities, answers = (
                sorted(set(row.values.get(name) or [])) for name in ("entities", "answers")
            )
            group = (idx["passage"], idx["query"]) if isinstance(idx, dict) else (row.location, idx)
            yield text_of(row, "passage"), text_of(row, "query"), entities, answers, group
            return
        text = passage["text"]
        entities = sorted(
            {text[entity["start"] : entity["end"] + 1] for entity in passage["entities"]}
        )
        for question in row.values["qas"]:
            answers = sorted({answer["text"] for answer in question.get("answers", [])})
            yield text, question["query"], entities, answers, (row.values["idx"], question["idx"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{row.location} is not a ReCoRD row: it has no {error}.") from None


PONY = (
    "The boy continued to whip the pony , and eventually the pony threw him over. "
    "John laughed out quite loud. "
)
PEBBLE = (
    "When they had eventually calmed down a bit , and had gotten home, "
    "Mr. Farley put the magic pebble in an iron safe . "
    "Some day they might want to use {} , but really for now, what more could they wish for?"
)
_UNREPAIRED = ("Kamenev and Zinoviev", "Kamenev, Zinoviev, and Stalin")


def wsc(row: Row, split: str) -> Iterator[Example]:
    """The text with its pronoun in asterisks in, the candidate referent out.

    As in T5, training uses only the rows whose candidate is correct.
    """
    nested = row.values.get("target")
    values = nested if isinstance(nested, dict) else row.values
    spans = _fixed_spans(Row({**values, "text": text_of(row, "text")}, row.location))
    label = label_of(row, "label", TRUTH)
    if split == "train" and label != "True":
        return
    number = TRUTH.index(label) if label in TRUTH else -1
    yield Example(_mark_pronoun(spans), spans["span1_text"], {"label": number})


def _fixed_spans(row: Row) -> dict[str, Any]:
    """Repair spans as TFDS does in wsc.fixed.

    A span that is not in the text gets the text's case, and loses a full stop or line break.
    """
    try:
        spans = {
            name: row.values[name]
            for name in ("text", "span1_text", "span1_index", "span2_text", "span2_index")
        }
        words = spans["text"].split()
        for span in ("span1", "span2"):
            span_text, text = spans[f"{span}_text"], spans["text"]
            if span_text in text or span_text in _UNREPAIRED:
                continue
            if "theyscold" in span_text:
                # the official repair of the text itself has no effect, so it is not repeated here
                spans["span2_index"] = 10
            first = words[int(spans[f"{span}_index"])]
            initial = span_text[0].lower() if first[0].islower() else span_text[0].upper()
            span_text = initial + span_text[1:]
            spans[f"{span}_text"] = span_text.rstrip(".").replace("\n", " ")
        spans["span2_index"] = int(spans["span2_index"])
    except KeyError as error:
        raise UserError(f"{row.location} is not a WSC row: it has no {error}.") from None
    except (TypeError, ValueError, IndexError):
        raise UserError(
            f"{row.location} is not a WSC row: a span needs text, and the number of its first word."
        ) from None
    return spans


def _mark_pronoun(spans: dict[str, Any]) -> str:
    text, pronoun = spans["text"], spans["span2_text"]
    if text == PONY + '"Good for him," he said. ':
        return f'{PONY}"Good for *{pronoun}* ," he said.'
    if text == PEBBLE.format("it"):
        return PEBBLE.format(f"*{pronoun}*")
    words, index = text.split(" "), spans["span2_index"]
    return " ".join([*words[:index], f"*{pronoun}*", *words[index + 1 :]])


def _superglue(
    name: str, keys: tuple[str, ...], labels: tuple[str, ...], *metrics: str
) -> Definition:
    return classification(
        f"superglue/{name}", f"{HUB}:{name}", keys, labels, metrics or ("accuracy",), collapse=False
    )


_RECORD: dict[str, Any] = {
    "hub": f"{HUB}:record",
    "preprocess": record,
    "metrics": ("f1", "em"),
    "word": "record",
    "columns": ("passage", "query", "entities"),
    "start_words": ("commonsense", "reasoning", "reading", "comprehension"),
}

DEFINITIONS = [
    _superglue("boolq", ("passage", "question"), TRUTH),
    _superglue(
        "cb",
        ("hypothesis", "premise"),
        ("entailment", "contradiction", "neutral"),
        "mean_3class_f1",
        "accuracy",
    ),
    _superglue("copa", ("choice1", "choice2", "premise", "question"), ("choice1", "choice2")),
    Definition(
        "superglue/multirc",
        f"{HUB}:multirc",
        multirc,
        ("f1", "exact_match"),
        TRUTH,
        columns=("paragraph", "question", "answer"),
    ),
    Definition("superglue/record", **_RECORD),
    Definition("superglue/record_fewshot32", **_RECORD),
    _superglue("rte", ("hypothesis", "premise"), ("entailment", "not_entailment")),
    _superglue("wic", ("sentence1", "sentence2", "word"), TRUTH),
    Definition(
        "superglue/wsc",
        f"{HUB}:wsc.fixed",
        wsc,
        ("accuracy",),
        word="wsc:",
        columns=("text", "span1_text", "span1_index", "span2_text", "span2_index"),
        answer_length=16,
        start_words=("commonsense", "pronoun", "resolution"),
    ),
]
