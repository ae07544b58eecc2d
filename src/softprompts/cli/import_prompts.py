"""The command `softprompts prompts import`: runs, cohorts and PEFT adapters into a library."""

import argparse
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Schema, coerce
from ..errors import UserError, listing
from ..files import checked_path, safe_name
from .command import action, add_library, argument, grouped, model_flags, output_folder
from .output import print_result

if TYPE_CHECKING:
    from ..library.library import Library
    from ..tuning.tuned import Tuned

_SETTINGS = re.compile(r"_(?=[a-z.-]+=)")
"""Between the settings in the name of a cohort's run, `task=stars_seed=0`."""
WARNINGS = 10
"""The most runs without vectors that are reported one by one."""


@action(
    "prompts import",
    """softprompts prompts import runs/intent
  softprompts prompts import runs --library shared/prompts      # all finished runs below it
  softprompts prompts import runs/spot/cells/t5-tiny/source --name spot      # of a study
  softprompts prompts import adapter/ --model google/flan-t5-base --name theirs
  softprompts prompts import adapter/ --text sentence --labels negative,positive --output runs/a""",
    argument(
        "source",
        metavar="FOLDER",
        type=checked_path,
        help="what tune, a study, or PEFT's save_pretrained wrote",
    ),
    add_library,
    argument(
        "--name",
        help="its name in the library (default: its folder's); for several prompts, a prefix",
    ),
    argument(
        "--overwrite",
        action="store_true",
        help="replace a prompt of the same name, or in the --output folder",
    ),
    *model_flags("the base model (default: the one that the adapter names)"),
    grouped(
        argument(
            "--output",
            metavar="FOLDER",
            type=output_folder,
            help="write the prompt here instead of into the library",
        ),
        argument(
            "--text",
            metavar="COLUMN",
            default="text",
            help="the column that holds the text (default text)",
        ),
        argument("--template", help="several columns as one text, instead of --text"),
        argument(
            "--label",
            metavar="COLUMN",
            default="label",
            help="the column that holds the label (default label)",
        ),
        argument(
            "--labels",
            metavar="WORDS",
            help="the words it answers with, such as negative,positive (default: any text)",
        ),
        title="PEFT adapters",
    ),
)
def main(options: argparse.Namespace) -> int:
    """Import a run, all runs below a folder, or a PEFT prompt-tuning or P-tuning adapter."""
    from ..artifacts.peft import ADAPTER
    from ..artifacts.run_folder import RunFolder

    is_run = RunFolder(options.source).has_prompt
    if (options.source / ADAPTER).exists() or (options.output is not None and not is_run):
        return _import_adapter(options)
    if options.output is not None:
        raise UserError(
            "--output is for PEFT adapters; import a softprompts prompt into a library (--library),"
            " or copy it with export."
        )
    return _import_runs(options)


def _import_adapter(options: argparse.Namespace) -> int:
    from ..artifacts.run_folder import RunFolder
    from ..library.library import Library

    if options.output is not None:
        output = RunFolder(options.output)
        output.check_overwrite(options.overwrite)
        tuned = _load_adapter(options)
        output.clear()
        folder = tuned.save(options.output)
    else:
        library, name = Library(options.library), _name(options)
        library.check_free(name, options.overwrite)
        tuned = _load_adapter(options)
        with tempfile.TemporaryDirectory() as temporary:
            folder = library.add(tuned.save(Path(temporary) / name), name, options.overwrite).folder
    text = f"{tuned.prompt.config.length} prompt vectors for {tuned.backbone.name} are in {folder}"
    return print_result(options, tuned.card.plain() | {"folder": str(folder)}, text)


def _load_adapter(options: argparse.Namespace) -> "Tuned":
    from ..tuning.tuned import import_peft

    text: Schema = {"type": "string"}
    pairs: Schema = {"type": "object", "additionalProperties": text}
    labels = []
    if options.labels:
        schema = pairs if "=" in options.labels else {"type": "array", "items": text}
        labels = coerce("task.labels", options.labels, schema)
    return import_peft(
        options.source,
        options.model,
        template=options.template or f"{{{options.text}}}",
        label=options.label,
        labels=labels,
        dtype=options.dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )


def _name(options: argparse.Namespace) -> str:
    return safe_name(options.source.resolve().name) if options.name is None else str(options.name)


def _import_runs(options: argparse.Namespace) -> int:
    """Import a run, or all runs below a folder; all are checked before the first is added, and
    those that the library holds already are left as they are."""
    from ..library.library import Library, print_warning

    library = Library(options.library)
    runs, unfinished = _named_runs(options, library.folder)
    there = [name for name, run in runs.items() if library.holds_copy(name, run)]
    there = [] if options.overwrite else there
    without_vectors = _check_runs(runs, there, library, options.overwrite)
    new = {
        name: run for name, run in runs.items() if name not in there and run not in without_vectors
    }
    entries = [library.add(run, name, options.overwrite) for name, run in new.items()]
    for reason in list(without_vectors.values())[:WARNINGS]:
        print_warning(f"Left out: {reason.rpartition(';')[0]}.")
    if unfinished:
        print_warning(f"Left out, because unfinished: {listing([*map(str, unfinished)])}.")
    result = {
        "library": str(options.library),
        "imported": [
            {"name": entry.name, "folder": str(entry.folder), "task": entry.card.task.name}
            for entry in entries
        ],
        "already_there": there,
        "left_out": [str(path) for path in (*unfinished, *without_vectors)],
    }
    return print_result(
        options,
        result,
        _where(list(new), "in", options.library) if new else None,
        _where(there, "already in", options.library) if there else None,
    )


def _where(names: list[str], where: str, library: Path) -> str:
    are, count = ("are", f" ({len(names)} prompts)") if len(names) > 1 else ("is", "")
    return f"{listing(names, 10)} {are} {where} the library {library}{count}"


def _named_runs(options: argparse.Namespace, library: Path) -> tuple[dict[str, Path], list[Path]]:
    """The folders of finished runs by their names in the library, and those of unfinished runs."""
    from ..artifacts.run_folder import RunFolder

    source, prefix = options.source, _name(options)
    if RunFolder(source).has_prompt or not source.is_dir():
        return {prefix: source}, []
    try:
        below = list(_runs_below(source, library.resolve()))
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be read ({error.strerror}); "
            "name a folder whose subfolders can be read."
        ) from None
    finished = [run for run in below if RunFolder(run).has_prompt]
    if not finished:
        raise UserError(
            f"{source} holds no prompt, no finished run and no PEFT adapter; "
            "name a folder that tune or PEFT wrote."
        )
    runs: dict[str, Path] = {}
    for run in finished:
        name = _library_name(run.relative_to(source), prefix, options.name is None)
        if name in runs:
            raise UserError(
                f"Two runs below {source} would both be named {name}; "
                "import each by itself, with a --name."
            )
        runs[name] = run
    return runs, [run for run in below if run not in finished]


def _library_name(path: Path, prefix: str, by_default: bool) -> str:
    """The name of a run at `path` below the imported folder, whose name is the prefix by default.

    That prefix is left out of a run directly below it, unless only settings name the run:
    `runs/stars` becomes `stars`, `runs/all/task=stars_seed=0` becomes `stars-seed0`, and
    `runs/stars/seed=0` becomes `stars-seed0`.
    """
    settings = _SETTINGS.split(path.name) if "=" in path.name else []
    words = [
        setting.removeprefix("task=").removeprefix("preset=").replace("=", "")
        for setting in settings
    ]
    name = safe_name("-".join([*path.parent.parts, *(words or [path.name])]))
    itself = by_default and len(path.parts) == 1 and (not settings or settings[0][:5] == "task=")
    return name if itself else f"{prefix}-{name}"


def _check_runs(
    runs: dict[str, Path], there: list[str], library: "Library", overwrite: bool
) -> dict[Path, str]:
    """Check that the library can take the runs that are not `there`; those without vectors, and
    why, unless all are."""
    from ..library.library import NoVectorsError

    without_vectors: dict[Path, str] = {}
    for name, run in runs.items():
        if name in there:
            continue
        library.check_free(name, overwrite)
        try:
            library.check_prompt(run)
        except NoVectorsError as error:
            without_vectors[run] = str(error)
            if len(without_vectors) == len(runs):
                raise
    return without_vectors


def _runs_below(folder: Path, library: Path) -> Iterator[Path]:
    """The folders of runs, finished or not, at any depth, but not inside a run's folder or the
    library."""
    from ..artifacts.run_folder import RunFolder

    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.name.startswith("."):
            continue
        if RunFolder(path).has_prompt or RunFolder(path).has_config:
            yield path
        elif not path.is_symlink() and path.resolve() != library:
            yield from _runs_below(path, library)
