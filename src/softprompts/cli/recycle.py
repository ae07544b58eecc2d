"""The command `softprompts prompts recycle`."""

import argparse
from functools import partial

from ..errors import UserError
from ..transfer.settings import Recycling
from .command import (
    LIBRARY_PROMPT,
    action,
    add_library,
    argument,
    check_library_prompt,
    check_model,
    model_flags,
    output_folder,
)
from .flags import add_settings, given
from .output import print_result


@action(
    "prompts recycle",
    """softprompts prompts recycle runs/stars --model models/new --output runs/stars-new
  softprompts evaluate runs/stars-new --file test.csv
  softprompts tune --task helpdesk/intent --model models/new \\
      --prompt.start prompt --prompt.start.sources runs/stars-new""",
    LIBRARY_PROMPT,
    add_library,
    argument(
        "--from-model",
        metavar="MODEL",
        help="the model it was tuned on, if the card's path or name is out of date",
    ),
    argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        required=True,
        help="the folder for the new prompt",
    ),
    argument("--overwrite", action="store_true", help="replace a prompt in the folder"),
    *model_flags("the model to map the prompt to", required=True),
    partial(add_settings, kind=Recycling, title="mapping"),
)
def main(options: argparse.Namespace) -> int:
    """Map a prompt of one model to another, without training."""
    how = Recycling.of(given(options))
    check_library_prompt(options.prompt, options.library)
    for name in filter(None, (options.from_model, options.model)):
        check_model(name)

    from ..artifacts.run_folder import RunFolder
    from ..backbone import load_backbone
    from ..library.library import named_prompt
    from ..transfer.recycle import recycle, recycled_card, shared_words

    output = RunFolder(options.output)
    if output.has_config:
        raise UserError(f"{options.output} holds a run; choose another --output.")
    output.check_overwrite(options.overwrite)
    entry = named_prompt(options.prompt, options.library)
    entry.check_vectors()
    prompt, card = RunFolder(entry.folder).load()
    card.answering()  # an error now rather than after the models are loaded
    loading = (options.dtype, options.device, options.trust_remote_code)
    source = load_backbone(options.from_model or card.backbone.name, *loading)
    if source.fingerprint != entry.fingerprint:
        other = "version of" if source.name == card.backbone.name else "model than"
        raise UserError(
            f"The prompt {options.prompt} was tuned on another {other} {source.name}; "
            "name the right one with --from-model."
        )
    target = load_backbone(options.model, *loading)
    if target.fingerprint == entry.fingerprint:
        raise UserError(
            f"The prompt {options.prompt} was tuned on {target.name} itself; use it as it is."
        )
    recycled = recycle(prompt, source, target, how)
    words = len(shared_words(source, target, how.words))
    new_card = recycled_card(card, str(options.prompt), recycled, target, how, words)
    output.clear()
    result = output.save(recycled, new_card).plain() | {"folder": str(options.output)}
    vectors = recycled.config.count * recycled.config.length
    text = (
        f"{vectors} prompt vectors of {source.name} were mapped to {target.name} by {how.method} "
        f"over {words:,} shared tokens; they are in {options.output}"
    )
    return print_result(options, result, text)
