"""Tables from the records of a sweep: what docs/defaults.md and the README show.

    python benchmarks/sweep_table.py benchmarks/results/defaults-h200.jsonl

Settings that were run twice (a GPU does not repeat itself to the bit) count as their mean; a spread is over the means of the seeds.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PRESETS = ("mixture", "prompt-tuning", "residual", "residual-bert", "smop", "p-tuning")
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
DATA = {
    "model",
    "dtype",
    "task",
    "train",
    "validation",
    "text",
    "template",
    "label",
    "labels",
    "steps",
    "preset",
    "lr",
    "seed",
}
"""Settings that say what was run on what; any other is a change to a preset."""


def where(settings: dict[str, Any]) -> str:
    backbone = settings.get("model", "t5-tiny").rpartition("/")[2]
    return f"{backbone}, {settings.get('task') or settings['train'].split('/')[-2]}, {settings['steps']} steps"


def main() -> None:
    runs: dict[tuple[str, str, float], dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    other: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    majority: dict[str, float] = {}
    twice: list[float] = []
    for line in Path(sys.argv[1]).read_text().splitlines():
        record = json.loads(line)
        settings, score = record["settings"], record["metrics"]["accuracy"]
        majority[where(settings)] = record["majority"]["accuracy"]
        changed = {name: value for name, value in settings.items() if name not in DATA}
        rate = settings.get("lr", 0.3)
        if changed:
            told = f"lr {rate}, seed {settings['seed']}, " + ", ".join(
                f"{name} {json.dumps(value)}" for name, value in changed.items()
            )
            other[(where(settings), settings["preset"], told)].append(score)
        else:
            runs[(where(settings), settings["preset"], rate)][settings["seed"]].append(score)
    presets = [preset for preset in PRESETS if any(preset == name for _, name, _ in runs)]
    print("| backbone, task | majority | " + " | ".join(presets) + " |")
    for place, score in majority.items():
        cells = []
        for preset in presets:
            seeds = [mean(found) for found in runs[(place, preset, 0.3)].values()]
            cells.append(f"{mean(seeds):.1f} ± {stdev(seeds):.1f}" if len(seeds) > 1 else "")
        print(f"| {place} | {score:.1f} | " + " | ".join(cells) + " |")
    print("\n| backbone, task, preset, seed 0 | " + " | ".join(map(str, RATES)) + " |")
    for place in majority:
        for preset in presets:
            found = [runs[(place, preset, rate)].get(0, []) for rate in RATES]
            if all(found):
                print(
                    f"| {place}, {preset} | "
                    + " | ".join(f"{mean(scores):.1f}" for scores in found)
                    + " |"
                )
    print("\nchanged settings:")
    for (place, preset, told), scores in sorted(other.items()):
        print(f"{place}, {preset}, {told}: {mean(scores):.1f}")
    for (place, preset, rate_), seeds_ in runs.items():
        for seed, scores in seeds_.items():
            if len(scores) > 1:
                twice.append(max(scores) - min(scores))
                print(f"run twice: {place}, {preset}, lr {rate_}, seed {seed}: {scores}")
    print(
        f"mean difference between two runs of one setting: {mean(twice):.1f}"
        if twice
        else "no setting was run twice"
    )


if __name__ == "__main__":
    main()
