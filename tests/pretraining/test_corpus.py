"""Files to ids, the cache, bad files, the tokenizer's conventions."""

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
from softprompts.pretraining.corpus import documents, tokenised
from softprompts.pretraining.tokenizer import load_tokenizer, sample, sentinel_ids, train_tokenizer

from .conftest import texts


def rows(made: corpus.Corpus) -> list[list[int]]:
    return [made.ids[start:end].tolist() for start, end in zip(made.starts, made.ends, strict=True)]


def test_every_compression_reads_the_same(tmp_path: Path, words: Any) -> None:
    text = "\n\n".join(texts(20))
    wanted = [
        words(line)["input_ids"] for line in texts(20)
    ]  # the tokenizer ends a text with </s>, and so does the corpus
    for suffix, pack in (
        (".txt", bytes),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".gz", gzip.compress),
    ):
        path = tmp_path / f"text{suffix}"
        path.write_bytes(pack(text.encode()))
        made = tokenised("text", [str(path)], words, {}, 1)
        assert rows(made) == wanted
        assert made.ids.dtype == np.uint16


def test_documents_end_at_blank_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(documents(["a\n", "b\n", "\n", " \n", "c\n"])) == ["a\nb", "c"]
    monkeypatch.setattr(corpus, "LONGEST", 3)
    assert list(documents(["aa\n", "bb\n", "cc\n"])) == ["aa\nbb", "cc"]


def test_processes_change_nothing(
    text_file: Path, words: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = rows(tokenised("text", [str(text_file)], words, {}, 1))
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(corpus, "CHUNK", 2000)
    told: list[tuple[int, int]] = []
    together = tokenised(
        "text", [str(text_file)], words, {}, 2, lambda read, tokens: told.append((read, tokens))
    )
    assert rows(together) == alone
    assert len(told) > 3
    assert told[-1] == (text_file.stat().st_size, len(together.ids))


def test_ids_are_made_once_and_again_when_anything_changes(
    tmp_path: Path, text_file: Path, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = corpus._make
    monkeypatch.setattr(corpus, "_make", lambda *arguments: made.append(1) or real(*arguments))
    first = tokenised("text", [str(text_file)], words, {}, 1)
    wanted = rows(first)
    assert rows(tokenised("text", [str(text_file)], words, {}, 1)) == wanted
    assert len(made) == 1
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "\nmore\n")
    tokenised("text", [str(other)], words, {}, 1)
    tokenised("text", [str(other)], train_tokenizer(texts(5), 60, 3), {}, 1)
    assert len(made) == 3
    next((tmp_path / "cache" / "pretraining").glob(f"{first.digest[:40]}/ends.bin")).write_bytes(
        b"12345678"
    )
    assert rows(tokenised("text", [str(text_file)], words, {}, 1)) == wanted
    assert len(made) == 4


def test_pairs_begin_with_their_instruction_nine_times_of_ten(tmp_path: Path, words: Any) -> None:
    path = tmp_path / "tasks.jsonl.xz"
    path.write_bytes(
        lzma.compress("\n".join(json.dumps(["t", "the cat", "sat"]) for _ in range(10)).encode())
    )
    made = rows(tokenised("tasks", [str(path)], words, {"t": "a dog and"}, 1))
    assert made[0] == words("the cat")["input_ids"]
    assert made[2::2] == [words("a dog and the cat")["input_ids"]] * 9
    assert made[1::2] == [words("sat")["input_ids"]] * 10


def test_text_that_spells_a_special_token_is_text(tmp_path: Path, words: Any) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the </s> cat <pad> sat <extra_id_0> on")
    (row,) = rows(tokenised("text", [str(path)], words, {}, 1))
    assert row[-1] == words.eos_token_id
    assert not {0, 1, *sentinel_ids(words)} & set(row[:-1])


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("gone.txt", None, "does not exist"),
        ("bad.txt", b"caf\xe9 au lait", "no UTF-8"),
        ("cut.bz2", bz2.compress(b"the cat sat. " * 1000)[:-20], "whole copy"),
        ("cut.gz", gzip.compress(b"the cat sat. " * 1000, mtime=0)[:-20], "whole copy"),
        ("no.xz", b"not compressed", "whole copy"),
        ("empty.txt", b"\n \n", "hold no text"),
    ],
)
def test_bad_text_is_told(
    tmp_path: Path, words: Any, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        tokenised("text", [str(tmp_path / name)], words, {}, 1)
    assert not any((tmp_path / "cache").rglob("*.bin"))


@pytest.mark.parametrize("row", ['["t", "in"]', '["t", "in", 3]', "{", '{"task": 1}'])
def test_a_bad_row_is_told_by_number(tmp_path: Path, words: Any, row: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(f'["t", "in", "out"]\n{row}\n')
    with pytest.raises(UserError, match=r"Row 2 of .* is no JSON list"):
        tokenised("tasks", [str(path)], words, {}, 1)


def test_tokenizer_conventions(words: Any, words_folder: Path) -> None:
    loaded = load_tokenizer(str(words_folder))
    assert [loaded.pad_token_id, loaded.eos_token_id, loaded.unk_token_id] == [0, 1, 2]
    assert sentinel_ids(loaded) == [len(loaded) - 1 - number for number in range(20)]
    ids = loaded("The ﬁsh\n\n sat  on <extra_id_3>")[
        "input_ids"
    ]  # NFKC, one space for many, </s> at the end
    assert ids[-1] == 1
    assert ids == loaded("The fish sat on <extra_id_3>")["input_ids"]
    assert len(loaded) - 4 in ids
    assert (
        loaded.decode(loaded("the cat sat on the mat")["input_ids"], skip_special_tokens=True)
        == "the cat sat on the mat"
    )
    assert 2 in loaded("日")["input_ids"]


def test_a_sample_is_of_everywhere_and_no_larger_than_asked() -> None:
    drawn = list(sample((f"{number:04}" for number in range(1000)), 400, 0))
    assert len(drawn) == 100
    assert drawn == sorted(drawn)
    assert int(drawn[0]) < 100
    assert int(drawn[-1]) > 900
    assert list(sample(["only one, longer than asked for"], 4, 0)) == [
        "only one, longer than asked for"
    ]


def test_a_tokenizer_of_nothing_is_told() -> None:
    with pytest.raises(UserError, match="no text"):
        train_tokenizer([], 100, 10)


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(UserError, match="there is no such folder"):
        load_tokenizer(str(tmp_path / "gone"))
