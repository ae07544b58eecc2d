"""Rows passed from Python: DataFrames, datasets, lists of rows, texts with labels.

Settings stay plain data: the rows are registered under a name made of a hash of their content,
`memory:DIGEST`, which settings, cards and config files hold. To resume such a run, or to use its
config file, pass the same rows again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import UserError, setting
from .sources import MEMORY, MemoryRows, Row, as_written, dataset_rows, is_nan, memory

TEXT, LABEL = "text", "label"
"""The columns of `(texts, labels)`."""


def register_data(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with data in `train` and `validation` registered and replaced by its name."""
    settings = dict(settings)
    task = settings.get("task")
    if isinstance(task, Mapping):
        settings["task"] = register_data(task)
    elif isinstance(task, list):
        settings["task"] = [
            register_data(part) if isinstance(part, Mapping) else part for part in task
        ]
    for name in ("train", "validation"):
        data = settings.get(name)
        if data is None or isinstance(data, str | os.PathLike) or _are_files(data):
            continue
        settings[name] = register_rows(data, f"task.{name}")
        if is_pair(data) and settings.get("template") is None:
            settings = {TEXT: TEXT, LABEL: LABEL, **settings}
    return settings


def _are_files(data: Any) -> bool:
    # each of them has a run of its own
    return (
        isinstance(data, list)
        and all(isinstance(file, str | os.PathLike) for file in data)
        and any(map(os.path.exists, data))
    )


def register_rows(data: Any, path: str = "data") -> str:
    """The name under which `read_rows` finds the rows of `data`."""
    tables = data if _has_splits(data) else {"": data}
    splits = {str(split): _records(table, path) for split, table in tables.items()}
    content = json.dumps(splits, sort_keys=True, default=str)
    name = MEMORY + hashlib.sha256(content.encode()).hexdigest()[:16]
    title = "the data in memory" if isinstance(data, list | tuple) else f"the {type(data).__name__}"
    memory[name] = MemoryRows(
        title,
        {
            split: [
                Row(values, f"{title}{f'[{split}]' if split else ''}:{number}")
                for number, values in enumerate(records)
            ]
            for split, records in splits.items()
        },
    )
    return name


def table_rows(data: Any) -> list[dict[str, Any]] | None:
    """The rows of a DataFrame or a dataset; None for any other data."""
    if hasattr(data, "features") and hasattr(data, "column_names"):  # datasets.Dataset
        rows = dataset_rows(data)
    elif hasattr(data, "to_dicts") and hasattr(data, "columns"):  # polars
        types = getattr(data, "schema", {})
        rows = (as_written(row, types) for row in data.to_dicts())
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        _check_columns(data)
        types = dict(data.dtypes)
        rows = (
            {column: _whole(value) for column, value in as_written(row, types).items()}
            for row in data.to_dict("records")
        )
    else:
        return None
    return _plain_rows(rows)


def _check_columns(frame: Any) -> None:
    names = list(map(str, frame.columns))
    if len(set(names)) < len(names):
        raise UserError(
            f"The {type(frame).__name__} has two columns of the same name ({', '.join(names)}); "
            "rename one."
        )


def _whole(value: Any) -> Any:
    # pandas turns a column of ints with a missing value into floats
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_pair(data: Any) -> bool:
    """Whether data is texts and their labels."""
    return isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], Mapping)


def _has_splits(data: Any) -> bool:
    """Whether it is a `DatasetDict` or another mapping of tables, and not one of columns."""
    return isinstance(data, Mapping) and any(
        hasattr(table, "columns")
        or hasattr(table, "column_names")
        or is_pair(table)
        or (isinstance(table, Sequence) and len(table) > 0 and isinstance(table[0], Mapping))
        for table in data.values()
    )


def _records(data: Any, path: str) -> list[dict[str, Any]]:
    if (rows := table_rows(data)) is not None:
        return rows
    if isinstance(data, Mapping):
        return _plain_rows(_from_columns(data, path))
    if is_pair(data):
        return _plain_rows(_paired(data[0], data[1], path))
    if (
        not isinstance(data, Sequence)
        or isinstance(data, str | bytes)
        or not all(isinstance(row, Mapping) for row in data)
    ):
        raise UserError(
            f"{setting(path)} is a {type(data).__name__} that cannot be read as rows; give a "
            "file, a DataFrame, a dataset, a list of rows such as "
            "[{'text': '...', 'label': '...'}], a dict of columns, or a tuple of texts and labels."
        )
    return _plain_rows(as_written(row, {}) for row in data)


def _plain_rows(rows: Iterable[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    return [{str(column): _plain(value) for column, value in row.items()} for row in rows]


def _paired(texts: Any, labels: Any, path: str) -> Iterator[dict[Any, Any]]:
    if isinstance(texts, str) or isinstance(labels, str):
        raise UserError(f"{setting(path)} must be a list of texts and a list of labels.")
    columns = {TEXT: texts, LABEL: labels}
    texts, labels = list(texts), list(labels)
    if len(texts) != len(labels):
        raise UserError(
            f"{setting(path)} has {len(texts)} texts and {len(labels)} labels; "
            "give each text one label."
        )
    return _zipped(columns, [texts, labels])


def _from_columns(columns: Mapping[Any, Any], path: str) -> Iterator[dict[Any, Any]]:
    for name, values in columns.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UserError(f"{setting(path)} must be a dict of lists, but {name!r} is {values!r}.")
    lists = list(map(list, columns.values()))
    if len(set(map(len, lists))) > 1:
        sizes = ", ".join(f"{name}: {len(v)}" for name, v in zip(columns, lists, strict=True))
        raise UserError(f"{setting(path)} has columns of different lengths ({sizes}).")
    return _zipped(columns, lists)


def _zipped(columns: Mapping[Any, Any], lists: Sequence[list[Any]]) -> Iterator[dict[Any, Any]]:
    """The rows of columns, whose values are `lists`."""
    types = {name: getattr(values, "dtype", None) for name, values in columns.items()}
    for values in zip(*lists, strict=True):
        yield as_written(dict(zip(columns, values, strict=True)), types)


def _plain(value: Any) -> Any:
    """A value as Python and JSON have it; None if it is missing."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    missing = type(value).__name__ in ("NAType", "NaTType") or value is None
    return None if missing or is_nan(value) else value
