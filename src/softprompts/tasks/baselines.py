"""A bag-of-words classifier: what a task's words alone give, without a language model.

Logistic regression on TF-IDF weights of words and pairs of words, trained on the task's own
training rows. Its predictions are cached by the contents of the rows.
"""

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import cache_folder, read_json, write_json
from .task_definition import Example

VERSION = 1
MAX_TRAIN = 10_000
"""Training rows that are read; of more, every n-th."""
UPDATES = 15_000
"""About as many rows are seen, in at most 5 epochs."""
RATE = 0.5
_WORD = re.compile(r"\w+")
_memory: dict[str, list[str]] = {}


def bag_of_words(train: Sequence[Example], inputs: Sequence[str]) -> list[str]:
    """Its predictions for texts, cached."""
    digest = hashlib.sha256(json.dumps([VERSION, train, inputs]).encode()).hexdigest()[:32]
    if digest not in _memory:
        path = cache_folder() / "baselines" / f"{digest}.json"
        predictions = None
        with contextlib.suppress(UserError):
            predictions = read_json(path) if path.exists() else None
        if not isinstance(predictions, list) or len(predictions) != len(inputs):
            predictions = classify(train, inputs)
            with contextlib.suppress(UserError):  # a full disk costs time, not the run
                write_json(path, predictions)
        _memory[digest] = predictions
    return _memory[digest]


def classify(train: Sequence[Example], inputs: Sequence[str]) -> list[str]:
    """Train the classifier and predict."""
    rows = train[:: -(-len(train) // MAX_TRAIN)]
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
    pairs = (f"{a} {b}" for a, b in pairwise(words))
    return list(dict.fromkeys([*words, *pairs]))
