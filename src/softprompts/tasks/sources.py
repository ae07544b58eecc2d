"""Rows from files, folders and the Hugging Face hub, each with the place it came from, so that a bad one can be named."""

import csv
import gzip
import json
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..errors import UserError
from ..files import check_readable
from ..files.hub import silence_hub


class Row(NamedTuple):
    """Column values and where they stand, as `reviews.csv:17`."""

    values: dict[str, Any]
    where: str


class NoSplitError(UserError):
    """The dataset is there, the split is not."""


class Few(NamedTuple):
    """So many rows at most, drawn by a seed; the others are read past and never held."""

    most: int
    seed: int

    def of(self, rows: Iterator[Row]) -> list[Row]:
        """A uniform sample of rows whose number is not known beforehand (a reservoir), in their order."""
        rng = random.Random(self.seed)
        kept: list[tuple[int, Row]] = []
        for number, row in enumerate(rows):
            if number < self.most:
                kept.append((number, row))
            elif (place := rng.randrange(number + 1)) < self.most:
                kept[place] = (number, row)
        return [row for _, row in sorted(kept, key=lambda entry: entry[0])]


def read_rows(
    name: str, split: str = "train", class_names: bool = True, few: Few | None = None
) -> list[Row]:
    """The rows of a CSV, TSV, JSONL or Parquet file, or of one split of a Hugging Face dataset (folder, hub id, or `id:config`)."""
    take: Callable[[Iterator[Row]], list[Row]] = list if few is None else few.of
    path = Path(name)
    reader = _reader(path)
    if reader is not None:
        if not path.is_file():
            raise UserError(f"The file {name} does not exist.")
        try:
            check_readable(path)
            rows = take(reader(path))
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8."
            ) from None
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(f"{name} is damaged ({error}); take a whole copy of it.") from None
    elif path.is_file():
        raise UserError(
            f"{name} is of no kind we read; use {', '.join(READERS)} (text files also gzipped) or a Hugging Face dataset."
        )
    else:
        rows = take(_dataset(name, split, class_names))
    if not rows:
        raise UserError(f"{name} has no rows.")
    return rows


def _comma_separated(path: Path) -> Iterator[Row]:
    """Commas; or, as other languages' spreadsheets write it, semicolons or tabs, where the header has them and no comma between cells."""
    cells = {delimiter: len(_header(path, delimiter)) for delimiter in ",;\t"}
    return _separated(
        path, "," if cells[","] > 1 else max(cells, key=lambda delimiter: cells[delimiter])
    )


def _header(path: Path, delimiter: str) -> list[str]:
    """The first cells of a file; none where they are not well-formed."""
    with _open(path) as file:
        try:
            return next(
                (cells for cells in csv.reader(file, delimiter=delimiter, strict=True) if cells), []
            )
        except csv.Error:
            return []


def _separated(path: Path, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with _open(path) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] = []
        line = 1
        try:
            for cells in reader:
                if not header:
                    header = [cell.strip() for cell in cells]
                    if len(set(header)) < len(header):
                        raise UserError(
                            f"{path}:{line} names a column twice ({', '.join(header)}); give each its own name."
                        )
                elif cells:
                    if len(cells) != len(header):
                        raise UserError(
                            f"{path}:{line} has {len(cells)} cells, but the header has {len(header)}; quote cells that hold {delimiter!r}."
                        )
                    yield Row(dict(zip(header, cells, strict=True)), f"{path}:{line}")
                line = reader.line_num + 1
        except csv.Error as error:
            raise UserError(
                f"{path}:{line} is no well-formed row ({error}); check its quotes."
            ) from None


def _lines(path: Path) -> Iterator[Row]:
    with _open(path) as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                values = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{path}:{line} is no JSON ({error}); write one object per line."
                ) from None
            if not isinstance(values, dict):
                raise UserError(
                    f'{path}:{line} is no JSON object; write one object per line, such as {{"text": "...", "label": "..."}}.'
                )
            yield Row(values, f"{path}:{line}")


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError("Reading Parquet needs pyarrow: pip install 'softprompts[data]'.") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or no Parquet file ({error}).") from None
    for number, values in enumerate(table.to_pylist(), 1):
        yield Row(values, f"{path}:{number}")


def _dataset(name: str, split: str, class_names: bool) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{name} is no file; to read it as a Hugging Face dataset, pip install 'softprompts[data]'."
        ) from None
    silence_hub()
    datasets.disable_progress_bars()
    try:
        if (Path(name) / "dataset_dict.json").exists() or (Path(name) / "state.json").exists():
            loaded = datasets.load_from_disk(name)
        else:
            place, _, config = name.partition(":")
            loaded = datasets.load_dataset(place, config or None)
    except Exception as error:  # the library raises a dozen kinds for "not there"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{name} is neither a file nor a dataset that can be loaded ({reason.rstrip('.')})."
        ) from None
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    if split not in splits:
        raise NoSplitError(f"{name} has no split {split!r}; it has {', '.join(splits)}.")
    loaded = splits[split]
    names = {
        column: feature.names
        for column, feature in loaded.features.items()
        if hasattr(feature, "names")
    }
    for number, values in enumerate(loaded):
        for column, labels in (
            names.items() if class_names else ()
        ):  # class numbers become their names
            if isinstance(values[column], int) and 0 <= values[column] < len(labels):
                values[column] = labels[values[column]]
        yield Row(values, f"{name}[{split}]:{number}")


def read_named(
    name: str, hub: str, split: str, other: str | None, folder: str | None, few: Few | None = None
) -> list[Row]:
    """A split of a named task: from `folder`/NAME, or from the hub; `other` is what the split is called where its own name is not there."""
    if folder is None:
        try:
            return read_rows(hub, other or split, class_names=False, few=few)
        except NoSplitError:
            raise
        except UserError as error:
            here = f"put them in DIR/{name} and give --data-dir DIR (or set SOFTPROMPTS_DATA)"
            raise UserError(
                f"The rows of {name} are not at hand: {str(error).rstrip('.')}; {here}."
            ) from None
    if not Path(folder).is_dir():
        raise UserError(
            f"The data folder {folder} does not exist; name another with --data-dir, or leave it out to read the hub."
        )
    home = Path(folder) / name
    if not home.is_dir():
        hub = f"leave --data-dir (and SOFTPROMPTS_DATA) out to read it from the hub as {hub}"
        raise UserError(f"{folder} holds no {name}; {hub}, or put its rows in {home}.")
    path = _file_of(home, split, other)
    if path is not None:
        return read_rows(str(path), few=few)
    has = sorted(
        {path.name.partition(".")[0] for path in home.iterdir() if _reader(path) is not None}
    )
    raise NoSplitError(f"{home} has no split {split!r}; it has {', '.join(has) or 'none'}.")


def _file_of(home: Path, split: str, other: str | None) -> Path | None:
    """The file in a named task's folder that holds a split."""
    found = (
        path
        for name in (split, other or split)
        for path in sorted(home.glob(f"{name}.*"))
        if _reader(path) is not None
    )
    return next(found, None)


def has_named(name: str, hub: str, split: str, other: str | None, folder: str | None) -> bool:
    """Whether there is something for `read_named` to read: a file, or a dataset that the hub knows. No row is read."""
    if folder is not None:
        return _file_of(Path(folder) / name, split, other) is not None
    silence_hub()
    try:
        import datasets

        place, _, config = hub.partition(":")
        datasets.load_dataset_builder(place, config or None)
    except Exception:  # it is not installed, or one of the dozen kinds that it raises
        return False
    return True


def read_predictions(path: Path) -> list[str]:
    """Predictions in order: the "prediction" of JSON lines (or lines that are JSON texts), or the lines of a plain file."""
    if not path.is_file():
        raise UserError(f"The file {path} does not exist.")
    try:
        text = path.read_text(encoding="utf-8-sig")  # "\r\n" is read as "\n"
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8."
        ) from None
    lines = text.removesuffix("\n").split("\n") if text else []
    if path.suffix.lower() not in (".jsonl", ".json"):
        return lines
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(
                f"{path}:{number} is no JSON ({error}); write one object per line."
            ) from None
        value = value.get("prediction") if isinstance(value, dict) else value
        if not isinstance(value, str):
            raise UserError(f'{path}:{number} holds no "prediction" text.')
        found.append(value)
    return found


def read_split(name: str, split: str) -> list[Row] | None:
    """The rows of a dataset's split; None where it has no such split, as a single file never has."""
    if is_file(name):
        return None
    try:
        return read_rows(name, split)
    except NoSplitError:
        return None


def is_file(name: str) -> bool:
    """Whether a name means a single file, which has no splits, and no dataset."""
    return Path(name).is_file() or _reader(Path(name)) is not None


def _reader(path: Path) -> Callable[[Path], Iterator[Row]] | None:
    """By the file's ending; a text file may be gzipped on top (`.jsonl.gz`)."""
    if path.suffix.lower() == ".gz":
        ending = path.with_suffix("").suffix.lower()
        return READERS.get(ending) if ending != ".parquet" else None
    return READERS.get(path.suffix.lower())


def _open(path: Path) -> IO[str]:
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    file: IO[str] = opener(path, "rt", encoding="utf-8-sig", newline="")
    return file


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _comma_separated,
    ".tsv": lambda path: _separated(path, "\t"),
    ".jsonl": _lines,
    ".json": _lines,
    ".parquet": _parquet,
}
