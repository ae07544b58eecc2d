"""Transfer to one target: probe it, rank the library, tune what the strategy says, keep the best. `choice.json` tells all of it.

Everything is in one folder: `runs/` has a folder per run (probe, mixture, from-NAME, average, baseline), and the prompt that was kept lies
beside `choice.json`. The same request in the same folder goes on where it was killed: a choice once made stands, and no run is run twice.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ..artifacts.prompt_file import CARD
from ..artifacts.run_folder import CONFIG, OURS
from ..backbone import Backbone, load_backbone
from ..config.choice import difference
from ..config.products import Member, run_configs
from ..errors import UserError
from ..files import read_json, write_json, write_text
from ..files.lock import exclusive
from ..files.names import safe_name
from ..library import default_folder
from ..library.library import Entry, Found, Library
from ..library.search import SIMILARITIES
from ..tuning import Run, RunConfig, RunFailedError, Watcher
from ..tuning.api import Tuned, load, sections, tune_cohort
from ..tuning.team import make_team
from . import strategies
from .sources import possible
from .strategies import best_of, mixture, multi_task, start_from, weighted

CHOICE, RUNS = "choice.json", "runs"
PROBE, BASELINE, MIXTURE = "probe", "baseline", "mixture"
Strategy = Literal["best", "average", "mixture", "named", "all"]
Record = dict[str, Any]
"""What `choice.json` holds."""
Watch = Callable[[Sequence[Mapping[str, Any]]], Watcher]
"""Makes a watcher of runs, given the settings that set each of them apart."""


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    target: RunConfig
    """The run on the target task as it would be without a source."""
    library: Path
    strategy: Strategy = "best"
    """Best of top-k, weighted average or mixture (Vu 2022 §3.2); one named source; or all of them, the oracle."""
    source: str | None = None
    """The source of the strategy `named`: a name in the library, or a folder."""
    k: int = 3
    similarity: str = "per_token_average_cosine"
    probe_steps: int | None = None
    """None: the step at which most sources were embedded, but no more than the target's own steps."""
    mixture_steps: int | None = None
    """None: the target's own."""
    keep_same_task: bool = False

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise UserError(
                f"There is no strategy {self.strategy!r}; choose one of {', '.join(get_args(Strategy))}."
            )
        if (self.strategy == "named") != (self.source is not None):
            raise UserError("A source is named for the strategy 'named', and for no other.")
        for name in ("k", "probe_steps", "mixture_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} is {value}; it must be at least 1.")
        if self.similarity not in SIMILARITIES:
            raise UserError(
                f"There is no similarity {self.similarity!r}; choose one of {', '.join(SIMILARITIES)}."
            )
        if self.target.tuning.trains != "prompt":
            raise UserError(
                "Only a prompt can start from another prompt; leave --trains out, and take a preset that tunes a prompt."
            )

    @property
    def ranks(self) -> bool:
        return self.strategy in ("best", "average", "mixture")

    def plain(self) -> Record:
        return {
            **dataclasses.asdict(self),
            "target": self.target.plain(),
            "library": str(self.library),
        }


def transfer(
    request: Request,
    output: Path,
    baseline: bool = False,
    overwrite: bool = False,
    watch: Watch = lambda settings: Watcher(),
    backbone: Backbone | None = None,
    chosen: Callable[[Record], object] = lambda record: None,
) -> Record:
    """Do all of it, from where an earlier try in the same folder left off. `chosen` hears of the choice before it is tuned."""
    target = request.target
    if make_team(target.device).size > 1:
        raise UserError("transfer runs as one process; start it without a launcher.")
    with exclusive(output):
        record, stale = _opened(request, output, overwrite)
        backbone = backbone or load_backbone(
            target.model, target.dtype, target.device, target.trust_remote_code
        )
        work = _Work(output, record, overwrite, watch, backbone, stale)
        if "runs" not in record:
            record |= _chosen(request, work)
        chosen(record)
        if record["mixture"] is not None:
            (multi,) = work.tune({MIXTURE: _mixed(request, record["mixture"]["task"])})
            if isinstance(multi, RunFailedError):
                raise multi
        wanted = {run["name"]: _started(target, run["start"]) for run in record["runs"]}
        own = (
            PROBE
            if record["probe"] and strategies.probe(target, record["probe"]["steps"]) == target
            else BASELINE
        )
        if own == PROBE or baseline:
            wanted[own] = target
        return _kept(record, dict(zip(wanted, work.tune(wanted), strict=True)), own, output)


def transfer_to(
    task: str | None = None,
    *,
    output: str | Path,
    library: str | Path | None = None,
    strategy: Strategy = "best",
    source: str | Path | None = None,
    k: int = 3,
    similarity: str = "per_token_average_cosine",
    probe_steps: int | None = None,
    mixture_steps: int | None = None,
    keep_same_task: bool = False,
    baseline: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> Tuned:
    """Tune a prompt for a task from prompts of a library: `softprompts transfer` in Python. `settings` are those of `tune`.

    With a `source`, from that one. Returns the prompt that was kept; `choice.json` in `output` tells what was chosen and why.
    """
    target = one_run(sections({**({"task": task} if task is not None else {}), **settings}))
    if source is not None and strategy == "best":
        strategy = "named"
    named = str(source) if source is not None else None
    place = Path(library) if library is not None else default_folder()
    request = Request(
        target, place, strategy, named, k, similarity, probe_steps, mixture_steps, keep_same_task
    )
    backbone = load_backbone(target.model, target.dtype, target.device, target.trust_remote_code)
    transfer(request, Path(output), baseline, overwrite, backbone=backbone)
    return load(output, backbone=backbone)


def one_run(*layers: Mapping[str, Any]) -> RunConfig:
    """The run that layers of settings stand for, none of them a list."""
    members = run_configs(*layers)
    if members[0].apart:
        listed = ", ".join(members[0].apart)
        raise UserError(
            f"transfer takes one value of each setting, but {listed} is a list; softprompts study run is for lists."
        )
    return members[0].config


# -- choosing ----------------------------------------------------------------------------------------------------------------


def _chosen(request: Request, work: "_Work") -> Record:
    """The sources, ranked by similarity to a probe where the strategy ranks, and the runs to tune."""
    sources, left_out = possible(request, work.backbone)
    found: list[Found] = []
    if request.ranks:
        steps = work.record["probe"]["steps"] if work.record.get("probe") else request.probe_steps
        steps = steps or strategies.probe_steps([entry.step for entry in sources], request.target)
        work.record["probe"] = {"steps": steps, "folder": f"{RUNS}/{PROBE}"}
        (probe,) = work.tune({PROBE: strategies.probe(request.target, steps)})
        if isinstance(probe, RunFailedError):
            raise probe
        like = Entry(PROBE, work.runs / PROBE, probe.card).vectors()
        quiet = Library(
            request.library, lambda sentence: None
        )  # damaged prompts were told of already
        ranked = quiet.search(like, work.backbone.fingerprint, request.similarity)
        fit = {entry.name for entry in sources}
        found = [one for one in ranked if one.entry.name in fit]
        if not found:
            raise UserError(
                f"No source in {request.library} could be compared with the probe; softprompts prompts list tells why."
            )
        sources = [one.entry for one in found]
    taken = sources[: request.k] if request.ranks else sources
    nearness: list[float | None] = [one.similarity for one in found] or [None] * len(sources)
    rows = [
        {
            "name": entry.name,
            "task": entry.card["task"]["name"],
            "similarity": near,
            "step": entry.step,
            "seed": entry.seed,
            "length": entry.card["prompt"]["length"],
        }
        for entry, near in zip(sources, nearness, strict=True)
    ]
    return {
        "probe": work.record.get("probe"),
        "ranked": rows,
        "chosen": [entry.name for entry in taken],
        "left_out": left_out,
        **_planned(request, taken, found, work.runs),
    }


def _planned(
    request: Request, taken: Sequence[Entry], found: Sequence[Found], runs: Path
) -> Record:
    """The runs of a strategy: their names, and where their prompts start; the rest is the target's."""
    target, k, names = request.target, request.k, [entry.name for entry in taken]
    if request.strategy == "average":
        config = weighted(found, k, target)
        weights = config.prompt.start.options["weights"]
        return {
            "mixture": None,
            "weights": dict(zip(names, weights, strict=True)),
            "runs": [_run("average", names, config)],
        }
    if request.strategy == "mixture":
        multi = {"task": mixture(found, k, target).task.task, "folder": f"{RUNS}/{MIXTURE}"}
        return {
            "mixture": multi,
            "weights": None,
            "runs": [_run(f"from-{MIXTURE}", names, start_from(target, [runs / MIXTURE]))],
        }
    configs = (
        best_of(found, k, target)
        if request.ranks
        else [start_from(target, [entry.folder]) for entry in taken]
    )
    started = [
        _run(f"from-{safe_name(name)[:200]}", [name], config)
        for name, config in zip(names, configs, strict=True)
    ]
    return {"mixture": None, "weights": None, "runs": started}


def _run(name: str, sources: Sequence[str], config: RunConfig) -> Record:
    return {"name": name, "sources": list(sources), "start": config.prompt.start.plain()}


def _started(target: RunConfig, start: Mapping[str, Any]) -> RunConfig:
    return start_from(target, start["sources"], start.get("weights"))


def _mixed(request: Request, task: str) -> RunConfig:
    config = multi_task(request.target, task.split("+"))
    if request.mixture_steps is None:
        return config
    return dataclasses.replace(
        config, tuning=dataclasses.replace(config.tuning, steps=request.mixture_steps, epochs=None)
    )


# -- tuning ------------------------------------------------------------------------------------------------------------------


@dataclass
class _Work:
    """What the stages share: the folder, the record of the choice so far, and one frozen model."""

    output: Path
    record: Record
    overwrite: bool
    watch: Watch
    backbone: Backbone
    stale: Sequence[str] = ()
    """Runs of a choice that is being overwritten."""

    @property
    def runs(self) -> Path:
        return self.output / RUNS

    def tune(self, wanted: Mapping[str, RunConfig]) -> list[Tuned | RunFailedError]:
        """The runs as one cohort, each from its own checkpoint; the record is written before their first step."""
        members = [Member(config, {"run": name}, name) for name, config in wanted.items()]

        def began(runs: Sequence[Run]) -> None:
            self._clear(wanted)
            write_json(self.output / CHOICE, self.record)
            watcher.began(runs)

        with self.watch([member.apart for member in members]) as watcher:
            return tune_cohort(
                members, self.runs, self.overwrite, watcher, self.backbone, began=began
            )

    def _clear(self, wanted: Mapping[str, RunConfig]) -> None:
        """Once all that is new was looked at, nothing is overwritten any more but what an earlier choice left."""
        self.overwrite = False
        if self.stale:
            for name in OURS:
                (self.output / name).unlink(missing_ok=True)
            for name in self.stale:
                if name not in wanted:
                    shutil.rmtree(self.runs / name, ignore_errors=True)
        self.stale = ()


def _opened(request: Request, output: Path, overwrite: bool) -> tuple[Record, list[str]]:
    """The record in the folder, if it is of this request, or a new one; and the runs that are there of one to be overwritten."""
    path, fresh = output / CHOICE, {"request": request.plain()}
    if not path.exists():
        if any((output / name).exists() for name in (CARD, CONFIG)):
            raise UserError(
                f"{output} already holds a run of another command; choose another --output."
            )
        return fresh, []
    try:
        record = read_json(path)
    except UserError:
        record = None
    if not isinstance(record, dict) or "request" not in record:
        raise UserError(
            f"{path} is not one of ours, or damaged; name another folder with --output."
        )
    sound = "runs" not in record or _sound(record)
    if overwrite:
        named = (
            [Path(run["name"]).name for run in record["runs"]] if sound and "runs" in record else []
        )
        return fresh, [PROBE, MIXTURE, BASELINE, *named]
    if change := difference(record["request"], json.loads(json.dumps(fresh["request"]))):
        raise UserError(
            f"{output} holds a transfer with other settings ({change}); choose another --output, or --overwrite it."
        )
    if not sound:
        raise UserError(
            f"{path} is damaged or of another version; start it anew with --overwrite, or choose another --output."
        )
    return record, []


def _sound(record: Record) -> bool:
    """Whether a record tells a whole choice, which can be gone on with."""
    try:
        rows = {row["name"]: row for row in record["ranked"]}
        return (
            {"probe", "left_out", "mixture", "weights"} <= record.keys()
            and set(record["chosen"]) <= rows.keys()
            and all(
                {"task", "similarity", "step", "seed", "length"} <= row.keys()
                for row in rows.values()
            )
            and len(record["runs"]) > 0
            and all(
                isinstance(run["name"], str) and run["start"]["sources"] for run in record["runs"]
            )
        )
    except (KeyError, TypeError, AttributeError):
        return False


# -- keeping -----------------------------------------------------------------------------------------------------------------


def _kept(
    record: Record, results: Mapping[str, Tuned | RunFailedError], own: str, output: Path
) -> Record:
    """The best of the runs that started from sources, beside the record of all; `own` is the run that started as usual."""
    told = {name: _result(name, result) for name, result in results.items()}
    baseline = told.get(own)
    started = [told[run["name"]] for run in record["runs"]]
    scored = [result for result in started if result["score"] is not None]
    if not scored:
        raise RunFailedError(
            f"No run from a source left a prompt; {started[0]['name']}: {started[0]['stopped']}"
        )
    best = max(
        scored, key=lambda result: result["score"]
    )  # the first of equals, which is the most similar
    record |= {
        "results": started,
        "baseline": baseline,
        "kept": best["name"],
        "gain": _gain(best, baseline),
    }
    kept = results[best["name"]]
    assert isinstance(kept, Tuned)
    kept.save(output)
    write_text(output / CONFIG, (output / best["folder"] / CONFIG).read_text(encoding="utf-8"))
    write_json(output / CHOICE, record)
    return record


def _result(name: str, result: Tuned | RunFailedError) -> Record:
    where = {"name": name, "folder": f"{RUNS}/{name}"}
    if isinstance(result, RunFailedError):
        return {
            **where,
            "metric": None,
            "score": None,
            "majority": None,
            "best_step": None,
            "failed": True,
            "stopped": str(result),
        }
    card = result.card
    metric = card["task"]["metrics"][0]
    score = {
        "metric": metric,
        "score": card["metrics"][metric],
        "majority": card["majority"][metric],
    }
    return {
        **where,
        **score,
        "best_step": card["best_step"],
        "failed": card["failed"],
        "stopped": card["stopped"],
    }


def _gain(best: Record, baseline: Record | None) -> Record | None:
    """Points over the baseline, and the share of its error that is gone: (s - b) / (100 - b)."""
    if baseline is None or baseline["score"] is None:
        return None
    points, error = best["score"] - baseline["score"], 100 - baseline["score"]
    return {
        "points": round(points, 4),
        "error_reduction": round(points / error, 4) if error > 0 else None,
    }
