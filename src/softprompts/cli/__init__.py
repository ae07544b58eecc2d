"""The command line: one module per command. Nothing else in the package imports it.

Exit codes: 0 done, 1 failed, 2 your input.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from ..config.plugins import VARIABLE as PLUGINS
from ..config.plugins import check_plugin
from ..errors import Spelling, UserError, as_flag, as_key, choices, speaking
from ..version import __version__
from .output import is_main_process

COMMANDS = {
    "tune": "Tune a prompt on a task or on your own data, or many at once.",
    "evaluate": "Score a tuned prompt on labelled rows.",
    "predict": "Answer texts with a tuned prompt.",
    "ensemble": "Combine several prompts for one task, and compare them with the best one.",
    "explain": "Show what a prompt has learned: nearest words, effect of each token, routing.",
    "prompts": "Manage a library of prompts: list, show, search, import, export, recycle.",
    "transfer": "Tune a prompt for a new task, starting from prompts of similar tasks.",
    "study": "Run a resumable grid of runs, and report it as the SPoT paper does.",
    "report": "Write one page about a run, a cohort or a study: tables, tests, curves.",
    "serve": "Serve prompts over HTTP with OpenAI's API, where `model` names a prompt.",
    "tasks": "List named tasks, show one, export a split, score predictions.",
    "bench": "Measure speed and memory on this machine, compared with PEFT.",
    "cost": "Count parameters, operations and memory of methods on backbones, without weights.",
    "pretrain": "Pretrain a T5 from raw text, or continue training one.",
    "schema": "Print the JSON Schema of run or study files, for editors.",
    "completion": "Print a completion script for bash, zsh or fish.",
}
"""Each is a module of this package with a function `main(argv)`; if it has actions, a mapping
`ACTIONS` of their functions."""


ALIASES = {"--dtype": "--weights"}
"""Second names of flags."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; errors are one sentence on standard error."""
    argv = list(sys.argv[1:] if argv is None else argv)

    def as_typed(path: str, value: str | None = None) -> str:
        """As a flag, by its second name if that is the one on the command line."""
        flag, typed = as_flag(path), {word.partition("=")[0] for word in argv}
        alias = ALIASES.get(flag, flag)
        return as_flag(path, value).replace(flag, alias if alias in typed else flag, 1)

    with speaking(as_key if argv[:1] == ["study"] else as_typed):
        try:
            return _run(argv)
        except KeyboardInterrupt:
            return _report(
                "stopped; tune, transfer, study and pretrain resume from their last checkpoint "
                "when you run the same command again.",
                130,
            )
        except BrokenPipeError:
            return 0
        except Exception as error:
            if "--debug" in argv:
                raise
            return _report(*_explain(error, as_typed))


def _run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_help(), flush=True)
    elif argv[0] in ("-V", "--version"):
        print(f"softprompts {__version__}", flush=True)
    else:
        words = _take_plugins([word for word in argv[1:] if word != "--debug"])
        return int(load_command(argv[0]).main(words))
    return 0


def load_command(name: str) -> ModuleType:
    if name not in COMMANDS:
        raise UserError(f"There is no command {name!r}; {choices(name, COMMANDS)}")
    return importlib.import_module(f".{name}", __name__)


def _take_plugins(argv: Sequence[str]) -> list[str]:
    """Move `--plugin FILE` (or a module's name) to a variable, which worker processes inherit."""
    rest: list[str] = []
    plugins = [*filter(None, [os.environ.get(PLUGINS)])]
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag != "--plugin":
            rest.append(word)
            continue
        plugin = value if equals else next(words, "")
        if not plugin:
            raise UserError("--plugin needs a value: a Python file, or the name of a module.")
        for name in plugin.split(","):
            check_plugin(name.strip())
        plugins.append(plugin)
    if plugins:
        os.environ[PLUGINS] = ",".join(dict.fromkeys(plugins))
    return rest


def _explain(error: Exception, as_typed: Spelling) -> tuple[str, int]:
    if isinstance(error, UserError):
        return error.spelled(error.spelling or as_typed), error.exit_code
    if isinstance(error, PermissionError):
        return f"You do not have permission to access {error.filename}; ask its owner.", 2
    return f"{type(error).__name__}: {error} (run again with --debug for the traceback)", 1


def _report(message: str, code: int) -> int:
    if is_main_process():
        print(f"softprompts: {' '.join(message.split())}", file=sys.stderr)
    return code


def _help() -> str:
    rows = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    return (
        "softprompts: one frozen model, many tiny prompts.\n\n"
        f"usage: softprompts COMMAND [options]\n\n{rows}\n\n"
        "softprompts COMMAND --help shows the options.\n\n"
        "options of every command:\n"
        "  --plugin FILE  load a Python file or module that registers tasks, metrics,\n"
        "                 prompt parts or model families\n"
        "  --json         print the result as JSON\n"
        "  --quiet        show no progress\n"
        "  --debug        show the traceback of an error\n\n"
        "examples:\n  softprompts tune --task helpdesk/intent --output runs/intent\n"
        '  softprompts predict runs/intent "Where is my parcel?"'
    )
