"""Named tasks in runs and on the command line: data folders, splits, caps, mixtures, raw text."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from softprompts.backbone import Backbone
from softprompts.cli import main
from softprompts.config import TaskConfig, run_config
from softprompts.errors import UserError
from softprompts.tasks import load_task
from softprompts.tasks.sources import read_predictions
from softprompts.tasks.task import Mixture
from softprompts.tuning.batches import Batches
from softprompts.tuning.tune import tune_config
from softprompts.tuning.tuned import load

from ..models import random_model

SHORT = [
    *("--preset", "prompt-tuning", "--prompt.length", "4", "--steps", "2", "--batch-size", "4"),
    *("--device", "cpu", "--quiet"),
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder for `--data-dir` with made-up rows."""
    folder = tmp_path / "data"
    pairs = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "label": i % 2} for i in range(40)]
    write(folder / "glue/mrpc/train.jsonl", pairs)
    write(folder / "glue/mrpc/validation.jsonl", pairs[:10])
    questions = [{"question1": f"c {i}", "question2": f"d {i}", "label": i % 2} for i in range(60)]
    write(folder / "glue/qqp/train.jsonl", questions)
    write(folder / "glue/qqp/validation.jsonl", questions[:8])
    answered = [
        {"question": f"who is {i}?", "context": f"It is Al {i}.", "answers": [f"Al {i}"]}
        for i in range(30)
    ]
    write(folder / "spot_sources/squad/train.jsonl", answered)
    write(folder / "spot_sources/squad/validation.jsonl", answered[:6])
    write(folder / "mrqa_ood/duorc/validation.jsonl", answered[:4])
    write(folder / "superglue/rte/test.jsonl", [{"premise": "p", "hypothesis": "h"}])
    return folder


def test_official_and_smop_splits(data: Path) -> None:
    official = load_task(TaskConfig(task="glue/mrpc", data_dir=str(data)))
    assert (len(official.train), len(official.validation), len(official.test)) == (40, 10, 0)
    assert official.train[1].input == "mrpc sentence1: a 1 sentence2: b 1"
    assert official.metrics == ("f1", "accuracy")
    smop = load_task(
        TaskConfig(task="glue/mrpc", data_dir=str(data), splits="smop", task_word=False)
    )
    assert (len(smop.train), len(smop.validation), len(smop.test)) == (36, 4, 10)
    assert smop.test[1].input == "sentence1: a 1 sentence2: b 1"
    assert not {e.input for e in smop.train} & {e.input for e in smop.validation}


def test_shots_caps_and_metric(data: Path) -> None:
    few = load_task(
        TaskConfig(
            task="glue/mrpc", data_dir=str(data), shots=3, cap_validation=4, metric="accuracy"
        )
    )
    assert Counter(e.target for e in few.train) == {"not_equivalent": 3, "equivalent": 3}
    assert len(few.validation) == 4
    assert few.metrics == ("accuracy", "f1")
    mean = load_task(TaskConfig(task="glue/mrpc", data_dir=str(data), metric="mean"))
    assert mean.metrics == ("f1+accuracy", "f1", "accuracy")
    scores = mean.score([e.target for e in mean.validation[:-1]] + ["neither"])
    assert scores["f1+accuracy"] == pytest.approx((scores["f1"] + scores["accuracy"]) / 2, abs=1e-3)
    capped = [
        load_task(TaskConfig(task="glue/mrpc", data_dir=str(data), cap=5, split_seed=seed)).train
        for seed in (0, 0, 1)
    ]
    assert capped[0] == capped[1] != capped[2]
    assert len(capped[0]) == 5
    with pytest.raises(UserError, match="has no classes for shots"):
        load_task(TaskConfig(task="spot_sources/squad", data_dir=str(data), shots=2))


def test_the_majority_label_is_that_of_all_training_rows_with_few_shots(data: Path) -> None:
    imbalanced = [
        {"sentence1": f"a {i}", "sentence2": f"b {i}", "label": int(i % 4 > 0)} for i in range(40)
    ]
    write(data / "glue/mrpc/train.jsonl", imbalanced)
    write(data / "glue/mrpc/validation.jsonl", imbalanced[:8])
    for seed in range(6):
        few = load_task(TaskConfig(task="glue/mrpc", data_dir=str(data), shots=2, split_seed=seed))
        assert (few.majority_label, few.majority()["accuracy"]) == ("equivalent", 75.0)


def test_a_cap_counts_examples_and_held_out_rows_are_drawn_from_all(data: Path) -> None:
    write(
        data / "nli/snli/train.jsonl",
        [
            {"premise": "p", "hypothesis": f"h {i}", "label": -1 if i % 2 else i % 3}
            for i in range(60)
        ],
    )
    write(
        data / "nli/snli/validation.jsonl",
        [{"premise": "p", "hypothesis": f"h {i}", "label": i % 4 - 1} for i in range(8)],
    )
    snli = {"task": "nli/snli", "data_dir": str(data)}
    assert len(load_task(TaskConfig(**snli)).train) == 30, "rows without agreement are left out"
    assert len(load_task(TaskConfig(**snli)).validation) == 6
    assert len(load_task(TaskConfig(**snli, cap=25)).train) == 25
    (data / "glue/mrpc/validation.jsonl").unlink()
    capped = load_task(TaskConfig(task="glue/mrpc", data_dir=str(data), cap=5))
    assert (len(capped.train), len(capped.validation)) == (5, 4)


def test_unlabelled_rows_are_used_neither_for_training_nor_for_evaluation(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "label": i % 2} for i in range(40)]
    unlabelled = [{**pair, "label": -1} for pair in pairs[:10]]
    write(data / "glue/mrpc/test.jsonl", unlabelled)
    for name, more in (("official", []), ("smop", ["--splits", "smop"])):
        folder = str(tmp_path / name)
        assert (
            main(
                [
                    "tune",
                    "--task",
                    "glue/mrpc",
                    "--data-dir",
                    str(data),
                    "--output",
                    folder,
                    *SHORT,
                    *more,
                ]
            )
            == 0
        )
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "official"), "--split", "test", "--quiet"]) == 2
    assert "glue/mrpc has unlabelled rows in test" in capsys.readouterr().err
    for split, size in (("test", 10), ("train", 36)):
        assert (
            main(["evaluate", str(tmp_path / "smop"), "--split", split, "--quiet", "--json"]) == 0
        )
        assert json.loads(capsys.readouterr().out)["rows"] == size, (
            "the run's own split, not the official one"
        )
    write(data / "glue/mrpc/validation.jsonl", unlabelled)
    with pytest.raises(UserError, match="Not all validation rows of glue/mrpc have labels"):
        load_task(TaskConfig(task="glue/mrpc", data_dir=str(data)))
    write(data / "glue/mrpc/validation.jsonl", [*unlabelled, *pairs[:4]])
    assert (
        len(
            load_task(
                TaskConfig(task="glue/mrpc", data_dir=str(data), skip_bad_rows=True)
            ).validation
        )
        == 4
    )


def test_demonstrations_are_drawn_from_the_training_examples(data: Path) -> None:
    few = load_task(TaskConfig(task="glue/mrpc", data_dir=str(data), shots=2, demonstrations=4))
    before = few.form.before
    assert before.count("answer:") == 4
    train = load_task(TaskConfig(task="glue/mrpc", data_dir=str(data), shots=2)).train
    assert all(f"{example.input} answer: {example.target}\n\n" in before for example in train)
    with pytest.raises(UserError, match="metric='exact_match' is for questions"):
        load_task(TaskConfig(task="glue/mrpc", data_dir=str(data), metric="exact_match"))


def test_predictions_in_the_encodings_of_editors(tmp_path: Path) -> None:
    path = tmp_path / "answers.txt"
    path.write_bytes("\ufeffyes\r\nno\u2028but\r\n\r\n".encode())
    assert read_predictions(path) == ["yes", "no\u2028but", ""]
    for name in ("answers.txt", "answers.jsonl"):
        (tmp_path / name).write_bytes(b"caf\xe9\n")
        with pytest.raises(UserError, match="is not UTF-8 text"):
            read_predictions(tmp_path / name)


def test_predictions_without_permission_are_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "predictions.txt"
    path.write_text("yes")

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match="do not have permission to read"):
        read_predictions(path)


def test_the_environment_variable_names_the_folder(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTPROMPTS_DATA", str(data))
    assert len(load_task(TaskConfig(task="glue/qqp")).train) == 60


def test_a_mixture_has_exact_rates(data: Path) -> None:
    mixed = load_task(TaskConfig(task="glue/mrpc+glue/qqp", data_dir=str(data), mixture_limit=50))
    assert isinstance(mixed, Mixture)
    assert mixed.member_sizes == (40, 60)
    batches = Batches(lambda rows: [1] * len(rows), 9, 0, mixed.member_sizes, mixed.mixture_limit)
    assert batches.per_epoch == 10
    seen: Counter[int] = Counter()
    for epoch in range(6):
        drawn = [row for step in range(10) for row in batches[epoch * 10 + step]]
        assert len(drawn) == len(set(drawn)) == 90
        assert sum(row < 40 for row in drawn) == 40, "min(n, K) of each, in every epoch"
        seen.update(drawn)
    assert {seen[row] for row in range(40, 100)} == {5}, "the large task's rows take turns"
    again = Batches(lambda rows: [1] * len(rows), 9, 0, mixed.member_sizes, mixed.mixture_limit)
    assert [again[i] for i in range(20)] == [batches[i] for i in range(20)]
    gold = [e.target for e in mixed.validation]
    scores = mixed.score(gold)
    assert scores["mean"] == scores["glue/mrpc:f1"] == scores["glue/qqp:accuracy"] == 100.0
    half = mixed.score([*gold[:10], *["nothing"] * 8])
    assert half["mean"] == 50.0
    with pytest.raises(UserError, match="names a task twice"):
        load_task(TaskConfig(task="glue/mrpc+glue/mrpc", data_dir=str(data)))


def settings(data: Path, name: str, **more: Any) -> Any:
    tuning = {"steps": 4, "batch_size": 8, "max_length": 64, "lr": 0.1, "evaluate_every": 2}
    task = {"task": name, "data_dir": str(data)}
    return run_config(
        {"preset": "prompt-tuning", "prompt": {"length": 4}, "tuning": tuning, "task": task}, more
    )


def test_runs_on_a_task_a_mixture_and_free_text(data: Path, t5: Backbone, tmp_path: Path) -> None:
    tuned = tune_config(
        settings(data, "glue/mrpc", task={"splits": "smop"}), tmp_path / "run", backbone=t5
    )
    assert set(tuned.card.metrics) == {"f1", "accuracy"}
    assert set(tuned.card.test) == {"f1", "accuracy"}
    again = load(tmp_path / "run", backbone=t5)
    assert again.predict([{"sentence1": "a", "sentence2": "b"}]) == tuned.predict(
        [{"sentence1": "a", "sentence2": "b"}]
    )
    mixed = tune_config(
        settings(data, "glue/mrpc+spot_sources/squad"), tmp_path / "mixed", backbone=t5
    )
    assert {"mean", "glue/mrpc:f1", "spot_sources/squad:em"} <= set(mixed.card.metrics)
    free = tune_config(settings(data, "spot_sources/squad"), tmp_path / "free", backbone=t5)
    assert free.card.scoring == "generate"
    assert (
        len(load(tmp_path / "free", backbone=t5).predict([{"question": "who?", "context": "Al."}]))
        == 1
    )
    with pytest.raises(UserError, match="are free text"):
        tune_config(settings(data, "spot_sources/squad"), None, backbone=random_model("bert"))


def test_regression_on_an_encoder(tmp_path: Path) -> None:
    rows = [
        {"sentence1": f"a {i}", "sentence2": f"b {i}", "label": (i % 26) / 5} for i in range(52)
    ]
    write(tmp_path / "data/glue/stsb/train.jsonl", rows)
    write(tmp_path / "data/glue/stsb/validation.jsonl", rows[:20])
    tuned = tune_config(
        settings(tmp_path / "data", "glue/stsb"), None, backbone=random_model("minilm")
    )
    assert set(tuned.card.metrics) == {"pearson_corrcoef", "spearman_corrcoef"}
    assert tuned.prompt.head is not None
    assert len(tuned.prompt.head.bias) == 26


def test_raw_text_is_a_task(t5: Backbone, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(
        "\n\n".join(f"document {i} " + "word " * (i + 3) for i in range(40))
    )
    config = run_config(
        {
            "preset": "prompt-tuning",
            "prompt": {"length": 4},
            "tuning": {"steps": 2, "batch_size": 4, "max_length": 96},
            "task": {"task": "prefix-lm", "train": str(tmp_path / "text.txt")},
        }
    )
    task = load_task(config.task)
    assert (len(task.train), len(task.validation)) == (38, 2)
    assert load_task(config.task).train == task.train
    assert all(e.input and e.target for e in task.train)
    assert tune_config(config, None, backbone=t5).card.steps == 2
    with pytest.raises(UserError, match="name a text file with train"):
        load_task(TaskConfig(task="prefix-lm"))


def test_evaluation_on_another_task(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """QQP's labels are mapped to MRPC's; SQuAD's prompt answers MRQA's questions."""
    for task, other in (("glue/qqp", "glue/mrpc"), ("spot_sources/squad", "mrqa_ood/duorc")):
        folder = str(tmp_path / task.replace("/", "-"))
        assert (
            main(["tune", "--task", task, "--data-dir", str(data), "--output", folder, *SHORT]) == 0
        )
        capsys.readouterr()
        assert (
            main(
                ["evaluate", folder, "--task", other, "--quiet", "--json", "--scoring", "generate"]
            )
            == 0
        )
        result = json.loads(capsys.readouterr().out)
        assert result["task"] == other
        assert set(result["metrics"]) == (
            {"f1", "accuracy"} if other == "glue/mrpc" else {"f1", "em"}
        )
    assert (
        main(
            [
                "evaluate",
                str(tmp_path / "glue-qqp"),
                "--task",
                "glue/mrpc",
                "--quiet",
                "--json",
                "--scoring",
                "labels",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["invalid"] == 0, "every answer is a label of MRPC"
    assert (
        main(["evaluate", str(tmp_path / "glue-qqp"), "--task", "spot_sources/squad", "--quiet"])
        == 2
    )
    assert "name a task with the same number of labels" in capsys.readouterr().err


def test_an_instruction_is_also_used_on_another_task(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from softprompts.tuning import Predictor

    folder, seen = str(tmp_path / "run"), list[str]()
    design = [
        "--preset",
        "prompt-design",
        "--instruction",
        "Are they alike?",
        "--device",
        "cpu",
        "--quiet",
        "--scoring",
        "labels",
    ]
    assert (
        main(["tune", "--task", "glue/qqp", "--data-dir", str(data), "--output", folder, *design])
        == 0
    )
    answer = Predictor.__call__
    monkeypatch.setattr(
        Predictor,
        "__call__",
        lambda self, texts, tick: seen.extend(texts) or answer(self, texts, tick),
    )
    assert main(["evaluate", folder, "--task", "glue/mrpc", "--quiet"]) == 0
    assert seen[0] == "Are they alike? mrpc sentence1: a 0 sentence2: b 0"


def test_the_tasks_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--data-dir", str(data)]
    assert main(["tasks", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"superglue/record", "helpdesk/intent", "prefix-lm"} <= set(listed["tasks"])
    assert len(listed["benchmarks"]["superglue"]) == len(listed["benchmarks"]["glue"]) == 8
    assert main(["tasks", "show", "glue/mrpc", *folder]) == 0
    assert "mrpc sentence1: a 0" in capsys.readouterr().out
    assert (
        main(["tasks", "export", "glue/mrpc", "--split", "validation", "--no-task-word", *folder])
        == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == {"input": "sentence1: a 1 sentence2: b 1", "target": "equivalent"}
    (tmp_path / "gold.jsonl").write_text(
        "".join(json.dumps({"prediction": line["target"]}) + "\n" for line in lines)
    )
    (tmp_path / "gold.txt").write_text("".join(line["target"] + "\n" for line in lines))
    for file in ("gold.jsonl", "gold.txt"):
        assert (
            main(["tasks", "score", "glue/mrpc", "--predictions", str(tmp_path / file), *folder])
            == 0
        )
        assert json.loads(capsys.readouterr().out) == {"f1": 100.0, "accuracy": 100.0}
    (tmp_path / "few.txt").write_text("equivalent\n")
    (tmp_path / "bad.jsonl").write_text('{"answer": "x"}\n')
    for argv, message in (
        (
            ["score", "glue/mrpc", "--predictions", str(tmp_path / "few.txt"), *folder],
            "holds 1 prediction, and glue/mrpc has 10",
        ),
        (
            ["score", "glue/mrpc", "--predictions", str(tmp_path / "bad.jsonl"), *folder],
            'holds no "prediction"',
        ),
        (
            [
                "score",
                "superglue/rte",
                "--split",
                "test",
                "--predictions",
                str(tmp_path / "few.txt"),
                *folder,
            ],
            "has unlabelled rows in test",
        ),
        (
            ["export", "glue/mrpc", "--split", "dev", *folder],
            "has no split 'dev'; it has train, validation",
        ),
        (
            ["export", "superglue/boolq", *folder],
            "does not hold superglue/boolq; leave out --data-dir",
        ),
        (["export", "glue/mrpc", "--data-dir", str(tmp_path / "nowhere")], "does not exist"),
        (["export", "glue/nothing", *folder], "There is no task 'glue/nothing'"),
        (["export", "../../etc/passwd", *folder], "There is no task"),
    ):
        assert main(["tasks", *argv]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert main(["tune", "--task", "glue/mrpc", "--label", "x", *folder]) == 2
    assert "has its own label; leave out --label" in capsys.readouterr().err


def test_unavailable_rows_are_an_error_that_says_where_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SOFTPROMPTS_DATA", raising=False)
    monkeypatch.setattr("softprompts.tuning.progress.HOLD_SECONDS", 60)  # on a busy machine too
    assert main(["tune", "--task", "superglue/rte", "--output", str(tmp_path / "r")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("softprompts: The rows of superglue/rte are not available: ")
    assert error.endswith(
        "; put them in DIR/superglue/rte and give --data-dir DIR (or set SOFTPROMPTS_DATA)."
    )


def test_a_broken_copy_is_a_clear_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in (
        ("", "has no rows"),
        ('{"sentence1": "a", "label": 1}\n', "has no column 'sentence2'"),
        (
            '{"sentence1": "a", "sentence2": "b", "label": "maybe"}\n',
            "the label 'maybe' is not one of",
        ),
        ('{"sentence1": "a", "sentence2": "b"}\n', "have labels"),
        ("{", "is not valid JSON"),
    ):
        (data / "glue/mrpc/train.jsonl").write_text(text)
        assert (
            main(
                [
                    "tune",
                    "--task",
                    "glue/mrpc",
                    "--data-dir",
                    str(data),
                    "--output",
                    str(data / "out"),
                ]
            )
            == 2
        )
        assert message in capsys.readouterr().err
    assert not (data / "out").exists()


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_small_cap_finds_the_few_rows_that_have_examples(tmp_path: Path, cap: int) -> None:
    """WSC trains only on rows with a correct referent, which a sample of the rows may lack."""
    row = {
        "text": "Ann told Eve that she won",
        "span1_text": "Ann",
        "span2_text": "she",
        "span1_index": 0,
        "span2_index": 4,
    }
    for split in ("train", "validation"):
        rows = [{**row, "idx": number, "label": int(number >= 38)} for number in range(40)]
        write(tmp_path / "superglue" / "wsc" / f"{split}.jsonl", rows)
    for seed in range(5):
        task = load_task(
            TaskConfig(task="superglue/wsc", cap=cap, split_seed=seed, data_dir=str(tmp_path))
        )
        assert len(task.train) == min(cap, 2)
