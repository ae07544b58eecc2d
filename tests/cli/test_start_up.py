"""Help, completion and refusals come at once, without torch."""

import subprocess
import sys
import time

import pytest

from softprompts.cli import COMMANDS
from softprompts.cli.command import ACTIONS
from softprompts.cli.completion import SCRIPTS, complete

HELP = [
    *([command, "--help"] for command in COMMANDS),
    *([command, action, "--help"] for command, actions in ACTIONS.items() for action in actions
      if command not in ("schema", "completion")),
]  # fmt: skip
REFUSED = [
    (["tune", "--lr", "fast"], "--lr is 'fast'; give a number."),
    (["tune", "--nope"], "There is no option --nope; see softprompts tune --help."),
    (["tune", "--steps", "0"], "--steps is 0; it must be at least 1."),
    (["tune", "--prompt.shape", "lora"], "There is no shape 'lora'; choose one of direct,"),
    (
        ["tune", "--preset", "residual", "--prompt.shape.depth", "0"],
        "--prompt.shape.depth is 0; it must be from 1 to",
    ),
    (["tune", "--prompt.start", "text"], "needs its option 'text'; set --prompt.start.text."),
    (["transfer", "--to", "helpdesk/intent", "--lr", "fast"], "--lr is 'fast'; give a number."),
    (["pretrain", "--output", "x", "--text", "a", "--lr", "-1"], "--lr is -1.0; it must be a"),
    (["bench", "training", "--runs", "many"], "--runs is 'many'; give a whole number."),
    (["nope"], "There is no command 'nope'"),
]
CHECK = """
import sys
from softprompts.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
heavy = {"torch", "transformers", "numpy"} & set(sys.modules)
print("imported:", *sorted(heavy), file=sys.stderr)
sys.exit(code)
"""


def start(argv: list[str]) -> tuple[subprocess.CompletedProcess[str], float]:
    begin = time.perf_counter()
    process = subprocess.run(
        [sys.executable, "-c", CHECK, *argv], capture_output=True, text=True, check=False
    )
    return process, time.perf_counter() - begin


@pytest.mark.parametrize("argv", HELP, ids=" ".join)
def test_help_needs_no_torch(argv: list[str]) -> None:
    process, _ = start(argv)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("usage: softprompts")
    assert process.stderr.strip() == "imported:"


@pytest.mark.parametrize(("argv", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_wrong_setting_is_refused_without_torch(argv: list[str], message: str) -> None:
    process, _ = start(argv)
    assert process.returncode == 2
    error, imported = process.stderr.strip().splitlines()
    assert message in error
    assert imported == "imported:"


def test_help_is_there_in_half_a_second() -> None:
    """The best of three: other tests keep the cores busy."""
    assert min(start(["tune", "--help"])[1] for _ in range(3)) < 0.5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tu"], ["tune"]),
        (["prompts", "se"], ["search"]),
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
        (["predict", "runs/st"], []),
    ],
    ids=" ".join,
)  # fmt: skip
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
