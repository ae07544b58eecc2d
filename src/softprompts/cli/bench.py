"""The command `softprompts bench`: benchmarks by name, each with flags made from its settings."""

import importlib
import io
import sys
from collections.abc import Sequence
from functools import partial

from ..bench.settings import (
    CommonSettings,
    DecodingSettings,
    InferenceSettings,
    SmopSettings,
    TrainingSettings,
)
from ..bench.tables import table
from ..files import check_writable, checked_path, write_json
from . import main as run_softprompts
from .command import Action, make_parser, run_action
from .flags import add_settings, given
from .output import print_result

EXAMPLES = {
    "training": """softprompts bench training --model t5-tiny --runs 8 --steps 10
  softprompts bench training --model t5-base --prompt 100 --runs 32 --output t5-base.json""",
    "inference": """softprompts bench inference --tasks 64
  softprompts bench inference --model t5-base --prompts runs/a,runs/b""",
    "decoding": "softprompts bench decoding --model llama-135m --batches 1,16",
    "smop": "softprompts bench smop --model t5-large --output smop.json",
}


def main(argv: Sequence[str]) -> int:
    """Measure speed and memory on this machine, next to PEFT."""
    return run_action("bench", ACTIONS, argv, "benchmark")


def training(argv: Sequence[str]) -> int:
    """Tune prompts, alone and in a cohort, next to PEFT, eager and compiled."""
    return _measure(training, TrainingSettings, argv)


def inference(argv: Sequence[str]) -> int:
    """Answer rows of many tasks in one batch, next to PEFT switching adapters row by row."""
    return _measure(inference, InferenceSettings, argv)


def decoding(argv: Sequence[str]) -> int:
    """Generate with a decoder-only model and a cached prompt, next to PEFT's generate."""
    return _measure(decoding, DecodingSettings, argv)


def smop(argv: Sequence[str]) -> int:
    """Measure what SMoP's short prompts save over one long prompt, both in this package."""
    return _measure(smop, SmopSettings, argv)


ACTIONS = {"training": training, "inference": inference, "decoding": decoding, "smop": smop}
"""Each is a module of bench with a function `measure(settings, say)`, which yields the result as a
JSON object, more complete every time, so that an interruption loses only what comes after it."""


def _measure(action: Action, kind: type[CommonSettings], argv: Sequence[str]) -> int:
    """Run a benchmark; 1 if the two sides disagree."""
    name = action.__name__
    parser = make_parser(f"bench {name}", EXAMPLES[name], action.__doc__)
    parser.add_argument(
        "--output", metavar="FILE", type=checked_path, help="write the result to this file as JSON"
    )
    add_settings(parser, kind, "settings")
    options = parser.parse_args(argv)
    settings = kind.of(given(options))
    if options.output is not None:
        check_writable(options.output)

    from ..bench.measure import DisagreementError

    benchmark = importlib.import_module(f"softprompts.bench.{name}")
    say = partial(print, file=io.StringIO() if options.quiet else sys.stderr, flush=True)
    try:
        for part in benchmark.measure(settings, say):
            result = {"benchmark": name, **part}
            if options.output is not None:
                write_json(options.output, result)
    except DisagreementError as error:
        print(f"softprompts: {error}", file=sys.stderr)
        return 1
    return print_result(options, result, table([result]))


def script(name: str) -> int:
    return run_softprompts(["bench", name, *sys.argv[1:]])
