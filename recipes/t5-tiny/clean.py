"""Remove from a corpus what overlaps with the data that a model will be evaluated on.

    python recipes/t5-tiny/clean.py --corpus CORPUS --data DATA --output CLEAN

CORPUS holds text files (a paragraph per line, a blank line between documents; .txt, .bz2, .xz or
.gz) and tasks*.jsonl* files with lines [task, input, output]. DATA holds *.jsonl.gz files, of which
every text in every split counts. A paragraph or an example that shares ten words in a row with any
of them is removed, and so is a shorter example that equals one of their texts of five or more
words. CLEAN gets text.txt.bz2, tasks.jsonl.bz2 and clean.json, which says how much was removed.
"""

import argparse
import bz2
import gzip
import hashlib
import json
import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from softprompts.pretraining.corpus import Lines

NGRAM, MIN_WORDS = 10, 5
WORD = re.compile(r"[a-z0-9]+")
FACTORS = np.array(
    [pow(0x9E3779B97F4A7C15, power + 1, 2**64) for power in range(NGRAM)], dtype=np.uint64
)
CHUNK_LINES = 4000
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
word_hashes: dict[str, int] = {}
evaluation_hashes: Hashes
"""Of this process, from `_start_worker`."""


def ngram_hashes(text: str) -> Hashes:
    """A hash of each ten words in a row; for a shorter text, one of all of it."""
    words = WORD.findall(text.lower())
    hashes = np.fromiter(
        (word_hashes.get(word) or word_hashes.setdefault(word, _hash(word)) for word in words),
        np.uint64,
        len(words),
    )
    count = len(words) - NGRAM + 1
    if count > 0:
        shifted = (hashes[shift : shift + count] * FACTORS[shift] for shift in range(NGRAM))
        return sum(shifted, np.zeros(count, np.uint64))
    if len(words) >= MIN_WORDS:
        return (hashes * FACTORS[: len(words)]).sum(keepdims=True)
    return hashes[:0]


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest()) | 1


def texts_of(row: Any) -> Iterator[str]:
    """Every text in a row, however deep."""
    if isinstance(row, str):
        yield row
    elif isinstance(row, dict | list):
        values = row.values() if isinstance(row, dict) else row
        yield from chain.from_iterable(map(texts_of, values))


def hash_evaluation_data(folder: Path) -> Hashes:
    """The hashes of all rows below a folder, sorted."""
    files = []
    for file in sorted(folder.rglob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as rows:
            hashes = [ngram_hashes(text) for row in rows for text in texts_of(json.loads(row))]
            files.append(np.unique(np.concatenate(hashes)))
    if not files:
        raise SystemExit(f"There are no *.jsonl.gz files below {folder}; name another folder.")
    return np.unique(np.concatenate(files))


def _start_worker(path: str) -> None:
    global evaluation_hashes
    evaluation_hashes = np.load(path, mmap_mode="r")


def _overlaps(text: str) -> bool:
    hashes = ngram_hashes(text)
    if not len(hashes):
        return False
    positions = np.searchsorted(evaluation_hashes, hashes)
    nearest = evaluation_hashes[np.minimum(positions, len(evaluation_hashes) - 1)]
    return bool((nearest == hashes).any())


def clean_lines(lines: list[str]) -> tuple[bytes, int, int]:
    """The lines that may stay, compressed; the number of characters before and after."""
    kept = [line for line in lines if not line.strip() or not _overlaps(line)]
    return bz2.compress("".join(kept).encode()), sum(map(len, lines)), sum(map(len, kept))


def clean_examples(lines: list[str]) -> tuple[bytes, int, int]:
    """The examples that may stay, compressed; their number before and after."""
    kept = [line for line in lines if not any(map(_overlaps, json.loads(line)[1:]))]
    return bz2.compress("".join(kept).encode()), len(lines), len(kept)


def chunks_of(files: list[Path], suffix: str) -> Iterator[list[str]]:
    for file in files:
        if suffix in file.name:
            lines = iter(Lines(str(file)))
            while chunk := list(islice(lines, CHUNK_LINES)):
                yield chunk


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("corpus", "data", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    hashes = hash_evaluation_data(options.data)
    hash_file = options.output / "held.npy"
    np.save(hash_file, hashes)
    files = sorted(
        file for file in options.corpus.iterdir() if ".txt" in file.name or ".jsonl" in file.name
    )
    report: dict[str, Any] = {"runs": int(hashes.size), "words": NGRAM}
    kinds: dict[str, tuple[Callable[[list[str]], tuple[bytes, int, int]], str]] = {
        "text.txt": (clean_lines, "characters"),
        "tasks.jsonl": (clean_examples, "examples"),
    }
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(None, spawn, _start_worker, (str(hash_file),)) as pool:
        for name, (clean, unit) in kinds.items():
            chunks = chunks_of(files, Path(name).suffix)
            before = after = 0
            with (options.output / f"{name}.bz2").open("wb") as out:
                while group := list(islice(chunks, 16)):
                    for kept, size_before, size_after in pool.map(clean, group):
                        out.write(kept)
                        before += size_before
                        after += size_after
                    removed = before - after
                    print(f"{name}: {before:,} {unit} read, {removed:,} removed", flush=True)
            report[name] = {"unit": unit, "before": before, "after": after}
    (options.output / "clean.json").write_text(json.dumps(report, indent=2) + "\n")
    hash_file.unlink()


if __name__ == "__main__":
    main()
