"""The command line as a stranger uses it: exit codes, sentences, files, JSON, and how fast help comes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from softprompts.cli import main
from softprompts.errors import UserError

from ..conftest import another_user, write_toy

QUICK = [
    "--steps",
    "4",
    "--batch-size",
    "4",
    "--evaluate-every",
    "2",
    "--prompt.length",
    "3",
    "--max-length",
    "40",
    "--device",
    "cpu",
]


def own_data(toy_csv: Path) -> list[str]:
    return ["tune", "--train", str(toy_csv), "--text", "review", "--label", "mood", *QUICK]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "intent"
    assert (
        main(
            [
                "tune",
                "--task",
                "helpdesk/register",
                *QUICK,
                "--shots",
                "8",
                "--cap-validation",
                "40",
                "--output",
                str(folder),
            ]
        )
        == 0
    )
    return folder


def test_help_comes_within_a_second() -> None:
    begun = time.perf_counter()
    shown = subprocess.run(
        [sys.executable, "-m", "softprompts", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert time.perf_counter() - begun < 1
    assert "tune" in shown.stdout
    assert "example" in shown.stdout


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, softprompts, softprompts.cli; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", ["tune", "evaluate", "predict"])
def test_every_command_has_help_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"softprompts {command}" in shown
    assert "examples:" in shown
    assert "--json" in shown


def test_help_tells_the_defaults_that_a_run_has(capsys: pytest.CaptureFixture[str]) -> None:
    """The default preset's settings lie over the dataclasses' own."""
    from softprompts.config.run import run_config

    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    usual = run_config({})
    for flag, value in (
        ("--lr VALUE", usual.tuning.lr),
        ("--prompt.length VALUE", usual.prompt.length),
        ("--prompt.count VALUE", usual.prompt.count),
        ("--prompt.route VALUE", usual.prompt.route.kind),
    ):
        told = shown.split(f" {flag} ")[-1]
        assert told[told.index("(default ") :].startswith(f"(default {value})"), flag
    assert "defaults are those of the preset mixture" in shown


def test_the_result_is_a_folder_that_explains_itself(tuned: Path) -> None:
    assert {path.name for path in tuned.iterdir()} == {
        "prompt.safetensors", "prompt.json", "embedding.safetensors", "metrics.jsonl", "curve.png", "config.yaml", "checkpoint.safetensors",
    }  # fmt: skip
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
    assert (
        main(
            [
                "predict",
                str(tuned),
                "--scoring",
                "labels",
                "hiya, any news?",
                "Dear Sir or Madam, I remain yours",
            ]
        )
        == 0
    )
    answers = capsys.readouterr().out.split()
    assert len(answers) == 2
    assert set(answers) <= {"formal", "casual"}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"text": "hiya", "register": "casual"}\n{"text": "I would be obliged", "register": "formal"}\n'
    )
    assert main(["predict", str(tuned), "--file", str(rows), "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [t["input"] for t in told] == ["hiya", "I would be obliged"]
    assert sum(told[0]["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert main(["evaluate", str(tuned), "--file", str(rows), "--json", "--scoring", "labels"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["invalid"], result["scoring"]) == (2, 0, "labels")
    assert main(["evaluate", str(tuned), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"] == json.loads((tuned / "prompt.json").read_text())["metrics"]


def test_evaluate_takes_the_split_that_is_asked_for(
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
        "rows it learned from would now be among those it is judged by"
    )
    assert "The validation rows of reviews.csv:mood are not those that" in capsys.readouterr().err
    toy.write_text(before)
    for argv, why in (
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
            "is one file without splits; leave --split out.",
        ),
        (
            [str(tuned), "--task", "helpdesk/urgency"],
            "helpdesk/urgency has 3 labels, and the prompt knows 2",
        ),
    ):
        assert main(["evaluate", *argv]) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "row", "why"),
    [
        ("evaluate", {"message": "hiya", "register": "casual"}, "has no column 'text'; its columns are message, register: rename one"),
        ("evaluate", {"text": "hiya"}, "rows.jsonl has no column 'register'; its columns are text: rename one to 'register'"),
        ("evaluate", {"text": "hiya", "register": "rude"}, "not one of casual, formal. (1 more such row) Correct it, or leave such rows out"),
        ("predict", {"message": "hiya"}, "rows.jsonl has no column 'text'; its columns are message: rename one to 'text'"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_the_prompt_are_told_without_flags_of_tune(
    tuned: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    row: dict[str, str],
    why: str,
) -> None:
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    assert main([command, str(tuned), "--file", str(tmp_path / "rows.jsonl")]) == 2
    told = capsys.readouterr().err
    assert why in told
    assert not {"--text", "--label", "--labels"} & set(told.replace(",", " ").split())


def test_evaluate_takes_any_split_of_a_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    made = datasets.Dataset.from_dict(
        {"review": [f"text {i}" for i in range(20)], "mood": ["good", "bad"] * 10}
    )
    datasets.DatasetDict({"train": made, "test": made.select([0, 1, 2])}).save_to_disk(
        str(tmp_path / "d")
    )
    assert main([*own_data(tmp_path / "d"), "--output", str(tmp_path / "own")]) == 0
    capsys.readouterr()
    for argv in (["--split", "test"], ["--file", str(tmp_path / "d"), "--split", "test"]):
        assert main(["evaluate", str(tmp_path / "own"), *argv, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == 3
    assert main(["evaluate", str(tmp_path / "own"), "--split", "nope"]) == 2
    assert "has no split 'nope'; it has train, test." in capsys.readouterr().err


def test_a_mixture_is_judged_by_each_of_its_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixture = [
        "--task",
        "helpdesk/register+helpdesk/urgency",
        *QUICK,
        "--shots",
        "4",
        "--cap-validation",
        "20",
        "--scoring",
        "labels",
    ]
    assert main(["tune", *mixture, "--output", str(tmp_path / "m")]) == 0
    capsys.readouterr()
    card = json.loads((tmp_path / "m" / "prompt.json").read_text())
    for name in ("helpdesk/register", "helpdesk/urgency"):
        assert main(["evaluate", str(tmp_path / "m"), "--task", name, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["metrics"] == {
            metric: card["metrics"][f"{name}:{metric}"] for metric in ("accuracy", "macro_f1")
        }
    assert main(["evaluate", str(tmp_path / "m")]) == 2
    assert "name one with --task" in capsys.readouterr().err


def test_answers_that_are_no_label_are_told(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt of two steps does not write labels yet; accuracy 0 needs its reason."""
    words = ["--labels", "positive=xylophone,negative=quagmire", "--steps", "2"]
    why = "2 of 2 answers were no label; tune with more --steps, or take the likeliest label with --scoring labels"
    folder = str(tmp_path / "own")
    assert main([*own_data(toy_csv), *words, "--output", folder]) == 0
    assert why in capsys.readouterr().out.splitlines()
    assert json.loads((tmp_path / "own" / "prompt.json").read_text())["invalid"] == 2
    assert main(["evaluate", folder]) == 0
    assert why in capsys.readouterr().out.splitlines()
    assert main(["evaluate", folder, "--scoring", "labels"]) == 0
    assert "no label" not in capsys.readouterr().out
    assert (
        main([*own_data(toy_csv), *words, "--seed", "0,1", "--output", str(tmp_path / "two")]) == 0
    )
    assert (
        "in 2 of 2 runs over a fifth of the answers were no label; tune with more --steps"
        in capsys.readouterr().out
    )
    design = [
        "--preset",
        "prompt-design",
        "--instruction",
        "Say it.",
        "--labels",
        "positive=xylophone,negative=quagmire",
        "--prompt.length",
        "0",
    ]
    assert (
        main(
            [
                *own_data(toy_csv),
                *design,
                "--prompt.start",
                "labels",
                "--output",
                str(tmp_path / "design"),
            ]
        )
        == 0
    )
    assert (
        "2 of 2 answers were no label; take the likeliest label with --scoring labels"
        in capsys.readouterr().out.splitlines()
    )
    start = ["--prompt.start", "prompt", "--prompt.start.sources", str(tmp_path / "design")]
    assert main([*own_data(toy_csv), *start, "--output", str(tmp_path / "none")]) == 2
    assert "design has no prompt vectors to start from" in capsys.readouterr().err
    assert (
        main([*own_data(toy_csv), *design, "--seed", "0,1", "--output", str(tmp_path / "designs")])
        == 0
    )
    assert "of the answers were no label; take the likeliest label" in capsys.readouterr().out


def test_what_was_done_before_is_told(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*own_data(toy_csv), "--checkpoint-every", "2", "--output", str(tmp_path / "run")]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "training took" in first
    assert "going on" not in first
    assert main(command) == 0
    assert "the run had finished before; --overwrite tunes it anew" in capsys.readouterr().out


def test_predict_reads_standard_input(tuned: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "softprompts",
        "predict",
        str(tuned),
        "-",
        "--scoring",
        "labels",
    ]
    told = subprocess.run(
        command, input="one line\n\nanother line\n", capture_output=True, text=True, check=True
    )
    assert len(told.stdout.split()) == 2
    assert told.stderr == "", "quiet when not a terminal"


def test_overrides_reach_every_part(toy_csv: Path, tmp_path: Path) -> None:
    more = ["--preset", "residual", "--prompt.start", "text", "--prompt.start.text", "is it good", "--prompt.shape.bottleneck=7",
            "--prompt.shape.shared", "false", "--lr", "1e-2", "--labels", "positive=good,negative=bad", "--json"]  # fmt: skip
    assert main([*own_data(toy_csv), *more, "--output", str(tmp_path / "r")]) == 0
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
    assert (
        main(
            [
                *own_data(toy_csv),
                "--preset",
                "residual",
                "--prompt.length",
                "3",
                *start,
                "--output",
                str(target),
            ]
        )
        == 0
    )
    from softprompts.files.tensors import read_tensors

    one, other = (
        read_tensors(folder / "prompt.safetensors")[0]["vectors"] for folder in (source, target)
    )
    assert float((one - other).abs().max()) < 0.05, (
        "the source's vectors, moved only by the network's few steps"
    )
    capsys.readouterr()
    missing = [
        "--prompt.start",
        "prompt",
        "--prompt.start.sources",
        str(tmp_path / "nowhere"),
        "--output",
        str(tmp_path / "x"),
    ]
    assert main([*own_data(toy_csv), *missing]) == 2
    assert "There is no prompt at" in capsys.readouterr().err


def test_a_card_never_decides_whose_code_runs(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tuned, tmp_path / "theirs")
    card = json.loads((tuned / "prompt.json").read_text())
    card["config"]["trust_remote_code"] = True
    (tmp_path / "theirs" / "prompt.json").write_text(json.dumps(card))
    asked = []

    def spy(name: str, dtype: str, device: str, trust_remote_code: bool) -> None:
        asked.append(trust_remote_code)
        raise UserError("enough")

    monkeypatch.setattr("softprompts.tuning.tuned.load_backbone", spy)
    assert main(["predict", str(tmp_path / "theirs"), "text"]) == 2
    assert asked == [False]


def test_a_preset_that_contradicts_the_file_is_refused(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "--config", str(tuned / "config.yaml"), "--output", str(tmp_path / "r")]
    assert main([*command, "--preset", "residual"]) == 2
    assert "sets preset to mixture" in capsys.readouterr().err


def test_a_damaged_card_is_one_sentence(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tuned, tmp_path / "theirs")
    card = json.loads((tuned / "prompt.json").read_text())
    del card["config"]["tuning"]
    (tmp_path / "theirs" / "prompt.json").write_text(json.dumps(card))
    assert main(["predict", str(tmp_path / "theirs"), "text"]) == 2
    assert "not whole" in capsys.readouterr().err


def test_the_readmes_commands_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every softprompts line of the README names commands, flags, presets and options that exist."""
    from softprompts.cli import flags
    from softprompts.cli.command import make_parser
    from softprompts.cli import COMMANDS
    from softprompts.config.products import expand_lists
    from softprompts.config.run import sections

    readme = (Path(__file__).parents[1] / "README.md").read_text()
    lines = [
        shlex.split(line, comments=True)[1:]
        for line in readme.splitlines()
        if line.startswith("softprompts ")
    ]
    assert len(lines) >= 6
    for command, *rest in lines:
        assert command in COMMANDS
        if command == "tune":
            parser = make_parser("tune", "", None)
            parser.add_argument("--output")
            flags.add(parser)
            expand_lists(sections(flags.parse(parser, rest)[1]))


BAD = [
    (["frobnicate"], "There is no command 'frobnicate'"),
    (["tune", "--frobnicate", "1"], "There is no option --frobnicate"),
    (["tune", "--lr"], "Argument --lr: expected one argument"),
    (
        ["tune", "--task", "helpdesk/intent", "--steps", "many"],
        "tuning.steps is 'many'; give a whole number.",
    ),
    (["tune", "--task", "../secret"], "There is no task '../secret'"),
    (
        ["tune", "--train", "nowhere.csv", "--text", "a", "--label", "b"],
        "The file nowhere.csv does not exist",
    ),
    (["tune", "--task", "helpdesk/intent", "--dtype", "fp16"], "T5 overflows"),
    (
        ["tune", "--task", "helpdesk/intent", "--model", "no-such-model"],
        "The model 'no-such-model' cannot be loaded",
    ),
    (["tune", "--task", "helpdesk/intent", "--preset", "lora"], "There is no preset 'lora'"),
    (
        ["tune", "--task", "helpdesk/intent", "--prompt.shape", "cube"],
        "There is no shape 'cube'; choose one of direct, residual, encoder",
    ),
    (
        ["tune", "--task", "helpdesk/intent", "--prompt.shape.depth", "2"],
        "shape 'direct' has no option 'depth'",
    ),
    (["tune", "--task", "helpdesk/intent", "--label", "urgency"], "has its own label"),
    (["tune", "--task", "helpdesk/intent", "--steps", "inf"], "; give a whole number."),
    (["tune", "--task", "helpdesk/intent", "--prompt.length", "0"], "nothing to train"),
    (
        ["tune", "--task", "helpdesk/intent", "--prompt.length", "600"],
        "raise --max-length or shorten the prompt",
    ),
    (
        ["tune", "--task", "helpdesk/intent", "--prompt.length", "100000000"],
        "prompt tokens are more than a model can read",
    ),
    (
        [
            "tune",
            "--task",
            "helpdesk/intent",
            "--prompt.count",
            "1000000000",
            "--prompt.route",
            "top1",
        ],
        "are more than a model can read",
    ),
    (
        [
            "tune",
            "--task",
            "helpdesk/intent",
            "--preset",
            "residual",
            "--prompt.shape.bottleneck",
            "1000000000000",
        ],
        "at most 1,048,576",
    ),
    (["tune", "--task", "helpdesk/intent", "--device", "gpu7"], "There is no device 'gpu7' here"),
    (
        ["tune", "--task", "helpdesk/intent", "--prompt.start", "text"],
        "start 'text' needs its option 'text'",
    ),
    (["tune", "--task", "helpdesk/intent", "--seed", "99999999999"], "The seed is 99999999999"),
    (["tune", "--task", "helpdesk/intent", "--output", "/dev/null/x"], "cannot be created"),
    (["tune", "--task", "helpdesk/intent", "--output", ""], "has no name"),
    (
        ["tune", "--task", "helpdesk/intent", "--splits", "smop"],
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
        ["tune", "--task", "helpdesk/intent", "--metric", "f1"],
        "--metric f1 is for two classes, but helpdesk/intent has 8; use --metric macro_f1.",
    ),
    (
        ["tune", "--task", "helpdesk/intent", "--labels", "a,b"],
        "task.labels is 'a,b'; give VALUE=WORD pairs such as 0=negative,1=positive.",
    ),
    (["tune", "--config", "nowhere.yaml"], "The config nowhere.yaml does not exist"),
    (["predict", "nowhere", "text"], "There is no prompt at nowhere"),
]


def test_a_file_of_somebody_elses_is_not_replaced(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine\n")
    for more in ([], ["--overwrite"]):
        assert main([*own_data(toy_csv), "--output", str(tmp_path), *more]) == 2
        assert "metrics.jsonl is not one of ours, and would be replaced" in capsys.readouterr().err
    assert (tmp_path / "metrics.jsonl").read_text() == "mine\n"
    for name in ("model", "trackers"):
        (tmp_path / "other" / name).mkdir(parents=True)
        assert main([*own_data(toy_csv), "--output", str(tmp_path / "other"), "--overwrite"]) == 2
        assert f"{name} is not one of ours" in capsys.readouterr().err
        (tmp_path / "other" / name).rmdir()
    assert not (tmp_path / "config.yaml").exists()


def test_a_folder_of_another_user_is_one_sentence(
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
            assert "may not be read" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "sentence"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(
    argv: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert "Traceback" not in told.err
    assert told.out == ""
    assert not list(tmp_path.rglob("*.safetensors")), "nothing half-written is left"


def test_a_prompt_of_another_backbone_is_refused(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ..models import random_t5

    other = random_t5()
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    assert main(["predict", str(tuned), "text", "--model", str(tmp_path / "other")]) == 2
    assert "was tuned on t5-tiny" in capsys.readouterr().err


def test_a_run_that_diverges_ends_with_1_and_a_sentence(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = ["--lr", "1e30", "--schedule", "constant", "--warmup", "0", "--steps", "20"]
    for place, every in (
        ("early", "2"),
        ("late", "20"),
    ):  # with and without an evaluation before it
        assert (
            main(
                [
                    *own_data(toy_csv),
                    *hot,
                    "--evaluate-every",
                    every,
                    "--output",
                    str(tmp_path / place),
                ]
            )
            == 1
        )
        told = capsys.readouterr()
        assert "lower --lr" in told.err + told.out


@pytest.mark.parametrize(
    ("columns", "pieces"),
    [
        (200, ("reviews.csv:mood seed 0", "loss", "accuracy", "steps/s", "left", "12/12")),
        (80, ("reviews.csv:mood", "(best ", "steps/s left 0:00:", "12/12")),
    ],
)
def test_a_terminal_sees_a_progress_bar(
    toy_csv: Path, tmp_path: Path, columns: int, pieces: tuple[str, ...]
) -> None:
    """A real pseudo-terminal: loss or metric, rate and time left are on the screen."""
    import pty

    command = [
        sys.executable,
        "-m",
        "softprompts",
        *own_data(toy_csv),
        "--steps",
        "12",
        "--output",
        str(tmp_path / "r"),
    ]
    screen, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment)
    os.close(terminal)
    assert process.stdout is not None
    shown = b""
    while True:
        try:
            part = os.read(screen, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    process.stdout.close()
    os.close(screen)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
    for piece in pieces:
        assert piece in text, text[-400:]
