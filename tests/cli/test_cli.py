"""The command line as a newcomer uses it: exit codes, messages, files, JSON."""

import contextlib
import csv
import io
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from softprompts import UserError, load, run_config
from softprompts.cli import load_command, main
from softprompts.cli.command import check_prompt_folder
from softprompts.cli.flags import parse_run
from softprompts.cli.output import describe_classes
from softprompts.config import expand_lists
from softprompts.files.tensors import read_tensors

from ..conftest import another_user, drawing, write_toy
from ..models import random_t5

ROOT = Path(__file__).parents[2]
QUICK = [
    *("--steps", "4", "--batch-size", "4", "--evaluate-every", "2"),
    *("--prompt.length", "3", "--max-length", "40", "--device", "cpu"),
]


def own_data(toy_csv: Path) -> list[str]:
    return ["tune", "--train", str(toy_csv), "--text", "review", "--label", "mood", *QUICK]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "intent"
    rows = ["--task", "helpdesk/register", "--shots", "8", "--cap-validation", "40"]
    with drawing():
        assert main(["tune", *rows, *QUICK, "--output", str(folder)]) == 0
    return folder


def test_importing_the_package_does_not_import_torch() -> None:
    code = (
        "import sys, softprompts, softprompts.cli; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_shows_the_defaults_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of the default preset, not of the dataclasses."""
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    defaults = run_config({})
    for flag, value in (
        ("--lr VALUE", defaults.tuning.lr),
        ("--prompt.length VALUE", defaults.prompt.length),
        ("--prompt.count VALUE", defaults.prompt.count),
        ("--prompt.route VALUE", defaults.prompt.route.kind),
    ):
        text = shown.split(f" {flag} ")[-1]
        assert text[text.index("(default ") :].startswith(f"(default {value})"), flag
    assert "defaults are those of the preset mixture" in shown


def test_the_result_is_a_folder_that_describes_itself(tuned: Path) -> None:
    assert {path.name for path in tuned.iterdir()} == {
        *("prompt.safetensors", "prompt.json", "embedding.safetensors", "metrics.jsonl"),
        *("curve.png", "config.yaml", "checkpoint.safetensors"),
        *("confusion.png", "predictions.json"),
    }
    card = json.loads((tuned / "prompt.json").read_text())
    assert card["method"] == "mixture"
    assert card["backbone"]["name"] == "t5-tiny"
    assert len(card["backbone"]["fingerprint"]) == 32
    assert card["task"]["name"] == "helpdesk/register"
    assert set(card["metrics"]) == set(card["majority"]) == {"accuracy", "macro_f1"}
    assert card["scoring"] == "generate"
    assert card["embedding"] == {"step": 4}
    assert card["seed"] == 0
    assert card["version"]
    lines = [json.loads(line) for line in (tuned / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert (tuned / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert yaml.safe_load((tuned / "config.yaml").read_text()) == card["config"]


def test_errors_are_written_with_probabilities(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = ["evaluate", str(tuned), "--scoring", "labels", "--errors"]
    assert main([*evaluate, str(tmp_path / "wrong.jsonl"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rows"] == 40
    low, high = result["intervals"]["accuracy"]
    assert low < result["metrics"]["accuracy"] < high
    assert set(result["baselines"]) == {"majority", "bag_of_words"}
    assert result["majority"] == result["baselines"]["majority"]["metrics"]
    assert 0 <= result["ece"] <= 100
    wrong = [json.loads(line) for line in (tmp_path / "wrong.jsonl").read_text().splitlines()]
    assert len(wrong) == round(40 - 0.4 * result["metrics"]["accuracy"])
    for row in wrong:
        assert row["prediction"] != row["target"]
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-3)
        assert max(row["probabilities"], key=row["probabilities"].get) == row["prediction"]
    assert main([*evaluate, str(tmp_path / "wrong.csv"), "--no-baselines"]) == 0
    shown = capsys.readouterr().out
    assert "on 40 rows (95 % intervals)" in shown
    assert "bag of words" not in shown
    assert "precision  recall" in shown
    rows = list(csv.DictReader((tmp_path / "wrong.csv").read_text().splitlines()))
    assert [int(row["row"]) for row in rows] == [row["row"] for row in wrong]
    assert all(float(row[f"probability of {row['prediction']}"]) > 0 for row in rows)
    assert main([*evaluate, str(tmp_path / "wrong.txt")]) == 2
    assert "end its name in .csv or .jsonl" in capsys.readouterr().err


def test_the_config_reproduces_the_run(tuned: Path, tmp_path: Path) -> None:
    assert (
        main(["tune", "--config", str(tuned / "config.yaml"), "--output", str(tmp_path / "again")])
        == 0
    )
    assert (tmp_path / "again" / "prompt.safetensors").read_bytes() == (
        tuned / "prompt.safetensors"
    ).read_bytes()


def test_predict_and_evaluate(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["hiya, any news?", "Dear Sir or Madam, I remain yours"]
    assert main(["predict", str(tuned), "--scoring", "labels", *texts]) == 0
    answers = capsys.readouterr().out.split()
    assert len(answers) == 2
    assert set(answers) <= {"formal", "casual"}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"text": "hiya", "register": "casual"}\n'
        '{"text": "I would be obliged", "register": "formal"}\n'
    )
    assert main(["predict", str(tuned), "--file", str(rows), "--json"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["input"] for result in results] == ["hiya", "I would be obliged"]
    assert sum(results[0]["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert main(["evaluate", str(tuned), "--file", str(rows), "--json", "--scoring", "labels"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["invalid"], result["scoring"]) == (2, 0, "labels")
    assert main(["evaluate", str(tuned), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"] == json.loads((tuned / "prompt.json").read_text())["metrics"]


def test_evaluate_uses_the_given_split(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(*argv: str) -> int:
        assert main(["evaluate", *argv, "--json", "--scoring", "labels"]) == 0
        return int(json.loads(capsys.readouterr().out)["rows"])

    assert rows(str(tuned), "--split", "train") == 16, "eight shots of two classes"
    assert rows(str(tuned), "--split", "validation") == rows(str(tuned)) == 40
    assert rows(str(tuned), "--task", "helpdesk/register") == 300, "as another task: all its rows"
    toy = write_toy(tmp_path)
    assert main([*own_data(toy), "--output", str(tmp_path / "own")]) == 0
    capsys.readouterr()
    assert (rows(str(tmp_path / "own"), "--split", "train"), rows(str(tmp_path / "own"))) == (22, 2)
    before = toy.read_text()
    toy.write_text(before + "a row that came later,happy\n" * 4)
    assert main(["evaluate", str(tmp_path / "own")]) == 2, (
        "training rows would now be among those it is evaluated on"
    )
    assert "The validation rows of reviews.csv:mood have changed since" in capsys.readouterr().err
    toy.write_text(before)
    for argv, message in (
        (
            [str(tuned), "--split", "nope"],
            "helpdesk/register has no split 'nope'; it has train, validation.",
        ),
        (
            [str(tmp_path / "own"), "--split", "test"],
            "reviews.csv:mood has no split 'test'; it has train, validation.",
        ),
        (
            [str(tuned), "--task", "helpdesk/register", "--split", "nope"],
            "has no split 'nope'; it has train, validation.",
        ),
        (
            [str(tmp_path / "own"), "--file", str(toy), "--split", "train"],
            "is a file without splits; leave out --split.",
        ),
        (
            [str(tuned), "--task", "helpdesk/urgency"],
            "helpdesk/urgency has 3 labels, and the prompt has 2",
        ),
    ):
        assert main(["evaluate", *argv]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "row", "message"),
    [
        (
            "evaluate",
            {"message": "hiya", "register": "casual"},
            "has no column 'text'; its columns are message, register: rename the one",
        ),
        (
            "evaluate",
            {"text": "hiya"},
            "rows.jsonl has no column 'register'; its columns are text: rename the one that holds "
            "the labels to 'register'",
        ),
        (
            "evaluate",
            {"text": "hiya", "register": "rude"},
            "not one of casual, formal. (1 more such row) Correct it, or leave such rows out",
        ),
        (
            "predict",
            {"message": "hiya"},
            "rows.jsonl has no column 'text'; its columns are message: rename the one that "
            "the prompt reads to 'text'",
        ),
    ],
)
def test_errors_about_rows_name_no_flags_of_tune(
    tuned: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    row: dict[str, str],
    message: str,
) -> None:
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    assert main([command, str(tuned), "--file", str(tmp_path / "rows.jsonl")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not {"--text", "--label", "--labels"} & set(error.replace(",", " ").split())


def test_evaluate_accepts_any_split_of_a_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict(
        {"review": [f"text {i}" for i in range(20)], "mood": ["good", "bad"] * 10}
    )
    datasets.DatasetDict({"train": rows, "test": rows.select([0, 1, 2])}).save_to_disk(
        str(tmp_path / "d")
    )
    assert main([*own_data(tmp_path / "d"), "--output", str(tmp_path / "own")]) == 0
    capsys.readouterr()
    for argv in (["--split", "test"], ["--file", str(tmp_path / "d"), "--split", "test"]):
        assert main(["evaluate", str(tmp_path / "own"), *argv, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == 3
    assert main(["evaluate", str(tmp_path / "own"), "--split", "nope"]) == 2
    assert "has no split 'nope'; it has train, test." in capsys.readouterr().err


def test_a_mixture_is_evaluated_one_task_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["--shots", "4", "--cap-validation", "20", "--scoring", "labels"]
    mixture = ["--task", "helpdesk/register+helpdesk/urgency", *QUICK, *rows]
    assert main(["tune", *mixture, "--output", str(tmp_path / "m")]) == 0
    capsys.readouterr()
    card = json.loads((tmp_path / "m" / "prompt.json").read_text())
    for name in ("helpdesk/register", "helpdesk/urgency"):
        assert main(["evaluate", str(tmp_path / "m"), "--task", name, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["metrics"] == {
            metric: card["metrics"][f"{name}:{metric}"] for metric in ("accuracy", "macro_f1")
        }
    assert main(["evaluate", str(tmp_path / "m")]) == 2
    assert "name one with --task" in capsys.readouterr().err


def test_answers_that_match_no_label_are_reported(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After two steps a prompt does not generate labels yet: accuracy 0 needs an explanation."""
    words = [
        *("--labels", "positive=xylophone,negative=quagmire", "--steps", "2"),
        *("--scoring", "generate"),
    ]
    scoring = "use label scoring (--scoring labels)"
    note = f"2 of 2 answers matched no label; tune with more --steps, or {scoring}"
    folder = tmp_path / "own"
    assert main([*own_data(toy_csv), *words, "--output", str(folder)]) == 0
    assert note in capsys.readouterr().out.splitlines()
    assert json.loads((folder / "prompt.json").read_text())["invalid"] == 2
    assert main(["evaluate", str(folder)]) == 0
    assert note in capsys.readouterr().out.splitlines()
    assert main(["evaluate", str(folder), "--scoring", "labels"]) == 0
    assert "no label" not in capsys.readouterr().out
    cohort = ["--seed", "0,1", "--output", str(tmp_path / "two")]
    assert main([*own_data(toy_csv), *words, *cohort]) == 0
    assert (
        "in 2 of 2 runs over a fifth of the answers matched no label; tune with more --steps"
        in capsys.readouterr().out
    )


def test_a_hand_written_prompt_gets_no_advice_to_train_longer(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        *own_data(toy_csv),
        *("--preset", "prompt-design", "--instruction", "Say it.", "--prompt.length", "0"),
        *("--labels", "positive=xylophone,negative=quagmire", "--prompt.start", "labels"),
        *("--scoring", "generate"),
    ]
    design = tmp_path / "design"
    assert main([*command, "--output", str(design)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("on t5-tiny: without training")
    assert "2 of 2 answers matched no label; use label scoring (--scoring labels)" in lines
    assert lines[-1] == f"the prompt and its card are in {design}"
    start = ["--prompt.start", "prompt", "--prompt.start.sources", str(design)]
    assert main([*own_data(toy_csv), *start, "--output", str(tmp_path / "none")]) == 2
    assert "design has no prompt vectors to start from" in capsys.readouterr().err
    assert main([*command, "--seed", "0,1", "--output", str(tmp_path / "designs")]) == 0
    assert "of the answers matched no label; use label scoring" in capsys.readouterr().out


def test_a_finished_run_is_reported(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*own_data(toy_csv), "--checkpoint-every", "2", "--output", str(tmp_path / "run")]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "took " in first
    assert "resumed" not in first
    assert main(command) == 0
    assert "the run was already finished; --overwrite tunes it again" in capsys.readouterr().out


def test_predict_reads_standard_input(
    tuned: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one line\nanother line\n\n\n"))
    assert main(["predict", str(tuned), "-", "--scoring", "labels"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.split()) == 2
    assert shown.err == "", "no progress without a terminal"


def test_flags_set_every_part_of_the_config(toy_csv: Path, tmp_path: Path) -> None:
    flags = [
        *("--preset", "residual", "--prompt.start", "text", "--prompt.start.text", "is it good"),
        *("--prompt.shape.bottleneck=7", "--prompt.shape.shared", "false", "--lr", "1e-2"),
        *("--labels", "positive=good,negative=bad", "--json"),
    ]
    assert main([*own_data(toy_csv), *flags, "--output", str(tmp_path / "r")]) == 0
    config = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert config["prompt"]["start"] == {"kind": "text", "text": "is it good"}
    assert config["prompt"]["shape"] == {"kind": "residual", "bottleneck": 7, "shared": False}
    assert config["tuning"]["lr"] == 0.01
    assert config["task"]["labels"] == {"positive": "good", "negative": "bad"}


def test_transfer_from_a_saved_prompt(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    single = ["--preset", "prompt-tuning"]
    assert main([*own_data(toy_csv), *single, "--output", str(source)]) == 0
    start = ["--prompt.start", "prompt", "--prompt.start.sources", str(source), "--lr", "1e-12"]
    residual = ["--preset", "residual", "--prompt.length", "3", *start]
    assert main([*own_data(toy_csv), *residual, "--output", str(target)]) == 0
    one, other = (
        read_tensors(folder / "prompt.safetensors")[0]["vectors"] for folder in (source, target)
    )
    assert float((one - other).abs().max()) < 0.05, (
        "the source's vectors, changed only by a few steps of the network"
    )
    capsys.readouterr()
    missing = ["--prompt.start", "prompt", "--prompt.start.sources", str(tmp_path / "nowhere")]
    assert main([*own_data(toy_csv), *missing, "--output", str(tmp_path / "x")]) == 2
    assert "There is no prompt at" in capsys.readouterr().err


def test_a_card_without_metrics_is_evaluated_with_the_usual_ones(
    tuned: Path, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cards made in Python may lack them."""
    shutil.copytree(tuned, tmp_path / "run")
    card = json.loads((tuned / "prompt.json").read_text())
    del card["task"]["metrics"]
    (tmp_path / "run" / "prompt.json").write_text(json.dumps(card))
    rows = tmp_path / "rows.csv"
    rows.write_text("text,register\nhi there mate,casual\nDear Sir or Madam,formal\n")
    for flags in ([], ["--file", str(rows)]):
        assert main(["evaluate", str(tmp_path / "run"), *flags, "--json", "--quiet"]) == 0
        assert set(json.loads(capsys.readouterr().out)["metrics"]) == {"accuracy", "macro_f1"}
    scores = load(tmp_path / "run", device="cpu").evaluate(rows)
    assert set(scores) == {"accuracy", "macro_f1"}
    assert main(["prompts", "export", str(tmp_path / "run"), "--output", str(tmp_path / "a")]) == 0
    assert "where the mixture has" in capsys.readouterr().out


def test_a_card_cannot_enable_remote_code(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tuned, tmp_path / "copy")
    card = json.loads((tuned / "prompt.json").read_text())
    card["config"]["trust_remote_code"] = True
    (tmp_path / "copy" / "prompt.json").write_text(json.dumps(card))
    trusted = []

    def spy(name: str, dtype: str, device: str, trust_remote_code: bool) -> None:
        trusted.append(trust_remote_code)
        raise UserError("stop here")

    monkeypatch.setattr("softprompts.tuning.tuned.load_backbone", spy)
    assert main(["predict", str(tmp_path / "copy"), "text"]) == 2
    assert trusted == [False]


def test_a_preset_that_contradicts_the_file_is_refused(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "--config", str(tuned / "config.yaml"), "--output", str(tmp_path / "r")]
    assert main([*command, "--preset", "residual"]) == 2
    assert "sets preset to mixture" in capsys.readouterr().err


def test_a_corrupted_card_is_reported(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tuned, tmp_path / "copy")
    card = json.loads((tuned / "prompt.json").read_text())
    del card["config"]["tuning"]
    (tmp_path / "copy" / "prompt.json").write_text(json.dumps(card))
    assert main(["predict", str(tmp_path / "copy"), "text"]) == 2
    assert "is corrupted" in capsys.readouterr().err


def documented_commands() -> list[list[str]]:
    """Every command of the README and the docs that stands on lines of its own."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = [page.read_text().replace("\\\n", " ") for page in pages]
    lines = [line for text in texts for line in text.splitlines()]
    commands = [line for line in lines if re.match(r"softprompts [a-z]+ .*(--|/)", line)]
    return [shlex.split(line.split(">")[0], comments=True)[1:] for line in commands]


@pytest.mark.parametrize("argv", documented_commands(), ids=" ".join)
def test_documented_commands_parse(argv: list[str]) -> None:
    """They name commands, flags, presets and options that exist."""
    command, *rest = argv
    actions = getattr(load_command(command), "ACTIONS", {})
    parser = (actions[rest[0]] if actions else load_command(command).main).parser()
    if command == "tune" and not {"--config", "--plugin"} & set(rest):
        expand_lists(*parse_run(parser, rest).layers)
    else:
        parser.parse_known_args(rest[1:] if actions else rest)


INTENT = ["tune", "--task", "helpdesk/intent"]
BAD = [
    (["frobnicate"], "There is no command 'frobnicate'"),
    (["tune", "--frobnicate", "1"], "There is no option --frobnicate"),
    (["tune", "--lr"], "Argument --lr: expected one argument"),
    ([*INTENT, "--steps", "many"], "--steps is 'many'; give a whole number."),
    (["tune", "--task", "../secret"], "There is no task '../secret'"),
    (
        ["tune", "--train", "nowhere.csv", "--text", "a", "--label", "b"],
        "The file nowhere.csv does not exist",
    ),
    ([*INTENT, "--dtype", "fp16"], "--dtype is 'fp16'; did you mean bf16? The choices"),
    ([*INTENT, "--model", "no-such-model"], "The model 'no-such-model' cannot be loaded"),
    ([*INTENT, "--preset", "lora"], "There is no preset 'lora'"),
    (
        [*INTENT, "--prompt.shape", "cube"],
        "There is no shape 'cube'; choose one of direct, residual, encoder",
    ),
    ([*INTENT, "--prompt.shape.depth", "2"], "shape 'direct' has no option 'depth'"),
    ([*INTENT, "--label", "urgency"], "has its own label"),
    ([*INTENT, "--steps", "inf"], "; give a whole number."),
    ([*INTENT, "--prompt.length", "0"], "nothing to train"),
    ([*INTENT, "--prompt.length", "600"], "lower --prompt.length, or raise --max-length"),
    (
        [*INTENT, "--prompt.length", "100000000"],
        "prompt tokens do not fit into memory; lower --prompt.length",
    ),
    (
        [*INTENT, "--prompt.count", "1000000000", "--prompt.route", "top1"],
        "do not fit into memory; lower --prompt.length",
    ),
    (
        [*INTENT, "--preset", "residual", "--prompt.shape.bottleneck", "1000000000000"],
        "it must be from 1 to 1,048,576",
    ),
    ([*INTENT, "--device", "gpu7"], "The device 'gpu7' is not available"),
    ([*INTENT, "--prompt.start", "text"], "start 'text' needs its option 'text'"),
    ([*INTENT, "--seed", "99999999999"], "--seed is 99,999,999,999; it must be from 0 to below"),
    ([*INTENT, "--output", "/dev/null/x"], "cannot be created"),
    ([*INTENT, "--output", ""], "has no name"),
    (
        [*INTENT, "--splits", "smop"],
        "--splits smop is for named tasks such as superglue/rte; leave it out.",
    ),
    (
        ["tune", "--train", "x.csv", "--text", "a", "--label", "b", "--splits", "smop"],
        "--splits smop is for named tasks",
    ),
    (
        ["tune", "--task", "prefix-lm", "--train", "x.txt", "--text", "a"],
        "The task prefix-lm has its own text; leave out --text.",
    ),
    (
        ["tune", "--task", "prefix-lm", "--train", "x.txt", "--label", "a"],
        "The task prefix-lm has its own label; leave out --label.",
    ),
    (
        [*INTENT, "--metric", "f1"],
        "--metric f1 is for two classes, but helpdesk/intent has 8; use --metric macro_f1.",
    ),
    (
        [*INTENT, "--labels", "a,b"],
        "--labels is 'a,b'; give VALUE=WORD pairs such as 0=negative,1=positive.",
    ),
    (["tune", "--config", "nowhere.yaml"], "The config file nowhere.yaml does not exist"),
    (["predict", "nowhere", "text"], "There is no prompt at nowhere"),
    (["predict", "", "text"], "The prompt has no name; give the folder that"),
    (
        [*INTENT, "--preset", "residual-bert"],
        "The preset residual-bert is for encoder-only models such as BERT, and t5-tiny is not one; "
        "choose another --model, or leave out --preset.",
    ),
]


def test_other_files_are_not_replaced(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_text("other\n")
    for flags in ([], ["--overwrite"]):
        assert main([*own_data(toy_csv), "--output", str(tmp_path), *flags]) == 2
        assert (
            "metrics.jsonl was not written by softprompts and would be replaced"
            in capsys.readouterr().err
        )
    assert (tmp_path / "metrics.jsonl").read_text() == "other\n"
    for name in ("model", "trackers"):
        (tmp_path / "other" / name).mkdir(parents=True)
        assert main([*own_data(toy_csv), "--output", str(tmp_path / "other"), "--overwrite"]) == 2
        assert f"{name} was not written by softprompts" in capsys.readouterr().err
        (tmp_path / "other" / name).rmdir()
    assert not (tmp_path / "config.yaml").exists()


def test_a_folder_of_another_user_is_reported(
    tuned: Path, commons: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tuned, commons / "run")
    (commons / "run").chmod(0o700)
    with another_user():
        for command in (
            ["predict", str(commons / "run"), "hello"],
            ["prompts", "show", str(commons / "run")],
        ):
            assert main(command) == 2
            assert "You do not have permission" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "message"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("softprompts.tuning.progress.HOLD_SECONDS", 60)  # on a busy machine too
    assert main(argv) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.err
    assert output.out == ""
    assert not list(tmp_path.rglob("*.safetensors")), "no partial files"


def test_a_prompt_of_another_backbone_is_refused(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = random_t5()
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    assert main(["predict", str(tuned), "text", "--model", str(tmp_path / "other")]) == 2
    assert "was tuned on t5-tiny" in capsys.readouterr().err


def test_a_run_that_diverges_exits_with_1_and_says_why(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = ["--lr", "1e30", "--schedule", "constant", "--warmup", "0", "--steps", "20"]
    for name, every in (("early", "2"), ("late", "20")):  # with and without an evaluation before
        flags = [*hot, "--evaluate-every", every, "--output", str(tmp_path / name)]
        assert main([*own_data(toy_csv), *flags]) == 1
        output = capsys.readouterr()
        shown = output.err + output.out
        assert "lower --lr (now 1e+30) or set --clip to 1" in shown
        assert "lower lr" not in shown


@pytest.mark.parametrize(
    ("columns", "pieces"),
    [
        (200, ("reviews.csv:mood seed 0", "loss", "accuracy", "steps/s", "left", "12/12")),
        (80, ("reviews.csv:mood", "(best ", "steps/s left 0:00:", "12/12")),
    ],
)
def test_a_terminal_shows_a_progress_bar(
    toy_csv: Path,
    tmp_path: Path,
    columns: int,
    pieces: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real pseudo-terminal: loss or metric, rate and time left are on the screen."""
    screen, terminal = pty.openpty()
    shown = bytearray()

    def read_screen() -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            while part := os.read(screen, 65536):
                shown.extend(part)

    reader = threading.Thread(target=read_screen)
    reader.start()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    with open(terminal, "w", encoding="utf-8") as standard_error:
        monkeypatch.setattr("sys.stderr", standard_error)
        command = [*own_data(toy_csv), "--steps", "12", "--output", str(tmp_path / "r")]
        assert main(command) == 0
    reader.join()
    os.close(screen)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
    for piece in pieces:
        assert piece in text, text[-400:]


def test_a_file_beside_prompts_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "cohort.csv").touch()
    with pytest.raises(UserError, match="csv is a file, not a prompt's folder; name a folder"):
        check_prompt_folder(tmp_path / "cohort.csv", tmp_path)
    with pytest.raises(UserError) as error:
        check_prompt_folder(tmp_path / "cohort.cvs", tmp_path)
    assert "did you mean" not in str(error.value)


def test_labels_fit_into_tables_and_numbers_are_in_order() -> None:
    def table(labels: list[str]) -> list[str]:
        counts = {"rows": 1, "precision": 50.0, "recall": 50.0}
        report = {"classes": dict.fromkeys(labels, counts), "confusion": {}, "invalid": 0}
        return describe_classes(report)

    assert [line.split()[0] for line in table(["1", "10", "2"])] == ["target", "1", "2", "10"]
    lines = table(["two\nlines", "x" * 700])
    assert [line.split()[0] for line in lines] == ["target", "two\\nlines", f"{'x' * 23}…"]
    assert max(map(len, lines)) < 100
