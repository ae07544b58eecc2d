"""The command `softprompts prompts export`."""

import argparse
import os
from pathlib import Path
from typing import Any

from ..artifacts.file_names import CARD
from ..errors import UserError, listing
from ..files import check_overwrite
from .command import (
    LIBRARY_PROMPT,
    action,
    add_library,
    argument,
    check_library_prompt,
    output_folder,
)
from .evaluate import own_task
from .output import format_p, print_result


@action(
    "prompts export",
    """softprompts prompts export runs/stars --output adapter
  softprompts prompts export stars --as folder --output copies/stars
  softprompts prompts export stars --as vllm --output vllm/stars""",
    LIBRARY_PROMPT,
    add_library,
    argument(
        "--format",
        "--as",
        dest="form",
        choices=["peft", "vllm", "folder"],
        default="peft",
        help="a PEFT adapter (default), prompt_embeds for a vLLM server with a client that sends "
        "them, or a copy of the prompt's folder",
    ),
    argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        required=True,
        help="the folder to write",
    ),
    argument("--overwrite", action="store_true", help="replace what is in the folder"),
)
def main(options: argparse.Namespace) -> int:
    """Export a prompt as a PEFT adapter or for vLLM, or copy its folder."""
    check_library_prompt(options.prompt, options.library)
    if options.form == "folder" and not options.overwrite:
        _check_empty(options.output)

    from ..artifacts.peft import ADAPTER, WEIGHTS, write_adapter
    from ..artifacts.run_folder import RunFolder
    from ..library.library import named_prompt
    from ..serving.vllm import CLIENT, check_family, write_vllm
    from ..serving.vllm import FILES as VLLM_FILES
    from ..tasks.score_report import task_report
    from ..tasks.statistics import score_p
    from ..tuning.tuned import load

    entry = named_prompt(options.prompt, options.library)
    entry.vectors()  # an error now if the embedding, which is copied too, is corrupted
    folder, output = RunFolder(entry.folder), options.output
    prompt, card = folder.load()
    if entry.folder.resolve() == output.resolve():
        raise UserError(f"{output} is where the prompt is; choose another --output.")
    result: dict[str, Any] = {"prompt": str(options.prompt)}
    if options.form == "folder":
        RunFolder(output).check_overwrite(options.overwrite)
        folder.copy_prompt(output)
        result["folder"] = str(output)
        return print_result(options, result, f"a copy of {options.prompt} is in {output}")
    for_vllm = options.form == "vllm"
    check_overwrite(output, VLLM_FILES if for_vllm else (ADAPTER, WEIGHTS), options.overwrite)
    backbone = card.backbone
    if backbone.family is None:
        raise UserError(
            f"The card of {entry.folder} lacks its backbone's family; tune the prompt again."
        )
    if for_vllm:
        check_family(card)
    if prompt.config.count > 1 and (task := own_task(card)) is not None:
        inputs = [example.input for example in task.validation]
        single = load(entry.folder).averaged(inputs)
        answers = single.predictor()(inputs)
        report = task_report(task, "validation", answers, baselines=False)
        prompt, result["metrics"], result["rows"] = single.prompt, report.metrics, report.rows
        name, score = next(iter(report.metrics.items()))
        if name in card.metrics:
            routed = folder.row_scores("validation")
            result["p"] = score_p(report.row_scores, routed, score - card.metrics[name])
    if for_vllm:
        write_vllm(output, prompt, card)
        result["folder"] = str(output)
        lines = [
            f"query a vLLM server for {backbone.name} (started with --enable-prompt-embeds): "
            f"python {output / CLIENT} TEXT --url URL"
        ]
        if card.scoring == "labels":
            lines.append("vLLM generates its answers, which may match no label")
    else:
        result["adapter"] = str(output)
        result["task_type"] = write_adapter(output, prompt, backbone.family, backbone.name)
        lines = [f"PeftModel.from_pretrained(model, {str(output)!r}) loads it on {backbone.name}"]
    for name, score in list(result.get("metrics", {}).items())[:1]:
        before = f", where the mixture has {card.metrics[name]:.1f}" if name in card.metrics else ""
        lines.append(
            f"{'vLLM' if for_vllm else 'PEFT'} cannot route, so the mean of the mixture's prompts "
            f"over the validation texts was exported: {name} {score:.1f} on {result['rows']:,} "
            f"rows{before}{format_p(result.get('p'))}; "
            "for an exact export, tune with --preset prompt-tuning"
        )
    return print_result(options, result, "\n".join(lines))


def _check_empty(output: Path) -> None:
    """Refuse a folder with other files than a run's, which would ask for itself."""
    names = sorted(os.listdir(output)) if output.is_dir() else []
    if names and CARD not in names:
        raise UserError(
            f"{output} holds other files ({listing(names)}); choose another --output, "
            "or write the prompt beside them with --overwrite."
        )
