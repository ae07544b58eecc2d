"""Tables from the records of a sweep.

    python benchmarks/sweep_table.py benchmarks/results/defaults-h200.jsonl

Configs that ran twice (GPUs are not deterministic) count as their mean; a spread is over the means
of the seeds.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PRESETS = ("mixture", "prompt-tuning", "residual", "residual-bert", "smop", "p-tuning")
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
BASE_SETTINGS = {
    *("model", "dtype", "task", "train", "validation", "text", "template", "label", "labels"),
    *("steps", "preset", "lr", "seed"),
}
"""Settings that say what was tuned on what; any other is a change to a preset."""

Runs = dict[tuple[str, str, float], dict[int, list[float]]]
"""Accuracies by experiment, preset and learning rate, and by seed."""


def experiment(settings: dict[str, Any]) -> str:
    """The backbone, the task and the number of steps."""
    backbone = settings.get("model", "t5-tiny").rpartition("/")[2]
    task = settings.get("task") or settings["train"].split("/")[-2]
    return f"{backbone}, {task}, {settings['steps']} steps"


def main() -> None:
    runs: Runs = defaultdict(lambda: defaultdict(list))
    changed: dict[str, list[float]] = defaultdict(list)
    majority: dict[str, float] = {}
    for line in Path(sys.argv[1]).read_text().splitlines():
        record = json.loads(line)
        settings, score = record["settings"], record["metrics"]["accuracy"]
        name, preset, rate = experiment(settings), settings["preset"], settings.get("lr", 0.3)
        majority[name] = record["majority"]["accuracy"]
        changes = {key: value for key, value in settings.items() if key not in BASE_SETTINGS}
        if changes:
            text = ", ".join(f"{key} {json.dumps(value)}" for key, value in changes.items())
            label = f"{name}, {preset}, lr {rate}, seed {settings['seed']}, {text}"
            changed[label].append(score)
        else:
            runs[name, preset, rate][settings["seed"]].append(score)
    presets = [preset for preset in PRESETS if any(preset == name for _, name, _ in runs)]
    print_presets(runs, majority, presets)
    print_rates(runs, majority, presets)
    print("\nchanged settings:")
    for label, scores in sorted(changed.items()):
        print(f"{label}: {mean(scores):.1f}")
    print_repeated(runs)


def print_presets(runs: Runs, majority: dict[str, float], presets: list[str]) -> None:
    print("| backbone, task | majority | " + " | ".join(presets) + " |")
    for name, score in majority.items():
        cells = []
        for preset in presets:
            seeds = [mean(scores) for scores in runs[name, preset, 0.3].values()]
            cells.append(f"{mean(seeds):.1f} ± {stdev(seeds):.1f}" if len(seeds) > 1 else "")
        print(f"| {name} | {score:.1f} | " + " | ".join(cells) + " |")


def print_rates(runs: Runs, majority: dict[str, float], presets: list[str]) -> None:
    print("\n| backbone, task, preset, seed 0 | " + " | ".join(map(str, RATES)) + " |")
    for name in majority:
        for preset in presets:
            scores = [runs[name, preset, rate].get(0, []) for rate in RATES]
            if all(scores):
                cells = " | ".join(f"{mean(values):.1f}" for values in scores)
                print(f"| {name}, {preset} | {cells} |")


def print_repeated(runs: Runs) -> None:
    differences = []
    for (name, preset, rate), seeds in runs.items():
        for seed, scores in seeds.items():
            if len(scores) > 1:
                differences.append(max(scores) - min(scores))
                print(f"run twice: {name}, {preset}, lr {rate}, seed {seed}: {scores}")
    if differences:
        print(f"mean difference between two runs of one config: {mean(differences):.1f}")
    else:
        print("no config was run twice")


if __name__ == "__main__":
    main()
