"""Rows from every type of file; errors name the file and line."""

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from softprompts.errors import UserError
from softprompts.tasks.sources import Reservoir, Row, dataset_rows, read_rows, read_split

ROWS = [{"text": "good, very", "label": "yes"}, {"text": 'a "quoted" one', "label": "no"}]


def write(path: Path) -> Path:
    if path.suffix == ".csv":
        path.write_text(
            'text,label\n"good, very",yes\n"a ""quoted"" one",no\n', encoding="utf-8-sig"
        )
    elif path.suffix == ".tsv":
        path.write_text('text\tlabel\ngood, very\tyes\n"a ""quoted"" one"\tno\n')
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in ROWS).encode()))
    else:
        import pyarrow as pa
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    rows = read_rows(str(write(tmp_path / name)))
    assert [row.values for row in rows] == ROWS
    assert rows[1].location.startswith(str(tmp_path / name))


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_the_delimiter_of_a_csv_file_is_inferred_from_its_header(
    tmp_path: Path, delimiter: str
) -> None:
    path = tmp_path / "a.csv"
    text = f'text{delimiter}label\ngood, very{delimiter}yes\n"a ""quoted"" one"{delimiter}no\n'
    path.write_text(text, encoding="utf-8-sig")
    assert [row.values for row in read_rows(str(path))] == ROWS
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(f"\n{text}".encode()))
    assert [row.values for row in read_rows(str(tmp_path / "a.csv.gz"))] == ROWS
    path.write_text(f'"text, all of it"{delimiter}label\ngood, very{delimiter}yes\n')
    assert read_rows(str(path))[0].values == {"text, all of it": "good, very", "label": "yes"}
    path.write_text(f"text{delimiter}label\nx{delimiter}y{delimiter}z\n")
    with pytest.raises(
        UserError,
        match=re.escape(
            f"has 3 cells, but the header has 2; quote cells that contain {delimiter!r}."
        ),
    ):
        read_rows(str(path))


def test_commas_take_precedence_over_other_delimiters(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a;b;c,label\nx;y,yes\n")
    assert read_rows(str(path))[0].values == {"a;b;c": "x;y", "label": "yes"}
    path.write_text("text\nx;y\n")
    assert read_rows(str(path))[0].values == {"text": "x;y"}


def test_the_location_of_a_row_is_its_first_line_even_after_line_breaks_in_cells(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"two\nlines",yes\nlast,no\n')
    assert [row.location for row in read_rows(str(path))] == [f"{path}:2", f"{path}:4"]


def test_a_dataset_folder_is_read_with_class_names(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    unlabelled = datasets.Dataset.from_dict({"text": ["a"], "label": [-1]}, features=features)
    assert list(dataset_rows(unlabelled)) == [{"text": "a", "label": None}]
    assert list(dataset_rows(unlabelled, class_names=False)) == [{"text": "a", "label": -1}]
    dataset = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    datasets.DatasetDict({"train": dataset, "validation": dataset.select([0])}).save_to_disk(
        str(tmp_path / "d")
    )
    assert [row.values["label"] for row in read_rows(str(tmp_path / "d"))] == ["yes", "no"]
    validation = read_split(str(tmp_path / "d"), "validation")
    assert validation is not None
    assert len(validation) == 1
    assert read_split(str(tmp_path / "d"), "test") is None
    dataset.save_to_disk(str(tmp_path / "single"))
    assert len(read_rows(str(tmp_path / "single"))) == 2
    assert read_split(str(tmp_path / "single"), "validation") is None, (
        "a dataset without splits is all training rows"
    )
    with pytest.raises(UserError, match="no split 'test'"):
        read_rows(str(tmp_path / "d"), "test")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\nx,y\nonly-one\n", r"a.csv:3 has 1 cell, but the header has 2"),
        ("a.csv", b'text,label\n"open,y\n', r"a.csv:2 is malformed"),
        ("a.csv", b"text,label,text\nx,y,z\n", r"two columns of the same name \(text\); rename"),
        ("a.csv", b"text,label,,\nx,y,,\n", "several columns without a name; name or remove them"),
        ("a.csv", b"text,label\n", "has no rows"),
        ("a.csv", b"", "has no rows"),
        ("a.csv", b"text,label\ncaf\xe9,y\n", "not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{broken\n', "a.jsonl:2 is not valid JSON"),
        ("a.jsonl", b"[1, 2]\n", "a.jsonl:1 is not a JSON object"),
        ("a.jsonl.gz", gzip.compress(mtime=0, data=b'{"text": "x"}\n' * 50)[:-12], "corrupted"),
        ("a.parquet", b"not parquet at all", "corrupted or not a Parquet"),
        ("a.xlsx", b"x", "unsupported file type"),
    ],
)
def test_a_bad_file_is_a_clear_error(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_rows(str(tmp_path / name))


def test_a_missing_file_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_rows("nowhere/data.csv")
    with pytest.raises(UserError, match="neither a file nor a dataset"):
        read_rows("no-such-dataset-anywhere")


def test_a_folder_without_data_is_refused_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "notes.md").write_text("nothing")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"The folder .* holds no data; name a file \(.csv, "):
        read_rows(str(tmp_path))


def test_a_folder_that_is_no_dataset_is_a_plain_error(tmp_path: Path) -> None:
    (tmp_path / "prompt.json").write_text('{"a": 1}')
    (tmp_path / "metrics.jsonl").write_text('{"b": [2]}\n{"c": 3')
    with pytest.raises(UserError, match=r"The folder .* is not a Hugging Face dataset; name one"):
        read_rows(str(tmp_path))


def test_a_reservoir_samples_uniformly_and_keeps_the_order() -> None:
    def rows(count: int) -> Iterator[Row]:
        return (Row({"n": n}, f"x:{n}") for n in range(count))

    samples = [
        [row.values["n"] for row in Reservoir(10, seed).sample(rows(100))] for seed in range(300)
    ]
    assert all(len(sampled) == 10 and sampled == sorted(set(sampled)) for sampled in samples)
    assert samples[0] == [row.values["n"] for row in Reservoir(10, 0).sample(rows(100))]
    counts = Counter(n for sampled in samples for n in sampled)
    assert len(counts) == 100
    assert 10 < min(counts.values()) < max(counts.values()) < 60, "each of 100 about 30 times"
    assert [row.values["n"] for row in Reservoir(10, 0).sample(rows(4))] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.parquet", "folder"])
def test_nan_is_a_missing_value(tmp_path: Path, name: str) -> None:
    path, rows = tmp_path / name, [{"text": "a", "score": float("nan")}]
    if path.suffix in (".json", ".jsonl"):
        path.write_text(json.dumps(rows if path.suffix == ".json" else rows[0]))
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        import datasets

        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    assert [row.values for row in read_rows(str(path))] == [{"text": "a", "score": None}]
