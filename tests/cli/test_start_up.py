"""Help, completion and errors about settings are instant: they do not import torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softprompts.artifacts.card import TaskCard
from softprompts.cli import COMMANDS, load_command
from softprompts.cli.completion import SCRIPTS, complete
from softprompts.tasks import TextFormat

from ..cards import card
from .conftest import Start

HELP = [
    ["--help"],
    *([command, "--help"] for command in COMMANDS),
    *(
        [command, action, "--help"]
        for command in COMMANDS
        for action in getattr(load_command(command), "ACTIONS", {})
    ),
]
WRONG = [
    (["nope"], "There is no command 'nope'"),
    (["tune", "--lr", "fast"], "--lr is 'fast'; give a number."),
    (["tune", "--lr"], "Argument --lr: expected one argument"),
    (["tune", "--nope"], "There is no option --nope; see softprompts tune --help."),
    (["tune", "--steps", "0"], "--steps is 0; it must be at least 1."),
    (["tune", "--dtype", "fp16"], "--dtype is 'fp16'; did you mean bf16? The choices are"),
    (["tune", "--weights", "int3"], "--weights is 'int3'; did you mean int8? The choices are"),
    (["evaluate", "x", "--weights=int3"], "--weights is 'int3'; did you mean int8?"),
    (["evaluate", "x", "--dtype", "int3"], "--dtype is 'int3'; did you mean int8?"),
    (
        ["tune", "--model", "nobody/none", "--task", "helpdesk/intent"],
        "'nobody/none' cannot be loaded (HF_HUB_OFFLINE is set, and the model is not in the local",
    ),
    (
        ["tune", "--train", "nobody/none", "--text", "a", "--label", "b"],
        "neither a file nor a dataset that can be loaded (HF_HUB_OFFLINE is set, and the dataset",
    ),
    (
        ["tune", "--task", "superglue/rte", "--data-dir", "nowhere"],
        "The data folder nowhere does not exist",
    ),
    *(
        ([*command, "--model", "nobody/none"], "The model 'nobody/none' cannot be loaded")
        for command in (
            ["transfer", "--to", "helpdesk/intent", "--library", "."],
            *(["cost"], ["bench", "training"]),
        )
    ),
    (["tune", "--task", "helpdesk/intent", "--device", "foo"], "The device 'foo' is not available"),
    (["evaluate", "x", "--device", "foo"], "The device 'foo' is not available; set --device to"),
    (["tune", "--trackers", "foo"], "There is no tracker 'foo'; choose one of tensorboard, wandb"),
    (["tune", "--output", __file__], "is not a folder; choose another --output."),
    (
        ["tune", "--task", "helpdesk/intent", "--model", "/no/model"],
        "The model '/no/model' cannot be loaded (no such folder)",
    ),
    (
        [
            *("tune", "--task", "helpdesk/intent", "--prompt.start", "prompt"),
            *("--prompt.start.sources", "nowhere"),
        ],
        "There is no prompt at nowhere; name a folder that `softprompts tune` wrote",
    ),
    (["transfer", "--to", "helpdesk/intent", "--library", "nowhere"], "no library at nowhere"),
    (
        ["transfer", "--to", "helpdesk/intent", "--library", ".", "--from", "nobody"],
        "There is no prompt nobody in the library .; ",
    ),
    (["study", "report", "nowhere"], "nowhere is not the folder of a study; name one that"),
    (["pretrain", "--output", "x", "--weights", "bf16"], "There is no option --weights"),
    (["pretrain", "--output", "x", "--text", "no.txt"], "The file no.txt does not exist."),
    (["cost", "--model", "t5-bas"], "Did you mean the shape t5-base? Known shapes are t5-small,"),
    (["tune", "--preset", "lora"], "There is no preset 'lora'"),
    (
        ["tune", "--preset", "residual-bert", "--task", "helpdesk/intent"],
        "The preset residual-bert is for encoder-only models such as BERT, and t5-tiny is not one",
    ),
    (["tune", "--seed", "0,,1"], "--seed is '0,,1', which has an empty value"),
    (["tune", "--config", "nowhere.yaml"], "The config file nowhere.yaml does not exist."),
    (["tune", "--plugin"], "--plugin needs a value"),
    (
        ["tune", "--task", "helpdesk/intent", "--plugin", "plug/nothing.py"],
        "The plugin plug/nothing.py cannot be loaded (the file does not exist).",
    ),
    (
        ["tasks", "list", "--plugin", "no_such_module"],
        "The plugin no_such_module cannot be loaded (it is neither a .py file nor a module).",
    ),
    (
        ["tune", "--task", "plugin/odd-or-even"],
        "if a plugin registers it, name the plugin with --plugin or in SOFTPROMPTS_PLUGINS",
    ),
    (["tuen"], "There is no command 'tuen'; did you mean tune?"),
    (["tune", "--step", "5"], "There is no option --step; did you mean --steps?"),
    (["predict", "x", "y", "--scorin", "labels"], "no option --scorin; did you mean --scoring?"),
    (["prompts", "serch", "x"], "There is no action 'serch'; did you mean search?"),
    (["tune", "--preset", "residal"], "There is no preset 'residal'; did you mean residual?"),
    (["tune", "--schedule", "linaer"], "--schedule is 'linaer'; did you mean linear?"),
    (["tune", "--prompt.route", "sfot"], "There is no route 'sfot'; did you mean soft?"),
    (
        ["tune", "--prompt.shape", "residual", "--prompt.shape.bottlneck", "4"],
        "has no option 'bottlneck'; did you mean bottleneck?",
    ),
    (["tune", "--task", "helpdesk/intnet"], "'helpdesk/intnet'; did you mean helpdesk/intent?"),
    (["tune", "--task", "boolq+rtee"], "There is no task 'rtee'; did you mean rte?"),
    (["tune", "--task", "helpdesk/intent", "--metric", "acuracy"], "did you mean accuracy?"),
    (["tune", "--steps", "1,000"], "--steps is '1,000', and commas separate the values of a list"),
    (
        ["tune", "--steps", "9", "--epochs", "2"],
        "Both --steps and --epochs set the length of training",
    ),
    (["tune", "--prompt.length", "600"], "the model sees at most 512 tokens, prompt and text"),
    (["tune", "--prompt.length", "100000"], "the model sees 512 tokens by default"),
    (["tune", "--train", "https://a.org/b.csv", "--text", "a", "--label", "b"], "a web address"),
    (["tune", "--train", "no.csv", "--text", "a", "--label", "b"], "no.csv does not exist"),
    (["transfer", "--library", "nowhere"], "No target is given; name a task with --to"),
    (["tune", "--prompt.shape", "lora"], "There is no shape 'lora'; choose one of direct,"),
    (
        ["tune", "--preset", "residual", "--prompt.shape.depth", "0"],
        "--prompt.shape.depth is 0; it must be from 1 to",
    ),
    (["tune", "--prompt.start", "text"], "needs its option 'text'; set --prompt.start.text."),
    (["transfer", "--to", "helpdesk/intent", "--lr", "fast"], "--lr is 'fast'; give a number."),
    (["transfer", "--to", "trec", "--k", "0"], "--k is 0; it must be at least 1."),
    (["transfer", "--to", "trec", "--strategy", "x"], "--strategy is 'x'; choose one of best,"),
    (["transfer", "--to", "trec", "--seed", "0,1"], "one value of each setting, but seed is a"),
    (["pretrain", "--output", "x", "--text", "a", "--lr", "-1"], "--lr is -1.0; it must be a"),
    (["bench", "nope"], "There is no benchmark 'nope'; choose one of training, inference,"),
    (["bench", "training", "--runs", "many"], "--runs is 'many'; give a whole number."),
    (["bench", "smop", "--workload", "x"], "--workload is 'x'; choose one of synthetic, sst2."),
    (["prompts", "search", "x", "--by", "taste"], "--by is 'taste'; choose one of"),
    (["prompts", "search", "x", "--top", "few"], "--top is 'few'; give a whole number."),
    (["prompts", "export", "x", "--as", "pickle", "--output", "y"], "--as is 'pickle'; choose"),
    (
        ["prompts", "recycle", "x", "--model", "y", "--output", "z", "--words", "-1"],
        "--words is -1; it must not be negative.",
    ),
    (["study", "run", "x.yaml", "--workers", "0"], "--workers is 0; it must be at least 1."),
    (["evaluate", "x", "--scoring", "x"], "--scoring is 'x'; choose one of generate, labels."),
    (["predict", "."], "There is nothing to answer"),
    (["tasks", "show", "../secret"], "There is no task '../secret'"),
    (["tasks", "show", "intnet"], "no task 'intnet'; did you mean helpdesk/intent?"),
    (["schema", "x"], "FILE is 'x'; choose one of run, study."),
    (["completion", "x"], "SHELL is 'x'; choose one of bash, zsh, fish."),
]


@pytest.mark.parametrize("argv", HELP, ids=" ".join)
def test_help_needs_no_torch(argv: list[str], start: Start) -> None:
    process = start(argv)
    assert process.returncode == 0, process.stderr
    assert "usage: softprompts" in process.stdout
    assert "--json" in process.stdout or "--help shows the options" in process.stdout
    assert max(map(len, process.stdout.splitlines())) <= 100
    assert process.stderr.strip() == "imported:"


@pytest.mark.parametrize(("argv", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_setting_is_refused_without_torch(
    argv: list[str], message: str, start: Start
) -> None:
    process = start(argv)
    assert process.returncode == 2
    error, imported = process.stderr.strip().splitlines()
    assert message in error
    assert imported == "imported:"


def test_a_study_on_a_model_that_is_nowhere_is_refused_without_torch(
    tmp_path: Path, start: Start
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("backbones: [t5-tiny, nobody/none]\ntargets: [helpdesk/intent]\n")
    error, imported = start(["study", "run", str(file)]).stderr.splitlines()
    assert "The model 'nobody/none' cannot be loaded" in error
    assert imported == "imported:"


def test_a_study_whose_rows_are_on_the_hub_is_refused_offline_without_torch(
    tmp_path: Path, start: Start
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("targets: [helpdesk/intent, superglue/rte]\n")
    error, imported = start(["study", "run", str(file)]).stderr.splitlines()
    assert "The rows of superglue/rte are not available from the Hub; name a folder" in error
    assert imported == "imported:"
    assert not (tmp_path / "runs").exists()


def test_a_wrong_study_file_is_refused_without_torch(tmp_path: Path, start: Start) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("targets: [helpdesk/intent]\ncohort: 0\n")
    process = start(["study", "run", str(file)])
    assert process.returncode == 2
    assert process.stderr.splitlines() == [
        "softprompts: cohort is 0; it must be at least 1.",
        "imported:",
    ], "spelled as the key of the file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tuning: {step: 5}", "There is no setting step; did you mean steps?"),
        ("step: 5", "There is no setting step; did you mean steps?"),
        ("steps: soon", "steps is 'soon'; give a whole number."),
        ("preset: residal", "There is no preset 'residal'; did you mean residual?"),
        (
            "{steps: 5, epochs: 2}",
            "Both steps and epochs set the length of training; leave one out.",
        ),
        ("task: helpdesk/intnet", "There is no task 'helpdesk/intnet'; did you mean"),
    ],
)
def test_a_wrong_config_file_is_refused_without_torch(
    text: str, message: str, tmp_path: Path, start: Start
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text + "\n")
    process = start(["tune", "--config", str(file)])
    assert process.returncode == 2
    error, imported = process.stderr.splitlines()
    assert message in error, "spelled as the key of the file"
    assert imported == "imported:"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("settings: {stepz: 4}", "no setting stepz, which is under settings; did you mean steps?"),
        ("target: {lr: fast}", "helpdesk/intent cannot be used: lr is 'fast'; give a number."),
        ("settings: {max_length: 0}", "max_length is 0; it must be at least 1."),
        ("settings: {preset: residal}", "did you mean residual?"),
        ("sources: [helpdesk/urgensy]", "did you mean helpdesk/urgency?"),
        ("sources: [{name: a, train: a.csv, txt: b}]", "no setting txt; did you mean text?"),
    ],
)
def test_a_wrong_run_setting_in_a_study_is_refused_without_torch(
    text: str, message: str, tmp_path: Path, start: Start
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(f"targets: [helpdesk/intent]\n{text}\n")
    process = start(["study", "run", str(file)])
    assert process.returncode == 2
    error, imported = process.stderr.splitlines()
    assert message in error
    assert imported == "imported:"


def test_wrong_rows_of_a_small_file_are_refused_without_torch(tmp_path: Path, start: Start) -> None:
    rows, bad = tmp_path / "rows.csv", tmp_path / "bad.jsonl"
    rows.write_text("review,mood\ngood,a\nbad,b\n")
    bad.write_text('{"review": "a"\n')
    for path, text, label, message in (
        (rows, "reveiw", "mood", "no column 'reveiw'; did you mean 'review'? Its columns are"),
        (rows, "review", "moods", "no column 'moods'; did you mean 'mood'?"),
        (rows, "mood", "mood", "The label column 'mood' is also in --text, which gives the answer"),
        (bad, "review", "mood", "bad.jsonl:1 is not valid JSON (Expecting ',' delimiter at char"),
    ):
        process = start(["tune", "--train", str(path), "--text", text, "--label", label])
        assert process.returncode == 2
        assert message in process.stderr
        assert " line " not in process.stderr, "one line number is enough"
        assert process.stderr.splitlines()[-1] == "imported:"
    argv = ["tune", "--train", str(tmp_path / "row.csv"), "--text", "review", "--label", "mood"]
    assert f"does not exist. Did you mean {rows}?" in start(argv).stderr
    argv = ["tune", "--train", str(rows), "--template", "{review} {mood}", "--label", "mood"]
    assert "is also in --template" in start(argv).stderr
    argv = ["tune", "--train", str(rows), "--text", "review", "--label", "mood"]
    process = start([*argv, "--labels", "a=good,c=bad"])
    assert "the label 'b' is not one of a, c." in process.stderr
    rows.write_text("review,mood\ngood,happy\nbad,sad\nfine,hapy\n")
    process = start([*argv, "--labels", "happy=good,sad=bad"])
    assert (
        "rows.csv:4: the label 'hapy' is not one of happy, sad. Did you mean 'happy'? Correct it, "
        "give it a label word with --labels, or leave such rows out with --skip-bad-rows."
    ) in process.stderr
    process = start([*argv, "--labels", "hapy=good,sdd=bad"])
    assert "the label 'happy' is not one of hapy, sdd. Did you mean 'hapy'?" in process.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["predict", "runs/intnet", "x"], "no prompt at runs/intnet; did you mean runs/intent?"),
        (["predict", "runs/intent,runs/urgent", "x"], "did you mean runs/urgency?"),
        (["predict", "urgent", "x"], "no prompt at urgent; did you mean library/urgency?"),
        (["evaluate", "runs/nowhere"], "There is no prompt at runs/nowhere; name a folder that"),
        (["evaluate", "runs/intent", "--file", "no.csv"], "The file no.csv does not exist."),
        (["evaluate", "runs/intent", "--task", "boolqq"], "did you mean boolq?"),
        (["prompts", "show", "urgensy"], "no prompt urgensy in the library library; did you mean"),
        (["prompts", "search", "urgensy"], "did you mean urgency?"),
        (["prompts", "export", "urgensy", "--output", "x"], "did you mean urgency?"),
        (["prompts", "remove", "urgency", "intent"], "There is no prompt intent in the library"),
        (["prompts", "rename", "urgensy", "x"], "did you mean urgency?"),
        (["prompts", "show", "urgency=0"], "no prompt at urgency=0; did you mean library/urgency?"),
        (["prompts", "show", "no/where"], "There is no prompt at no/where; name a folder that"),
        (
            ["prompts", "export", "urgency", "--as", "folder", "--output", "runs"],
            "runs holds other files (intent, urgency); choose another --output",
        ),
        (["study", "run", "nope.yaml"], "The config file nope.yaml does not exist."),
        (["prompts", "list", "--library", "shelf"], "There is no library at shelf; name one"),
        (["prompts", "show", "x", "--library", "shelf"], "There is no library at shelf; name one"),
        (
            ["prompts", "recycle", "urgensy", "--model", "m", "--output", "x"],
            "did you mean urgency?",
        ),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_a_mistyped_prompt_is_refused_without_torch(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    for folder in ("runs/intent", "runs/urgency", "library/urgency"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOFTPROMPTS_LIBRARY", raising=False)
    process = start(argv)
    assert process.returncode == 2
    error, imported = process.stderr.splitlines()
    assert message in error
    assert imported == "imported:"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["evaluate", "half"], "half holds no prompt.json: either it is not a prompt, or its run"),
        (["predict", "half", "x"], "half holds no prompt.json"),
        (["explain", "half"], "half holds no prompt.json"),
        (["ensemble", "moods", "half"], "half holds no prompt.json"),
        (["evaluate", "moods", "--file", "rows.csv"], "no column 'review'; did you mean 'reveiw'?"),
        (["predict", "moods", "--file", "rows.csv"], "no column 'review'; did you mean 'reveiw'?"),
        (["explain", "moods", "--file", "rows.csv"], "no column 'review'; did you mean 'reveiw'?"),
        (["ensemble", "moods", "again", "--file", "rows.csv"], "has no column 'review'"),
        (["evaluate", "moods", "--file", "empty.csv"], "empty.csv:2: the column 'review' is empty"),
        (["predict", "moods", "--file", "empty.csv"], "empty.csv:2: the column 'review' is empty"),
        (["evaluate", "moods", "--file", "other.csv"], "the label 'so so' is not one of good, bad"),
        (["evaluate", "moods"], "was imported, so it has no rows of its own; give labelled rows"),
        (["evaluate", "moods", "--file", "good.csv"], "The model 'some-t5' cannot be loaded"),
        (["predict", "moods", "x"], "The model 'some-t5' cannot be loaded (HF_HUB_OFFLINE is set"),
        (["predict", "moods", "x", "--model", "some/other"], "The model 'some/other' cannot be"),
        (["explain", "moods", "--file", "good.csv"], "The model 'some-t5' cannot be loaded"),
        (["ensemble", "moods", "again", "--file", "good.csv"], "'some-t5' cannot be loaded"),
        (["serve", "--library", "."], "The model 'some-t5' cannot be loaded"),
        (
            ["prompts", "recycle", "moods", "--model", "some/other", "--output", "x"],
            "The model 'some/other' cannot be loaded",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_rows_for_a_prompt_are_refused_without_torch(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    form = TextFormat("{review}", "mood", {"good": "good", "bad": "bad"})
    made = card(
        task=TaskCard(name="mood", form=form, metrics=["accuracy"]),
        scoring="labels",
        config={"tuning": {"max_length": 40}},
    )
    for name in ("moods", "again", "half"):
        (tmp_path / name).mkdir()
    for name in ("moods", "again"):
        made.write(tmp_path / name / "prompt.json")
    (tmp_path / "rows.csv").write_text("reveiw,mood\nlovely,good\n")
    (tmp_path / "empty.csv").write_text("review,mood\n,good\n")
    (tmp_path / "good.csv").write_text("review,mood\nlovely,good\n")
    (tmp_path / "other.csv").write_text("review,mood\nlovely,so so\n")
    monkeypatch.chdir(tmp_path)
    process = start(argv)
    assert process.returncode == 2
    error, imported = process.stderr.splitlines()
    assert message in error
    assert imported == "imported:"


@pytest.mark.parametrize(
    "argv",
    [
        ["tune", "--help"],
        ["tune", "--task", "helpdesk/intnet"],
        ["tune", "--lr", "fast"],
        ["bench", "training", "--help"],
        ["completion", "next", "tune", "--prompt.start"],
    ],
    ids=" ".join,
)
def test_half_a_second_is_enough(argv: list[str]) -> None:
    """Of CPU time, because other tests keep the cores busy."""

    def seconds() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-m", "softprompts", *argv], capture_output=True)
        after = os.times()
        user = after.children_user - before.children_user
        return user + after.children_system - before.children_system

    assert any(seconds() < 0.5 for _ in range(3))


def test_help_names_the_values_of_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_command("tune").main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "One of constant, linear, cosine. (default linear)" in text
    assert "One of direct, residual, encoder. (default direct)" in text
    assert "One of adamw, adafactor. (default adamw)" in text
    assert "One of mixture, prompt-tuning, residual," in text
    assert "One of accuracy, macro_f1, " in text
    assert "--plugin FILE load a Python file or module" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tu"], ["tune"]),
        (["prompts", "se"], ["search"]),
        (["bench", ""], ["training", "inference", "decoding", "smop"]),
        (["schema", "s"], ["study"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["tune", "--prompt.sha"], ["--prompt.shape"]),
        (["tune", "--prompt.shape", "re"], ["residual"]),
        (["tune", "--preset", "smop,resi"], ["smop,residual", "smop,residual-bert"]),
        (["tune", "--schedule", "c"], ["constant", "cosine"]),
        (
            ["tune", "--prompt.shape", "encoder", "--prompt.shape."],
            ["--prompt.shape.network", "--prompt.shape.width", "--prompt.shape.dropout"],
        ),
        (["study", "run", "--wor"], ["--workers"]),
        (["pretrain", "--objec"], ["--objectives"]),
        (["bench", "smop", "--workload", ""], ["synthetic", "sst2"]),
        (["predict", "--scoring", "l"], ["labels"]),
        (["predict", "runs/st"], []),
        (["nope", "x"], []),
    ],
    ids=" ".join,
)
def test_completion(words: list[str], expected: list[str]) -> None:
    assert complete(words) == expected


def test_the_bash_script_completes_in_bash() -> None:
    script = f"""
softprompts() {{ {sys.executable} -m softprompts "$@"; }}
{SCRIPTS["bash"]}
COMP_WORDS=(softprompts tune --prompt.rou) COMP_CWORD=2
_softprompts
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    process = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert process.stdout.split() == ["--prompt.route"], process.stderr
