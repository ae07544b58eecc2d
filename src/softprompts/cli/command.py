"""What commands are made of: a parser whose errors are sentences, and actions."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from ..errors import UserError, choices, closest

Action = Callable[[Sequence[str]], int]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are sentences, and which completion can catch before it parses."""

    class Caught(Exception):  # noqa: N818
        """Parsing is about to begin."""

    _caught: ClassVar[list["Parser"] | None] = None

    def error(self, message: str) -> Any:
        rest = message.removeprefix("unrecognized arguments: ")
        if rest != message and rest.startswith("-"):
            raise self.unknown_flag(rest.split()[0])
        raise UserError(f"{message[0].upper()}{message[1:]}; see {self.prog} --help.")

    def unknown_flag(self, flag: str) -> UserError:
        flag = flag.partition("=")[0]
        similar = closest(flag.lstrip("-"), [f.lstrip("-") for f in self._option_string_actions])
        hint = f"did you mean --{similar}? See" if similar else "see"
        return UserError(f"There is no option {flag}; {hint} {self.prog} --help.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[-1] if action.option_strings else str(action.metavar)
            raise UserError(f"{name} is {value!r}; {choices(value, action.choices)}")

    def format_help(self) -> str:
        """With a short usage: what is required, and [options] for the rest."""
        if self.usage is not None:
            return super().format_help()
        required = []
        for action in self._actions:
            name = action.metavar or action.dest.upper()
            if not action.option_strings:
                required.append(str(name))
            elif action.required:
                required.append(f"{action.option_strings[0]} {name}")
        self.usage = " ".join([self.prog, *required, "[options]"])
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if Parser._caught is not None:
            Parser._caught.append(self)
            raise Parser.Caught
        return super().parse_known_args(args, namespace)

    @classmethod
    @contextmanager
    def caught(cls) -> Iterator[list["Parser"]]:
        """Inside, commands stop where they would parse, and their parsers are in the list."""
        cls._caught = []
        try:
            yield cls._caught
        finally:
            cls._caught = None


def make_parser(name: str, examples: str, about: str | None) -> Parser:
    """The parser of `softprompts NAME`, with the flags that every command has."""
    parser = Parser(
        prog=f"softprompts {name}",
        description=about,
        epilog=f"examples:\n  {examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument(
        "--plugin",
        metavar="FILE",
        help="load a Python file or module that registers tasks, metrics, prompt parts or model "
        "families; may be repeated",
    )
    return parser


def run_action(
    command: str, actions: Mapping[str, Action], argv: Sequence[str], noun: str = "action"
) -> int:
    """Run one of a command's actions."""
    if not argv or argv[0] in ("-h", "--help"):
        usage = f"softprompts {command} {noun.upper()}"
        rows = "\n".join(f"  {name:<10} {action.__doc__}" for name, action in actions.items())
        print(f"usage: {usage} [options]\n\n{rows}\n\n{usage} --help shows the options.")
        return 0
    if argv[0] not in actions:
        raise UserError(f"There is no {noun} {argv[0]!r}; {choices(argv[0], actions)}")
    return actions[argv[0]](argv[1:])
