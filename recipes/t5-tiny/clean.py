"""Leave out of a corpus what shares a run of words with data that a model is going to be judged on.

    python recipes/t5-tiny/clean.py --corpus CORPUS --data DATA --output CLEAN

CORPUS holds text files (paragraphs on lines, a blank line between documents; .txt, .bz2, .xz or .gz) and tasks*.jsonl* files of lines
[task, input, output]. DATA holds *.jsonl.gz files, of which every text counts, in all splits. A paragraph, or an example, that shares ten
words in a row with any of them is left out; so is a shorter example that is word for word one of their texts of five words or more.
CLEAN gets text.txt.bz2, tasks.jsonl.bz2 and clean.json, which tells what was left out.
"""

import argparse
import bz2
import gzip
import hashlib
import json
import multiprocessing
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from softprompts.pretraining.corpus import Lines

RUN, SHORT = 10, 5
WORD = re.compile(r"[a-z0-9]+")
FACTORS = np.array(
    [pow(0x9E3779B97F4A7C15, power + 1, 2**64) for power in range(RUN)], dtype=np.uint64
)
TOGETHER = 4000
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
known: dict[str, int] = {}
held: Hashes


def hashes(text: str) -> Hashes:
    """One number for each run of ten words; of a shorter text, one for all of it."""
    words = WORD.findall(text.lower())
    numbers = np.fromiter(
        (known.get(word) or known.setdefault(word, _number(word)) for word in words),
        np.uint64,
        len(words),
    )
    many = len(words) - RUN + 1
    if many <= 0:
        return (
            (numbers * FACTORS[: len(words)]).sum(keepdims=True)
            if len(words) >= SHORT
            else numbers[:0]
        )
    return sum(
        (numbers[place : place + many] * FACTORS[place] for place in range(RUN)),
        np.zeros(many, np.uint64),
    )


def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest()) | 1


def texts_of(row: Any) -> Iterator[str]:
    """Every text in a row, however deep."""
    if isinstance(row, str):
        yield row
    elif isinstance(row, dict | list):
        yield from chain.from_iterable(
            map(texts_of, row.values() if isinstance(row, dict) else row)
        )


def held_apart(folder: Path) -> Hashes:
    """The runs of all rows below a folder, sorted."""
    found = []
    for file in sorted(folder.rglob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as rows:
            found.append(
                np.unique(
                    np.concatenate(
                        [hashes(text) for row in rows for text in texts_of(json.loads(row))]
                    )
                )
            )
    if not found:
        raise SystemExit(f"There are no *.jsonl.gz files below {folder}; name another folder.")
    return np.unique(np.concatenate(found))


def _start(path: str) -> None:
    global held
    held = np.load(path, mmap_mode="r")


def _shares(text: str) -> bool:
    own = hashes(text)
    places = np.searchsorted(held, own)
    return bool((held[np.minimum(places, len(held) - 1)] == own).any()) if len(own) else False


def keep_lines(lines: list[str]) -> tuple[bytes, int, int]:
    """What may stay, compressed; how much there was, and is."""
    kept = [line for line in lines if not line.strip() or not _shares(line)]
    return bz2.compress("".join(kept).encode()), sum(map(len, lines)), sum(map(len, kept))


def keep_pairs(lines: list[str]) -> tuple[bytes, int, int]:
    kept = [line for line in lines if not any(map(_shares, json.loads(line)[1:]))]
    return bz2.compress("".join(kept).encode()), len(lines), len(kept)


def batched(lines: Iterator[str], many: int) -> Iterator[list[str]]:
    while some := list(islice(lines, many)):
        yield some


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("corpus", "data", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    runs = options.output / "held.npy"
    np.save(runs, held_apart(options.data))
    files = sorted(
        file for file in options.corpus.iterdir() if ".txt" in file.name or ".jsonl" in file.name
    )
    told: dict[str, Any] = {"runs": int(np.load(runs, mmap_mode="r").size), "words": RUN}
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawned, initializer=_start, initargs=(str(runs),)) as pool:
        for kind, keep, unit in (
            ("text.txt", keep_lines, "characters"),
            ("tasks.jsonl", keep_pairs, "examples"),
        ):
            chunks = (
                chunk
                for file in files
                if Path(kind).suffix in file.name
                for chunk in batched(iter(Lines(str(file))), TOGETHER)
            )
            before = after = 0
            with (options.output / f"{kind}.bz2").open("wb") as out:
                while some := list(islice(chunks, 16)):
                    for kept, had, has in pool.map(keep, some):
                        out.write(kept)
                        before, after = before + had, after + has
                    print(
                        f"{kind}: {before:,} {unit} read, {before - after:,} left out", flush=True
                    )
            told[kind] = {"unit": unit, "before": before, "after": after}
    (options.output / "clean.json").write_text(json.dumps(told, indent=2) + "\n")
    runs.unlink()


if __name__ == "__main__":
    main()
