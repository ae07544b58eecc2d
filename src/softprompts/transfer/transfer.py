"""Transfer to one target: probe it, rank the library, tune from the best sources, keep the best.

Everything is in one folder: `runs/` has a folder per run (probe, mixture, from-NAME, average,
baseline), and the prompt that was kept lies beside `choice.json`, which records all of it. The same
request in the same folder resumes if interrupted: the choice stands, and no run is repeated.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..artifacts.run_folder import RunFolder
from ..artifacts.transfer_folder import CHOICE, RUNS, TransferRecord, is_complete, read_record
from ..backbone import Backbone, load_backbone
from ..config import Member, RunConfig, difference, sections
from ..errors import UserError, setting
from ..files import exclusive, safe_name, write_json
from ..library import Similarity, default_folder
from ..library.library import Entry, Library, Match, ignore
from ..tasks import register_data
from ..tasks.statistics import score_p
from ..tuning import Run, RunFailedError, Watcher
from ..tuning.progress import make_watcher
from ..tuning.summary import write_table
from ..tuning.team import make_team
from ..tuning.tune import keep_scoring, tune_cohort
from ..tuning.tuned import Tuned, load
from . import strategies
from .settings import Request, Strategy, single_run
from .sources import usable_sources

Watch = Callable[[Sequence[Mapping[str, Any]]], Watcher]
"""Makes a watcher of runs, given the settings in which they differ."""
PROBE, BASELINE, MIXTURE = "probe", "baseline", "mixture"
"""Names of runs, in their folder `runs`; the others are named after their sources."""


def transfer(
    task: str | None = None,
    *,
    output: str | Path,
    library: str | Path | None = None,
    strategy: Strategy = "best",
    source: str | Path | None = None,
    k: int = 3,
    similarity: Similarity = "per_token_average_cosine",
    probe_steps: int | None = None,
    mixture_steps: int | None = None,
    keep_same_task: bool = False,
    baseline: bool = False,
    overwrite: bool = False,
    verbose: bool = True,
    **settings: Any,
) -> Tuned:
    """Tune a prompt for a task, started from the prompts of a library most similar to it.

    With a `source`, from that prompt. `settings` are those of `tune`. Returns the prompt that was
    kept; `choice.json` in `output` records what was chosen and why.
    """
    named = {} if task is None else {"task": task}
    target = single_run(sections(register_data({**named, **settings})))
    if source is not None and strategy == "best":
        strategy = "named"
    request = Request(
        target,
        Path(library) if library is not None else default_folder(),
        strategy,
        str(source) if source is not None else None,
        k,
        similarity,
        probe_steps,
        mixture_steps,
        keep_same_task,
    )
    with make_watcher(verbose) as watcher:
        watcher.on_message(f"loading {target.model}")
        backbone = load_backbone(
            target.model, target.dtype, target.device, target.trust_remote_code
        )
    run_transfer(
        request, Path(output), baseline, overwrite, partial(make_watcher, verbose), backbone
    )
    return load(output, backbone=backbone)


def run_transfer(
    request: Request,
    output: Path,
    baseline: bool = False,
    overwrite: bool = False,
    watch: Watch = lambda settings: Watcher(),
    backbone: Backbone | None = None,
    on_choice: Callable[[TransferRecord], object] = lambda record: None,
) -> TransferRecord:
    """Choose sources and tune from them, resuming an earlier attempt in the same folder.

    `on_choice` is called with the choice before it is tuned.
    """
    target = request.target
    if make_team(target.device).size > 1:
        raise UserError("A transfer runs as one process; start it without a launcher.")
    with exclusive(output):
        record, stale = _open_record(request.plain(), output, overwrite)
        backbone = backbone or load_backbone(
            target.model, target.dtype, target.device, target.trust_remote_code
        )
        stages = _Stages(output, record, overwrite, watch, backbone, stale)
        if "runs" not in record:
            record.update(_choose(request, stages))
        on_choice(record)
        if record["mixture"] is not None:
            config = strategies.multi_task(target, [record["mixture"]["task"]])
            if request.mixture_steps is not None:
                tuning = dataclasses.replace(
                    config.tuning, steps=request.mixture_steps, epochs=None
                )
                config = dataclasses.replace(config, tuning=tuning)
            stages.tune_one(MIXTURE, config)
        starts = {run["name"]: run["start"] for run in record["runs"]}
        runs = {
            name: strategies.start_from(target, start["sources"], start.get("weights"))
            for name, start in starts.items()
        }
        probe = record["probe"]
        full_probe = probe is not None and strategies.probe(target, probe["steps"]) == target
        usual = PROBE if full_probe else BASELINE
        if full_probe or baseline:
            runs[usual] = target
        return _keep_best(record, dict(zip(runs, stages.tune(runs), strict=True)), usual, output)


def _open_record(
    request: dict[str, Any], output: Path, overwrite: bool
) -> tuple[TransferRecord, list[str]]:
    """The record in a folder if it is of this request, or a new one.

    And the names of runs in the folder that belong to a choice being overwritten.
    """
    new, record = TransferRecord(request=request), read_record(output)
    if record is None:
        if RunFolder(output).has_prompt or RunFolder(output).has_config:
            raise UserError(
                f"{output} already holds a run of another command; "
                f"choose another {setting('output')}."
            )
        return new, []
    complete = "runs" not in record or is_complete(record)
    if overwrite:
        runs = record.get("runs", []) if complete else []
        return new, [PROBE, MIXTURE, BASELINE, *(Path(run["name"]).name for run in runs)]
    defaults = json.loads(json.dumps({"target": RunConfig().plain()}))
    if change := difference(record["request"], json.loads(json.dumps(request)), defaults):
        raise UserError(
            f"{output} holds a transfer with other settings ({change}); "
            f"choose another {setting('output')}, or replace it with {setting('overwrite')}."
        )
    if not complete:
        raise UserError(
            f"{output / CHOICE} is corrupted or from another version; "
            f"start again with {setting('overwrite')}, or choose another {setting('output')}."
        )
    return record, []


# -- choosing --------------------------------------------------------------------------------------


def _choose(request: Request, stages: "_Stages") -> TransferRecord:
    """The sources, by similarity to a probe if the strategy ranks, and the runs to tune."""
    sources, left_out = usable_sources(request, stages.backbone)
    chosen, similarities = sources, dict[str, float]()
    if request.ranks:
        matches = _ranked(request, stages, sources)
        similarities = {match.entry.name: match.similarity for match in matches}
        sources = [match.entry for match in matches]
        chosen = sources[: request.k]
    ranked = [
        {
            "name": entry.name,
            "task": entry.card.task.name,
            "similarity": similarities.get(entry.name),
            "step": entry.card.embedded_at,
            "seed": entry.card.seed,
            "length": entry.card.prompt.length,
        }
        for entry in sources
    ]
    return {
        "probe": stages.record.get("probe"),
        "ranked": ranked,
        "chosen": [entry.name for entry in chosen],
        "left_out": left_out,
        **_plan_runs(request, chosen, similarities, stages.runs),
    }


def _ranked(request: Request, stages: "_Stages", sources: Sequence[Entry]) -> list[Match]:
    """The sources by their similarity to a probe, which is tuned for that."""
    probe, embedded_at = stages.record.get("probe"), [e.card.embedded_at for e in sources]
    steps = probe["steps"] if probe else request.probe_steps
    steps = steps or strategies.probe_steps(embedded_at, request.target)
    stages.record["probe"] = {"steps": steps, "folder": f"{RUNS}/{PROBE}"}
    tuned = stages.tune_one(PROBE, strategies.probe(request.target, steps))
    vectors = Entry(PROBE, stages.runs / PROBE, tuned.card).vectors()
    # Warnings about corrupted prompts were printed when the sources were read.
    matches = Library(request.library, ignore).search(
        vectors, stages.backbone.fingerprint, request.similarity
    )
    names = {entry.name for entry in sources}
    matches = [match for match in matches if match.entry.name in names]
    if not matches:
        raise UserError(
            f"No source in {request.library} could be compared with the probe; "
            "`softprompts prompts list` says why."
        )
    return matches


def _plan_runs(
    request: Request, chosen: Sequence[Entry], similarities: Mapping[str, float], runs: Path
) -> TransferRecord:
    """The runs of a strategy: their names and starts; their other settings are the target's."""
    target, names = request.target, [entry.name for entry in chosen]
    if request.strategy == "average":
        weights = strategies.shares([similarities[name] for name in names])
        config = strategies.start_from(target, [entry.folder for entry in chosen], weights)
        return {
            "mixture": None,
            "weights": dict(zip(names, weights, strict=True)),
            "runs": [_run("average", names, config)],
        }
    if request.strategy == "mixture":
        config = strategies.multi_task(target, [entry.card.task.name for entry in chosen])
        run = _run(f"from-{MIXTURE}", names, strategies.start_from(target, [runs / MIXTURE]))
        mixture = {"task": config.task.task, "folder": f"{RUNS}/{MIXTURE}"}
        return {"mixture": mixture, "weights": None, "runs": [run]}
    started = [
        _run(
            f"from-{safe_name(entry.name)[:200]}",
            [entry.name],
            strategies.start_from(target, [entry.folder]),
        )
        for entry in chosen
    ]
    return {"mixture": None, "weights": None, "runs": started}


def _run(name: str, sources: Sequence[str], config: RunConfig) -> dict[str, Any]:
    return {"name": name, "sources": list(sources), "start": config.prompt.start.plain()}


# -- tuning ----------------------------------------------------------------------------------------


@dataclass
class _Stages:
    """What the stages of a transfer share: the folder, the record so far, one frozen model."""

    output: Path
    record: TransferRecord
    overwrite: bool
    watch: Watch
    backbone: Backbone
    stale: Sequence[str] = ()  # runs of a choice that is being overwritten

    @property
    def runs(self) -> Path:
        return self.output / RUNS

    def tune(self, runs: Mapping[str, RunConfig]) -> list[Tuned | RunFailedError]:
        """Tune runs as one cohort; the record is written before their first step."""
        folders = [] if self.overwrite else [RunFolder(path) for path in self.runs.glob("*")]
        members = [
            Member(
                # The runs of a transfer on your own data are scored alike. Named tasks always are.
                config if config.task.task else keep_scoring(config, folders),
                {"run": name},
                name,
            )
            for name, config in runs.items()
        ]

        def on_start(started: Sequence[Run]) -> None:
            self.overwrite = False  # from now on, there is nothing but what this transfer wrote
            if self.stale:
                RunFolder(self.output).clear()
                for name in set(self.stale) - set(runs):
                    shutil.rmtree(self.runs / name, ignore_errors=True)
            self.stale = ()
            write_json(self.output / CHOICE, self.record)

        with self.watch([member.varied for member in members]) as watcher:
            outcomes = tune_cohort(
                members, self.runs, self.overwrite, watcher, self.backbone, on_start=on_start
            )
        write_table(members, outcomes, self.runs)
        return outcomes

    def tune_one(self, name: str, config: RunConfig) -> Tuned:
        (outcome,) = self.tune({name: config})
        if isinstance(outcome, RunFailedError):
            raise outcome
        return outcome


# -- results ---------------------------------------------------------------------------------------


def _keep_best(
    record: TransferRecord,
    outcomes: Mapping[str, Tuned | RunFailedError],
    usual: str,
    output: Path,
) -> TransferRecord:
    """Save the best run that started from sources beside the record of all.

    `usual` is the name of the run from the usual start.
    """
    results = {name: _result(name, outcome) for name, outcome in outcomes.items()}
    baseline = results.get(usual)
    started = [results[run["name"]] for run in record["runs"]]
    scores = {r["name"]: r["score"] for r in started if r["score"] is not None}
    if not scores:
        raise RunFailedError(
            f"No run from a source produced a prompt; {started[0]['name']}: {started[0]['stopped']}"
        )
    kept = max(scores, key=scores.__getitem__)  # the first of equals is the most similar
    gain = None
    if baseline is not None and baseline["score"] is not None:
        gain = _gain(results[kept], baseline)
        gain |= _paired(outcomes[kept], outcomes[usual], gain["points"])
    record.update({"results": started, "baseline": baseline, "kept": kept, "gain": gain})
    RunFolder(output / results[kept]["folder"]).copy_prompt(output)
    write_json(output / CHOICE, record)
    return record


def _result(name: str, outcome: Tuned | RunFailedError) -> dict[str, Any]:
    card = None if isinstance(outcome, RunFailedError) else outcome.card
    return {
        "name": name,
        "folder": f"{RUNS}/{name}",
        "metric": card and card.metric,
        "score": card and card.score,
        **({} if card is None or card.test is None else {"test": card.test[card.metric]}),
        "rows": card and card.judged.get("rows"),
        "interval": card and card.judged.get("intervals", {}).get(card.metric),
        "majority": card and card.majority[card.metric],
        "best_step": card and card.best_step,
        "failed": card is None or card.failed,
        "stopped": str(outcome) if card is None else card.stopped,
    }


def _paired(
    kept: Tuned | RunFailedError, usual: Tuned | RunFailedError, points: float
) -> dict[str, Any]:
    """The p-value of the gain on the same rows, and how many there are."""
    first, second = (run.row_scores if isinstance(run, Tuned) else [] for run in (kept, usual))
    p = score_p(first, second, points)
    return {} if p is None else {"p": p, "rows": len(first)}


def _gain(kept: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """Points over the baseline, and the share of its error that is gone: (s - b) / (100 - b).

    On the test rows if there are some, because the run was chosen by its validation score.
    """
    name = "test" if "test" in kept and "test" in baseline else "score"
    points, error = kept[name] - baseline[name], 100 - baseline[name]
    return {
        "points": round(points, 4),
        "error_reduction": round(points / error, 4) if error > 0 else None,
        **({"split": "test"} if name == "test" else {}),
    }
