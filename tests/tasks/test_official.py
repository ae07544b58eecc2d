"""Named tasks and metrics compared with T5's own code: hand-written and official rows."""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import Any

import pytest

from softprompts.errors import UserError
from softprompts.tasks import Example
from softprompts.tasks.metrics import METRICS, score, wsc_match
from softprompts.tasks.named import named_split
from softprompts.tasks.qa import pad_punctuation
from softprompts.tasks.registry import BENCHMARKS, definition, definitions
from softprompts.tasks.sources import Reservoir, Row
from softprompts.tasks.task_definition import UNLABELLED

from ..conftest import DATA, golden

needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="there is no data folder; SOFTPROMPTS_DATA can name one"
)
OFFICIAL = DATA.parent / "golden" / "text_to_text.json"
METRIC_CASES = golden("metrics")


def pairs(
    name: str, split: str = "validation", task_word: bool = True, **values: Any
) -> list[tuple[str, str]]:
    return [
        (e.input, e.target)
        for e in definition(name).examples(Row(values, "here:1"), split, task_word)
    ]


@pytest.mark.parametrize(
    ("name", "row", "text", "target"),
    [
        (
            "superglue/boolq",
            {"passage": "P  p.", "question": "q?", "label": True},
            "boolq passage: P  p. question: q?",
            "True",
        ),
        (
            "superglue/boolq",
            {"passage": "P", "question": "q", "label": 0},
            "boolq passage: P question: q",
            "False",
        ),
        (
            "superglue/cb",
            {"premise": "p", "hypothesis": "h", "label": "neutral"},
            "cb hypothesis: h premise: p",
            "neutral",
        ),
        (
            "superglue/cb",
            {"premise": "p", "hypothesis": "h", "label": 1},
            "cb hypothesis: h premise: p",
            "contradiction",
        ),
        (
            "superglue/copa",
            {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 1},
            "copa choice1: a choice2: b premise: p question: cause",
            "choice2",
        ),
        (
            "superglue/rte",
            {"premise": "p", "hypothesis": "h"},
            "rte hypothesis: h premise: p",
            "<unk>",
        ),
        (
            "superglue/wic",
            {"word": "w", "sentence1": "a", "sentence2": "b", "start1": 3, "label": False},
            "wic sentence1: a sentence2: b word: w",
            "False",
        ),
        ("glue/cola", {"sentence": " s ", "label": 0}, "cola sentence:  s ", "unacceptable"),
        (
            "glue/stsb",
            {"sentence1": "a", "sentence2": "b", "label": 2.5},
            "stsb sentence1: a sentence2: b",
            "2.4",
        ),
        (
            "glue/stsb",
            {"sentence1": "a", "sentence2": "b", "label": 3.5},
            "stsb sentence1: a sentence2: b",
            "3.6",
        ),
        (
            "glue/qqp",
            {"question1": "a", "question2": "", "label": 1},
            "qqp question1: a question2: ",
            "duplicate",
        ),
        (
            "glue/mnli",
            {"premise": "p", "hypothesis": "h", "label": -1},
            "mnli hypothesis: h premise: p",
            "<unk>",
        ),
        (
            "glue/mnli_mismatched",
            {"premise": "p", "hypothesis": "h", "label": 2},
            "mnli hypothesis: h premise: p",
            "contradiction",
        ),
        (
            "glue/qnli",
            {"question": "q", "sentence": "s", "label": 1},
            "qnli question: q sentence: s",
            "not_entailment",
        ),
        (
            "spot_sources/squad",
            {"question": "Who won?", "context": "A  (B) won.", "answers": {"text": ["B's"]}},
            "squad question: Who won ? context: A ( B ) won . ",
            "B ' s",
        ),
        (
            "spot_sources/race",
            {"article": "t", "question": "q", "options": ["a", "b", "c", "d"], "answer": "C"},
            "race article: t question: q choice1: a choice2: b choice3: c choice4: d",
            "choice3",
        ),
        (
            "spot_sources/winogrande",
            {"sentence": "s _", "option1": "a", "option2": "b", "answer": "2"},
            "winogrande sentence: s _ choice1: a choice2: b",
            "choice2",
        ),
        (
            "rainbow/social_iqa",
            {
                "context": "c",
                "question": "q",
                "answerA": "x",
                "answerB": "y",
                "answerC": "z",
                "label": "1",
            },
            "social_iqa context: c question: q choice1: x choice2: y choice3: z",
            "choice1",
        ),
        *(
            (
                "rainbow/anli",
                {"obs1": "o", "obs2": "p", "hyp1": "a", "hyp2": "b", "label": label},
                "anli obs1: o obs2: p choice1: a choice2: b",
                target,
            )
            for label, target in (
                (2, "choice2"),
                (1.0, "choice1"),
                ("B", "choice2"),
                ("choice1", "choice1"),
                (-1, "<unk>"),
                (None, "<unk>"),
            )
        ),
        ("textcls/trec", {"text": "Why ?", "coarse": "LOC"}, "trec text: Why ?", "location"),
        ("textcls/trec", {"text": "Why ?", "coarse_label": 2}, "trec text: Why ?", "description"),
        (
            "sentiment/sentiment140",
            {"text": "t", "sentiment": 4},
            "sentiment140 text: t",
            "positive",
        ),
        (
            "nli/anli_r1",
            {"premise": "p", "hypothesis": "h", "label": 1},
            "anli_r1 hypothesis: h context: p",
            "neutral",
        ),
        ("textcls/cr", {"sentence": "so   so", "label": 1}, "cr text: so so", "positive"),
        (
            "translation/wmt14_en_de",
            {"translation": {"en": "a b", "de": "c"}},
            "translate English to German: a b",
            "c",
        ),
        ("summarisation/xsum", {"document": "long", "summary": "s"}, "xsum summarize: long", "s"),
        ("gem/e2e_nlg", {"meaning_representation": "m", "target": "s"}, "e2e_nlg m", "s"),
    ],
)
def test_a_row_becomes_a_pair(name: str, row: dict[str, Any], text: str, target: str) -> None:
    assert pairs(name, **row) == [(text, target)]
    assert pairs(name, task_word=False, **row) == [(text.partition(" ")[2], target)]


def test_multirc_has_one_example_per_answer() -> None:
    answers = [{"text": "<b>A</b> cat", "label": 1, "idx": 0}, {"text": "dog<br>", "idx": 1}]
    passage = {
        "text": "x<br>y</br> <B>w</B>",
        "questions": [{"question": "Who?", "answers": answers, "idx": 7}],
    }
    first, second = pairs("superglue/multirc", passage=passage, idx=0)
    assert first == ("multirc question: Who? answer: A cat paragraph: x y</br> <B>w</B>", "True")
    assert second == ("multirc question: Who? answer: dog  paragraph: x y</br> <B>w</B>", "<unk>")
    flat = pairs(
        "superglue/multirc",
        paragraph="p",
        question="q",
        answer="a",
        label=0,
        idx={"question": 3, "answer": 1},
    )
    assert flat == [("multirc question: q answer: a paragraph: p", "False")]


def test_record_has_one_example_per_answer_with_sorted_entities() -> None:
    text = "Bob met Al.\n@highlight\nAl left\n@highlight\nend"
    entities = [{"start": 8, "end": 9}, {"start": 0, "end": 2}, {"start": 8, "end": 9}]
    qas = [
        {
            "query": "Who? @placeholder",
            "answers": [{"text": "Bob"}, {"text": "Al"}, {"text": "Bob"}],
            "idx": 1,
        }
    ]
    examples = pairs(
        "superglue/record", passage={"text": text, "entities": entities}, qas=qas, idx=0
    )
    expected = "record query: Who? @placeholder entities: Al, Bob passage: Bob met Al. Al left. end"
    assert examples == [(expected, "Al"), (expected, "Bob")]
    flat = pairs(
        "superglue/record",
        passage="p",
        query="q",
        entities=["b", "a"],
        answers=["z"],
        idx={"passage": 1, "query": 2},
    )
    assert flat == [("record query: q entities: a, b passage: p", "z")]


def test_wsc_marks_the_pronoun_and_trains_on_correct_referents() -> None:
    target = {"span1_text": "The cat.", "span1_index": 2, "span2_text": "it", "span2_index": 5}
    row = {"text": "I fed the cat because it cried.", "target": target, "label": False}
    assert pairs("superglue/wsc", "validation", **row) == [
        ("wsc: I fed the cat because *it* cried.", "the cat")
    ]
    assert pairs("superglue/wsc", "train", **row) == []
    assert pairs("superglue/wsc", "train", **{**row, "label": True}) == [
        ("wsc: I fed the cat because *it* cried.", "the cat")
    ]
    assert (
        pairs("superglue/wsc", "validation", task_word=False, **row)[0][0]
        == "I fed the cat because *it* cried."
    )


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("superglue/boolq", {"passage": "p", "label": 1}, "here:1 has no column 'question'"),
        (
            "superglue/boolq",
            {"passage": "p", "question": ["q"], "label": 1},
            "holds a list, not text",
        ),
        (
            "superglue/cb",
            {"premise": "p", "hypothesis": "h", "label": "maybe"},
            "the label 'maybe' is not one of",
        ),
        (
            "superglue/cb",
            {"premise": "p", "hypothesis": "h", "label": 3},
            "the label 3 is not one of",
        ),
        *(
            (
                "superglue/cb",
                {"premise": "p", "hypothesis": "h", "label": label},
                f"the label {label!r} is not one of",
            )
            for label in (1.5, math.nan, math.inf, "²")
        ),
        *(
            ("rainbow/piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": label}, "is not one")
            for label in ("C", 2, "one", ["A"])
        ),
        *(
            (
                "rainbow/anli",
                {"obs1": "o", "obs2": "p", "hyp1": "a", "hyp2": "b", "label": label},
                re.escape(f"the label {label!r} is not one of"),
            )
            for label in (0, 3, "0", "one", ["1"])
        ),
        (
            "superglue/record",
            {"passage": "p", "query": "q", "idx": {"paragraph": 0}},
            "is not a ReCoRD row",
        ),
        (
            "glue/stsb",
            {"sentence1": "a", "sentence2": "b", "label": 7},
            "the score 7 is not a number from 0 to 5",
        ),
        (
            "glue/stsb",
            {"sentence1": "a", "sentence2": "b", "label": "nan"},
            "is not a number from 0 to 5",
        ),
        ("superglue/multirc", {"passage": {"text": "p"}}, "is not a MultiRC row"),
        ("superglue/record", {"passage": {"text": "p"}, "idx": 0}, "is not a ReCoRD row"),
        ("superglue/wsc", {"text": "t", "target": {"span1_text": "x"}}, "is not a WSC row"),
        *(
            (
                "superglue/wsc",
                {
                    "text": "the cat cried",
                    "target": {
                        "span1_text": "Cats",
                        "span1_index": first,
                        "span2_text": "it",
                        "span2_index": second,
                    },
                },
                "is not a WSC row: a span needs text, and the number of its first word",
            )
            for first, second in ((0, "third"), (0, None), ("first", 2), (9, 2))
        ),
        (
            "spot_sources/squad",
            {"question": "q", "context": "c", "answers": []},
            "holds no answers",
        ),
        (
            "spot_sources/hellaswag",
            {"context": "c", "endings": ["a"], "label": 0},
            "must hold 4 strings",
        ),
    ],
)
def test_a_bad_row_is_a_clear_error(name: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pairs(name, **row)


def test_only_ascii_punctuation_is_padded() -> None:
    assert pad_punctuation("Björn's — a  (b)_c") == "Björn ' s — a ( b ) _ c"


def test_benchmarks_and_short_names() -> None:
    for names in BENCHMARKS.values():
        assert all(name in definitions() for name in names)
    assert definition("boolq").name == "superglue/boolq"
    with pytest.raises(UserError, match="it could be superglue/rte, glue/rte"):
        definition("rte")
    with pytest.raises(UserError, match="There is no task 'nothing'"):
        definition("nothing")
    assert all("/" in task.hub or ":" in task.hub for task in definitions().values())


# -- compared with the official code ---------------------------------------------------------------


@pytest.mark.skipif(not OFFICIAL.is_file(), reason="the official rows are not there")
@pytest.mark.parametrize(
    "name",
    [
        "boolq",
        "cb",
        "copa",
        "rte",
        "wic",
        "multirc",
        "record",
        "wsc",
        "cola",
        "sst2",
        "mrpc",
        "stsb",
        "qqp",
        "mnli",
        "qnli",
    ],
)
def test_official_rows(name: str) -> None:
    group = (
        "superglue"
        if name in ("boolq", "cb", "copa", "rte", "wic", "multirc", "record", "wsc")
        else "glue"
    )
    task = json.loads(OFFICIAL.read_text())["tasks"][name]
    cases = [
        case
        for value in task.values()
        if isinstance(value, list)
        for case in value
        if isinstance(case, dict) and "raw" in case
    ]
    cases += [task["unlabelled_case"]] if "unlabelled_case" in task else []
    assert cases
    for case in cases:
        examples = pairs(f"{group}/{name}", case.get("split", "validation"), **case["raw"])
        texts = [output["inputs"] for output in case["outputs"]]
        texts = [texts[0] if text == "(same as the first)" else text for text in texts]
        assert examples == list(
            zip(texts, [output["targets"] for output in case["outputs"]], strict=True)
        )
    for value, word in task.get("rounding_table", []):
        assert pairs("glue/stsb", sentence1="a", sentence2="b", label=value)[0][1] == word


@pytest.mark.parametrize("label", [None, -1, "-1", ""])
def test_a_score_may_be_missing(label: Any) -> None:
    assert pairs("glue/stsb", sentence1="a", sentence2="b", label=label)[0][1] == UNLABELLED


@needs_data
@pytest.mark.parametrize("key", golden("text_to_text_hashes")["splits"])
def test_splits_have_the_official_hashes(key: str) -> None:
    name, _, split = key.rpartition("/")
    expected = golden("text_to_text_hashes")["splits"][key]
    squad = name == "spot_sources/squad"  # T5 has no task word for SQuAD
    for task_word, digest in (
        (not squad, expected["sha256"]),
        *(() if squad else ((False, expected["sha256_without_task_word"]),)),
    ):
        examples = named_split(definition(name), split, str(DATA), task_word)
        assert len(examples) == expected["rows"]
        assert (
            hashlib.sha256(
                "".join(f"{e.input}\t{e.target}\n" for e in examples).encode()
            ).hexdigest()
            == digest
        )


@needs_data
def test_every_local_task_loads_and_its_targets_score_100() -> None:
    for name, entry in json.loads((DATA / "MANIFEST.json").read_text())["tasks"].items():
        task = definition(name)
        for split in entry["splits"]:
            some = Reservoir(5000, 0)  # all rows of many tasks are read by the tests of hashes
            examples = named_split(task, split, str(DATA), reservoir=some)
            assert examples, f"{name} {split}"
            if any(e.target == "<unk>" or e.metadata.get("label") == -1 for e in examples):
                continue  # a test split without labels
            gold = [
                "something else" if e.metadata.get("label") == 0 else e.target for e in examples
            ]
            scores = score(task.metrics, examples, gold, task.labels)
            assert all(value == pytest.approx(100.0) for value in scores.values()), (
                f"{name} {split}: {scores}"
            )


def check(
    case: dict[str, Any],
    examples: Sequence[Example],
    predictions: Sequence[str],
    labels: Sequence[str],
) -> None:
    for name, expected in case["values"].items():
        value = math.nan if isinstance(expected, dict) else expected
        computed = METRICS[name](examples, predictions, labels)
        assert computed == pytest.approx(value, abs=1e-9, nan_ok=True), case.get("name")


@pytest.mark.parametrize("task", METRIC_CASES["accuracy"]["tasks"])
def test_official_accuracy(task: str) -> None:
    group, name = (
        ("superglue", task.split("_")[2])
        if task.startswith("super")
        else ("glue", task.split("_")[1])
    )
    for case in METRIC_CASES["accuracy"]["tasks"][task]:
        labels = definition(f"{group}/{name}").labels
        check(
            case,
            [Example("", target) for target in case["target_texts"]],
            case["prediction_texts"],
            labels,
        )


@pytest.mark.parametrize(
    ("key", "task"),
    [
        ("cb_mean_3class_f1_and_accuracy", "superglue/cb"),
        ("cola_matthews", "glue/cola"),
        ("stsb_pearson_spearman", "glue/stsb"),
        ("mrpc_f1_and_accuracy", "glue/mrpc"),
        ("qqp_f1_and_accuracy", "glue/qqp"),
    ],
)
def test_official_label_metrics(key: str, task: str) -> None:
    for case in METRIC_CASES[key]["cases"]:
        check(
            case,
            [Example("", target) for target in case["target_texts"]],
            case["prediction_texts"],
            definition(task).labels,
        )


def test_official_question_metrics() -> None:
    for case in METRIC_CASES["multirc"]["cases"]:
        metadata = [{"question": example["idx/question"]} for example in case["examples"]]
        check(
            case,
            [Example("", *pair) for pair in zip(case["target_texts"], metadata, strict=True)],
            case["prediction_texts"],
            ("False", "True"),
        )
    for case in METRIC_CASES["record"]["cases"]:
        metadata = [
            {"answers": e["answers"], "group": (e["idx/passage"], e["idx/query"])}
            for e in case["examples"]
        ]
        check(
            case,
            [Example("", *pair) for pair in zip(case["target_texts"], metadata, strict=True)],
            case["prediction_texts"],
            (),
        )
    for case in METRIC_CASES["squad"]["cases"]:
        check(
            case,
            [Example("", answers[0], {"answers": answers}) for answers in case["targets"]],
            case["predictions"],
            (),
        )


def test_official_wsc() -> None:
    for case in METRIC_CASES["wsc"]["matching"]:
        assert wsc_match(case["prediction"], case["referent"]) == case["value"], case
    for case in METRIC_CASES["wsc"]["accuracy_cases"]:
        examples = [
            Example("", referent, {"label": label})
            for referent, label in zip(case["referents"], case["labels"], strict=True)
        ]
        check(case, examples, case["predictions_texts"], ())


def test_bleu_and_rouge() -> None:
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    examples = [Example("", "the cat sat on the mat"), Example("", "a dog ran far away today")]
    gold = [e.target for e in examples]
    assert score(("bleu", "rouge1", "rougeL"), examples, gold, ()) == pytest.approx(
        {"bleu": 100.0, "rouge1": 100.0, "rougeL": 100.0}
    )
    assert METRICS["rouge1"](examples, ["the cat", ""], ()) == pytest.approx(
        100 * (2 * 1 * (2 / 6) / (1 + 2 / 6)) / 2
    )
    sentences = [Example("", "one two . three four . five")]
    swapped = ["three four . one two . five"]
    assert METRICS["rougeL"](sentences, swapped, ()) < METRICS["rougeLsum"](sentences, swapped, ())
    assert METRICS["bleu"](examples, ["nothing alike", "here"], ()) < 5
