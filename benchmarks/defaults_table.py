"""Tables from the records of benchmarks/defaults.py.

    python benchmarks/defaults_table.py benchmarks/results/candidates-h200.jsonl [MORE.jsonl ...]
    python benchmarks/defaults_table.py benchmarks/results/routers-h200.jsonl --against mixture

For every backbone: the mean of each candidate over the tasks that all of them have with the same
seeds, by the held-out rows, which choose, and by the validation rows, which choose nothing. The
first table compares the candidates that were run with most seeds; its means are over seeds, then
tasks, then backbones. With --against, one table compares every candidate with that one, on the runs
that both have: means over tasks, and the mean difference with its 95 % interval (Student's t) over
all pairs of backbone and task.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from softprompts.analysis.spread import t_interval

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


def against(records: Records, one: str) -> list[str]:
    """Every candidate beside one of them."""
    models = list(dict.fromkeys(model for model, *_ in records))
    head = f"| candidate | {' | '.join(models)} | difference, held out | validation |"
    lines = [head, f"|---|{'---:|' * (len(models) + 2)}"]
    for name in dict.fromkeys(candidate for *_, candidate, _ in records):
        pairs: dict[tuple[str, str], list[tuple[tuple[float, float], tuple[float, float]]]] = {}
        for model, task, candidate, seed in records:
            if candidate == name and (model, task, one, seed) in records:
                both = records[model, task, name, seed], records[model, task, one, seed]
                pairs.setdefault((model, task), []).append((scores(both[0]), scores(both[1])))
        means = [
            " / ".join(
                f"{fmean(fmean(s[part] for s, _ in pairs[pair]) for pair in of):.1f}"
                for part in (0, 1)
            )
            for of in ([pair for pair in pairs if pair[0] == model] for model in models)
        ]
        gains = [
            [fmean(mine[part] - other[part] for mine, other in runs) for runs in pairs.values()]
            for part in (0, 1)
        ]
        shown = [_with_interval(gain) if name != one else "" for gain in gains]
        lines.append(f"| {name} | {' | '.join([*means, *shown])} |")
    return lines


def _with_interval(gains: list[float]) -> str:
    low, high = t_interval(gains) or (gains[0], gains[0])
    return f"{fmean(gains):+.1f} ({low:+.1f} to {high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", nargs="+")
    parser.add_argument("--against", metavar="CANDIDATE")
    options = parser.parse_args()
    records = read(*options.records)
    if options.against:
        print("\n".join(against(records, options.against)))
        return
    print("\n".join(with_most_seeds(records)))
    for model in dict.fromkeys(of for of, *_ in records):
        for count in (1, 2, 3):
            print("\n".join(table(records, model, tuple(range(count)))))


if __name__ == "__main__":
    main()
