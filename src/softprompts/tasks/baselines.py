"""A bag-of-words classifier: what a task's words alone give, without a language model.

Logistic regression on TF-IDF weights of words and pairs of words, trained on the task's own
training rows. Its predictions are cached by the contents of the rows. `python -m` this module is
the process that computes them while a GPU trains.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import cache_folder, read_json, write_json
from .task_definition import Example, content_digest

VERSION = 1
MAX_TRAIN = 10_000
"""Training rows that are read; of more, every n-th."""
UPDATES = 15_000
"""About as many rows are seen, in at most 5 epochs."""
RATE = 0.5
_WORD = re.compile(r"\w+")
Rows = tuple[Sequence[Example], Sequence[str]]
"""Training rows, and the texts to predict."""
_memory: dict[Path, list[str]] = {}
_processes: dict[Path, "subprocess.Popen[bytes]"] = {}
"""Who is computing predictions, by the file that they are cached in."""


def bag_of_words(train: Sequence[Example], inputs: Sequence[str]) -> list[str]:
    """Its predictions for texts, cached. If a process is computing them, they are waited for."""
    path = _cache_path(train, inputs)
    if path not in _memory:
        predictions = _read_cache(path, len(inputs))
        if predictions is None and path in _processes:
            _processes[path].wait()
            predictions = _read_cache(path, len(inputs))
        if predictions is None:  # not computed before, or the process was killed
            predictions = classify(train, inputs)
            with contextlib.suppress(UserError):  # a full disk costs time, not the run
                write_json(path, predictions)
        _memory[path] = predictions
    return _memory[path]


@contextlib.contextmanager
def computed_beside(jobs: Iterable[Rows]) -> Iterator[None]:
    """Inside, another process computes the predictions that are not cached."""
    paths = {_cache_path(*job): job for job in jobs}
    work = [
        (str(path), [(row.input, row.target) for row in _sampled(train)], inputs)
        for path, (train, inputs) in paths.items()
        if path not in _memory and _read_cache(path, len(inputs)) is None
    ]
    process = None
    with contextlib.suppress(OSError):  # no space or no processes left: computed when they are read
        process = _start(work) if work else None
    if process is not None:
        _processes.update((Path(path), process) for path, *_ in work)
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()
        for path, *_ in work:
            _processes.pop(Path(path), None)


def _start(work: Any) -> "subprocess.Popen[bytes]":
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(work).encode())
        file.seek(0)
        return subprocess.Popen(
            [sys.executable or "python", "-P", "-m", __name__],
            env={**os.environ, **single},
            stdin=file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _cache_path(train: Sequence[Example], inputs: Sequence[str]) -> Path:
    digest = content_digest([VERSION, _sampled(train), inputs])
    return cache_folder() / "baselines" / f"{digest}.json"


def _read_cache(path: Path, count: int) -> list[str] | None:
    predictions = None
    with contextlib.suppress(UserError):
        predictions = read_json(path) if path.exists() else None
    valid = isinstance(predictions, list) and len(predictions) == count
    return predictions if valid else None


def _sampled(train: Sequence[Example]) -> Sequence[Example]:
    return train[:: max(1, -(-len(train) // MAX_TRAIN))]


def classify(train: Sequence[Example], inputs: Sequence[str]) -> list[str]:
    rows = _sampled(train)
    classes = list(dict.fromkeys(example.target for example in rows))
    targets = [classes.index(example.target) for example in rows]
    vectors, vectorise = _tf_idf([example.input for example in rows])
    size = 1 + max((int(names.max()) for names, _ in vectors if len(names)), default=0)
    weights = np.zeros((size, len(classes)), np.float32)
    bias, squares = np.zeros(len(classes), np.float32), np.full(size, 1e-2, np.float32)
    generator = np.random.default_rng(0)
    for _ in range(max(1, min(5, UPDATES // len(rows)))):
        for row in generator.permutation(len(rows)):
            names, values = vectors[row]
            gradient = _softmax(values @ weights[names] + bias)
            gradient[targets[row]] -= 1
            squares[names] += values**2 * (gradient**2).sum()  # AdaGrad, a rate per word
            weights[names] -= np.outer(RATE * values / np.sqrt(squares[names]), gradient)
            bias -= 0.01 * gradient
    scores = (values @ weights[names] + bias for names, values in map(vectorise, inputs))
    return [classes[int(values.argmax())] for values in scores]


def _softmax(values: Any) -> Any:
    exponents = np.exp(values - values.max())
    return exponents / exponents.sum()


def _tf_idf(texts: Sequence[str]) -> tuple[list[Any], Callable[[str], Any]]:
    """Each text as numbers of its words and their weights, and how another text becomes such."""
    features = [_features(text) for text in texts]
    counts = Counter(name for names in features for name in names)
    known = {name: number for number, name in enumerate(n for n, c in counts.items() if c > 1)}
    idf = np.array([1 + np.log(len(texts) / counts[name]) for name in known], np.float32)

    def vector(names: Sequence[str]) -> Any:
        numbers = np.array([known[name] for name in names if name in known], np.int64)
        values = idf[numbers]
        return numbers, values / max(1e-6, float(np.linalg.norm(values)))

    return [vector(names) for names in features], lambda text: vector(_features(text))


def _features(text: str) -> list[str]:
    """The distinct words and pairs of words of a text."""
    words = _WORD.findall(text.lower())
    return list(dict.fromkeys([*words, *map(" ".join, pairwise(words))]))


if __name__ == "__main__":  # computes what the standard input lists, in its order
    for path, train, inputs in json.load(sys.stdin.buffer):
        write_json(Path(path), classify([Example(*pair) for pair in train], inputs))
