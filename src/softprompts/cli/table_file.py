"""Tables that commands write: CSV, TSV, JSON lines or Parquet, by the file's suffix."""

import csv
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import write_atomically

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def check_table_file(path: Path) -> None:
    """Refuse a file that cannot be written, before long work."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"--output is {str(path)!r}; name a file that ends in {', '.join(SUFFIXES)}."
        )
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError("Writing Parquet needs pyarrow: pip install 'softprompts[data]'.")


def write_table_file(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows that all have the same columns; the file is complete or absent."""
    writers = {".jsonl": _write_jsonl, ".parquet": _write_parquet}
    write = writers.get(path.suffix.lower(), _write_csv)
    write_atomically(path, lambda temporary: write(temporary, rows))


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow([_cell(value) for value in row.values()])


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    lines = [json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    except (pyarrow.ArrowException, TypeError) as error:
        raise UserError(
            f"The rows cannot be written as Parquet ({error}); name a .csv or .jsonl file."
        ) from None
