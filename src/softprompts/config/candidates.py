"""The candidates of `tune --auto`: methods, learning rates, lengths and starts that compete."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError, setting
from .products import Member, expand_lists
from .run import RunConfig, merge_layers, run_config
from .schema import coerce

Layer = Mapping[str, Any]


def _candidate(preset: str, lr: float | None = None, **prompt: Any) -> Layer:
    return {"preset": preset, "prompt": prompt, "tuning": {} if lr is None else {"lr": lr}}


CANDIDATES: tuple[Layer, ...] = (
    _candidate("mixture"),
    _candidate("prompt-tuning"),
    _candidate("residual", length=20, start="labels"),
    _candidate("residual"),
    _candidate("prompt-tuning", 1.0),
    _candidate("mixture", 0.1),
    _candidate("prompt-tuning", length=100),
    _candidate("smop"),
    _candidate("p-tuning"),
    _candidate("prompt-tuning", start="labels"),
    _candidate("residual", 0.1),
    _candidate("prompt-tuning", 0.1),
    _candidate("mixture", 0.6, length=5),
    _candidate("smop", 1.0),
    _candidate("p-tuning", 1.0),
    _candidate("residual", length=50),
)
"""Settings over the defaults of their preset, in order of precedence: the first ones that fit
compete. The first of all is the default method."""

COMMON = ("steps", "epochs", "batch_size", "accumulate")
"""Settings of tuning that all candidates share, or their scores would not be comparable."""


BUDGET = 3
"""What `tune --auto` costs, in runs of `steps`: half goes to the tournament, half to the winner."""
TOURNAMENT_RUNS = 1
"""The cost of a tournament, in runs of the winner."""
JUDGING = 0.25
"""The largest share of that cost for judging; a class with two rows gives at least one."""
ANSWERED = 0.5
"""What it costs to answer a row, in rows that are trained on: there is no backward pass."""
FIRST_STEPS = 10
"""The fewest steps before candidates are first judged."""


def sizes(count: int) -> list[int]:
    """The number of candidates that each rung judges: 8, 4, 2."""
    rungs = [count]
    while rungs[-1] > 2:
        rungs.append(math.ceil(rungs[-1] / 2))
    return rungs


def rung_shares(count: int) -> list[float]:
    """The share of each rung in the cost of the training: half of it is spent on the last two
    candidates, which are judged late, and the rungs before share the rest."""
    early = len(sizes(count)) - 1
    return [*[0.5 / early] * early, 0.5] if early else [1.0]


def winner_steps(steps: int) -> int:
    """The steps of the winner's run. `steps`: those of a run without a tournament."""
    return math.floor(steps * BUDGET / (1 + TOURNAMENT_RUNS))


def steps_needed(count: int) -> int:
    """The fewest `steps` for which a tournament of that many candidates fits in."""
    first = TOURNAMENT_RUNS * (1 - JUDGING) * rung_shares(count)[0] / count
    return math.ceil(FIRST_STEPS / first * (1 + TOURNAMENT_RUNS) / BUDGET - 1e-9)


def check_steps(count: int, steps: int) -> None:
    if count < 2:
        raise UserError(
            f"Only one candidate fits this task and model; leave out {setting('auto')}."
        )
    if steps < steps_needed(count):
        fewer = ", or compare fewer" if count > 2 else ""
        raise UserError(
            f"{setting('tuning.steps')} is {steps}, and a tournament of {count} candidates needs "
            f"{steps_needed(count)} or more; raise it{fewer}."
        )


def make_candidates(
    *layers: Layer, minutes: float | None = None, resumed: bool = False
) -> tuple[list[Member], bool]:
    """The candidates, and whether they are `CANDIDATES`: lists in the settings replace these.

    A setting that is given holds for all; candidates that become the same count once. `resumed`: a
    tournament of them is planned already, perhaps by a version that needed fewer steps.
    """
    members = expand_lists(*layers)
    _check(members)
    tuning = members[0].config.tuning
    if minutes is None and tuning.epochs is None and not resumed:
        check_steps(max(2, len(members)), tuning.steps)
    if len(members) > 1:
        return members, False
    given = merge_layers(*layers)
    configs: dict[str, RunConfig] = {}
    for candidate in CANDIDATES:
        try:
            config = run_config(candidate, given)
        except UserError:  # it does not fit these settings, such as a length of 100 in 64 tokens
            continue
        configs.setdefault(str({**config.plain(), "preset": None}), config)
    if len(configs) < 2:
        raise UserError(
            f"These settings leave nothing for {setting('auto')} to choose; leave some of them "
            "out, or give lists of values to compare."
        )
    return [
        Member(config, _described(config), str(number))
        for number, config in enumerate(configs.values(), 1)
    ], True


def _described(config: RunConfig) -> dict[str, Any]:
    return {
        "preset": config.preset,
        "lr": config.tuning.lr,
        "length": config.prompt.length,
        "start": config.prompt.start.kind,
    }


def _check(members: Sequence[Member]) -> None:
    """Refuse settings that a tournament cannot have."""
    first = members[0].config
    if any(member.config.paper for member in members):
        raise UserError(
            f"{setting('paper')} fixes what {setting('auto')} would choose; leave one out."
        )
    if any(member.config.tuning.trains != "prompt" for member in members):
        raise UserError(
            f"{setting('auto')} compares prompts; tune the whole model, or nothing, without it."
        )
    if any(member.config.tuning.patience is not None for member in members):
        raise UserError(
            f"{setting('tuning.patience')} selects by validation score, which {setting('auto')} "
            "does not; leave one out."
        )
    if len({_shared(member.config) for member in members}) > 1:
        names = [
            name
            for name in members[0].varied
            if name in (*COMMON, "seed") or hasattr(first.task, name)
        ]
        raise UserError(
            f"{setting(names[0] if names else 'preset')} is a list, but all candidates of "
            f"{setting('auto')} share task, seed, steps and batch size; give one value."
        )


def _shared(config: RunConfig) -> str:
    return str([config.task, config.seed, *(getattr(config.tuning, name) for name in COMMON)])


def check_minutes(minutes: float | None, auto: bool, *layers: Layer) -> float | None:
    """The budget in minutes; refused without `auto`, or beside another budget."""
    if minutes is None:
        return None
    if not auto:
        raise UserError(
            f"{setting('minutes')} is the budget of {setting('auto')}; use both, or set "
            f"{setting('tuning.steps')}."
        )
    tuning = merge_layers(*layers).get("tuning") or {}
    given = [name for name in ("steps", "epochs") if tuning.get(name) is not None]
    if given:
        raise UserError(
            f"Both {setting('minutes')} and {setting(f'tuning.{given[0]}')} set the length of "
            "training; leave one out."
        )
    return float(coerce("minutes", minutes, {"type": "number", "exclusiveMinimum": 0}))
