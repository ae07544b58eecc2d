"""Rows from files and Hugging Face datasets, each with its location, so that errors can name it."""

import codecs
import csv
import gzip
import json
import math
import numbers
import random
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..errors import UserError, counted, require, setting
from ..files import check_readable, similar_path
from ..files.hub import missing_reason, offline_reason, prepare_hub


class Row(NamedTuple):
    """The values of a row by column, and its location, such as `reviews.csv:17`."""

    values: dict[str, Any]
    location: str


UTF_8 = "utf-8"
UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How a file begins that a spreadsheet saved as "Unicode text"."""
Reader = Callable[[Path, str], Iterator[Row]]
"""Reads the rows of a file in an encoding."""


class NoSplitError(UserError):
    """The dataset exists, but has no such split."""


class MemoryRows(NamedTuple):
    """Rows passed from Python (`memory.py`)."""

    title: str
    splits: dict[str, list[Row]]
    """Rows by split; those of a single table under the empty name."""

    def split(self, name: str) -> list[Row]:
        if name not in self.splits and "" not in self.splits:
            raise NoSplitError(
                f"{self.title} has no split {name!r}; it has {', '.join(self.splits)}."
            )
        return self.splits.get("", self.splits.get(name, []))


MEMORY = "memory:"
"""How the names of rows passed from Python begin."""
memory: dict[str, MemoryRows] = {}
"""The rows passed from Python, by name."""
NARROW_FLOATS = {
    "float32": "float32",
    "float": "float32",
    "float16": "float16",
    "halffloat": "float16",
}
"""Floats of lower precision than Python's: their names, those in Arrow too, and in numpy."""


class Reservoir(NamedTuple):
    """A uniform sample of at most `size` rows, without holding the others in memory."""

    size: int
    seed: int

    def sample(self, rows: Iterable[Row]) -> list[Row]:
        """Sample rows whose number is not known in advance (algorithm R); their order is kept."""
        rng = random.Random(self.seed)
        sampled: list[tuple[int, Row]] = []
        for number, row in enumerate(rows):
            if number < self.size:
                sampled.append((number, row))
            elif (slot := rng.randrange(number + 1)) < self.size:
                sampled[slot] = (number, row)
        return [row for _, row in sorted(sampled, key=lambda entry: entry[0])]


def read_rows(
    name: str,
    split: str = "train",
    class_names: bool = True,
    reservoir: Reservoir | None = None,
    encoding: str = UTF_8,
) -> list[Row]:
    """The rows of a CSV, TSV, JSON or Parquet file, or of one split of a Hugging Face dataset.

    A dataset is a folder, a Hub id, or `id:config`. With `class_names`, its class numbers become
    class names. With a `reservoir`, only a sample of the rows is returned.
    """
    take: Callable[[Iterator[Row]], list[Row]] = list if reservoir is None else reservoir.sample
    if re.match(r"[a-z0-9]+://", name, re.IGNORECASE):
        raise UserError(f"{name} is a web address; download it, and name the file.")
    path = Path(name)
    reader = reader_for(path)
    if name.startswith(MEMORY):
        if name not in memory:
            raise UserError(
                f"The rows {name} were passed from Python and are not in memory now; pass the same "
                "data again in Python, or name a file with the rows."
            )
        rows = take(iter(memory[name].split(split)))
    elif reader is not None:
        if not path.is_file():
            raise UserError(f"The file {name} does not exist.{similar_path(path)}")
        try:
            check_readable(path)
            rows = take(reader(path, checked_encoding(encoding)))
        except UnicodeError as error:
            raise _undecodable(path, error, encoding) from None
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(f"{name} is corrupted ({error}); copy it again.") from None
    elif path.is_file():
        raise UserError(
            f"{name} has an unsupported file type; use {', '.join(READERS)} "
            "(text files may be gzipped) or a Hugging Face dataset."
        )
    else:
        rows = take(_read_dataset(name, split, class_names))
    if not rows:
        source = memory[name].title if name in memory else name
        raise UserError(f"{source} has no rows.")
    return rows


def read_split(name: str, split: str, encoding: str = UTF_8) -> list[Row] | None:
    """The rows of a dataset's split, or None if it has no such split; a single file has none."""
    if is_file(name):
        return None
    try:
        return read_rows(name, split, encoding=encoding)
    except NoSplitError:
        return None


def is_file(name: str) -> bool:
    """Whether a name refers to a single file or table, not to a dataset with splits."""
    if name.startswith(MEMORY):
        return name not in memory or "" in memory[name].splits
    return Path(name).is_file() or reader_for(Path(name)) is not None


def reader_for(path: Path) -> Reader | None:
    """The reader for a file's suffix; text files may be gzipped as well (`.jsonl.gz`)."""
    zipped = path.suffix.lower() == ".gz"
    suffix = (path.with_suffix("") if zipped else path).suffix.lower()
    return None if zipped and suffix == ".parquet" else READERS.get(suffix)


def read_predictions(path: Path) -> list[str]:
    """Predictions in order: from JSON lines (a string, or `"prediction"`), or lines of text."""
    if not path.is_file():
        raise UserError(f"The file {path} does not exist.{similar_path(path)}")
    check_readable(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # reads "\r\n" as "\n"
    except UnicodeDecodeError as error:
        raise _undecodable(path, error, UTF_8) from None
    lines = text.removesuffix("\n").split("\n") if text else []
    if path.suffix.lower() not in (".jsonl", ".json"):
        return lines
    predictions = []
    for location, value in _json_lines(path, lines):
        value = value.get("prediction") if isinstance(value, dict) else value
        if not isinstance(value, str):
            raise UserError(f'{location} holds no "prediction" string.')
        predictions.append(value)
    return predictions


def _read_csv(path: Path, encoding: str) -> Iterator[Row]:
    """Commas; or semicolons or tabs, as some spreadsheets write, if the header has no commas."""
    cells = {delimiter: len(_header(path, encoding, delimiter)) for delimiter in ",;\t"}
    most = max(cells, key=lambda delimiter: cells[delimiter])
    return _read_delimited(path, encoding, "," if cells[","] > 1 else most)


def _header(path: Path, encoding: str, delimiter: str) -> list[str]:
    """The first non-empty row of a file; empty if it is malformed."""
    with _open(path, encoding) as file:
        try:
            return next(filter(None, csv.reader(file, delimiter=delimiter, strict=True)), [])
        except csv.Error:
            return []


def _read_delimited(path: Path, encoding: str, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with _open(path, encoding) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header, line = list[str](), 1
        try:
            for cells in reader:
                if not header:
                    header = [cell.strip() for cell in cells]
                    if len(set(header)) < len(header):
                        twice = max(header, key=header.count)
                        problem = f"two columns of the same name ({twice[:40]}); rename one"
                        if not twice:  # a spreadsheet's empty columns
                            problem = "several columns without a name; name or remove them"
                        raise UserError(f"{path}:{line} has {problem}.")
                elif cells:
                    if len(cells) != len(header):
                        raise UserError(
                            f"{path}:{line} has {counted(len(cells), 'cell')}, but the header has "
                            f"{len(header)}; quote cells that contain {delimiter!r}."
                        )
                    yield Row(dict(zip(header, cells, strict=True)), f"{path}:{line}")
                line = reader.line_num + 1
        except csv.Error as error:
            raise UserError(f"{path}:{line} is malformed ({error}); check its quotes.") from None


def _read_json(path: Path, encoding: str) -> Iterator[Row]:
    """An array of objects, or one object per line, as some `.json` files hold."""
    with _open(path, encoding) as file:
        is_array = next((line for line in file if line.strip()), "").lstrip().startswith("[")
    if not is_array:
        yield from _read_jsonl(path, encoding)
        return
    with _open(path, encoding) as file:
        try:
            array = json.load(file, parse_constant=_json_constant)
        except (ValueError, RecursionError) as error:
            if isinstance(error, UnicodeError):
                raise
            raise UserError(f"{path} is not valid JSON ({error}); correct the file.") from None
    for number, values in enumerate(array, 1):
        if not isinstance(values, dict):
            raise UserError(
                f"{path}:{number} is not a JSON object; write an array of objects, "
                'such as [{"text": "...", "label": "..."}].'
            )
        yield Row(values, f"{path}:{number}")


def _read_jsonl(path: Path, encoding: str) -> Iterator[Row]:
    with _open(path, encoding) as file:
        for location, values in _json_lines(path, file):
            if not isinstance(values, dict):
                raise UserError(
                    f"{location} is not a JSON object; write one object per line, "
                    'such as {"text": "...", "label": "..."}.'
                )
            yield Row(values, location)


def _json_lines(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The location and value of each line that is not blank."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield f"{path}:{number}", json.loads(line, parse_constant=_json_constant)
            except (ValueError, RecursionError) as error:
                reason = str(error)
                if isinstance(error, json.JSONDecodeError):
                    reason = f"{error.msg} at character {error.pos + 1}"
                raise UserError(
                    f"{path}:{number} is not valid JSON ({reason}); write one object per line."
                ) from None


def _json_constant(name: str) -> float | None:
    """The value of `NaN`, `Infinity` or `-Infinity`, which JSON does not have; NaN is missing."""
    return None if name == "NaN" else float(name)


def _read_parquet(path: Path, encoding: str) -> Iterator[Row]:
    parquet = require(
        "pyarrow.parquet", "Reading Parquet needs pyarrow: pip install 'softprompts[data]'."
    )
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is corrupted or not a Parquet file ({error}).") from None
    types = dict(zip(table.column_names, table.schema.types, strict=True))
    for number, values in enumerate(table.to_pylist(), 1):
        yield Row(as_written(values, types), f"{path}:{number}")


def check_dataset(name: str) -> None:
    """Refuse a dataset that is neither on this machine nor can be downloaded."""
    files = Path(name).rglob("*")
    if Path(name).is_dir() and not any(file.suffix.lower() in DATASET_FILES for file in files):
        raise UserError(
            f"The folder {name} holds no data; name a file ({', '.join(READERS)}) "
            "or the folder of a Hugging Face dataset."
        )
    if (reason := missing_reason(name.partition(":")[0], "dataset")) is not None:
        raise _no_dataset(name, reason)


def _no_dataset(name: str, reason: str) -> UserError:
    return UserError(
        f"{name} is neither a file nor a dataset that can be loaded ({reason.rstrip('.')})."
    )


def _read_dataset(name: str, split: str, class_names: bool) -> Iterator[Row]:
    check_dataset(name)  # importing the library takes seconds
    datasets = require(
        "datasets",
        f"{name} is not a file; to read it as a Hugging Face dataset, "
        "pip install 'softprompts[data]'.",
    )
    prepare_hub(name)
    datasets.disable_progress_bars()
    try:
        if (Path(name) / "dataset_dict.json").exists() or (Path(name) / "state.json").exists():
            loaded = datasets.load_from_disk(name)
        else:
            identifier, _, config = name.partition(":")
            loaded = datasets.load_dataset(identifier, config or None)
    except Exception as error:  # the library raises a dozen types for a missing dataset
        if Path(name).is_dir():
            raise UserError(
                f"The folder {name} is not a Hugging Face dataset; name one, or a file with rows "
                f"({', '.join(READERS)})."
            ) from None
        reason = offline_reason(name, "dataset") or (
            str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        )
        raise _no_dataset(name, reason) from None
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    if split not in splits:
        raise NoSplitError(f"{name} has no split {split!r}; it has {', '.join(splits)}.")
    for number, values in enumerate(dataset_rows(splits[split], class_names)):
        yield Row(values, f"{name}[{split}]:{number}")


def dataset_rows(dataset: Any, class_names: bool = True) -> Iterator[dict[str, Any]]:
    """The rows of a Hugging Face dataset. With `class_names`, class numbers become names, and -1,
    which stands for an unlabelled row, an empty cell."""
    features = dataset.features or {}
    types = {column: getattr(feature, "dtype", None) for column, feature in features.items()}
    names = {
        column: feature.names
        for column, feature in features.items()
        if class_names and hasattr(feature, "names")
    }
    for values in dataset:
        for column, labels in names.items():
            value = values.get(column)  # a view of the dataset may hide columns
            if isinstance(value, int) and -1 <= value < len(labels):
                values[column] = [*labels, None][value]
        yield as_written(values, types)


def as_written(values: Mapping[Any, Any], types: Mapping[Any, object]) -> dict[Any, Any]:
    """A row as a text file holds it: NaN as an empty cell, and floats of lower precision, by the
    types of their columns, with their own digits (3.2, not 3.200000047683716)."""
    row = {column: None if is_nan(value) else value for column, value in values.items()}
    for column, value in row.items():
        name = str(getattr(value, "dtype", types.get(column))).lower()
        precision = NARROW_FLOATS.get(name.removeprefix("torch.").removesuffix("[pyarrow]"))
        is_number = isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
        if precision is not None and is_number:
            import numpy

            row[column] = float(str(numpy.dtype(precision).type(value)))
    return row


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def checked_encoding(name: str) -> str:
    """An encoding as Python knows it; UTF-8 may begin with a byte order mark."""
    try:
        known = codecs.lookup(name).name
    except LookupError:
        raise UserError(
            f"There is no encoding {name!r}; {setting('task.encoding')} is a name such as "
            "latin-1, cp1252 or utf-16."
        ) from None
    return "utf-8-sig" if known == UTF_8 else known


def _undecodable(path: Path, error: UnicodeError, encoding: str) -> UserError:
    reason = ""
    if isinstance(error, UnicodeDecodeError):
        reason = f" ({error.reason} at byte {error.start})"
    likely = "cp1252"
    if isinstance(error, UnicodeDecodeError) and error.object[:2] in UTF_16_MARKS:
        likely = "utf-16"
    return UserError(
        f"{path} is not {encoding.upper()} text{reason}; save it as UTF-8, or name its encoding, "
        f"such as {setting('task.encoding', likely)}."
    )


def _open(path: Path, encoding: str) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


READERS: dict[str, Reader] = {
    ".csv": _read_csv,
    ".tsv": lambda path, encoding: _read_delimited(path, encoding, "\t"),
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
DATASET_FILES = frozenset(
    {
        *READERS,
        *(".ndjson", ".arrow", ".txt", ".xml", ".lance", ".h5", ".hdf5"),
        *(".gz", ".bz2", ".xz", ".zst", ".zip", ".tar"),
    }
)
"""The files that a folder with a Hugging Face dataset of texts may consist of."""
