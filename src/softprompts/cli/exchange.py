"""Prompts in and out: runs and cohorts into a library, PEFT adapters both ways, plain copies."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, listing
from ..files.names import check_free, some_place
from ..library.library import named_prompt
from .command import add_model, make_parser, output_folder, tell
from .naming import add_library, add_prompt

if TYPE_CHECKING:
    from ..tuning.api import Tuned


def take_in(argv: Sequence[str]) -> int:
    """Bring in a run, all runs below a folder, or a PEFT prompt-tuning or P-tuning adapter."""
    parser = make_parser(
        "prompts import",
        "softprompts prompts import runs/intent\n"
        "  softprompts prompts import runs --library shared/prompts      # every finished run below it, at any depth\n"
        "  softprompts prompts import runs/spot/cells/t5-tiny/source --name spot      # the source prompts of a study\n"
        "  softprompts prompts import adapter/ --model google/flan-t5-base --name theirs\n"
        "  softprompts prompts import adapter/ --text sentence --labels negative,positive --output runs/sst2",
        take_in.__doc__,
    )
    parser.add_argument(
        "source",
        metavar="FOLDER",
        type=some_place,
        help="what tune, a study, or PEFT's save_pretrained wrote",
    )
    add_library(parser)
    parser.add_argument(
        "--name",
        help="its name in the library (default: its folder's); of several, how their names begin",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a prompt of the same name, or in the --output folder",
    )
    adapter = parser.add_argument_group("PEFT adapters")
    adapter.add_argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        help="write the prompt here, not into the library",
    )
    adapter.add_argument(
        "--text",
        metavar="COLUMN",
        default="text",
        help="the column that holds the text (default text)",
    )
    adapter.add_argument("--template", help="several columns as one text, instead of --text")
    adapter.add_argument(
        "--label",
        metavar="COLUMN",
        default="label",
        help="the column that holds the label (default label)",
    )
    adapter.add_argument(
        "--labels",
        metavar="WORDS",
        help="the words it answers with, such as negative,positive; without, it writes freely",
    )
    add_model(parser, "the base model (default: the one the adapter names)")
    options = parser.parse_args(argv)

    from ..artifacts.peft import ADAPTER
    from ..artifacts.prompt_file import CARD

    if (options.source / ADAPTER).exists() or (
        options.output is not None and not (options.source / CARD).exists()
    ):
        return _take_adapter(options)
    if options.output is not None:
        raise UserError(
            "--output is for PEFT adapters; a prompt of ours is imported into a library (--library), or copied with export."
        )
    return _take_runs(options)


def _take_adapter(options: argparse.Namespace) -> int:
    from ..artifacts.run_folder import OURS
    from ..library.library import Library

    library = Library(options.library)
    if options.output is not None:
        check_free(options.output, OURS, options.overwrite)
        tuned = _adapter(options)
        for name in OURS:  # just before something new is written in their place
            (options.output / name).unlink(missing_ok=True)
        folder = tuned.save(options.output)
    else:
        name = library.free(_name(options), options.overwrite)
        tuned = _adapter(options)
        with tempfile.TemporaryDirectory() as made:
            folder = library.add(tuned.save(Path(made) / name), name, options.overwrite).folder
    said = f"{tuned.prompt.config.length} prompt vectors for {tuned.backbone.name} are in {folder}"
    tell(options, tuned.card | {"folder": str(folder)}, said)
    return 0


def _adapter(options: argparse.Namespace) -> "Tuned":
    from ..config.choice import coerce
    from ..tuning.api import import_peft

    words = (
        coerce("labels", options.labels, dict[str, str] if "=" in options.labels else list[str])
        if options.labels
        else []
    )
    return import_peft(
        options.source, options.model, template=options.template or f"{{{options.text}}}", label=options.label, labels=words,
        dtype=options.dtype, device=options.device, trust_remote_code=options.trust_remote_code,
    )  # fmt: skip


def _name(options: argparse.Namespace) -> str:
    """As it was given, or the folder's."""
    from ..files.names import safe_name

    return safe_name(options.source.resolve().name) if options.name is None else str(options.name)


def _take_runs(options: argparse.Namespace) -> int:
    """A run, or all runs in the folders below: all are looked at before the first is added."""
    from ..artifacts.prompt_file import CARD
    from ..files.names import safe_name
    from ..library.library import Library, NoVectorsError, say

    source, library, first = options.source, Library(options.library), _name(options)
    if (source / CARD).exists() or not source.is_dir():
        named, unfinished = {first: source}, list[Path]()
    else:
        try:
            runs, unfinished = _below(source, library.folder.resolve())
        except OSError as error:
            raise UserError(
                f"{error.filename} cannot be looked at ({error.strerror}); name a folder whose folders can be."
            ) from None
        named = {}
        for run in runs:
            name = f"{first}-{safe_name(run.relative_to(source).as_posix())}"
            if name in named:
                raise UserError(
                    f"Two runs below {source} would both be named {name}; import each by itself, with a --name."
                )
            named[name] = run
    if not named:
        raise UserError(
            f"{source} holds no prompt, no run that has finished, and no PEFT adapter; name a folder that tune or PEFT wrote."
        )
    useless: dict[Path, str] = {}
    for name, run in named.items():
        library.free(name, options.overwrite)
        try:
            library.check(run)
        except NoVectorsError as error:
            useless[run] = str(error)
            if len(useless) == len(named):
                raise
    named = {name: run for name, run in named.items() if run not in useless}
    entries = [library.add(run, name, options.overwrite) for name, run in named.items()]
    for reason in list(useless.values())[:10]:
        say(f"Left out: {reason}")
    if unfinished:
        say(
            f"Left out, because their runs have not finished: {listing([str(path) for path in unfinished])}."
        )
    told = [
        {"name": entry.name, "folder": str(entry.folder), "task": entry.card["task"]["name"]}
        for entry in entries
    ]
    there = (
        f"is in the library {options.library}"
        if len(named) == 1
        else f"are in the library {options.library} ({len(named)} prompts)"
    )
    result = {
        "library": str(options.library),
        "imported": told,
        "left_out": [str(path) for path in (*unfinished, *useless)],
    }
    tell(options, result, f"{listing(list(named), 10)} {there}")
    return 0


def _below(folder: Path, library: Path) -> tuple[list[Path], list[Path]]:
    """The folders of finished and of unfinished runs, at any depth; what lies in a run's folder, or in the library, is none."""
    from ..artifacts.prompt_file import CARD
    from ..artifacts.run_folder import CONFIG

    finished, unfinished = list[Path](), list[Path]()
    for path in sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    ):
        if (path / CARD).exists():
            finished.append(path)
        elif (path / CONFIG).exists():
            unfinished.append(path)
        elif not path.is_symlink() and path.resolve() != library:
            deeper = _below(path, library)
            finished += deeper[0]
            unfinished += deeper[1]
    return finished, unfinished


def export(argv: Sequence[str]) -> int:
    """Take a prompt out, as a PEFT adapter or as a plain folder."""
    examples = "softprompts prompts export runs/stars --output adapter/\n  softprompts prompts export stars --as folder --output copies/stars"
    parser = make_parser("prompts export", examples, export.__doc__)
    add_prompt(parser)
    add_library(parser)
    parser.add_argument(
        "--as",
        dest="form",
        choices=["peft", "folder"],
        default="peft",
        help="a PEFT adapter (default), or a folder of ours",
    )
    parser.add_argument(
        "--output", metavar="FOLDER", type=output_folder, required=True, help="where it goes"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    options = parser.parse_args(argv)

    from ..artifacts.peft import ADAPTER, WEIGHTS
    from ..artifacts.prompt_file import load_prompt
    from ..library.library import KEPT

    entry = named_prompt(options.prompt, options.library)
    entry.vectors()  # its embedding goes along
    folder = entry.folder
    prompt, card = load_prompt(folder)
    if folder.resolve() == options.output.resolve():
        raise UserError(f"{options.output} is where the prompt is; choose another --output.")
    check_free(
        options.output, KEPT if options.form == "folder" else (ADAPTER, WEIGHTS), options.overwrite
    )
    result = {"prompt": str(options.prompt)}
    if options.form == "folder":
        _copy(folder, options.output)
        tell(
            options,
            result | {"folder": str(options.output)},
            f"a copy of {options.prompt} is in {options.output}",
        )
    else:
        kind = _write_adapter(folder, options.output, prompt, card.get("backbone", {}))
        told = f"PeftModel.from_pretrained(model, {str(options.output)!r}) loads it on {card['backbone']['name']}"
        tell(options, result | {"adapter": str(options.output), "task_type": kind}, told)
    return 0


def _write_adapter(folder: Path, output: Path, prompt: Any, backbone: dict[str, Any]) -> str:
    from ..artifacts.peft import TASK_TYPES, write_adapter

    if str(backbone.get("family")) not in TASK_TYPES:
        raise UserError(
            f"The card of {folder} does not tell its backbone's family; tune the prompt again."
        )
    write_adapter(output, prompt, backbone["family"], str(backbone.get("name")))
    return TASK_TYPES[backbone["family"]]


def _copy(folder: Path, output: Path) -> None:
    """The card goes first out and comes in last, so that a folder with a card holds a whole prompt."""
    import shutil

    from ..files import write_atomically
    from ..library.library import KEPT

    for name in KEPT:
        (output / name).unlink(missing_ok=True)
    for name in reversed(KEPT):
        if (folder / name).exists():
            write_atomically(
                output / name, lambda beside, name=name: shutil.copyfile(folder / name, beside)
            )  # type: ignore[misc]
