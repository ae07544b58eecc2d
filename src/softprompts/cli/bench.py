"""The command `softprompts bench`: benchmarks by name, each with flags made from its settings."""

import argparse
import importlib
import io
import sys
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
from .command import Action, action, argument, check_model_or_shape, run_action
from .flags import add_settings, given
from .output import print_result

BENCHMARKS = {
    "training": (
        TrainingSettings,
        "Tune prompts, alone and in a cohort, compared with PEFT, eager and compiled.",
        """softprompts bench training --model t5-tiny --runs 8 --steps 10
  softprompts bench training --model t5-base --prompt 100 --runs 32 --output t5-base.json""",
    ),
    "inference": (
        InferenceSettings,
        "Answer rows of many tasks in one batch; PEFT switches adapters row by row.",
        """softprompts bench inference --tasks 64
  softprompts bench inference --model t5-base --prompts runs/a,runs/b""",
    ),
    "decoding": (
        DecodingSettings,
        "Generate with a decoder-only model and a cached prompt, compared with PEFT's generate.",
        "softprompts bench decoding --model llama-135m --batches 1,16",
    ),
    "smop": (
        SmopSettings,
        "Measure what SMoP's short prompts save over one long prompt, both in this package.",
        "softprompts bench smop --model t5-large --output smop.json",
    ),
}
"""Each is a module of bench with a function `measure(settings, say)`, which yields the result as a
JSON object, more complete every time, so that an interruption loses only what comes after it."""


def _benchmark(name: str, kind: type[CommonSettings], about: str, examples: str) -> Action:
    def measure(options: argparse.Namespace) -> int:
        settings = kind.of(given(options))
        check_model_or_shape(settings.model)
        if options.output is not None:
            check_writable(options.output)
        benchmark = importlib.import_module(f"softprompts.bench.{name}")
        say = partial(print, file=io.StringIO() if options.quiet else sys.stderr, flush=True)
        for part in benchmark.measure(settings, say):
            result = {"benchmark": name, **part}
            if options.output is not None:
                write_json(options.output, result)
        return print_result(options, result, table([result]))

    measure.__doc__ = about
    output = argument(
        "--output", metavar="FILE", type=checked_path, help="write the result to this file as JSON"
    )
    settings = partial(add_settings, kind=kind, title="settings")
    return action(f"bench {name}", examples, output, settings)(measure)


ACTIONS = {name: _benchmark(name, *entry) for name, entry in BENCHMARKS.items()}
main = partial(run_action, "bench", ACTIONS, noun="benchmark")


def script(name: str) -> int:
    return run_softprompts(["bench", name, *sys.argv[1:]])
