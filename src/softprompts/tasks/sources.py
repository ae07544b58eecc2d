"""Rows from files, folders and the Hugging Face hub, each with the place it came from, so that a bad one can be named."""

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..errors import UserError


class Row(NamedTuple):
    """Column values and where they stand, as `reviews.csv:17`."""

    values: dict[str, Any]
    where: str


class NoSplitError(UserError):
    """The dataset is there, the split is not."""


def read_rows(name: str, split: str = "train") -> list[Row]:
    """The rows of a CSV, TSV, JSONL or Parquet file, or of one split of a Hugging Face dataset (folder, hub id, or `id:config`)."""
    path = Path(name)
    reader = _reader(path)
    if reader is not None:
        if not path.is_file():
            raise UserError(f"The file {name} does not exist.")
        try:
            rows = list(reader(path))
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8.") from None
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(f"{name} is damaged ({error}); take a whole copy of it.") from None
    elif path.is_file():
        raise UserError(f"{name} is of no kind we read; use {', '.join(READERS)} (text files also gzipped) or a Hugging Face dataset.")
    else:
        rows = list(_dataset(name, split))
    if not rows:
        raise UserError(f"{name} has no rows.")
    return rows


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
                        raise UserError(f"{path}:{line} names a column twice ({', '.join(header)}); give each its own name.")
                elif cells:
                    if len(cells) != len(header):
                        raise UserError(
                            f"{path}:{line} has {len(cells)} cells, but the header has {len(header)}; quote cells that hold {delimiter!r}."
                        )
                    yield Row(dict(zip(header, cells, strict=True)), f"{path}:{line}")
                line = reader.line_num + 1
        except csv.Error as error:
            raise UserError(f"{path}:{line} is no well-formed row ({error}); check its quotes.") from None


def _lines(path: Path) -> Iterator[Row]:
    with _open(path) as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                values = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}:{line} is no JSON ({error}); write one object per line.") from None
            if not isinstance(values, dict):
                raise UserError(f'{path}:{line} is no JSON object; write one object per line, such as {{"text": "...", "label": "..."}}.')
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


def _dataset(name: str, split: str) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise UserError(f"{name} is no file; to read it as a Hugging Face dataset, pip install 'softprompts[data]'.") from None
    try:
        if (Path(name) / "dataset_dict.json").exists() or (Path(name) / "state.json").exists():
            loaded = datasets.load_from_disk(name)
        else:
            place, _, config = name.partition(":")
            loaded = datasets.load_dataset(place, config or None)
    except Exception as error:  # the library raises a dozen kinds for "not there"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{name} is neither a file nor a dataset that can be loaded ({reason})") from None
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    if split not in splits:
        raise NoSplitError(f"{name} has no split {split!r}; it has {', '.join(splits)}.")
    loaded = splits[split]
    names = {column: feature.names for column, feature in loaded.features.items() if hasattr(feature, "names")}
    for number, values in enumerate(loaded):
        for column, labels in names.items():  # class numbers become their names
            if isinstance(values[column], int) and 0 <= values[column] < len(labels):
                values[column] = labels[values[column]]
        yield Row(values, f"{name}[{split}]:{number}")


def read_split(name: str, split: str) -> list[Row] | None:
    """The rows of a dataset's split; None where it has no such split, as a single file never has."""
    if Path(name).is_file() or _reader(Path(name)) is not None:
        return None
    try:
        return read_rows(name, split)
    except NoSplitError:
        return None


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
    ".csv": lambda path: _separated(path, ","),
    ".tsv": lambda path: _separated(path, "\t"),
    ".jsonl": _lines,
    ".json": _lines,
    ".parquet": _parquet,
}
