"""The command line: a dict of plain functions. Exit codes: 0 done, 1 failed, 2 your input."""

import sys
from collections.abc import Callable, Sequence

from .. import __version__
from ..errors import UserError
from .answer import evaluate, predict
from .command import speaks


def tune(argv: Sequence[str]) -> int:
    """Tune a prompt on a task or on your own data, or many at once."""
    from .tune import main as learn

    return learn(argv)


def prompts(argv: Sequence[str]) -> int:
    """A library of prompts: list, show, search; bring runs and PEFT adapters in, take prompts out."""
    from .prompts import main as act_on

    return act_on(argv)


def tasks(argv: Sequence[str]) -> int:
    """The named tasks: list them, show one, export a split, score predictions."""
    from .tasks import main as look_at

    return look_at(argv)


def bench(argv: Sequence[str]) -> int:
    """Measure speed and memory on this machine, beside PEFT."""
    from .bench import main as measure

    return measure(argv)


def transfer(argv: Sequence[str]) -> int:
    """Tune a prompt for a new task from prompts of tasks like it."""
    from .transfer import main as start_from_others

    return start_from_others(argv)


def study(argv: Sequence[str]) -> int:
    """Run a grid of transfers that resumes, and report it as the paper does."""
    from .study import main as run_study

    return run_study(argv)


def pretrain(argv: Sequence[str]) -> int:
    """Train a T5 from raw text, or go on with one."""
    from .pretrain import main as train

    return train(argv)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "tune": tune,
    "evaluate": evaluate,
    "predict": predict,
    "prompts": prompts,
    "transfer": transfer,
    "study": study,
    "tasks": tasks,
    "bench": bench,
    "pretrain": pretrain,
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    try:
        if not argv or argv[0] in ("-h", "--help"):
            print(_help(), flush=True)
            return 0
        if argv[0] in ("-V", "--version"):
            print(f"softprompts {__version__}", flush=True)
            return 0
        if argv[0] not in COMMANDS:
            raise UserError(
                f"There is no command {argv[0]!r}; choose one of {', '.join(COMMANDS)}."
            )
        return COMMANDS[argv[0]]([a for a in argv[1:] if a != "--debug"])
    except UserError as error:
        if debug:
            raise
        if argv[0] != "tune" or speaks():
            print(f"softprompts: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "softprompts: stopped; tune, transfer, study and pretrain go on from their last checkpoint when the command is given again.",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        return 0
    except PermissionError as error:
        if debug:
            raise
        print(
            f"softprompts: {error.filename} may not be read or written by this user; ask its owner for leave.",
            file=sys.stderr,
        )
        return 2
    except Exception as error:
        if debug:
            raise
        print(
            f"softprompts: {type(error).__name__}: {' '.join(str(error).split())} (run again with --debug for the traceback)",
            file=sys.stderr,
        )
        return 1


def _help() -> str:
    rows = "\n".join(f"  {name:<10} {function.__doc__}" for name, function in COMMANDS.items())
    return (
        "softprompts: one frozen model, many tiny prompts.\n\n"
        f"usage: softprompts COMMAND [options]     (softprompts COMMAND --help tells the options)\n\n{rows}\n\n"
        'example:\n  softprompts tune --task helpdesk/intent --output runs/intent\n  softprompts predict runs/intent "Where is my parcel?"'
    )


if __name__ == "__main__":
    sys.exit(main())
