"""Text and task examples as token ids in memory-mapped files, tokenised once per tokenizer."""

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
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from tokenizers import Tokenizer

from ..errors import UserError
from ..files import cache_folder, read_json, staged_folder, write_json

OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".gz": gzip.open,
}
MAX_DOCUMENT = 2**20
"""Characters after which a document without a blank line is cut, at the end of a line."""
CHUNK_CHARACTERS = 2**19
"""Characters that a process tokenises at once."""
MAX_INSTRUCTION_WORDS = 80
VERSION = 1
OnProgress = Callable[[int, str], None]
"""Called with how much of a stage is done, and a note that says more, such as the loss, or ""."""


class Lines:
    """The lines of a text file, compressed or not, and the bytes of the file read so far."""

    def __init__(self, path: str) -> None:
        self.path, self.bytes_read = path, 0

    def __iter__(self) -> Iterator[str]:
        try:
            with open(self.path, "rb") as raw:
                opener = OPENERS.get(Path(self.path).suffix)
                with io.TextIOWrapper(opener(raw) if opener else raw, encoding="utf-8") as lines:
                    for line in lines:
                        self.bytes_read = raw.tell()
                        yield line
        except FileNotFoundError:
            raise UserError(f"The file {self.path} does not exist.") from None
        except UnicodeDecodeError:
            raise UserError(
                f"{self.path} is not UTF-8 text; convert it, or name another file."
            ) from None
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise UserError(
                f"{self.path} cannot be read ({error}); the file is corrupted; copy it again."
            ) from None


def documents(lines: Iterable[str]) -> Iterator[str]:
    """The documents, which are separated by blank lines."""
    parts: list[str] = []
    size = 0
    for line in itertools.chain(lines, [""]):
        if line.strip():
            parts.append(line)
            size += len(line)
        if parts and (not line.strip() or size > MAX_DOCUMENT):
            yield "".join(parts).strip()
            parts, size = [], 0


def example_texts(lines: Iterable[str], name: str, definitions: dict[str, str]) -> Iterator[str]:
    """Inputs and outputs in turn; nine in ten inputs start with their task's instruction."""
    for number, line in enumerate(line for line in lines if line.strip()):
        try:
            task, source, target = json.loads(line)
            if not all(isinstance(text, str) for text in (task, source, target)):
                raise ValueError
        except (ValueError, TypeError):
            raise UserError(
                f"Row {number + 1} of {name} is not a JSON list [task, input, output] of strings."
            ) from None
        yield f"{definitions[task]} {source}" if number % 10 and task in definitions else source
        yield target


def read_definitions(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    definitions = read_json(Path(path))
    if not isinstance(definitions, dict) or not all(
        isinstance(text, str) for text in definitions.values()
    ):
        raise UserError(f"{path} is not a JSON object of task names and instructions.")
    return {
        task: " ".join(text.split()[:MAX_INSTRUCTION_WORDS]) for task, text in definitions.items()
    }


@dataclass(frozen=True)
class Corpus:
    """Texts as one sequence of ids, each text with an end-of-sequence token.

    `ends` holds the position after each text. Examples are inputs and outputs in turn.
    """

    ids: Any
    ends: Any
    digest: str
    """A hash of the files, the tokenizer and how they are read."""

    @property
    def starts(self) -> Any:
        return np.concatenate([np.zeros(1, self.ends.dtype), self.ends[:-1]])


def load_corpus(
    kind: str,
    files: Sequence[str],
    tokenizer: Any,
    definitions: dict[str, str],
    processes: int | None = None,
    on_progress: OnProgress = lambda completed, note: None,
) -> Corpus:
    """The files' documents (`kind` text) or examples (`kind` tasks) as ids, cached by content."""
    backend, eos = tokenizer.backend_tokenizer.to_str(), tokenizer.eos_token_id
    reading = [VERSION, kind, eos, backend, definitions if kind == "tasks" else None]
    digest = hashlib.sha256(json.dumps(reading).encode())
    for name in files:
        digest.update(file_digest(name).encode())
    folder = cache_folder() / "pretraining" / digest.hexdigest()[:40]
    if not _is_complete(folder):
        dtype = "uint16" if len(tokenizer) <= 2**16 else "int32"
        chunks = _encode_chunks(
            _chunks(_texts(kind, files, definitions)),
            (backend, eos, dtype),
            processes or os.cpu_count() or 1,
        )
        try:
            _write(folder, chunks, dtype, on_progress)
        except UserError:
            if not _is_complete(folder):  # another process may have finished it meanwhile
                raise
    note = read_json(folder / "note.json")
    # copy-on-write, because torch does not take read-only memory
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
    """Each text, and the bytes of all files read so far."""
    finished = 0
    for name in files:
        lines = Lines(name)
        texts = documents(lines) if kind == "text" else example_texts(lines, name, definitions)
        for text in texts:
            yield text, finished + lines.bytes_read
        finished += os.path.getsize(name)


def raw_texts(text: Sequence[str], tasks: Sequence[str]) -> Iterator[str]:
    """All texts, to train a tokenizer on."""
    for content, _ in itertools.chain(_texts("text", text, {}), _texts("tasks", tasks, {})):
        yield content


def _is_complete(folder: Path) -> bool:
    """Whether all files have their full size; others may clean up a cache."""
    try:
        note = json.loads((folder / "note.json").read_text(encoding="utf-8"))
        sizes = [(folder / name).stat().st_size for name in ("ids.bin", "ends.bin")]
        return bool(sizes == [note["ids"] * np.dtype(note["dtype"]).itemsize, note["ends"] * 8])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(
    folder: Path,
    chunks: Iterator[tuple[tuple[bytes, bytes], int]],
    dtype: str,
    on_progress: OnProgress,
) -> None:
    remedy = "free some disk space, or set SOFTPROMPTS_CACHE to another folder"
    with staged_folder(folder, remedy) as staged:
        tokens = texts = 0
        with (
            (staged / "ids.bin").open("wb") as ids_file,
            (staged / "ends.bin").open("wb") as ends_file,
        ):
            for (ids, lengths), bytes_read in chunks:
                ids_file.write(ids)
                (tokens + np.frombuffer(lengths, "int64").cumsum()).tofile(ends_file)
                tokens += len(ids) // np.dtype(dtype).itemsize
                texts += len(lengths) // 8
                on_progress(bytes_read, f"{tokens / 1e6:.1f}M tokens")
        if not texts:
            raise UserError("The files hold no text; name others.")
        write_json(staged / "note.json", {"ids": tokens, "ends": texts, "dtype": dtype})


def _chunks(texts: Iterator[tuple[str, int]]) -> Iterator[tuple[list[str], int]]:
    chunk: list[str] = []
    size = bytes_read = 0
    for text, bytes_read in texts:
        chunk.append(text)
        size += len(text) + 1
        if size > CHUNK_CHARACTERS:
            yield chunk, bytes_read
            chunk, size = [], 0
    if chunk:
        yield chunk, bytes_read


def _encode_chunks(
    chunks: Iterator[tuple[list[str], int]], encoder: tuple[str, int, str], processes: int
) -> Iterator[tuple[tuple[bytes, bytes], int]]:
    """Ids and lengths of the chunks, in order. Only a few chunks are in memory at once."""
    first = list(itertools.islice(chunks, 2))
    chunks = itertools.chain(first, chunks)
    if processes == 1 or len(first) < 2:
        _start_worker(*encoder)
        for chunk, bytes_read in chunks:
            yield _encode(chunk), bytes_read
        return
    pending: deque[tuple[Future[tuple[bytes, bytes]], int]] = deque()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, _start_worker, encoder) as pool:
        for chunk, bytes_read in chunks:
            pending.append((pool.submit(_encode, chunk), bytes_read))
            if len(pending) > 3 * processes:
                encoded, position = pending.popleft()
                yield encoded.result(), position
        for encoded, position in pending:
            yield encoded.result(), position


_worker: tuple[Any, re.Pattern[str], int, str]


def _start_worker(backend: str, eos: int, dtype: str) -> None:
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_str(backend)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = [
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    ]
    _worker = tokenizer, re.compile("|".join(map(re.escape, special)) or r"(?!)"), eos, dtype


def _encode(texts: list[str]) -> tuple[bytes, bytes]:
    """Ids and lengths of the texts, each with an end-of-sequence token.

    A space is put into text that spells a special token, so that it stays text.
    """
    tokenizer, special, eos, dtype = _worker
    plain = [special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text) for text in texts]
    encodings = tokenizer.encode_batch(plain, add_special_tokens=False)
    rows = [[*encoding.ids, eos] for encoding in encodings]
    ids = np.fromiter(itertools.chain.from_iterable(rows), dtype, sum(map(len, rows)))
    return ids.tobytes(), np.fromiter(map(len, rows), "int64", len(rows)).tobytes()
