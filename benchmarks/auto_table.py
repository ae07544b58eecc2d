r"""What `tune --auto` would have chosen, and what that is worth: its tournament replayed from the
records of benchmarks/defaults.py, by the rule of `tune --auto` itself.

    python benchmarks/auto_table.py benchmarks/results/rungs-h200.jsonl
    python benchmarks/auto_table.py benchmarks/results/{candidates,rungs,auto}-h200.jsonl \
        benchmarks/results/auto-cpu.jsonl

If there are records of `tune --auto` itself (`benchmarks/defaults.py auto`), they are compared with
the presets by the means over the seeds that were run of each; of two records of the same run, the
last one counts. Its winner is trained for 1.5 times as many steps as a preset.

The rest replays tournaments: the candidates of the records are trained to the end, and judged on
the way at the rungs of a tournament, so a tournament among them needs no more training. Its score
is that of its winner on the validation rows, which chose nothing; every score of a table is of runs
on the same rows. Records with fewer rungs, of an earlier rule, are not replayed. The last lines
show what a choice at once, at the first or the second rung of all records, would score, compare the
presets chosen with hindsight for each backbone and task, by the mean over all recorded seeds, and
show what a vote of three seeds of the default would gain on the held-out rows of the last rung.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from defaults_table import Records, read, scores
from softprompts.analysis.spread import t_interval
from softprompts.artifacts.tournament import Standing
from softprompts.config.candidates import sizes
from softprompts.tuning.auto import in_words, leaving, rank

COMPETING = ("mixture", "prompt-tuning", "residual-labels-20", "residual", "single-lr1")
"""The candidates of `tune --auto` on a GPU, the default method first."""
PRESETS = ("mixture", "prompt-tuning", "residual")
"""Presets that were run with every seed."""
AUTO, HINDSIGHT = "auto", "best preset with hindsight"
LONGER = "mixture-1200"
"""The default method with the steps of three runs, which is what `tune --auto` may cost."""
Runs = Mapping[str, dict[str, Any]]


def play(runs: Runs, default: str | None = COMPETING[0]) -> str:
    """The winner of the tournament; without a default, the best score wins."""
    names: Sequence[str] = COMPETING
    last = len(runs[names[0]]["rungs"]) - 1
    for number in range(last + 1):
        names = judge(runs, names, number, default, number == last)
    (winner,) = names
    return winner


def judge(
    runs: Runs, names: Sequence[str], number: int, default: str | None, last: bool
) -> list[str]:
    """Who stays after a rung; only one after the last."""
    rungs = {name: runs[name]["rungs"][number] for name in names}
    standings: list[Standing] = [
        {
            "candidate": name,
            "score": rung["score"],
            "interval": None,
            "loss": rung["loss"],
            "left": False,
        }
        for name, rung in rungs.items()
    ]
    standings.sort(key=rank)
    right = {name: [100.0 * int(bit) for bit in rung["right"]] for name, rung in rungs.items()}
    gone = {place["candidate"] for place in leaving(standings, right, default, last)}
    return [name for name in names if name not in gone]


def main() -> None:
    records = read(*sys.argv[1:])
    measured(records)
    pairs: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for (model, task, candidate, seed), record in records.items():
        if len(record.get("rungs", ())) == len(sizes(len(COMPETING))):
            pairs.setdefault((model, task, seed), {})[candidate] = record
    complete = {key: runs for key, runs in pairs.items() if set(COMPETING) <= set(runs)}
    if not complete:
        return
    table: dict[str, list[dict[str, float]]] = {}
    print("| model | task | seed | winner | auto | default | best of the presets |")
    print("|---|---|---:|---|---:|---:|---:|")
    for (model, task, seed), runs in sorted(complete.items()):
        score = {name: scores(runs[name])[1] for name in COMPETING}
        winner = play(runs)
        row = {
            "auto": score[winner],
            "auto, default not protected": score[play(runs, None)],
            **{name: score[name] for name in COMPETING},
            HINDSIGHT: max(score[name] for name in PRESETS),
            "best candidate with hindsight": max(score.values()),
        }
        table.setdefault(model, []).append(row)
        best = row[HINDSIGHT]
        print(
            f"| {model} | {task} | {seed} | {winner} | {row['auto']:.1f} | {row['mixture']:.1f} "
            f"| {best:.1f} |"
        )
    print_means(table)
    chosen_at_once(records)
    chosen_per_pair(records)
    votes_of_seeds(records)


def measured(records: Records) -> None:
    """`tune --auto` as it is, beside the presets: by pairs of backbone and task, each the mean over
    its seeds."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for (model, task, candidate, _), record in records.items():
        score = record["metrics"][record["metric"]]
        found.setdefault((model, task), {}).setdefault(candidate, []).append(score)
    compared: dict[tuple[str, str], dict[str, float]] = {}
    longer: dict[tuple[str, str], dict[str, float]] = {}
    seeds = set[int]()
    for pair, by_candidate in sorted(found.items()):
        if {AUTO, *PRESETS} <= set(by_candidate):
            means = {name: fmean(by_candidate[name]) for name in (AUTO, *PRESETS)}
            compared[pair] = {**means, HINDSIGHT: max(means[name] for name in PRESETS)}
            if LONGER in by_candidate:
                longer[pair] = {
                    **{name: means[name] for name in (AUTO, PRESETS[0])},
                    LONGER: fmean(by_candidate[LONGER]),
                }
            seeds.update(len(by_candidate[name]) for name in PRESETS)
    if not compared:
        return
    print_means(by_model(compared))
    print(f"seeds of a preset: {min(seeds)} to {max(seeds)}")
    for other in (*PRESETS, HINDSIGHT):
        print_gain(compared, other)
    print_largest_gain(compared)
    if longer:
        print_means(by_model(longer))
        print_gain(longer, LONGER)
    autos = [
        record
        for (model, task, name, _), record in records.items()
        if name == AUTO and (model, task) in compared
    ]
    winners = Counter(in_words(record["winner"]) for record in autos)
    print("winners: " + "; ".join(f"{name}: {count} times" for name, count in winners.items()))
    costs = [record["runs_cost"] for record in autos]
    print(f"cost, in runs of the winner: {min(costs)} to {max(costs)}\n")


def by_model(
    compared: Mapping[tuple[str, str], dict[str, float]],
) -> dict[str, list[dict[str, float]]]:
    rows: dict[str, list[dict[str, float]]] = {}
    for (model, _), row in compared.items():
        rows.setdefault(model, []).append(row)
    return rows


def print_gain(compared: Mapping[tuple[str, str], Mapping[str, float]], other: str) -> None:
    """The mean gain over another, with its interval, and on how many pairs there is one."""
    gains = [row[AUTO] - row[other] for row in compared.values()]
    low, high = t_interval(gains) or (gains[0], gains[0])
    print(
        f"auto - {other}: {fmean(gains):+.1f} ({low:+.1f} to {high:+.1f}), better on "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
    )


def print_largest_gain(compared: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
    """The pair that gains most over the default, its share, and the mean gain of the others."""
    gains = {pair: row[AUTO] - row[PRESETS[0]] for pair, row in compared.items()}
    model, task = most = max(gains, key=lambda pair: gains[pair])
    others = [gain for pair, gain in gains.items() if pair != most]
    if not others or sum(gains.values()) <= 0:
        return
    row = compared[most]
    print(
        f"largest gain over {PRESETS[0]}: {model}, {task}, {row[AUTO]:.1f} against "
        f"{row[PRESETS[0]]:.1f}, {gains[most] / sum(gains.values()):.1%} of the sum; "
        f"without it {fmean(others):+.1f}"
    )


def print_means(table: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """The means of each row's numbers, by model and over all."""
    columns = {**table, "all": [row for rows in table.values() for row in rows]}
    heads = [f"{model} ({len(rows)})" for model, rows in columns.items()]
    print(f"\n| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for name in columns["all"][0]:
        means = [f"{fmean(row[name] for row in rows):.1f}" for rows in columns.values()]
        print(f"| {name} | {' | '.join(means)} |")


def chosen_at_once(records: Records) -> None:
    """What a choice among all candidates at the first or at the second rung would score."""
    runs: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for (model, task, candidate, seed), record in records.items():
        if record.get("rungs"):
            runs.setdefault((model, task, seed), {})[candidate] = record
    complete = [of for of in runs.values() if set(COMPETING) <= set(of)]
    default = fmean(scores(of[COMPETING[0]])[1] for of in complete)
    for number in range(2):
        steps = [of[COMPETING[0]]["rungs"][number]["step"] for of in complete]
        picked = [judge(of, COMPETING, number, COMPETING[0], True)[0] for of in complete]
        score = fmean(scores(of[name])[1] for of, name in zip(complete, picked, strict=True))
        replaced = sum(name != COMPETING[0] for name in picked)
        print(
            f"\n{len(complete)} tournaments decided at step {min(steps)} to {max(steps)}: "
            f"{score:.1f}, the default {default:.1f}; it was replaced {replaced} times"
        )


def votes_of_seeds(records: Records) -> None:
    """The mean of three seeds of the default, and their vote: a row counts if two of them are
    right, so a vote of more than two labels may be better than this."""
    right: dict[tuple[str, str], list[str]] = {}
    for (model, task, candidate, _), record in sorted(records.items()):
        rungs = record.get("rungs")
        if candidate == COMPETING[0] and rungs:
            right.setdefault((model, task), []).append(rungs[-1]["right"])
    gains: dict[str, list[tuple[float, float]]] = {}
    for (model, _), bits in right.items():
        last = bits[-3:]
        if len(last) == 3 and len(set(map(len, last))) == 1:
            sums = [sum(map(int, of_row)) for of_row in zip(*last, strict=True)]
            mean, vote = fmean(sums) / 3, fmean(of_row >= 2 for of_row in sums)
            gains.setdefault(model, []).append((100 * mean, 100 * vote))
    gains["all"] = [pair for pairs in gains.values() for pair in pairs]
    for model, pairs in gains.items():
        mean, vote = (fmean(part) for part in zip(*pairs, strict=True))
        print(f"{model}, {len(pairs)} tasks: mean of three seeds {mean:.1f}, vote {vote:.1f}")


def chosen_per_pair(records: Records) -> None:
    """How much one preset per backbone and task, chosen with hindsight, is better than the default:
    by means over seeds, of which a choice for every single run would exploit the luck."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for model, task, candidate, seed in records:
        if candidate == PRESETS[0] and all((model, task, of, seed) in records for of in PRESETS):
            seeds.setdefault((model, task), []).append(seed)
    means = {
        pair: {name: fmean(scores(records[*pair, name, one])[1] for one in of) for name in PRESETS}
        for pair, of in seeds.items()
    }
    default = fmean(mean[PRESETS[0]] for mean in means.values())
    best = fmean(max(mean.values()) for mean in means.values())
    print(
        f"\n{len(means)} pairs, {min(map(len, seeds.values()))} to {max(map(len, seeds.values()))} "
        f"seeds: the default {default:.1f}, the best preset of each pair {best:.1f}"
    )


if __name__ == "__main__":
    main()
