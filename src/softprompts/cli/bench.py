"""The benchmarks by name, and their flags: one for each attribute of a benchmark's settings."""

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from ..bench.tables import table
from ..errors import UserError
from ..files import check_writable, write_json
from ..files.names import checked_path
from .command import Parser, tell

BENCHMARKS = {
    "training": "Tune prompts, alone and many at once, beside PEFT, eager and compiled.",
    "inference": "Answer one row of each of many tasks in one batch, beside PEFT switching its adapter row by row.",
    "decoding": "Write with a decoder-only model whose prompt is remembered, beside PEFT's generate.",
    "smop": "What SMoP's short prompts save beside one long prompt, both in our own system.",
}
"""Each is a module with a dataclass `Settings` and a function `measure(settings, say)`, which yields the result as one JSON object, again
and again as it becomes fuller, so that what was measured is kept when the rest is not."""

EXAMPLES = {
    "training": (
        "--model t5-tiny --runs 8 --steps 10",
        "--model t5-base --prompt 100 --runs 32 --output t5-base.json",
    ),
    "inference": ("--tasks 64", "--model t5-base --prompts runs/a,runs/b"),
    "decoding": ("--model llama-135m --batches 1,16",),
    "smop": ("--model t5-large --output smop.json",),
}


def main(argv: Sequence[str], prog: str = "softprompts bench ") -> int:
    """Run one benchmark: its name, then its flags. Bad input is a `UserError`; 1 where ours and the peer disagree."""
    if not argv or argv[0] in ("-h", "--help"):
        told = "\n".join(f"  {name:<10} {about}" for name, about in BENCHMARKS.items())
        print(f"usage: {prog}NAME [options]     ({prog}NAME --help tells the options)\n\n{told}")
        return 0
    name, *rest = argv
    if name not in BENCHMARKS:
        raise UserError(f"There is no benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}.")
    from ..bench.measure import DisagreementError

    module = importlib.import_module(f"softprompts.bench.{name}")
    options, settings = _parsed(name, module.Settings, rest, prog)
    if options.output is not None:
        check_writable(options.output)
    try:
        for part in module.measure(settings, _unsaid if options.quiet else say):
            result = {"benchmark": name, **part}
            if options.output is not None:
                write_json(options.output, result)
    except DisagreementError as error:
        print(f"softprompts: {error}", file=sys.stderr)
        return 1
    tell(options, result, table([result]))
    return 0


def script(name: str) -> int:
    """The same as a script of its own."""
    try:
        return main([name, *sys.argv[1:]])
    except UserError as error:
        print(f"softprompts: {error}", file=sys.stderr)
        return 2


def say(line: str) -> None:
    """Progress goes where it does not mix with the result."""
    print(line, file=sys.stderr, flush=True)


def _unsaid(line: str) -> None:
    pass


def _parsed(
    name: str, kind: type, argv: Sequence[str], prog: str
) -> tuple[argparse.Namespace, Any]:
    parser = Parser(
        prog=f"{prog}{name}",
        description=BENCHMARKS[name],
        epilog="\n".join(["examples:", *(f"  {prog}{name} {flags}" for flags in EXAMPLES[name])]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--output", metavar="FILE", type=checked_path, help="where the result goes as JSON"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress lines")
    docs = _docs(kind)
    for field in dataclasses.fields(kind):
        shown = f" (default {field.default})" if field.default not in ("", None) else ""
        text = f"{docs[field.name]}{shown}".replace("%", "%%")
        flag = f"--{field.name.replace('_', '-')}"
        if isinstance(field.default, bool):
            parser.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=field.default, help=text
            )
        else:
            parser.add_argument(
                flag, metavar="VALUE", type=type(field.default), default=field.default, help=text
            )
    options = parser.parse_args(argv)
    return options, kind(
        **{field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}
    )


def _docs(kind: type) -> dict[str, str]:
    """The docstring under each attribute, those of the classes below included."""
    from ..config.schema import attribute_docs

    found: dict[str, str] = {}
    for part in reversed(kind.__mro__[:-1]):
        found |= attribute_docs(part)
    return found
