"""The rows and examples of named tasks: from a data folder, the Hub, or the definition itself."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..config import TaskConfig
from ..errors import UserError, setting
from .registry import definition
from .sources import NoSplitError, Reservoir, Row, check_dataset, read_rows, reader_for
from .task_definition import Definition, Example, is_labelled
from .text_format import TextFormat

DATA_VARIABLE = "SOFTPROMPTS_DATA"


def data_folder(config: TaskConfig) -> str | None:
    """The folder with the rows of named tasks; None to read them from the Hub."""
    return config.data_dir or os.environ.get(DATA_VARIABLE) or None


def named_format(
    task: Definition, task_word: bool = True, words: Mapping[str, str] | None = None
) -> TextFormat:
    """The format of a named task; `words` replace some of its label words."""
    labels = {word: (words or {}).get(word, word) for word in task.labels}
    return TextFormat("", "", labels, task.name, task_word)


def named_split(
    task: Definition,
    split: str,
    folder: str | None,
    task_word: bool = True,
    skip_bad: bool = False,
    reservoir: Reservoir | None = None,
    words: Mapping[str, str] | None = None,
) -> list[Example]:
    """The examples of one split of a named task, in the official order."""
    rows = _split_rows(task, split, folder, reservoir)
    return named_format(task, task_word, words).examples(rows, skip_bad, split)


def has_rows(name: str, folder: str | None) -> bool:
    """Whether a task's training rows are available, without reading them."""
    task = definition(name)
    try:
        check_available(task, folder)
        if task.rows is None and not task.files and folder is None:
            import datasets

            identifier, _, config = task.hub.partition(":")
            datasets.load_dataset_builder(identifier, config or None)
    except Exception:  # not installed, or one of the dozen types that it raises
        return False
    return True


def check_available(task: Definition, folder: str | None) -> None:
    """Refuse a task whose training rows are nowhere to be found, without reading them."""
    if task.rows is not None or task.files:
        return
    if folder is not None:
        _local_file(task, "train", Path(folder))
    else:
        with _advice(task):
            check_dataset(task.hub)


def check_labelled(name: str, split: str, examples: Sequence[Example]) -> None:
    """Raise if an example has no label: its target would match any prediction that is not one."""
    if not all(map(is_labelled, examples)):
        raise UserError(
            f"{name} has unlabelled rows in {split}, so it cannot be scored; "
            f"choose another {setting('split')}."
        )


def _split_rows(
    task: Definition, split: str, folder: str | None, reservoir: Reservoir | None
) -> list[Row]:
    if task.rows is not None:
        rows = [
            Row(dict(values), f"{task.name}[{split}]:{number}")
            for number, values in enumerate(task.rows(split))
        ]
        if not rows:
            raise NoSplitError(f"{task.name} has no split {split!r}.")
        return rows if reservoir is None else reservoir.sample(rows)
    if task.files:
        if split not in task.files:
            raise NoSplitError(
                f"{task.name} has no split {split!r}; it has {', '.join(task.files)}."
            )
        return read_rows(task.files[split], reservoir=reservoir)
    if folder is not None:
        return read_rows(str(_local_file(task, split, Path(folder))), reservoir=reservoir)
    with _advice(task):
        return read_rows(task.hub, task.splits.get(split, split), False, reservoir)


@contextmanager
def _advice(task: Definition) -> Iterator[None]:
    """Inside, an error of the Hub says what to do about it."""
    try:
        yield
    except NoSplitError:
        raise
    except UserError as error:
        raise UserError(
            f"The rows of {task.name} are not available: {error.message.rstrip('.')}; "
            f"put them in DIR/{task.name} and give {setting('task.data_dir', 'DIR')} "
            f"(or set {DATA_VARIABLE})."
        ) from None


def _local_file(task: Definition, split: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise UserError(
            f"The data folder {folder} does not exist; name another with "
            f"{setting('task.data_dir')}, or leave it out to read from the Hub."
        )
    task_folder = folder / task.name
    if not task_folder.is_dir():
        raise UserError(
            f"{folder} does not hold {task.name}; leave out {setting('task.data_dir')} "
            f"(and {DATA_VARIABLE}) to read it from the Hub as {task.hub}, "
            f"or put its rows in {task_folder}."
        )
    path = _split_file(task_folder, task, split)
    if path is None:
        files = [path for path in task_folder.iterdir() if reader_for(path) is not None]
        has = ", ".join(sorted({path.name.partition(".")[0] for path in files})) or "none"
        raise NoSplitError(f"{task_folder} has no split {split!r}; it has {has}.")
    return path


def _split_file(folder: Path, task: Definition, split: str) -> Path | None:
    """The file of a split in a task's folder, by its own name or by that on the Hub."""
    names = (split, task.splits.get(split, split))
    paths = (path for name in names for path in sorted(folder.glob(f"{name}.*")))
    return next(filter(reader_for, paths), None)
