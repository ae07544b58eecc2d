import argparse
import io
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import PromptConfig, RunConfig, TuningConfig, schema_of
from ..config.cost import CostSettings, method_configs
from ..config.model_shapes import SHAPES
from ..config.run import SECTIONS
from ..errors import UserError
from . import flags
from .command import action, argument, check_model_or_shape
from .output import aligned, print_result
from .table_file import check_table_file, write_table_file

if TYPE_CHECKING:
    from ..analysis.cost import Cost

MODELS = f"""a known shape ({", ".join(SHAPES)}; t5-* are T5 v1.1, t5-v1.0-* the original),
t5-tiny, a model folder, or a Hub id; several separated by commas (default t5-base)"""
NOT_COUNTED = schema_of(TuningConfig)["properties"].keys() - {"batch_size", "optimizer", "trains"}
"""Settings of tuning that change neither the parameters nor the operations of a step."""
ABOUT = "The defaults are those of each preset. Numbers and choices may be lists."


def _models(text: str) -> list[str]:
    names = [text] if Path(text).is_dir() else [name.strip() for name in text.split(",")]
    if not all(names):
        raise UserError(f"--model is {text!r}, which has an empty name; name models such as t5-xl.")
    return names


@action(
    "cost",
    """softprompts cost --model t5-small,t5-base,t5-xxl --preset prompt-tuning \\
    --prompt.length 1,5,20,100                                   # Lester 2021, Table 4
  softprompts cost --model t5-v1.0-large --preset prompt-tuning,smop,model-tuning --text 256
  softprompts cost --model t5-tiny --preset residual --measure""",
    argument("--model", metavar="NAMES", type=_models, help=" ".join(MODELS.split())),
    argument(
        "--measure",
        action="store_true",
        help="also time a training step on this machine; a shape gets random weights",
    ),
    argument("--device", default="auto", help="where to measure: cpu, cuda, mps or auto (default)"),
    argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="write the table as CSV, TSV, JSONL or Parquet",
    ),
    argument(
        "--config", metavar="FILE", type=Path, help="a YAML file of settings; flags override it"
    ),
    partial(flags.add_settings, kind=CostSettings, title="rows"),
    partial(
        flags.add_settings,
        kind=RunConfig,
        title="method",
        about=ABOUT,
        skip=(*SECTIONS, "model", "device", "dtype"),
    ),
    partial(flags.add_settings, kind=TuningConfig, title="tuning", skip=NOT_COUNTED),
    partial(
        flags.add_settings,
        kind=PromptConfig,
        title="prompt",
        about=ABOUT,
        skip=("unit", "start"),
    ),
    parse=flags.parse_run,
)
def main(options: argparse.Namespace) -> int:
    """Count parameters, operations and memory of methods on backbones, without weights."""
    layers = options.layers
    known = schema_of(CostSettings)["properties"]
    rows = CostSettings.of(
        {name: layer.pop(name) for layer in layers for name in known if name in layer}
    )
    if options.output is not None:
        check_table_file(options.output)
    models = options.model or [str(layers[0].get("model", "t5-base"))]
    configs = list(method_configs(*layers))
    for name in models:
        check_model_or_shape(name)

    from ..analysis.flops import FORMULA
    from ..bench.cost import costs

    stream = io.StringIO() if options.quiet else sys.stderr
    say = partial(print, "softprompts:", file=stream, flush=True)
    results = list(costs(models, configs, rows, options.device if options.measure else None, say))
    table = [result.plain() for result in results]
    if options.output is not None:
        write_table_file(options.output, table, list(table[0]))
    result = {"rows": rows.plain(), "formula": FORMULA, "costs": table}
    return print_result(options, result, *_describe(results, rows))


def _describe(results: Sequence["Cost"], rows: CostSettings) -> list[str]:
    measured = any(cost.step for cost in results)
    columns = ["model", "method", "prompt", "trained", "of all", "stored"]
    columns += ["training FLOPs", "inference FLOPs", "memory"]
    lines = [columns + (["ms per step"] if measured else [])]
    for cost in results:
        cells = [
            cost.model,
            cost.method,
            "-" if not cost.length else f"{cost.count} x {cost.length}",
            f"{cost.trained:,}",
            f"{cost.percent:.5f} %",
            f"{cost.stored:,}",
            _flops(cost.training_flops),
            _flops(cost.inference_flops),
            f"{cost.memory / 2**30:.2f} GiB",
        ]
        if measured:
            cells.append("-" if cost.step is None else f"{1000 * cost.step['median']:.1f}")
        lines.append(cells)
    batches = ", ".join(map(str, dict.fromkeys(cost.batch for cost in results)))
    note = (
        f"rows of {rows.text} text and {rows.target} target tokens; training FLOPs and memory of a "
        f"step of {batches} rows in {rows.dtype}, inference FLOPs of one row (docs/cost.md)"
    )
    return [*aligned(lines), note]


def _flops(value: float) -> str:
    if not value:
        return "-"
    exponent = min(4, max(2, (len(f"{value:.0f}") - 1) // 3))
    return f"{value / 1000**exponent:.4g} {' KMGT'[exponent]}"
