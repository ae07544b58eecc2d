r"""Run many configs on one machine, in several processes, and record every result.

    python benchmarks/sweep.py GRID.yaml --output RESULTS.jsonl [--workers 8] [--device cuda] \
        [--data DIR] [--backbones DIR] [--seconds N]

GRID.yaml is a list of entries, each a mapping of settings as on the command line. A mapping `grid`
in it gives values to combine (`grid: {lr: [0.1, 0.3], seed: [0, 1, 2]}`). In paths, {data} and
{backbones} stand for --data and --backbones. Configs already in the output are not run again.
benchmarks/grids/defaults.yaml is the grid behind the defaults.
"""

import argparse
import itertools
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from softprompts.backbone import Backbone, load_backbone
from softprompts.config import run_config, sections
from softprompts.errors import UserError
from softprompts.tuning import Run, Watcher
from softprompts.tuning.tune import tune_config

Settings = dict[str, Any]


def expand(grid: list[Settings]) -> list[Settings]:
    """Every combination of every entry; keys such as `prompt.length` become nested settings."""
    configs = []
    for entry in grid:
        axes = entry.get("grid", {})
        common = {name: value for name, value in entry.items() if name != "grid"}
        for values in itertools.product(*axes.values()):
            settings: Settings = {}
            for name, value in (common | dict(zip(axes, values, strict=True))).items():
                _set(settings, name.split("."), value)
            configs.append(settings)
    return configs


def _set(settings: Settings, path: list[str], value: Any) -> None:
    """Set a nested value; a choice that was only a name becomes a mapping."""
    for part in path[:-1]:
        if isinstance(settings.get(part), str):
            settings[part] = {"kind": settings[part]}
        settings = settings.setdefault(part, {})
    settings[path[-1]] = value


def with_folders(settings: Settings, folders: dict[str, str]) -> Settings:
    """The settings with {data} and {backbones} replaced; records keep the placeholders."""
    text = json.dumps(settings)
    for placeholder, folder in folders.items():
        text = text.replace(placeholder, folder)
    replaced: Settings = json.loads(text)
    return replaced


class History(Watcher):
    """Keeps a run's evaluations."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def on_evaluation(self, run: Run) -> None:
        self.entries = list(run.history)


def work(queue: Any, results: Any, device: str, deadline: float, folders: dict[str, str]) -> None:
    """Run configs from the queue until a None comes."""
    torch.set_num_threads(1)
    backbones: dict[tuple[str, str], Backbone] = {}
    while (settings := queue.get()) is not None:
        if time.time() > deadline:
            continue
        began, history = time.time(), History()
        record: dict[str, Any] = {"settings": settings}
        try:
            config = run_config(sections(with_folders(settings, folders)))
            key = (config.model, config.dtype)
            if key not in backbones:
                backbones[key] = load_backbone(*key, device)
            card = tune_config(config, None, watcher=history, backbone=backbones[key]).card
            names = ("metrics", "majority", "best_step", "steps", "stopped")
            record |= {name: getattr(card, name) for name in names}
            record["curve"] = [
                (entry["step"], round(entry["loss"], 3), entry[card.metric])
                for entry in history.entries
            ]
        except UserError as error:
            record["error"] = str(error)
        results.put(record | {"seconds": round(time.time() - began, 1)})
    results.put(None)


def main() -> None:
    options = parse()
    lines = options.output.read_text().splitlines() if options.output.exists() else []
    recorded = [json.loads(line)["settings"] for line in lines]
    grid = yaml.safe_load(options.grid.read_text())
    configs = [config for config in expand(grid) if config not in recorded]
    context = multiprocessing.get_context("spawn")
    queue, results = context.Queue(), context.Queue()
    for settings in [*configs, *([None] * options.workers)]:
        queue.put(settings)
    began = time.time()
    folders = {"{data}": options.data, "{backbones}": options.backbones}
    arguments = (queue, results, options.device, began + options.seconds, folders)
    processes = [context.Process(target=work, args=arguments) for _ in range(options.workers)]
    for process in processes:
        process.start()
    active, count = options.workers, 0
    with options.output.open("a") as file:
        while active:
            record = results.get()
            if record is None:
                active -= 1
                continue
            count += 1
            file.write(json.dumps(record) + "\n")
            file.flush()
            progress = f"[{count}/{len(configs)} {time.time() - began:.0f}s]"
            print(progress, json.dumps(record["settings"]), summary(record), flush=True)
    for process in processes:
        process.join()


def summary(record: dict[str, Any]) -> str:
    result = record.get("error") or (
        f"{record['metrics']} at {record['best_step']}, majority {record['majority']}"
    )
    return f"{result} ({record['seconds']}s)"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("grid", type=Path)
    add("--output", type=Path, required=True)
    add("--workers", type=int, default=1)
    add("--device", default="auto")
    add("--data", default="", help="the folder that {data} in the grid stands for")
    add("--backbones", default="", help="the folder that {backbones} in the grid stands for")
    add("--seconds", type=float, default=1e9, help="start no run after this many seconds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
