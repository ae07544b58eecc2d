"""What a frozen model was trained to do decides what prompts can do with it (Lester 2021 §2.2 and Figures 3c and 3d, at a small scale).

    python recipes/objectives.py --text CLEAN/text.txt.bz2 --data-dir DATA --output runs/objectives
    python recipes/objectives.py --smoke --output runs/objectives-smoke          # two CPU cores, two minutes, the repository's own text

One T5 learns by span corruption. From it go on, for a budget of extra tokens: the same objective, for all of the budget; and prefix LM (LM
adaptation), for 10, 25, 50 and 100 % of it. Then prompts are tuned on each. Finished parts are not run again.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from softprompts.errors import UserError
from softprompts.files import read_json, write_atomically, write_json, write_text
from softprompts.pretraining.config import SIZES, PretrainConfig
from softprompts.pretraining.progress import Watcher
from softprompts.pretraining.train import CARD, ELSEWHERE, FailedError, pretrain

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from backbones import about, check, measure, numbers, settings, spread, table  # noqa: E402

SHARES = (10, 25, 50, 100)
"""Per cent of the extra tokens."""
FULL: dict[str, Any] = {
    "tokens": 8e8, "extra_tokens": 2e8, "batch_tokens": 160_000, "input_length": 256, "decay": 0.2, "lr": 3e-3, "adapt_lr": 1e-3,
    "steps": 1000, "seeds": "0,1,2", "batch_size": 32, "length": 20,
    "tasks": "glue/sst2,textcls/trec,textcls/agnews,textcls/cr,glue/mrpc,superglue/boolq,superglue/cb",
}  # fmt: skip
"""One H200: a few minutes for each model and each cohort.

Thousands of large steps at the highest rate: at first a T5 writes without regard to what it has read, and only after thousands of steps
does span corruption teach it to look. A rate that came down before that, or steps of a third of these tokens, left it there.
"""
SMOKE: dict[str, Any] = FULL | {
    "batch_tokens": 4000, "input_length": 64,
    "text": ",".join(map(str, sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]))), "tokens": 4e5, "extra_tokens": 1.2e5,
    "steps": 20, "batch_size": 8, "length": 8, "cap_validation": 60, "scoring": "labels", "tasks": "helpdesk/intent,helpdesk/sentiment",
}  # fmt: skip
SMALL: dict[str, Any] = {
    "vocabulary": 1500, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "held_out": 0.05, "processes": 1,
}  # fmt: skip
"""The model of --smoke."""


def models(options: argparse.Namespace, folder: Path) -> dict[str, PretrainConfig]:
    """The backbones, in the order they are made.

    Every share of the adaptation is a run of its own whose rate comes down to zero, not a checkpoint along one run: a model in the middle
    of a run at a constant rate is worse than its tokens allow, and the shares would differ in that too.
    """
    common = {
        "text": options.text.split(","),
        "size": options.size,
        "device": options.device,
        **(SMALL if options.smoke else {}),
    }
    common |= {name: getattr(options, name) for name in ("batch_tokens", "input_length", "decay")}
    begin = PretrainConfig(
        **common,
        tokenizer=options.tokenizer,
        objectives={"span": 1.0},
        tokens=options.tokens,
        lr=options.lr,
        warmup=0.05,
    )

    def after(objective: str, share: int) -> PretrainConfig:
        tokens = options.extra_tokens * share / 100
        source = str(folder / "span")
        return PretrainConfig(
            **common,
            from_model=source,
            objectives={objective: 1.0},
            tokens=tokens,
            lr=options.adapt_lr,
            warmup=0.1,
        )

    return {
        "span": begin,
        "span-100": after("span", 100),
        **{f"lm-{share}": after("prefix", share) for share in SHARES},
    }


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "span corruption": ("span-100", {}),
    "span corruption + sentinel": ("span-100", {"sentinel": True}),
    "LM adaptation 0 %": ("span", {}),
    **{f"LM adaptation {share} %": (f"lm-{share}", {}) for share in SHARES},
}
"""What is compared: the model, and the task's settings. The first two and the last have seen the same number of tokens."""


def made(config: PretrainConfig, folder: Path, quiet: bool = False) -> dict[str, Any]:
    """The card of a model, which is trained unless it is there."""
    if not (folder / CARD).exists():
        return pretrain(config, folder, watcher=Watcher(quiet=quiet))
    card: dict[str, Any] = read_json(folder / CARD)
    wanted = json.loads(json.dumps(config.plain()))
    if any(
        card["config"].get(name) != value for name, value in wanted.items() if name not in ELSEWHERE
    ):
        raise UserError(
            f"{folder} holds a model that was trained with other settings; name another --output."
        )
    return card


def each(
    jobs: int, work: Callable[..., dict[str, Any]], asked: Mapping[str, tuple[Any, ...]]
) -> dict[str, dict[str, Any]]:
    """What `work` makes of each, `jobs` at once; what it comes to is told on the way."""
    if jobs == 1:
        return {name: _told(name, work(*given)) for name, given in asked.items()}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        names = {pool.submit(work, *given): name for name, given in asked.items()}
        try:
            found = {
                names[future]: _told(names[future], future.result())
                for future in as_completed(names)
            }
        except BrokenProcessPool:
            why = "what it said is above; if it ran out of memory, lower --jobs"
            raise UserError(
                f"A process ended amid its work: {why}. Then go on with the same command."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
    return {name: found[name] for name in asked}


def _told(name: str, found: dict[str, Any]) -> dict[str, Any]:
    what = (
        f"{found['tokens'] / 1e6:,.1f}M tokens"
        if "tokens" in found
        else f"{list(found['mean']['best'].values())}"
    )
    print(f"{name}: {what} in {found['seconds']:.0f} s", file=sys.stderr, flush=True)
    return found


def picture(records: Mapping[str, Mapping[str, Any]], path: Path) -> bool:
    """The score against the share of the adaptation, the two lines of span corruption across. False where there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    kinds = {"best": "mean accuracy (%)", "labels": "by the likeliest label (%)"}
    shown = [kind for kind in kinds if all(kind in record["mean"] for record in records.values())]
    figure = Figure(figsize=(6 * len(shown) + 1, 4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        draw(axes, records, kind)
        axes.set(xlabel="LM adaptation (% of the extra tokens)", ylabel=kinds[kind])
    figure.suptitle("prompt tuning after each objective")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    write_atomically(path, lambda place: figure.savefig(place, format="png", dpi=150))
    return True


def draw(axes: Any, records: Mapping[str, Mapping[str, Any]], kind: str) -> None:
    scores = {name: list(record["mean"][kind].values()) for name, record in records.items()}
    around = {name: stdev(values) if len(values) > 1 else 0.0 for name, values in scores.items()}
    shares = [share for share in (0, *SHARES) if scores[f"LM adaptation {share} %"]]
    names = [f"LM adaptation {share} %" for share in shares]
    heights = [mean(scores[name]) for name in names]
    axes.errorbar(
        shares,
        heights,
        [around[name] for name in names],
        color="tab:blue",
        marker="o",
        capsize=3,
        label="LM adaptation",
    )
    for name, colour in (
        ("span corruption", "tab:orange"),
        ("span corruption + sentinel", "tab:green"),
    ):
        if scores[name]:
            height = mean(scores[name])
            axes.axhline(height, color=colour, linestyle="--", label=name)
            axes.axhspan(height - around[name], height + around[name], color=colour, alpha=0.15)
    majority = [
        task["majority"]
        for task in next(iter(records.values()))["tasks"].values()
        if task["majority"] is not None
    ]
    if majority:
        axes.axhline(mean(majority), color="tab:gray", linestyle=":", label="majority class")


def report(
    cards: Mapping[str, Mapping[str, Any]],
    records: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Any],
    folder: Path,
) -> str:
    """Tables and the figure, written to the folder."""
    rows = [
        "| model | objective | tokens | held-out loss | with another text's input | tokens/s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, card in cards.items():
        before = cards["span"]["tokens"] if card["config"]["from_model"] else 0
        both = [card["losses"].get(name, {}) for name in ("held_out", "blind")]
        losses = " | ".join(f"{next(iter(each.values())):.3f}" if each else "" for each in both)
        objective = ", ".join(card["config"]["objectives"])
        rows.append(
            f"| {name} | {objective} | {(before + card['tokens']) / 1e6:,.1f}M | {losses} | {card['tokens_per_second']:,} |"
        )
    drawn = picture(records, folder / "objectives.png")
    parts = [
        "# Pretraining objectives and prompt tuning\n",
        "\n".join(rows) + "\n",
        about(given),
        table(records),
    ]
    if all("labels" in record["mean"] for record in records.values()):
        told = "The same prompts when the likeliest label is the answer, so that knowing and writing are told apart:\n"
        parts += [told, table(records, lambda scores: spread(scores["labels"]))]
    text = "\n".join(
        [*parts, *(["![score against adaptation](objectives.png)\n"] if drawn else [])]
    )
    write_json(folder / "objectives.json", {"models": cards, "variants": records})
    write_text(folder / "objectives.md", text)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    try:
        options = parsed(sys.argv[1:] if argv is None else argv)
        folder: Path = options.output
        given = settings(
            options.tasks.split(","), numbers(options.seeds), options.steps, batch_size=options.batch_size,
            prompt={"length": options.length}, cap_validation=options.cap_validation, scoring=options.scoring, data_dir=options.data_dir,
            device=options.device,
        )  # fmt: skip
        cohorts = {
            name: folder / "runs" / f"{model}{'-sentinel' * bool(more)}"
            for name, (model, more) in VARIANTS.items()
        }
        check(given, cohorts.values())
        asked = {
            name: (config, folder / "models" / name, options.jobs > 1)
            for name, config in models(options, folder / "models").items()
        }
        cards = each(1, made, {"span": asked.pop("span")})
        cards |= each(options.jobs, made, asked)
        also = () if options.scoring == "labels" else ("labels",)
        records = each(
            options.jobs,
            measure,
            {
                name: (str(folder / "models" / model), cohorts[name], given | more, also)
                for name, (model, more) in VARIANTS.items()
            },
        )
        print(report(cards, records, given, folder))
    except FailedError as error:
        print(f"objectives: {error}", file=sys.stderr)
        return 1
    except (UserError, ValueError) as error:
        print(f"objectives: {error}", file=sys.stderr)
        return 2
    return 0


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="where models, runs and the report go"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="a small scale that two CPU cores take two minutes for"
    )
    parser.add_argument("--text", help="text files to learn from, with commas between")
    parser.add_argument(
        "--tokenizer",
        help="a folder with the tokenizer to use (default: one is trained on the text)",
    )
    parser.add_argument(
        "--size",
        default="tiny",
        choices=SIZES,
        help="the model's size, as softprompts pretrain has it",
    )
    parser.add_argument("--tokens", type=float, help="tokens of span corruption")
    parser.add_argument("--extra-tokens", type=float, help="tokens of 100 %% adaptation")
    parser.add_argument("--batch-tokens", type=int, help="tokens of a step of pretraining")
    parser.add_argument("--input-length", type=int, help="tokens of an input of pretraining")
    parser.add_argument(
        "--decay", type=float, help="the share of a model's steps in which its rate comes down"
    )
    parser.add_argument("--lr", type=float, help="the highest learning rate of span corruption")
    parser.add_argument(
        "--adapt-lr", type=float, help="the highest learning rate of what goes on from it"
    )
    parser.add_argument("--tasks", help="tasks to tune prompts on")
    parser.add_argument("--seeds", help="seeds of the prompts")
    parser.add_argument("--steps", type=int, help="steps of prompt tuning")
    parser.add_argument("--batch-size", type=int, help="rows of a step of prompt tuning")
    parser.add_argument("--length", type=int, help="prompt tokens")
    parser.add_argument(
        "--cap-validation", type=int, help="judge by so many rows of a task at most"
    )
    parser.add_argument("--scoring", help="generate or labels, as softprompts tune has it")
    parser.add_argument(
        "--data-dir", help="a folder with the tasks' rows (default: SOFTPROMPTS_DATA)"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="models, and then cohorts, that are made at once, each by a process of its own",
    )
    parser.set_defaults(**(SMOKE if "--smoke" in argv else FULL))
    options = parser.parse_args(argv)
    if options.jobs < 1:
        raise UserError(f"--jobs is {options.jobs}; it must be at least 1.")
    if options.text is None:
        raise UserError("There is no text to learn from; name files with --text, or give --smoke.")
    return options


if __name__ == "__main__":
    sys.exit(main())
