"""Tables that commands write: CSV, TSV, JSON lines or Parquet, by the file's suffix."""

import importlib.util
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import check_writable, write_atomically, write_csv, write_text

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def check_table_file(
    path: Path, source: str | None = None, rows: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Refuse a file that cannot be written, or cannot hold `rows`, before long work.

    `source` is read meanwhile.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"--output is {str(path)!r}; name a file that ends in {', '.join(SUFFIXES)}."
        )
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError("Writing Parquet needs pyarrow: pip install 'softprompts[data]'.")
    check_writable(path)
    if source and path.resolve() == Path(source).resolve():
        raise UserError("--output is the same file as --file; name another.")
    if suffix == ".parquet":
        _parquet_table(rows)


def unused_names(names: Sequence[str], columns: Collection[str]) -> Iterator[str]:
    """The names of new columns; one that a file has already gets a number."""
    for name in names:
        number, free = 2, name
        while free in columns:
            free, number = f"{name}_{number}", number + 1
        yield free


def write_table_file(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write rows, whose keys are `columns`; the file is complete or absent."""
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows]
        write_text(path, "".join(lines))
    elif suffix == ".parquet":
        write_atomically(path, lambda temporary: _write_parquet(temporary, rows))
    else:
        cells = ({name: _cell(value) for name, value in row.items()} for row in rows)
        write_csv(path, cells, columns, "\t" if suffix == ".tsv" else ",")


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(_parquet_table(rows), path)


def _parquet_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    import pyarrow

    columns = dict.fromkeys(name for row in rows for name in row)
    try:
        return pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"The rows cannot be written as Parquet ({error}); name a .csv or .jsonl file."
        ) from None
