"""Run many configs on one machine, several processes at a time, and record every result.

    python benchmarks/sweep.py GRID.yaml --output RESULTS.jsonl [--workers 8] [--device cuda] [--data DIR] [--backbones DIR] [--seconds N]

GRID.yaml holds a list of entries: each a mapping of settings as on the command line, where a list under `grid` gives the values to
cross (`grid: {lr: [0.1, 0.3], seed: [0, 1, 2]}`), and {data} and {backbones} in a path stand for --data and --backbones. Results already in
the output are not run again. The defaults in docs/defaults.md were found with this script and benchmarks/grids/defaults.yaml.
"""

import argparse
import itertools
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import yaml


def configs(grid: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every entry with its grid crossed out; `prompt.length`-like keys become nested settings."""
    found = []
    for entry in grid:
        axes = entry.get("grid", {})
        for values in itertools.product(*axes.values()):
            settings: dict[str, Any] = {}
            for name, value in [
                *((k, v) for k, v in entry.items() if k != "grid"),
                *zip(axes, values, strict=True),
            ]:
                *path, last = name.split(".")
                place = settings
                for part in path:
                    place[part] = (
                        {"kind": place[part]}
                        if isinstance(place.get(part), str)
                        else place.get(part, {})
                    )
                    place = place[part]
                place[last] = value
            found.append(settings)
    return found


def placed(settings: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """The settings with {data} and {backbones} replaced by this machine's folders; records keep the marks."""
    text = json.dumps(settings)
    for mark, where in places.items():
        text = text.replace(mark, where)
    made: dict[str, Any] = json.loads(text)
    return made


def work(queue: Any, results: Any, device: str, deadline: float, places: dict[str, str]) -> None:
    import torch

    from softprompts.backbone import load_backbone
    from softprompts.errors import UserError
    from softprompts.config.run import run_config
    from softprompts.tuning.tune import tune_config
    from softprompts.config.run import sections

    torch.set_num_threads(1)
    backbones: dict[str, Any] = {}
    while (settings := queue.get()) is not None:
        if time.time() > deadline:
            continue
        begun = time.time()
        record: dict[str, Any] = {"settings": settings}
        try:
            config = run_config(sections(placed(settings, places)))
            key = f"{config.model} {config.dtype}"
            if key not in backbones:
                backbones[key] = load_backbone(config.model, config.dtype, device)
            history: list[dict[str, Any]] = []

            class Note:
                def on_step(self, run: Any) -> None: ...
                def on_rows_answered(self, run: Any, rows: int) -> None: ...
                def on_evaluation(self, run: Any, history: list[dict[str, Any]] = history) -> None:
                    history[:] = run.history

            tuned = tune_config(config, None, watcher=Note(), backbone=backbones[key])
            record |= {
                k: getattr(tuned.card, k) for k in ("metrics", "majority", "best_step", "steps", "stopped")
            }
            record["curve"] = [
                (e["step"], round(e["loss"], 3), e[tuned.card.metric])
                for e in history
            ]
        except UserError as error:
            record["error"] = str(error)
        results.put(record | {"seconds": round(time.time() - begun, 1)})
    results.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="", help="the folder that {data} in the grid stands for")
    parser.add_argument(
        "--backbones", default="", help="the folder that {backbones} in the grid stands for"
    )
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no run after so many seconds"
    )
    options = parser.parse_args()
    done = (
        [json.loads(line)["settings"] for line in options.output.read_text().splitlines()]
        if options.output.exists()
        else []
    )
    todo = [c for c in configs(yaml.safe_load(options.grid.read_text())) if c not in done]
    context = multiprocessing.get_context("spawn")
    queue, results = context.Queue(), context.Queue()
    for settings in [*todo, *([None] * options.workers)]:
        queue.put(settings)
    begun, places = time.time(), {"{data}": options.data, "{backbones}": options.backbones}
    processes = [
        context.Process(
            target=work, args=(queue, results, options.device, begun + options.seconds, places)
        )
        for _ in range(options.workers)
    ]
    for process in processes:
        process.start()
    open_workers, count = options.workers, 0
    with options.output.open("a") as file:
        while open_workers:
            record = results.get()
            if record is None:
                open_workers -= 1
                continue
            count += 1
            file.write(json.dumps(record) + "\n")
            file.flush()
            told = (
                record.get("error")
                or f"{record['metrics']} at {record['best_step']}, majority {record['majority']}"
            )
            print(
                f"[{count}/{len(todo)} {time.time() - begun:.0f}s] {json.dumps(record['settings'])}: {told} ({record['seconds']}s)",
                flush=True,
            )
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
