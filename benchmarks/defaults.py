r"""Which preset, or which other settings, should be the default? Candidates on many backbones and
tasks, as cohorts: every candidate and seed of one backbone and task learns at once.

    python benchmarks/defaults.py CANDIDATES.yaml --output RESULTS.jsonl --data DIR \
        --backbones DIR [--tasks A,B] [--models A,B] [--seeds 0,1,2] [--workers 4] [--steps 400] \
        [--plugin FILE]
    python benchmarks/defaults.py auto --output RESULTS.jsonl --data DIR --backbones DIR ...

CANDIDATES.yaml maps names to settings as in a run's file; `auto` runs `tune --auto` as it is. A
tenth of the training rows (at most `--held-out`) is held out of training and chooses; the official
validation rows (at most `--validation`) choose nothing and are what is reported. A run is judged at
its last step: there is no best checkpoint. At the rungs of a tournament of `tune --auto`,
candidates are judged as it would judge them; benchmarks/auto_table.py replays it from there.
Records already in the output are not run again.
"""

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml

from softprompts.backbone import Backbone, load_backbone
from softprompts.config import run_config
from softprompts.config.candidates import make_candidates
from softprompts.config.plugins import VARIABLE
from softprompts.config.run import merge_layers
from softprompts.errors import UserError
from softprompts.tasks import Task, load_task
from softprompts.tuning import Run
from softprompts.tuning.auto import MOST, rung_steps
from softprompts.tuning.cohort import Cohort
from softprompts.tuning.evaluate import answer_all
from softprompts.tuning.run import check_losses
from softprompts.tuning.tune import tune_auto

MODELS = ("t5-tiny", "flan-t5-small", "smollm2-135m", "minilm-l6")
TASKS = (
    *("superglue/rte", "superglue/boolq", "superglue/cb", "superglue/copa", "superglue/wic"),
    *("glue/sst2", "glue/mrpc", "textcls/trec", "textcls/agnews", "textcls/cr", "textcls/sst5"),
    *("helpdesk/intent", "helpdesk/urgency"),
)
AUTO = "auto"
Settings = dict[str, Any]


def work(queue: Any, results: Any, options: argparse.Namespace, deadline: float) -> None:
    """Run jobs from the queue until a None comes."""
    torch.set_num_threads(1)
    backbones: dict[str, Backbone] = {}
    while (job := queue.get()) is not None:
        model, task, members = job
        if time.time() > deadline:
            continue
        try:
            if model not in backbones:
                backbones.clear()
                folder = model if model == "t5-tiny" else str(options.backbones / model)
                backbones[model] = load_backbone(folder, "auto", options.device)
            run = run_auto if members[0][0] == AUTO else run_job
            for record in run(backbones[model], task, members, options):
                results.put({"model": model, "task": task, **record})
        except Exception as error:  # the other jobs go on
            results.put({"model": model, "task": task, "error": f"{type(error).__name__}: {error}"})
    results.put(None)


def run_job(
    backbone: Backbone,
    name: str,
    members: Sequence[tuple[str, Settings, int]],
    options: argparse.Namespace,
) -> Iterator[Settings]:
    """The records of all candidates and seeds of one backbone and task."""
    began, base = time.monotonic(), base_settings(backbone, name, options)
    base = merge_layers(base, {"tuning": {"evaluate_every": 10**6, "checkpoint_every": 10**6}})
    configs = [
        run_config(merge_layers(base, settings, {"seed": seed})) for _, settings, seed in members
    ]
    task = load_task(configs[0].task)
    judged = task.held_out(min(0.1, options.held_out / len(task.train)))
    runs, names = list[Run](), list[tuple[str, int]]()
    for (candidate, _, seed), config in zip(members, configs, strict=True):
        try:
            runs.append(Run(config, judged, backbone))
            names.append((candidate, seed))
        except UserError as error:
            yield {"candidate": candidate, "seed": seed, "error": str(error)}
    cohort = Cohort(runs, [None] * len(runs))
    rungs: dict[Run, list[Settings]] = {run: [] for run in runs}
    batch_rows, start = configs[0].tuning.batch_size, 0
    for step in rung_steps(options.steps, batch_rows, MOST, len(judged.validation)):
        for run in runs:
            run.pause_at = step
        cohort.train()
        check_losses(runs)
        active = [run for run in runs if not run.failed]
        for run, answers in zip(active, cohort.evaluate(active), strict=True):
            rungs[run].append(rung(run, judged, answers, start))
        start = step
    for run in runs:
        run.pause_at = math.inf
    cohort.train()  # evaluates at the last step
    alive = [run for run in runs if not run.failed]
    scores = dict(zip(alive, report(alive, task), strict=True))
    seconds = time.monotonic() - began
    for (candidate, seed), run in zip(names, runs, strict=True):
        yield {
            "candidate": candidate,
            "seed": seed,
            "metric": run.metric,
            "held_out": {entry["step"]: entry[run.metric] for entry in run.history},
            "held_out_rows": len(judged.validation),
            "rungs": rungs[run],
            "metrics": scores.get(run),
            "rows": len(task.validation),
            "majority": task.majority()[run.metric],
            "loss": run.losses[-1][1] if run.losses else None,
            "stopped": run.stopped,
            "job_seconds": round(seconds, 1),
            "job_runs": len(runs),
        }


def run_auto(
    backbone: Backbone,
    name: str,
    members: Sequence[tuple[str, Settings, int]],
    options: argparse.Namespace,
) -> Iterator[Settings]:
    """What `tune --auto` makes of one backbone and task, for each seed."""
    base = base_settings(backbone, name, options)
    for candidate, settings, seed in members:
        began = time.monotonic()
        candidates, built_in = make_candidates(merge_layers(base, settings, {"seed": seed}))
        tuned = tune_auto(candidates, None, built_in, backbone=backbone)
        record: Any = tuned.tournament
        yield {
            "candidate": candidate,
            "seed": seed,
            "metric": tuned.card.metric,
            "winner": record["candidates"][record["winner"]],
            "winner_steps": record["steps"],
            "rungs": [
                {"step": rung["step"], "standings": rung["standings"]} for rung in record["rungs"]
            ],
            "held_out_rows": record["held_out"],
            "runs_cost": record["cost"]["runs"],
            "metrics": tuned.metrics,
            "job_seconds": round(time.monotonic() - began, 1),
        }


def base_settings(backbone: Backbone, name: str, options: argparse.Namespace) -> Settings:
    return {
        "model": backbone.name,
        "task": {
            "task": name,
            "cap_validation": options.validation,
            **({} if name.startswith("helpdesk") else {"data_dir": str(options.data)}),
        },
        "tuning": {"steps": options.steps, "max_length": 256, "baselines": False},
    }


def rung(run: Run, task: Task, answers: Sequence[str], start: int) -> Settings:
    """What a tournament sees of a run at a rung: its score, its training loss since the step
    `start`, and which of the held-out rows it gets right, a bit each."""
    targets = [example.target for example in task.validation]
    right = "".join(str(int(a == t)) for a, t in zip(answers, targets, strict=True))
    losses = [loss for step, loss in run.losses if step > start]
    return {
        "step": run.step,
        "score": task.score(answers)[run.metric],
        "loss": round(fmean(losses), 4),
        "right": right,
    }


def report(runs: Sequence[Run], task: Task) -> list[Mapping[str, float]]:
    """The scores of all runs on the official validation rows."""
    jobs = []
    for run in runs:
        predictor = run.predictor()
        texts = [row.input for row in task.validation]
        jobs.append((predictor, predictor.backbone.tokenise(texts, predictor.budget)))
    return [task.score(answers) for answers in answer_all(jobs, batch_size=1024)]


def main() -> None:
    options = parse()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    if options.plugin:
        os.environ[VARIABLE] = str(options.plugin)
    lines = options.output.read_text().splitlines() if options.output.exists() else []
    keys = ("model", "task", "candidate", "seed")
    recorded = {tuple(json.loads(line).get(key) for key in keys) for line in lines}
    candidates: dict[str, Settings] = {AUTO: {}}
    if options.candidates != Path(AUTO):
        candidates = yaml.safe_load(options.candidates.read_text())
    chosen = options.only or list(candidates)
    jobs = []
    for model in options.models:
        for task in options.tasks:
            members = [
                (name, candidates[name], seed)
                for name in chosen
                for seed in options.seeds
                if (model, task, name, seed) not in recorded
            ]
            for start in range(0, len(members), options.runs):
                jobs.append((model, task, members[start : start + options.runs]))
    context = multiprocessing.get_context("spawn")
    queue, results = context.Queue(), context.Queue()
    for job in [*jobs, *([None] * options.workers)]:
        queue.put(job)
    began = time.time()
    arguments = (queue, results, options, began + options.seconds)
    processes = [context.Process(target=work, args=arguments) for _ in range(options.workers)]
    for process in processes:
        process.start()
    active, count = options.workers, 0
    total = sum(len(members) for _, _, members in jobs)
    with options.output.open("a") as file:
        while active:
            record = results.get()
            if record is None:
                active -= 1
                continue
            count += 1
            file.write(json.dumps(record) + "\n")
            file.flush()
            said = record.get("error") or f"{record['metrics']} {record['job_seconds']} s"
            where = f"{record['model']} {record['task']} {record.get('candidate')}"
            print(f"[{count}/{total} {time.time() - began:.0f} s] {where}: {said}", flush=True)
    for process in processes:
        process.join()


def parse() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("candidates", type=Path, help=f"a YAML file, or {AUTO}")
    add("--output", type=Path, required=True)
    add("--data", type=Path, required=True)
    add("--backbones", type=Path, required=True)
    add("--models", type=words, default=list(MODELS))
    add("--tasks", type=words, default=list(TASKS))
    add("--only", type=words, help="names of candidates; default: all")
    add("--seeds", type=lambda text: list(map(int, text.split(","))), default=[0, 1, 2])
    add("--steps", type=int, default=400)
    add("--held-out", type=int, default=400, help="the most rows that choose")
    add("--validation", type=int, default=500, help="the most rows that are reported")
    add("--runs", type=int, default=24, help="the most runs that learn at once")
    add("--workers", type=int, default=1)
    add("--device", default="auto")
    add("--plugin", type=Path, help="a Python file that registers kinds")
    add("--seconds", type=float, default=1e9, help="start no job after this many seconds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
