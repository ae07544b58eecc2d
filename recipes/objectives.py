"""What a frozen model was trained on decides what prompts can do with it (Lester 2021, §2.2 and
Figures 3c and 3d, at a small scale).

    python recipes/objectives.py --text CLEAN/text.txt.bz2 --data-dir DATA --output runs/objectives
    python recipes/objectives.py --smoke --output runs/objectives-smoke

--smoke takes two minutes on two CPU cores and reads the repository's own text. One T5 is pretrained
with span corruption. From it, further models are trained with a budget of extra tokens: span
corruption with all of it, and prefix LM (LM adaptation) with 10, 25, 50 and 100 % of it. Then
prompts are tuned on each. Finished parts are not run again.
"""

import argparse
import importlib.util
import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from softprompts.cli.pretrain_progress import PretrainProgress
from softprompts.errors import UserError, as_flag, setting
from softprompts.files import read_json, write_atomically, write_json, write_text
from softprompts.pretraining.config import SIZES, PretrainConfig
from softprompts.pretraining.run import CHANGEABLE, DivergedError
from softprompts.pretraining.train import CARD, pretrain

ROOT = Path(__file__).resolve().parents[1]


def _load_script(path: Path) -> Any:
    """A script as a module, which worker processes can find by its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


backbones = _load_script(ROOT / "benchmarks" / "backbones.py")

SHARES = (10, 25, 50, 100)
"""Percentages of the extra tokens."""
FULL: dict[str, Any] = {
    "tokens": 8e8,
    "extra_tokens": 2e8,
    "batch_tokens": 160_000,
    "input_length": 256,
    "decay": 0.2,
    "lr": 3e-3,
    "adapt_lr": 1e-3,
    "steps": 1000,
    "seeds": "0,1,2",
    "batch_size": 32,
    "length": 20,
    "tasks": "glue/sst2,textcls/trec,textcls/agnews,textcls/cr,glue/mrpc,superglue/boolq,"
    "superglue/cb",
}
"""A few minutes on one H200 for each model and each cohort.

At first a T5 ignores its input; span corruption teaches it otherwise only after thousands of large
steps at the peak learning rate. An earlier decay, or steps with a third of these tokens, did not
get that far.
"""
SMOKE: dict[str, Any] = FULL | {
    "text": ",".join(map(str, sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]))),
    "tokens": 4e5,
    "extra_tokens": 1.2e5,
    "batch_tokens": 4000,
    "input_length": 64,
    "steps": 20,
    "batch_size": 8,
    "length": 8,
    "cap_validation": 60,
    "scoring": "labels",
    "tasks": "helpdesk/intent,helpdesk/sentiment",
}
SMOKE_MODEL: dict[str, Any] = {
    "vocabulary": 1500,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "held_out": 0.05,
    "processes": 1,
}

Record = dict[str, Any]
Records = Mapping[str, Mapping[str, Any]]


def model_configs(options: argparse.Namespace, folder: Path) -> dict[str, PretrainConfig]:
    """The models to pretrain, in order.

    Every share of the adaptation is a run of its own whose learning rate decays to zero, not a
    checkpoint of one run: before the decay, a model is worse than its tokens allow.
    """
    common = {
        "text": options.text.split(","),
        "size": options.size,
        "device": options.device,
        **(SMOKE_MODEL if options.smoke else {}),
    }
    common |= {name: getattr(options, name) for name in ("batch_tokens", "input_length", "decay")}
    first = PretrainConfig(
        **common,
        tokenizer=options.tokenizer,
        objectives={"span": 1.0},
        tokens=options.tokens,
        lr=options.lr,
        warmup=0.05,
    )

    def further(objective: str, share: int) -> PretrainConfig:
        return PretrainConfig(
            **common,
            from_model=str(folder / "span"),
            objectives={objective: 1.0},
            tokens=options.extra_tokens * share / 100,
            lr=options.adapt_lr,
            warmup=0.1,
        )

    return {
        "span": first,
        "span-100": further("span", 100),
        **{f"lm-{share}": further("prefix", share) for share in SHARES},
    }


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "span corruption": ("span-100", {}),
    "span corruption + sentinel": ("span-100", {"sentinel": True}),
    "LM adaptation 0 %": ("span", {}),
    **{f"LM adaptation {share} %": (f"lm-{share}", {}) for share in SHARES},
}
"""What is compared: a model, and the task's settings. The first two and the last have seen the same
number of tokens."""


def train_model(config: PretrainConfig, folder: Path, quiet: bool = False) -> Record:
    """The card of a model, which is pretrained unless it is finished."""
    if not (folder / CARD).exists():
        return pretrain(config, folder, watcher=PretrainProgress(quiet))
    card: Record = read_json(folder / CARD)
    settings = json.loads(json.dumps(config.effective()))
    if any(
        card["config"].get(name) != value
        for name, value in settings.items()
        if name not in CHANGEABLE
    ):
        raise UserError(
            f"{folder} holds a model that was trained with other settings; choose another "
            f"{setting('output')}."
        )
    return card


def run_jobs(
    jobs: int, work: Callable[..., Record], arguments: Mapping[str, tuple[Any, ...]]
) -> dict[str, Record]:
    """The results of `work` by name, `jobs` at once; each is printed when it is finished."""
    if jobs == 1:
        return {name: _print_result(name, work(*args)) for name, args in arguments.items()}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        names = {pool.submit(work, *args): name for name, args in arguments.items()}
        try:
            results = {
                names[future]: _print_result(names[future], future.result())
                for future in as_completed(names)
            }
        except BrokenProcessPool:
            raise UserError(
                "A process died; its messages are above. If it ran out of memory, lower "
                f"{setting('jobs')}; then give the same command again to resume."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
    return {name: results[name] for name in arguments}


def _print_result(name: str, result: Record) -> Record:
    scores = result.get("mean", {}).get("best", {})
    tokens = f"{result['tokens'] / 1e6:,.1f}M tokens" if "tokens" in result else ""
    outcome = tokens or list(scores.values())
    print(f"{name}: {outcome} in {result['seconds']:.0f} s", file=sys.stderr, flush=True)
    return result


def write_figure(records: Records, path: Path) -> bool:
    """Plot the score against the share of adaptation; False if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    kinds = {"best": "mean accuracy (%)", "labels": "mean accuracy with label scoring (%)"}
    shown = [kind for kind in kinds if all(kind in record["mean"] for record in records.values())]
    figure = Figure(figsize=(6 * len(shown) + 1, 4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        plot(axes, records, kind)
        axes.set(xlabel="LM adaptation (% of the extra tokens)", ylabel=kinds[kind])
    figure.suptitle(
        "Prompt tuning after each pretraining objective (mean ± standard deviation over seeds)"
    )
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))
    return True


def plot(axes: Any, records: Records, kind: str) -> None:
    """LM adaptation as a curve; span corruption, with and without sentinel, as lines across."""
    scores = {name: list(record["mean"][kind].values()) for name, record in records.items()}
    stds = {name: stdev(values) if len(values) > 1 else 0.0 for name, values in scores.items()}
    shares = [share for share in (0, *SHARES) if scores[f"LM adaptation {share} %"]]
    names = [f"LM adaptation {share} %" for share in shares]
    axes.errorbar(
        shares,
        [mean(scores[name]) for name in names],
        [stds[name] for name in names],
        color="tab:blue",
        marker="o",
        capsize=3,
        label="LM adaptation",
    )
    colours = {"span corruption": "tab:orange", "span corruption + sentinel": "tab:green"}
    for name, colour in colours.items():
        if scores[name]:
            height, std = mean(scores[name]), stds[name]
            axes.axhline(height, color=colour, linestyle="--", label=name)
            axes.axhspan(height - std, height + std, color=colour, alpha=0.15)
    tasks = next(iter(records.values()))["tasks"].values()
    majority = [task["majority"] for task in tasks if task["majority"] is not None]
    if majority:
        axes.axhline(mean(majority), color="tab:gray", linestyle=":", label="majority class")


def models_table(cards: Records) -> str:
    rows = [
        "| model | objective | tokens | held-out loss | with another text's input | tokens/s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, card in cards.items():
        before = cards["span"]["tokens"] if card["config"]["from_model"] else 0
        kinds = [card["losses"].get(kind, {}) for kind in ("held_out", "blind")]
        losses = " | ".join(f"{next(iter(kind.values())):.3f}" if kind else "" for kind in kinds)
        objective = ", ".join(card["config"]["objectives"])
        tokens = f"{(before + card['tokens']) / 1e6:,.1f}M"
        speed = f"{card['tokens_per_second']:,}"
        rows.append(f"| {name} | {objective} | {tokens} | {losses} | {speed} |")
    return "\n".join(rows) + "\n"


def write_report(
    cards: Records, records: Records, settings: Mapping[str, Any], folder: Path
) -> str:
    """Write the tables and the figure to the folder; the page."""
    parts = [
        "# Pretraining objectives and prompt tuning\n",
        models_table(cards),
        backbones.description(settings),
        backbones.table(records),
    ]
    if all("labels" in record["mean"] for record in records.values()):
        parts += [
            "The same prompts with label scoring, which shows what a model knows even if it does "
            "not generate labels:\n",
            backbones.table(records, lambda scores: backbones.mean_and_std(scores["labels"])),
        ]
    if write_figure(records, folder / "objectives.png"):
        parts.append("![score against adaptation](objectives.png)\n")
    page = "\n".join(parts)
    write_json(folder / "objectives.json", {"models": cards, "variants": records})
    write_text(folder / "objectives.md", page)
    return page


def run(options: argparse.Namespace) -> str:
    """Pretrain, tune and report; the page."""
    folder: Path = options.output
    settings = backbones.tuning_settings(
        options.tasks.split(","),
        backbones.parse_seeds(options.seeds),
        options.steps,
        batch_size=options.batch_size,
        prompt={"length": options.length},
        cap_validation=options.cap_validation,
        scoring=options.scoring,
        data_dir=options.data_dir,
        device=options.device,
    )
    cohorts = {
        name: folder / "runs" / f"{model}{'-sentinel' * bool(changes)}"
        for name, (model, changes) in VARIANTS.items()
    }
    backbones.check(settings, cohorts.values())
    models = {
        name: (config, folder / "models" / name, options.jobs > 1)
        for name, config in model_configs(options, folder / "models").items()
    }
    cards = run_jobs(1, train_model, {"span": models.pop("span")})
    cards |= run_jobs(options.jobs, train_model, models)
    scorings = () if options.scoring == "labels" else ("labels",)
    measurements = {
        name: (str(folder / "models" / model), cohorts[name], settings | changes, scorings)
        for name, (model, changes) in VARIANTS.items()
    }
    records = run_jobs(options.jobs, backbones.measure, measurements)
    return write_report(cards, records, settings, folder)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        print(run(parse(sys.argv[1:] if argv is None else argv)))
    except UserError as error:
        print(f"objectives: {error.spelled(as_flag)}", file=sys.stderr)
        return 1 if isinstance(error, DivergedError) else 2
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--output", type=Path, required=True, help="folder for models, runs and the report")
    add("--smoke", action="store_true", help="a small scale: two minutes on two CPU cores")
    add("--text", help="text files to pretrain on, separated by commas")
    add("--tokenizer", help="folder of a tokenizer (default: train one on the text)")
    add("--size", default="tiny", choices=SIZES, help="model size, as for softprompts pretrain")
    add("--tokens", type=float, help="tokens of span corruption")
    add("--extra-tokens", type=float, help="tokens of 100 %% adaptation")
    add("--batch-tokens", type=int, help="tokens per pretraining step")
    add("--input-length", type=int, help="tokens of a pretraining input")
    add("--decay", type=float, help="fraction of the steps in which the learning rate decays")
    add("--lr", type=float, help="peak learning rate of span corruption")
    add("--adapt-lr", type=float, help="peak learning rate of the further training")
    add("--tasks", help="tasks to tune prompts on")
    add("--seeds", help="seeds of the prompts")
    add("--steps", type=int, help="prompt tuning steps")
    add("--batch-size", type=int, help="rows per prompt tuning step")
    add("--length", type=int, help="prompt tokens")
    add("--cap-validation", type=int, help="evaluate on at most this many rows of a task")
    add("--scoring", help="generate or labels, as for softprompts tune")
    add("--data-dir", help="folder with the tasks' rows (default: SOFTPROMPTS_DATA)")
    add("--device", default="auto")
    add("--jobs", type=int, default=1, help="models, and then cohorts, to train at once")
    parser.set_defaults(**(SMOKE if "--smoke" in argv else FULL))
    options = parser.parse_args(argv)
    if options.jobs < 1:
        raise UserError(f"{setting('jobs')} is {options.jobs}; it must be at least 1.")
    if options.text is None:
        raise UserError(f"There is no text; name files with {setting('text')}, or use --smoke.")
    return options


if __name__ == "__main__":
    sys.exit(main())
