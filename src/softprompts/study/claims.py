"""Claims of a study file: what a paper says, and how the verdict is reached, before anything runs.

claims:
  - claim: 1                       the number of the claim in docs/claims.yaml
    text: Prompts of 20 tokens beat those of one.
    paper: 84.9 against 80.1       the paper's number
    expect:                        all of these must hold
      - {better: length-20, than: length-1, least: 1}

An expectation compares arms, over all tasks and seeds that they share. An arm is a variant's name
(its runs without transfer), or a mapping that selects runs: `{variant: a, source: glue/mnli}`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, choices

OVER_SEEDS = ("vote", "best-seed", "mean-seed", "sd")
"""What is taken of all seeds together; all but the last are shares of right rows."""
EXPLAINED = (
    *("nearest-cosine", "random-cosine", "neighbour-cosine", "random-neighbour-cosine"),
    *("labels-near", "words-shared", "random-words-shared", "load-entropy"),
)
"""Taken from explanations, which `study explain` writes; in percent."""
TAKES = (
    *("mean", "best", "worst", "range", "curve", "seconds", "parameters"),
    *(*OVER_SEEDS, *EXPLAINED),
)
"""What can be taken of the selected runs on a task."""
SELECTED = ("variant", "source", "stage", "backbone", "k")
COMPARED = ("better", "lower", "no_worse")
OF_ONE_ANALYSIS = ("alike", "closer", "correlates", "retrieval")
"""Kinds that read what `study report` finds about the transfers of one variant and backbone."""
KINDS = (*COMPARED, "contrast", "pairs", *OF_ONE_ANALYSIS)
LEAST = 1.0


@dataclass(frozen=True)
class Selector:
    """Some runs of a study, and what is taken of them; or a number to compare with."""

    where: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    take: str = "mean"
    constant: float | None = None

    def __str__(self) -> str:
        if self.constant is not None:
            return f"{self.constant:g}"
        name = " ".join([", ".join(map(str, values)) for _, values in self.where]) or "no transfer"
        return name if self.take == "mean" else f"{self.take} of {name}"


@dataclass(frozen=True)
class Expectation:
    """A weighted sum of arms that should be above a margin, or another `kind` of statement.

    It holds if the whole interval is above `above`, and does not if it is below `least`. With
    `relative`, the sum is in percent of the last arm, which the others are compared with.
    """

    kind: str
    terms: tuple[tuple[float, Selector], ...] = ()
    above: float = 0.0
    least: float = LEAST
    tasks: tuple[str, ...] | None = None
    relative: bool = False
    value: Any = None

    @property
    def is_tested(self) -> bool:
        """Whether it needs p < 0.05, too; with another margin than zero, the interval decides."""
        return self.above == 0

    @property
    def name(self) -> str:
        if not self.terms:
            return f"{self.kind}: {json.dumps(self.value)}".replace('"', "")
        if self.kind == "contrast":
            terms = " ".join(f"{_weight(weight)} {arm}" for weight, arm in self.terms)
            return f"{terms.removeprefix('+ ')}:"
        (_, first), (_, second) = self.terms
        margin = f" by {self.above:g}" if self.above > 0 else ""
        return f"{first} {self.kind.replace('_', ' ')} than {second}{margin}:"

    @property
    def rule(self) -> str:
        """What is compared, and when it holds or fails."""
        where = f", on {', '.join(self.tasks)}" if self.tasks else ""
        if not self.terms:
            return f"{self.name}{where}"
        test = " and p < 0.05" if self.is_tested else ""
        unit = "%" if self.relative else "points"
        return (
            f"{self.name} holds if the interval is above {self.above:g}{test}, "
            f"fails if it is below {self.least:g} {unit}{where}"
        )


@dataclass(frozen=True)
class Claim:
    claim: int
    text: str
    paper: str
    expect: tuple[Expectation, ...]


def read_claims(entries: Sequence[Any]) -> list[Claim]:
    """The claims of a study file; anything that is not understood is refused."""
    return [_claim(entry) for entry in entries]


def _claim(entry: Any) -> Claim:
    if not isinstance(entry, Mapping) or set(entry) != {"claim", "text", "paper", "expect"}:
        raise UserError(
            f"A claim is {_short(entry)}; it needs claim (its number), text, paper and expect."
        )
    number, expect = entry["claim"], entry["expect"]
    if not isinstance(number, int) or not isinstance(expect, list) or not expect:
        raise UserError(
            f"The claim {_short(number)} needs a whole number, and a list of what is expected."
        )
    try:
        parts = tuple(map(_expectation, expect))
    except UserError as error:
        raise UserError(f"Claim {number}: {error.message}") from None
    paper = entry["paper"]
    if isinstance(paper, bool):  # YAML reads yes and no as true and false
        paper = "yes" if paper else "no"
    return Claim(number, str(entry["text"]), str(paper), parts)


def _expectation(entry: Any) -> Expectation:
    values = dict(entry) if isinstance(entry, Mapping) else {}
    kind = next((name for name in KINDS if name in values), None)
    if kind is None:
        raise UserError(f"{_short(entry)} expects nothing; write one of {', '.join(KINDS)}.")
    arms = values.pop(kind)
    tasks = values.pop("tasks", None)
    settings: dict[str, Any] = {"relative": bool(values.pop("relative", False))}
    if tasks is not None:
        settings["tasks"] = tuple(map(str, tasks if isinstance(tasks, list) else [tasks]))
    if kind in COMPARED:
        if "than" not in values:
            raise UserError(f"{kind} needs than, the arm to compare with.")
        first, second = _selector(arms), _selector(values.pop("than"))
        sign = -1.0 if kind == "lower" else 1.0
        settings["terms"] = ((sign, first), (-sign, second))
    elif kind == "contrast":
        if not isinstance(arms, list) or not arms or not all(map(_is_pair, arms)):
            raise UserError("contrast is a list of [weight, arm].")
        settings["terms"] = tuple((float(weight), _selector(arm)) for weight, arm in arms)
    elif tasks is not None and kind != "pairs":
        raise UserError(f"'tasks' is not part of {kind}.")
    else:
        settings["value"] = _value(kind, arms)
    terms = settings.get("terms")
    if terms and all(selector.constant is not None for _, selector in terms):
        raise UserError(f"{kind} compares numbers alone; name an arm.")
    margin = "within" if kind == "no_worse" else "by" if "by" in values else "least"
    points = values.pop(margin, LEAST)
    if not _is_number(points):
        raise UserError(f"{margin} is {points!r}; it must be a number of points.")
    if values:
        raise UserError(f"{next(iter(values))!r} is not part of {kind}.")
    bounds = {"within": (-points, -points), "by": (points, points), "least": (0.0, points)}[margin]
    return Expectation(kind, above=float(bounds[0]), least=float(bounds[1]), **settings)


def _weight(weight: float) -> str:
    """A weight before an arm: `+`, `-`, `- 0.5`."""
    size = "" if abs(weight) == 1 else f" {abs(weight):g}"
    return f"{'-' if weight < 0 else '+'}{size}"


NEEDS = {
    "pairs": "helps or hurts, alone or with a percentage",
    "alike": "two groups of tasks or more, each a list",
    "closer": "task, and the lists to and than",
    "correlates": "a number of targets",
    "retrieval": "a number of sources, or k and oracle (a percentage)",
}
"""What expectations that compare no arms are about."""


def _value(kind: str, value: Any) -> Any:
    """What an expectation that compares no arms is about."""
    parts = dict(value) if isinstance(value, Mapping) else {}
    understood = {
        "pairs": value in ("helps", "hurts")
        or (len(parts) == 1 and _is_number(parts.get("helps", parts.get("hurts")))),
        "alike": len(parts) > 1 and all(map(_is_list, parts.values())),
        "closer": set(parts) == {"task", "to", "than"}
        and _is_list(parts["to"])
        and _is_list(parts["than"]),
        "correlates": _is_count(value),
        "retrieval": _is_count(value)
        or (
            set(parts) == {"k", "oracle"} and _is_count(parts["k"]) and _is_number(parts["oracle"])
        ),
    }
    if not understood[kind]:
        raise UserError(f"{kind} is {_short(value)}; it needs {NEEDS[kind]}.")
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and _is_number(pair[0])


def _selector(arm: Any) -> Selector:
    if _is_number(arm):
        return Selector(constant=float(arm))
    values = dict(arm) if isinstance(arm, Mapping) else {"variant": arm}
    take = values.pop("take", "mean")
    if take not in TAKES:
        raise UserError(f"take is {take!r}; {choices(str(take), TAKES)}")
    if unknown := [str(name) for name in values if name not in SELECTED]:
        raise UserError(f"An arm has no {unknown[0]!r}; {choices(unknown[0], SELECTED)}")
    where = {name: tuple(v) if isinstance(v, list) else (v,) for name, v in values.items()}
    for name, selected in where.items():
        if any(isinstance(value, Mapping | list) for value in selected):
            raise UserError(f"{name} is {_short(values[name])}; give one value, or a list of them.")
    return Selector(tuple(where.items()), take)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
