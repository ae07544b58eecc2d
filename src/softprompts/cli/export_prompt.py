"""The command `softprompts prompts export`."""

from collections.abc import Sequence

from ..errors import UserError
from ..files import check_overwrite
from .arguments import add_library, add_library_prompt, output_folder
from .command import make_parser
from .output import print_result

EXAMPLES = """softprompts prompts export runs/stars --output adapter/
  softprompts prompts export stars --as folder --output copies/stars"""


def main(argv: Sequence[str]) -> int:
    """Export a prompt as a PEFT adapter, or copy its folder."""
    parser = make_parser("prompts export", EXAMPLES, main.__doc__)
    add_library_prompt(parser)
    add_library(parser)
    parser.add_argument(
        "--as",
        dest="form",
        choices=["peft", "folder"],
        default="peft",
        help="a PEFT adapter (default), or a copy of the prompt's folder",
    )
    parser.add_argument(
        "--output", metavar="FOLDER", type=output_folder, required=True, help="where it goes"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    options = parser.parse_args(argv)

    from ..artifacts.peft import ADAPTER, WEIGHTS, write_adapter
    from ..artifacts.run_folder import RunFolder
    from ..library.library import named_prompt

    entry = named_prompt(options.prompt, options.library)
    entry.vectors()  # an error now if the embedding, which is copied too, is corrupted
    folder, output = RunFolder(entry.folder), options.output
    prompt, card = folder.load()
    if entry.folder.resolve() == output.resolve():
        raise UserError(f"{output} is where the prompt is; choose another --output.")
    result = {"prompt": str(options.prompt)}
    if options.form == "folder":
        RunFolder(output).check_overwrite(options.overwrite)
        folder.copy_prompt(output)
        result["folder"] = str(output)
        print_result(options, result, f"a copy of {options.prompt} is in {output}")
        return 0
    check_overwrite(output, (ADAPTER, WEIGHTS), options.overwrite)
    backbone = card.backbone
    if backbone.family is None:
        raise UserError(
            f"The card of {entry.folder} lacks its backbone's family; tune the prompt again."
        )
    result["adapter"] = str(output)
    result["task_type"] = write_adapter(output, prompt, backbone.family, backbone.name)
    text = f"PeftModel.from_pretrained(model, {str(output)!r}) loads it on {backbone.name}"
    print_result(options, result, text)
    return 0
