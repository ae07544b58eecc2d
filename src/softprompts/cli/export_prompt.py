"""The command `softprompts prompts export`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.file_names import CARD
from ..config import TaskConfig
from ..errors import UserError, listing
from ..files import check_overwrite
from ..tasks import Task, load_task
from .command import (
    add_library,
    add_library_prompt,
    check_library_prompt,
    make_parser,
    output_folder,
)
from .output import print_result

if TYPE_CHECKING:
    from ..artifacts.card import Card
    from ..artifacts.run_folder import RunFolder

EXAMPLES = """softprompts prompts export runs/stars --output adapter
  softprompts prompts export stars --as folder --output copies/stars
  softprompts prompts export stars --as vllm --output vllm/stars"""


def main(argv: Sequence[str]) -> int:
    """Export a prompt as a PEFT adapter or for vLLM, or copy its folder."""
    parser = make_parser("prompts export", EXAMPLES, main.__doc__)
    add_library_prompt(parser)
    add_library(parser)
    parser.add_argument(
        "--format",
        "--as",
        dest="form",
        choices=["peft", "vllm", "folder"],
        default="peft",
        help="a PEFT adapter (default), what vLLM takes as prompt_embeds with a client that sends "
        "it, or a copy of the prompt's folder",
    )
    parser.add_argument(
        "--output", metavar="FOLDER", type=output_folder, required=True, help="the folder to write"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    options = parser.parse_args(argv)
    check_library_prompt(options.prompt, options.library)
    if options.form == "folder" and not options.overwrite:
        _check_empty(options.output)

    from ..artifacts.peft import ADAPTER, WEIGHTS, write_adapter
    from ..artifacts.run_folder import RunFolder
    from ..library.library import named_prompt
    from ..serving.vllm import CLIENT, check_family, write_vllm
    from ..serving.vllm import FILES as VLLM_FILES
    from ..tuning.tuned import load

    entry = named_prompt(options.prompt, options.library)
    entry.vectors()  # an error now if the embedding, which is copied too, is corrupted
    folder, output = RunFolder(entry.folder), options.output
    prompt, card = folder.load()
    if entry.folder.resolve() == output.resolve():
        raise UserError(f"{output} is where the prompt is; choose another --output.")
    result: dict[str, Any] = {"prompt": str(options.prompt)}
    if options.form == "folder":
        _copy(folder, output, options.overwrite)
        result["folder"] = str(output)
        return print_result(options, result, f"a copy of {options.prompt} is in {output}")
    for_vllm = options.form == "vllm"
    files = VLLM_FILES if for_vllm else (ADAPTER, WEIGHTS)
    check_overwrite(output, files, options.overwrite)
    backbone = card.backbone
    if backbone.family is None:
        raise UserError(
            f"The card of {entry.folder} lacks its backbone's family; tune the prompt again."
        )
    if for_vllm:
        check_family(card)
    if prompt.config.count > 1 and (task := _own_task(card)) is not None:
        inputs = [example.input for example in task.validation]
        single = load(entry.folder).averaged(inputs)
        prompt, result["metrics"] = single.prompt, task.score(single.predictor()(inputs))
    if for_vllm:
        write_vllm(output, prompt, card)
        result["folder"] = str(output)
        lines = [
            f"python {output / CLIENT} TEXT --url URL asks a vLLM server of {backbone.name}, "
            "started with --enable-prompt-embeds"
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
            f"over the validation texts was exported: {name} {score:.1f}{before}; "
            "for an exact export, tune with --preset prompt-tuning"
        )
    return print_result(options, result, "\n".join(lines))


def _copy(folder: "RunFolder", output: Path, overwrite: bool) -> None:
    """Copy a prompt into a folder that is empty, unless files may be replaced."""
    type(folder)(output).check_overwrite(overwrite)
    folder.copy_prompt(output)


def _check_empty(output: Path) -> None:
    """Refuse a folder with other files than a run's, which would ask for itself."""
    names = sorted(os.listdir(output)) if output.is_dir() else []
    if names and CARD not in names:
        raise UserError(
            f"{output} holds other files ({listing(names)}); choose another --output, "
            "or write the prompt beside them with --overwrite."
        )


def _own_task(card: "Card") -> Task | None:
    """The task that a prompt was tuned on; None if its rows are gone."""
    try:
        return load_task(TaskConfig.of(card.task_settings))
    except UserError:
        return None
