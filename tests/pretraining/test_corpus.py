"""Tokenised files, their cache, bad files, and the conventions of the tokenizer."""

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softprompts.errors import UserError
from softprompts.pretraining import corpus
from softprompts.pretraining.corpus import documents, load_corpus
from softprompts.pretraining.tokenizer import (
    load_t5_tokenizer,
    sample,
    sentinel_ids,
    train_tokenizer,
)

from .conftest import texts


def rows(loaded: corpus.Corpus) -> list[list[int]]:
    bounds = zip(loaded.starts, loaded.ends, strict=True)
    return [loaded.ids[start:end].tolist() for start, end in bounds]


def test_every_compression_reads_the_same(tmp_path: Path, tokenizer: Any) -> None:
    text = "\n\n".join(texts(20))
    # The tokenizer ends a text with </s>, and so does the corpus.
    expected = [tokenizer(line)["input_ids"] for line in texts(20)]
    for suffix, compress in (
        (".txt", bytes),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".gz", gzip.compress),
    ):
        path = tmp_path / f"text{suffix}"
        path.write_bytes(compress(text.encode()))
        loaded = load_corpus("text", [str(path)], tokenizer, {}, 1)
        assert rows(loaded) == expected
        assert loaded.ids.dtype == np.uint16


def test_documents_end_at_blank_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(documents(["a\n", "b\n", "\n", " \n", "c\n"])) == ["a\nb", "c"]
    monkeypatch.setattr(corpus, "MAX_DOCUMENT", 3)
    assert list(documents(["aa\n", "bb\n", "cc\n"])) == ["aa\nbb", "cc"]


def test_the_number_of_processes_changes_nothing(
    text_file: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = rows(load_corpus("text", [str(text_file)], tokenizer, {}, 1))
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(corpus, "CHUNK_CHARACTERS", 2000)
    progress: list[tuple[int, str]] = []
    loaded = load_corpus(
        "text", [str(text_file)], tokenizer, {}, 2, lambda *entry: progress.append(entry)
    )
    assert rows(loaded) == expected
    assert len(progress) > 3
    assert progress[-1] == (text_file.stat().st_size, f"{len(loaded.ids) / 1e6:.1f}M tokens")


def test_files_are_tokenised_once_and_again_when_anything_changes(
    tmp_path: Path, text_file: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []
    write = corpus._write
    monkeypatch.setattr(corpus, "_write", lambda *args: writes.append(1) or write(*args))
    first = load_corpus("text", [str(text_file)], tokenizer, {}, 1)
    expected = rows(first)
    assert rows(load_corpus("text", [str(text_file)], tokenizer, {}, 1)) == expected
    assert len(writes) == 1
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "\nmore\n")
    load_corpus("text", [str(other)], tokenizer, {}, 1)
    load_corpus("text", [str(other)], train_tokenizer(texts(5), 60, 3), {}, 1)
    assert len(writes) == 3
    cached = tmp_path / "cache" / "pretraining" / first.digest[:40]
    (cached / "ends.bin").write_bytes(b"12345678")
    assert rows(load_corpus("text", [str(text_file)], tokenizer, {}, 1)) == expected
    assert len(writes) == 4


def test_nine_in_ten_inputs_start_with_their_instruction(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "tasks.jsonl.xz"
    path.write_bytes(
        lzma.compress("\n".join(json.dumps(["t", "the cat", "sat"]) for _ in range(10)).encode())
    )
    loaded = rows(load_corpus("tasks", [str(path)], tokenizer, {"t": "a dog and"}, 1))
    assert loaded[0] == tokenizer("the cat")["input_ids"]
    assert loaded[2::2] == [tokenizer("a dog and the cat")["input_ids"]] * 9
    assert loaded[1::2] == [tokenizer("sat")["input_ids"]] * 10


def test_text_that_spells_a_special_token_stays_text(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the </s> cat <pad> sat <extra_id_0> on")
    (row,) = rows(load_corpus("text", [str(path)], tokenizer, {}, 1))
    assert row[-1] == tokenizer.eos_token_id
    assert not {0, 1, *sentinel_ids(tokenizer)} & set(row[:-1])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.txt", None, "does not exist"),
        ("bad.txt", b"caf\xe9 au lait", "not UTF-8"),
        ("cut.bz2", bz2.compress(b"the cat sat. " * 1000)[:-20], "copy it again"),
        ("cut.gz", gzip.compress(b"the cat sat. " * 1000, mtime=0)[:-20], "copy it again"),
        ("no.xz", b"not compressed", "copy it again"),
        ("empty.txt", b"\n \n", "hold no text"),
    ],
)
def test_bad_text_is_an_error(
    tmp_path: Path, tokenizer: Any, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_corpus("text", [str(tmp_path / name)], tokenizer, {}, 1)
    assert not any((tmp_path / "cache").rglob("*.bin"))


@pytest.mark.parametrize("row", ['["t", "in"]', '["t", "in", 3]', "{", '{"task": 1}'])
def test_a_bad_row_is_reported_by_number(tmp_path: Path, tokenizer: Any, row: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(f'["t", "in", "out"]\n{row}\n')
    with pytest.raises(UserError, match=r"Row 2 of .* is not a JSON list"):
        load_corpus("tasks", [str(path)], tokenizer, {}, 1)


def test_tokenizer_conventions(tokenizer: Any, tokenizer_folder: Path) -> None:
    loaded = load_t5_tokenizer(str(tokenizer_folder))
    assert [loaded.pad_token_id, loaded.eos_token_id, loaded.unk_token_id] == [0, 1, 2]
    assert sentinel_ids(loaded) == [len(loaded) - 1 - number for number in range(20)]
    # NFKC, single spaces, </s> at the end
    ids = loaded("The ﬁsh\n\n sat  on <extra_id_3>")["input_ids"]
    assert ids[-1] == 1
    assert ids == loaded("The fish sat on <extra_id_3>")["input_ids"]
    assert len(loaded) - 4 in ids
    text = "the cat sat on the mat"
    assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text
    assert 2 in loaded("日")["input_ids"]


def test_a_sample_covers_the_data_and_has_the_requested_size() -> None:
    drawn = list(sample((f"{number:04}" for number in range(1000)), 400, 0))
    assert len(drawn) == 100
    assert drawn == sorted(drawn)
    assert int(drawn[0]) < 100
    assert int(drawn[-1]) > 900
    assert list(sample(["a single long text"], 4, 0)) == ["a single long text"]


def test_training_a_tokenizer_on_nothing_is_an_error() -> None:
    with pytest.raises(UserError, match="no text"):
        train_tokenizer([], 100, 10)


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no readable tokenizer"):
        load_t5_tokenizer(str(tmp_path))
    with pytest.raises(UserError, match="no such folder"):
        load_t5_tokenizer(str(tmp_path / "gone"))
