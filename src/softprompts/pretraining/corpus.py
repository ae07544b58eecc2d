"""Text and tasks' examples as token ids in memory-mapped files, made once for each tokenizer, by content, in parallel processes."""

import bz2
import gzip
import hashlib
import io
import itertools
import json
import lzma
import multiprocessing
import os
import re
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import UserError
from ..files import read_json, write_json

OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".gz": gzip.open,
}
LONGEST = 2**20
"""Characters after which a document that has no blank line is cut, at a line's end."""
CHUNK = 2**19
"""Characters that a process tokenises at once."""
WORDS = 80
"""Words of an instruction; of ten inputs, one goes without."""
VERSION = 1
Tick = Callable[[int, int], None]
"""Told how many bytes were read and how many tokens there are so far."""


def _silent(read: int, tokens: int) -> None:
    pass


class Lines:
    """The lines of a text file, compressed or not, and how many bytes of the file were read so far."""

    def __init__(self, path: str) -> None:
        self.path, self.read = path, 0

    def __iter__(self) -> Iterator[str]:
        try:
            with open(self.path, "rb") as raw:
                opener = OPENERS.get(Path(self.path).suffix)
                with io.TextIOWrapper(opener(raw) if opener else raw, encoding="utf-8") as lines:
                    for line in lines:
                        self.read = raw.tell()
                        yield line
        except FileNotFoundError:
            raise UserError(f"The file {self.path} does not exist.") from None
        except UnicodeDecodeError:
            raise UserError(
                f"{self.path} is no UTF-8 text; name another file, or convert it."
            ) from None
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise UserError(
                f"{self.path} cannot be read ({error}); take a whole copy of it."
            ) from None


def documents(lines: Iterable[str]) -> Iterator[str]:
    """Documents are separated by blank lines."""
    parts: list[str] = []
    size = 0
    for line in itertools.chain(lines, [""]):
        if line.strip():
            parts.append(line)
            size += len(line)
        if parts and (not line.strip() or size > LONGEST):
            yield "".join(parts).strip()
            parts, size = [], 0


def pairs(lines: Iterable[str], name: str, definitions: dict[str, str]) -> Iterator[str]:
    """Input and output by turns, the task's instruction before the input."""
    for number, line in enumerate(line for line in lines if line.strip()):
        try:
            task, asked, answer = json.loads(line)
            if not all(isinstance(part, str) for part in (task, asked, answer)):
                raise ValueError
        except (ValueError, TypeError):
            raise UserError(
                f"Row {number + 1} of {name} is no JSON list [task, input, output] of three texts."
            ) from None
        yield f"{definitions[task]} {asked}" if number % 10 and task in definitions else asked
        yield answer


def read_definitions(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    read = read_json(Path(path))
    if not isinstance(read, dict) or not all(isinstance(text, str) for text in read.values()):
        raise UserError(f"{path} is no JSON object of task names and instructions.")
    return {task: " ".join(text.split()[:WORDS]) for task, text in read.items()}


@dataclass(frozen=True)
class Corpus:
    """Texts as ids, one after the other, each with an end mark; `ends` says where each text ends. Pairs are inputs and outputs by turns."""

    ids: Any
    ends: Any
    digest: str
    """Of the files, the tokenizer and the way they are read."""

    @property
    def starts(self) -> Any:
        return np.concatenate([np.zeros(1, self.ends.dtype), self.ends[:-1]])


def tokenised(
    kind: str,
    files: Sequence[str],
    tokenizer: Any,
    definitions: dict[str, str],
    processes: int | None = None,
    tick: Tick = _silent,
) -> Corpus:
    """The files' texts (`kind` text) or pairs (`kind` tasks) as ids: from the cache, or made and kept there."""
    from ..tuning.tokens import cache_folder

    backend = tokenizer.backend_tokenizer.to_str()
    digest = hashlib.sha256(
        json.dumps(
            [
                VERSION,
                kind,
                tokenizer.eos_token_id,
                backend,
                definitions if kind == "tasks" else None,
            ]
        ).encode()
    )
    for name in files:
        digest.update(file_digest(name).encode())
    folder = cache_folder() / "pretraining" / digest.hexdigest()[:40]
    if not _whole(folder):
        _make(
            folder,
            _texts(kind, files, definitions),
            backend,
            tokenizer.eos_token_id,
            len(tokenizer),
            processes,
            tick,
        )
    note = read_json(folder / "note.json")
    # copy-on-write, because torch takes no read-only memory
    ids = np.memmap(folder / "ids.bin", dtype=note["dtype"], mode="c")
    return Corpus(ids, np.memmap(folder / "ends.bin", dtype="int64", mode="c"), digest.hexdigest())


def file_digest(name: str) -> str:
    try:
        with open(name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError(f"The file {name} does not exist.") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}).") from None


def _texts(
    kind: str, files: Sequence[str], definitions: dict[str, str]
) -> Iterator[tuple[str, int]]:
    """Each text, and the bytes of all files read by then."""
    before = 0
    for name in files:
        lines = Lines(name)
        for text in documents(lines) if kind == "text" else pairs(lines, name, definitions):
            yield text, before + lines.read
        before += os.path.getsize(name)


def raw_texts(text: Sequence[str], tasks: Sequence[str]) -> Iterator[str]:
    """All texts, for a tokenizer to learn from."""
    for kind, files in (("text", text), ("tasks", tasks)):
        for words, _ in _texts(kind, files, {}):
            yield words


def _whole(folder: Path) -> bool:
    """Whether all of it is there: a cache may be cleaned by others."""
    try:
        note = json.loads((folder / "note.json").read_text(encoding="utf-8"))
        sizes = [(folder / name).stat().st_size for name in ("ids.bin", "ends.bin")]
        return bool(sizes == [note["ids"] * np.dtype(note["dtype"]).itemsize, note["ends"] * 8])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _make(
    folder: Path,
    texts: Iterator[tuple[str, int]],
    backend: str,
    eos: int,
    vocabulary: int,
    processes: int | None,
    tick: Tick,
) -> None:
    """Beside its place, and moved in whole."""
    dtype = "uint16" if vocabulary <= 2**16 else "int32"
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        beside.mkdir(parents=True, exist_ok=True)
        count = ends = 0
        with (
            (beside / "ids.bin").open("wb") as ids_file,
            (beside / "ends.bin").open("wb") as ends_file,
        ):
            for (ids, lengths), read in _encoded(
                _chunks(texts), backend, eos, dtype, processes or os.cpu_count() or 1
            ):
                ids_file.write(ids)
                np.frombuffer(lengths, "int64").cumsum().__add__(count).tofile(ends_file)
                count += len(ids) // np.dtype(dtype).itemsize
                ends += len(lengths) // 8
                tick(read, count)
        if not ends:
            raise UserError("The files hold no text; name others.")
        write_json(beside / "note.json", {"ids": count, "ends": ends, "dtype": dtype})
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    except OSError as error:
        if not _whole(folder):  # not made by another process meanwhile
            raise UserError(
                f"The cache {folder} cannot be written ({error.strerror}); make room, or set SOFTPROMPTS_CACHE."
            ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _chunks(texts: Iterator[tuple[str, int]]) -> Iterator[tuple[list[str], int]]:
    chunk: list[str] = []
    size = read = 0
    for text, read in texts:
        chunk.append(text)
        size += len(text) + 1
        if size > CHUNK:
            yield chunk, read
            chunk, size = [], 0
    if chunk:
        yield chunk, read


def _encoded(
    chunks: Iterator[tuple[list[str], int]], backend: str, eos: int, dtype: str, processes: int
) -> Iterator[tuple[tuple[bytes, bytes], int]]:
    """The chunks' ids and lengths in order; only a few chunks are under way at once, however large the files."""
    first = list(itertools.islice(chunks, 2))
    chunks = itertools.chain(first, chunks)
    if processes == 1 or len(first) < 2:
        _start(backend, eos, dtype)
        for chunk, read in chunks:
            yield _encode(chunk), read
        return
    waiting: deque[tuple[Future[tuple[bytes, bytes]], int]] = deque()
    with ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), _start, (backend, eos, dtype)
    ) as pool:
        for chunk, read in chunks:
            waiting.append((pool.submit(_encode, chunk), read))
            if len(waiting) > 3 * processes:
                done, at = waiting.popleft()
                yield done.result(), at
        for done, at in waiting:
            yield done.result(), at


_worker: tuple[Any, re.Pattern[str], int, str]


def _start(backend: str, eos: int, dtype: str) -> None:
    """A process that tokenises."""
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(backend)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = [
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    ]
    _worker = tokenizer, re.compile("|".join(map(re.escape, special)) or r"(?!)"), eos, dtype


def _encode(texts: list[str]) -> tuple[bytes, bytes]:
    """Ids and lengths of texts, each with an end mark. Text that spells a special token is no such token: a space goes into it."""
    tokenizer, special, eos, dtype = _worker
    plain = [special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text) for text in texts]
    rows = [
        [*encoding.ids, eos] for encoding in tokenizer.encode_batch(plain, add_special_tokens=False)
    ]
    ids = np.fromiter(itertools.chain.from_iterable(rows), dtype, sum(map(len, rows)))
    return ids.tobytes(), np.fromiter(map(len, rows), "int64", len(rows)).tobytes()
