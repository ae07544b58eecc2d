"""What commands share: a parser whose errors are sentences, a command's actions, and a result told to people or to machines."""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ..errors import UserError
from ..files.names import checked_path

ACTIONS = {
    "prompts": ("list", "show", "search", "import", "export", "recycle"),
    "study": ("run", "status", "report", "rerun"),
    "tasks": ("list", "show", "export", "score"),
    "bench": ("training", "inference", "decoding", "smop"),
    "schema": ("run", "study"),
    "completion": ("bash", "zsh", "fish"),
}
"""What comes after the commands that have actions."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are sentences, and which completion can catch before it parses."""

    class Caught(Exception):  # noqa: N818
        """Parsing is about to begin."""

    _caught: ClassVar[list["Parser"] | None] = None

    def error(self, message: str) -> Any:
        raise UserError(f"{message[0].upper()}{message[1:]}; see {self.prog} --help.")

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
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_model(parser: argparse.ArgumentParser, model: str, required: bool = False) -> None:
    """The flags of a command that loads a backbone."""
    parser.add_argument("--model", required=required, help=model)
    parser.add_argument("--dtype", default="auto", help="fp32, bf16 or auto")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that a hub model brings along"
    )


def output_folder(text: str) -> Path:
    if not text.strip():
        raise UserError("The output folder has no name; give one with --output.")
    return checked_path(text)


def act(
    command: str, actions: Mapping[str, Callable[[Sequence[str]], int]], argv: Sequence[str]
) -> int:
    """One of a command's actions."""
    if not argv or argv[0] in ("-h", "--help"):
        rows = "\n".join(f"  {name:<8} {function.__doc__}" for name, function in actions.items())
        print(
            f"usage: softprompts {command} ACTION [options]     (softprompts {command} ACTION --help tells the options)\n\n{rows}"
        )
        return 0
    if argv[0] not in actions:
        raise UserError(f"There is no action {argv[0]!r}; choose one of {', '.join(actions)}.")
    return actions[argv[0]](argv[1:])


def tell(options: argparse.Namespace, result: Mapping[str, Any], text: str) -> None:
    print(json.dumps(result, ensure_ascii=False) if options.json else text)


def scores(result: Mapping[str, Any]) -> str:
    """Every metric beside what always answering the commonest label would score."""
    return ", ".join(
        f"{name} {value:.1f} (majority class {result['majority'][name]:.1f})"
        for name, value in result["metrics"].items()
    )


def wordless(invalid: int, rows: int, learns: bool = True) -> str | None:
    """Why a score is low: over a fifth of the answers were no label; what `learns` nothing gets no better by learning longer."""
    if invalid <= rows / 5:
        return None
    return f"{invalid} of {rows} answers were no label; {speak(learns)}"


def speak(learns: bool = True) -> str:
    """What helps where a model writes other words than labels."""
    likeliest = "take the likeliest label with --scoring labels"
    return f"tune with more --steps, or {likeliest}" if learns else likeliest


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table's lines, its columns one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def is_main_process() -> bool:
    """Of several processes on one run, the first one prints."""
    return os.environ.get("RANK", "0") == "0"
