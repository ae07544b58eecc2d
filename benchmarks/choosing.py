"""The tables of docs/choosing.md: what one choice gains over another, with an interval.

    python benchmarks/choosing.py      # writes them into the page

Differences are between scores on the validation rows, paired over the tasks that both have (each
the mean over the seeds that both have). Bold: a paired test over the tasks, corrected for all
comparisons of its table (Holm), rejects zero.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from defaults_table import Records, read, scores
from softprompts.analysis.spread import SIGNIFICANCE, holm, t_interval
from softprompts.files import write_text
from softprompts.tasks.statistics import paired_test
from sweep_table import BASE_SETTINGS, RATES, experiment

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "choosing.md"
NAMES = {
    "t5-tiny": "t5-tiny",
    "flan-t5-small": "FLAN-T5-small",
    "smollm2-135m": "SmolLM2-135M",
    "minilm-l6": "MiniLM-L6",
}
CHOICES = {
    "mixture": "`mixture`: 16 x 20 tokens",
    "prompt-tuning": "`prompt-tuning`: 20 tokens",
    "residual": "`residual`: 10 tokens",
    "residual-labels-20": "`residual`: 20 tokens, from labels",
    "smop": "`smop`: 4 x 5 tokens",
    "p-tuning": "`p-tuning`: 20 tokens",
    "single-100": "100 tokens",
    "single-labels": "start from labels",
    "single-lr1": "learning rate 1",
    "mixture-10": "16 x 10 tokens",
    "mixture-8x20": "8 x 20 tokens",
    "mixture-4x20": "4 x 20 tokens",
    "mixture-300": "300 instead of 400 steps",
}
METHODS = ("mixture", "residual", "residual-labels-20", "smop", "p-tuning")
SETTINGS = ("single-100", "single-labels", "single-lr1")
SIZES = ("mixture-10", "mixture-8x20", "mixture-4x20", "mixture-300")
FEWEST = 5
"""Tasks below which no difference is shown."""


Differences = Mapping[tuple[str, str], Sequence[float]]
"""By row and column of a table."""


def differences(records: Records, model: str, choice: str, than: str) -> dict[str, float]:
    """By task: the mean over seeds of the difference."""
    by_task: dict[str, list[float]] = {}
    for (of, task, candidate, seed), record in sorted(records.items()):
        other = records.get((of, task, than, seed))
        if (of, candidate) == (model, choice) and other is not None:
            by_task.setdefault(task, []).append(scores(record)[1] - scores(other)[1])
    return {task: fmean(values) for task, values in by_task.items()}


def comparison(records: Records, choices: Sequence[str], than: str) -> str:
    """Choices against one, by backbone."""
    models = [model for model in NAMES if any(of == model for of, *_ in records)]
    found = {
        (CHOICES[choice], NAMES[model]): list(values.values())
        for choice in choices
        for model in models
        if len(values := differences(records, model, choice, than)) >= FEWEST
    }
    return table(f"against {CHOICES[than]}", found)


def table(title: str, found: Differences) -> str:
    """Means with intervals, and how many of the differences are positive."""
    tests = [paired_test(values, [0.0] * len(values)) for values in found.values()]
    corrected = dict(zip(found, holm(tests), strict=True))
    rows, columns = (list(dict.fromkeys(key[part] for key in found)) for part in (0, 1))
    order = list(NAMES.values())
    columns.sort(key=lambda name: order.index(name) if name in order else 0)
    return markdown(
        [title, *columns],
        [
            [row, *(_cell(found.get((row, c), ()), corrected.get((row, c), 1.0)) for c in columns)]
            for row in rows
        ],
    )


def _cell(values: Sequence[float], p: float) -> str:
    if not values:
        return ""
    low, high = t_interval(values) or (0.0, 0.0)
    better = f"{sum(value > 0 for value in values)} of {len(values)}"
    text = f"{fmean(values):+.1f} ({low:+.1f} to {high:+.1f}), {better}"
    return f"**{text}**" if p < SIGNIFICANCE else text


def chat(records: Records) -> str:
    """Without the chat template of an instruct model against with it."""
    model = "smollm2-135m"
    pairs = {"mixture": "mixture-no-chat", "prompt-tuning": "single-no-chat"}
    found = {
        (f"`{preset}`", NAMES[model]): list(differences(records, model, without, preset).values())
        for preset, without in pairs.items()
    }
    return table("without the chat template", found)


def by_task(records: Records, choice: str, than: str) -> str:
    """One choice against another, by task and backbone."""
    found = {model: differences(records, model, choice, than) for model in NAMES}
    tasks = sorted({task for values in found.values() for task in values})
    tasks.sort(key=lambda task: -found["t5-tiny"].get(task, -100))
    return markdown(
        ["task", *NAMES.values()],
        [[t, *(f"{v[t]:+.1f}" if t in v else "" for v in found.values())] for t in tasks],
    )


def rates(path: Path, usual: float = 0.3) -> str:
    """Learning rates against the usual one, over backbones, tasks and presets, at seed 0."""
    runs: dict[tuple[str, str], dict[float, list[float]]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        settings = record["settings"]
        if settings["seed"] == 0 and set(settings) <= BASE_SETTINGS:
            key, rate = (experiment(settings), settings["preset"]), settings.get("lr", usual)
            runs.setdefault(key, {}).setdefault(rate, []).append(record["metrics"]["accuracy"])
    swept = [values for values in runs.values() if set(values) >= set(RATES)]
    found = {
        (f"{rate:g}", f"all {len(swept)} sweeps"): [
            fmean(values[rate]) - fmean(values[usual]) for values in swept
        ]
        for rate in RATES
        if rate != usual
    }
    return table(f"learning rate against {usual:g}", found)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" + "|---:" * (len(head) - 1) + "|", *lines[1:]])


def tables() -> dict[str, str]:
    candidates = read(*(str(RESULTS / f"{name}-h200.jsonl") for name in ("candidates", "rungs")))
    sizes = read(str(RESULTS / "mixture-sizes-t5-tiny-h200.jsonl"))
    return {
        "methods": comparison(candidates, METHODS, "prompt-tuning"),
        "by task": by_task(candidates, "mixture", "prompt-tuning"),
        "settings": comparison(candidates, SETTINGS, "prompt-tuning"),
        "rates": rates(RESULTS / "defaults-h200.jsonl"),
        "sizes": comparison(sizes, SIZES, "mixture"),
        "length of the mixture": comparison(candidates, ["mixture-10"], "mixture"),
        "chat": chat(candidates),
    }


def with_tables(page: str) -> str:
    """The page with each table below its mark."""
    for name, text in tables().items():
        head, mark, rest = page.partition(f"<!-- benchmarks/choosing.py: {name} -->\n\n")
        if not mark:
            raise SystemExit(f"The page has no mark for the table {name!r}.")
        page = head + mark + text + "\n\n" + rest.partition("\n\n")[2]
    return page


def main() -> None:
    write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))
    print(f"the tables are in {PAGE}; check the sentences below them")


if __name__ == "__main__":
    main()
