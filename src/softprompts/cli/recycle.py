"""The command `softprompts prompts recycle`: its flags, and the folder it writes."""

import argparse
from collections.abc import Sequence

from ..errors import UserError
from ..library.library import named_prompt
from .command import add_model, make_parser, output_folder, tell
from .naming import add_library, add_prompt

EXAMPLES = """softprompts prompts recycle runs/stars --model models/new --output runs/stars-new
  softprompts evaluate runs/stars-new --file test.csv
  softprompts tune --task helpdesk/intent --model models/new --prompt.start prompt --prompt.start.sources runs/stars-new"""


def main(argv: Sequence[str]) -> int:
    """A prompt of one model as a prompt of another, without training."""
    options = _parser().parse_args(argv)

    from ..artifacts.run_folder import RunFolder
    from ..backbone import load_backbone
    from ..transfer.recycle import Recycling, recycle, recycled_card, shared_words

    how = Recycling(options.method, options.words, options.nearest, options.ridge)
    output = RunFolder(options.output)
    if output.has_config:
        raise UserError(f"{options.output} holds a run of its own; choose another --output.")
    output.check_copy(options.overwrite)
    entry = named_prompt(options.prompt, options.library)
    entry.check_vectors()
    prompt, card = RunFolder(entry.folder).load()
    card.answering()  # an error now rather than after the models are loaded
    loading = (options.dtype, options.device, options.trust_remote_code)
    source = load_backbone(options.from_model or card.backbone.name, *loading)
    if source.fingerprint != entry.fingerprint:
        other = "version of" if source.name == card.backbone.name else "model than"
        raise UserError(
            f"The prompt {options.prompt} was tuned on another {other} {source.name}; name that one with --from-model."
        )
    target = load_backbone(options.model, *loading)
    if target.fingerprint == entry.fingerprint:
        raise UserError(f"The prompt {options.prompt} is {target.name}'s already; use it as it is.")
    made = recycle(prompt, source, target, how)
    words = len(shared_words(source, target, how.words))
    new = recycled_card(card, str(options.prompt), made, target, how, words)
    output.clear()
    written = output.save(made, new).plain()
    vectors = made.config.count * made.config.length
    told = f"{vectors} prompt vectors of {source.name} are mapped to {target.name} by {how.method} over {words:,} shared words"
    written["folder"] = str(options.output)
    tell(options, written, f"{told}; they are in {options.output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("prompts recycle", EXAMPLES, main.__doc__)
    add_prompt(parser)
    add_library(parser)
    parser.add_argument(
        "--from-model", help="the model it was tuned on, when that is not where the card says"
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        required=True,
        help="where the new prompt goes",
    )
    parser.add_argument(
        "--method",
        choices=["least-squares", "words"],
        default="least-squares",
        help="a linear map (default), or the nearest words",
    )
    parser.add_argument(
        "--words",
        metavar="N",
        type=int,
        default=0,
        help="use so many of the commonest shared words (default: all)",
    )
    parser.add_argument(
        "--nearest",
        metavar="N",
        type=int,
        default=1,
        help="words for one vector, of the method words (default 1)",
    )
    parser.add_argument(
        "--ridge",
        metavar="SHARE",
        type=float,
        default=1e-6,
        help="what keeps the linear map small (default 1e-6)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a prompt in the folder")
    add_model(parser, "the model that the prompt is to be for", required=True)
    return parser
