"""Prompts in and out: runs and cohorts into a library, PEFT adapters both ways, plain copies."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, listing
from ..files.names import check_overwrite, checked_path
from ..library.library import named_prompt
from .command import add_model, make_parser, output_folder, tell
from .naming import add_library, add_prompt

if TYPE_CHECKING:
    from ..artifacts.card import BackboneCard
    from ..tuning.tuned import Tuned


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
        type=checked_path,
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
    from ..artifacts.run_folder import RunFolder

    if (options.source / ADAPTER).exists() or (
        options.output is not None and not RunFolder(options.source).has_prompt
    ):
        return _take_adapter(options)
    if options.output is not None:
        raise UserError(
            "--output is for PEFT adapters; a prompt of ours is imported into a library (--library), or copied with export."
        )
    return _take_runs(options)


def _take_adapter(options: argparse.Namespace) -> int:
    from ..artifacts.run_folder import RunFolder
    from ..library.library import Library

    library = Library(options.library)
    if options.output is not None:
        output = RunFolder(options.output)
        output.check_no_run(options.overwrite)
        tuned = _adapter(options)
        output.clear()
        folder = tuned.save(options.output)
    else:
        name = _name(options)
        library.check_free(name, options.overwrite)
        tuned = _adapter(options)
        with tempfile.TemporaryDirectory() as made:
            folder = library.add(tuned.save(Path(made) / name), name, options.overwrite).folder
    said = f"{tuned.prompt.config.length} prompt vectors for {tuned.backbone.name} are in {folder}"
    tell(options, tuned.card.plain() | {"folder": str(folder)}, said)
    return 0


def _adapter(options: argparse.Namespace) -> "Tuned":
    from ..config.schema import Schema, coerce
    from ..tuning.tuned import import_peft

    text: Schema = {"type": "string"}
    pairs: Schema = {"type": "object", "additionalProperties": text}
    words = []
    if options.labels:
        schema = pairs if "=" in options.labels else {"type": "array", "items": text}
        words = coerce("task.labels", options.labels, schema)
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
    from ..artifacts.run_folder import RunFolder
    from ..files.names import safe_name
    from ..library.entry import NoVectorsError
    from ..library.library import Library, print_warning

    source, library, first = options.source, Library(options.library), _name(options)
    if RunFolder(source).has_prompt or not source.is_dir():
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
        library.check_free(name, options.overwrite)
        try:
            library.check_prompt(run)
        except NoVectorsError as error:
            useless[run] = str(error)
            if len(useless) == len(named):
                raise
    named = {name: run for name, run in named.items() if run not in useless}
    entries = [library.add(run, name, options.overwrite) for name, run in named.items()]
    for reason in list(useless.values())[:10]:
        print_warning(f"Left out: {reason}")
    if unfinished:
        print_warning(
            f"Left out, because their runs have not finished: {listing([str(path) for path in unfinished])}."
        )
    told = [
        {"name": entry.name, "folder": str(entry.folder), "task": entry.card.task.name}
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
    from ..artifacts.run_folder import RunFolder

    finished, unfinished = list[Path](), list[Path]()
    for path in sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    ):
        if RunFolder(path).has_prompt:
            finished.append(path)
        elif RunFolder(path).has_config:
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
    from ..artifacts.run_folder import RunFolder

    entry = named_prompt(options.prompt, options.library)
    entry.vectors()  # its embedding goes along
    folder, output = RunFolder(entry.folder), RunFolder(options.output)
    prompt, card = folder.load()
    if entry.folder.resolve() == options.output.resolve():
        raise UserError(f"{options.output} is where the prompt is; choose another --output.")
    result = {"prompt": str(options.prompt)}
    if options.form == "folder":
        output.check_copy(options.overwrite)
        folder.copy_prompt(options.output)
        tell(
            options,
            result | {"folder": str(options.output)},
            f"a copy of {options.prompt} is in {options.output}",
        )
    else:
        check_overwrite(options.output, (ADAPTER, WEIGHTS), options.overwrite)
        kind = _write_adapter(entry.folder, options.output, prompt, card.backbone)
        told = (
            f"PeftModel.from_pretrained(model, {str(options.output)!r}) "
            f"loads it on {card.backbone.name}"
        )
        tell(options, result | {"adapter": str(options.output), "task_type": kind}, told)
    return 0


def _write_adapter(folder: Path, output: Path, prompt: Any, backbone: "BackboneCard") -> str:
    from ..artifacts.peft import write_adapter

    if backbone.family is None:
        raise UserError(
            f"The card of {folder} does not name its backbone's family; tune the prompt again."
        )
    return write_adapter(output, prompt, backbone.family, backbone.name)
