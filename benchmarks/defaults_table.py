"""Tables from the records of benchmarks/defaults.py.

    python benchmarks/defaults_table.py benchmarks/results/candidates-h200.jsonl [MORE.jsonl ...]

For every backbone: the mean of each candidate over the tasks that all of them have with the same
seeds, by the held-out rows, which choose, and by the validation rows, which choose nothing. The
first table compares the candidates that were run with most seeds; its means are over seeds, then
tasks, then backbones.
"""

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

Records = dict[tuple[str, str, str, int], dict[str, Any]]
MOST_SEEDS = ("mixture", "prompt-tuning", "residual", "residual-labels-20")
FEWEST_SEEDS = 3
"""A task with fewer seeds than this is left out of the first table."""
MOST_TASKS = 0.6
"""A candidate with fewer than this share of the tasks is left out of a table."""


def read(*paths: str) -> Records:
    """The records of all files; of the same run, the last one."""
    records: Records = {}
    for line in (line for path in paths for line in Path(path).read_text().splitlines()):
        record = json.loads(line)
        if record.get("metrics"):
            key = record["model"], record["task"], record["candidate"], record["seed"]
            records[key] = record
    return records


def scores(record: dict[str, Any]) -> tuple[float, float]:
    """By the held-out rows at the last step, and by the validation rows."""
    return list(record["held_out"].values())[-1], record["metrics"][record["metric"]]


def with_most_seeds(records: Records) -> list[str]:
    """The candidates of `MOST_SEEDS`: on every task, over the seeds that all of them have."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for model, task, candidate, seed in records:
        if candidate == MOST_SEEDS[0] and all(
            (model, task, other, seed) in records for other in MOST_SEEDS
        ):
            seeds.setdefault((model, task), []).append(seed)
    seeds = {pair: of for pair, of in seeds.items() if len(of) >= FEWEST_SEEDS}
    models = dict.fromkeys(model for model, _ in seeds)
    pairs = {model: [pair for pair in seeds if pair[0] == model] for model in models}
    runs = {model: sum(len(seeds[pair]) for pair in pairs[model]) for model in models}
    counts = [f"{len(pairs[model])} tasks, {runs[model]} runs" for model in models]
    lines = [
        f"| candidate | {' | '.join(models)} | mean |",
        f"|---|{'---:|' * (len(models) + 1)}",
        f"| each with | {' | '.join(counts)} | |",
    ]
    for name in MOST_SEEDS:
        cells = []
        for part in (0, 1):
            of_task = {
                pair: fmean(scores(records[*pair, name, seed])[part] for seed in of)
                for pair, of in seeds.items()
            }
            means = [fmean(of_task[pair] for pair in pairs[model]) for model in models]
            cells.append([*means, fmean(means)])
        both = " | ".join(f"{h:.1f} / {v:.1f}" for h, v in zip(*cells, strict=True))
        lines.append(f"| {name} | {both} |")
    return lines


def table(records: Records, model: str, seeds: tuple[int, ...]) -> list[str]:
    """A backbone's candidates, best first by the held-out rows."""
    by_candidate: dict[str, dict[str, tuple[float, float]]] = {}
    pairs = {(task, candidate) for of, task, candidate, _ in records if of == model}
    for task, candidate in pairs:
        runs = [records.get((model, task, candidate, seed)) for seed in seeds]
        if all(runs):
            held_out, validation = zip(*(scores(run) for run in runs if run), strict=True)
            by_candidate.setdefault(candidate, {})[task] = fmean(held_out), fmean(validation)
    if not by_candidate:
        return []
    most = max(map(len, by_candidate.values()))
    compared = {c: t for c, t in by_candidate.items() if len(t) >= MOST_TASKS * most}
    tasks = set.intersection(*(set(of) for of in compared.values()))
    rows = [
        (*(fmean(of[task][part] for task in tasks) for part in (0, 1)), candidate)
        for candidate, of in compared.items()
    ]
    count = f"{len(tasks)} tasks, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    lines = [f"\n{model}, {count}:\n", "| candidate | held out | validation |", "|---|---:|---:|"]
    return [*lines, *(f"| {name} | {h:.1f} | {v:.1f} |" for h, v, name in sorted(rows)[::-1])]


def main() -> None:
    records = read(*sys.argv[1:])
    print("\n".join(with_most_seeds(records)))
    for model in dict.fromkeys(of for of, *_ in records):
        for count in (1, 2, 3):
            print("\n".join(table(records, model, tuple(range(count)))))


if __name__ == "__main__":
    main()
