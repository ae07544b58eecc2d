"""The page docs/claims.md: all claims of docs/claims.yaml, each with its verdict and its report.

    python recipes/claims.py            # writes docs/claims.md

A recipe states which claims it tests, and how, before it runs. Once `softprompts report` (or
`softprompts study report`) has written results/RECIPE, its verdicts are on the page. Smoke recipes
are too short to judge anything.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from softprompts.analysis.findings import HELD, NOT_HELD, NOT_RUN
from softprompts.analysis.folder_report import folder_claims
from softprompts.analysis.runs import RunRecord, Runs, read_runs
from softprompts.analysis.verdicts import judge_claims, overall
from softprompts.files import write_text
from softprompts.study.claims import read_claims

ROOT = Path(__file__).parents[1]
INTRODUCTION = """<!-- Written by recipes/claims.py; do not edit. -->

# Claims

The main claims of the four papers, in our words, and whether they held here. The recipe states the
rule for each verdict before it runs ([studies.md](studies.md#claims)). Only claim 9's was changed
after a first look. The verdicts:

- **held**: the 95 % interval of the paired differences, over tasks and seeds, lies above the margin
  and, unless the claim is "no worse", a paired test (corrected for all tests of the claim) agrees.
- **did not hold**: the interval lies below the smallest difference that would count.
- **too weak to tell**: neither of these, or no task is above its majority class.
- **held in part**: it held in all reports so far, and other recipes for a GPU that test it have not
  run yet.
- **in short runs**: the verdict comes from a recipe for two CPU cores (200 to 300 steps of 16 rows,
  short texts, learning rates not tuned). Recipes for a GPU that test the claim have not run yet, or
  were too weak to tell.
- **not run yet**: there is no report. No claim gets a verdict without one.

The last column links the reports, recipes that have not run yet (`.yaml`), and studies that asked
why a claim did not hold. A claim with several expectations holds if all of them do. Where a study
was run on several models, those on which it was too weak do not count if another decides. Claims
about task embeddings and transfer have tests of their own, and the cost of SMoP was measured once,
without an interval. Most models here are smaller than the papers'.
"""


PARTLY_HELD = "held in part"
SHORT = "-cpu.yaml"
"""Recipes for two CPU cores. They count for a claim until one for a GPU decides."""


def evidence(root: Path) -> dict[int, list[dict[str, Any]]]:
    """For each claim, what the recipes with results, and other records, say about it."""
    found: dict[int, list[dict[str, Any]]] = {}
    for recipe in sorted((root / "recipes").glob("*.yaml")):
        folder = root / "results" / recipe.stem
        if recipe.stem.endswith("-smoke") or not folder.is_dir():
            continue
        for claim in _judged(folder, recipe.read_text(encoding="utf-8")):
            report = next(
                (
                    name
                    for name in ("README.md", "summary.md", "report.md")
                    if (folder / name).exists()
                ),
                "",
            )
            entry = {**claim, "recipe": recipe.name, "report": f"results/{recipe.stem}/{report}"}
            found.setdefault(claim["claim"], []).append(entry)
    for number, claim in claims(root).items():
        for record in claim.get("records", ()):
            path = root / record["file"]
            if path.exists():
                judged = KINDS[record["kind"]](json.loads(path.read_text()), record)
                found.setdefault(number, []).append({**judged, "report": record["report"]})
    return {number: _longest(entries) for number, entries in found.items()}


def _longest(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries that are not of short runs, unless only short runs decide."""
    longer = [entry for entry in entries if not _is_short(entry)]
    if any(map(_decides, longer)) or not any(map(_decides, entries)):
        return longer or entries
    return entries


def _decides(entry: Mapping[str, Any]) -> bool:
    return entry["verdict"] in (HELD, NOT_HELD)


def _is_short(entry: Mapping[str, Any]) -> bool:
    return str(entry.get("recipe", "")).endswith(SHORT)


def _judged(folder: Path, recipe: str) -> Sequence[Mapping[str, Any]]:
    """The verdicts in a folder's summary; without one, those on its records."""
    if not yaml.safe_load(recipe).get("claims"):
        return []
    summary = folder / "summary.json"
    if summary.exists() and (judged := json.loads(summary.read_text())["claims"]):
        return list(judged)
    return folder_claims(read_runs(folder), recipe)


def claims(root: Path) -> dict[int, dict[str, Any]]:
    """The list of all claims, by number."""
    listed = yaml.safe_load((root / "docs" / "claims.yaml").read_text(encoding="utf-8"))
    return {int(number): claim for number, claim in listed["claims"].items()}


# -- records that are not a study's ----------------------------------------------------------------


def _objectives(record: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on scores that recipes/objectives.py recorded."""
    runs = [
        RunRecord(
            f"{variant}/{task}/{seed}",
            task,
            int(seed),
            {"variant": variant, "stage": "baseline"},
            metric="accuracy",
            scores={"validation": score},
            majority={"validation": scores["majority"]},
            rows={"validation": how["rows"][task]},
        )
        for variant, part in record["variants"].items()
        for task, scores in part["tasks"].items()
        for seed, score in scores["best"].items()
    ]
    claim = {"claim": 0, "text": "", "paper": "", "expect": how["expect"]}
    (judged,) = judge_claims(read_claims([claim]), Runs(Path(), "study", runs), {})
    return judged


def _smop(record: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on what `softprompts bench smop` measured on one machine, without an interval."""
    savings = {
        name: 100 * record["savings"][part]
        for name, part in {"time": "time", "memory": "memory", "operations": "flops"}.items()
    }
    verdict = HELD if min(savings.values()) > 0 else NOT_HELD
    measured = ", ".join(f"{name} {-value:.1f} %" for name, value in savings.items())
    settings = record["settings"]
    where = f"{settings['model']}, batch {settings['batch']}, {record['machine']['device']}"
    return {"verdict": verdict, "expectations": [{"sentence": f"{measured} ({where}): {verdict}"}]}


KINDS = {"objectives": _objectives, "smop": _smop}


# -- the page --------------------------------------------------------------------------------------


def page(root: Path) -> str:
    found, listed = evidence(root), claims(root)
    unknown = sorted(set(found) - set(listed))
    if unknown:
        raise SystemExit(f"A recipe states claim {unknown[0]}, which is not in docs/claims.yaml.")
    papers = yaml.safe_load((root / "docs" / "claims.yaml").read_text(encoding="utf-8"))["papers"]
    recipes = _recipes(root)
    verdicts = {
        n: _verdict(found.get(n, []), claim, recipes.get(n, {})) for n, claim in listed.items()
    }
    parts = [INTRODUCTION.rstrip(), _counts(list(verdicts.values()))]
    for name, title in papers.items():
        rows = [
            _row(number, claim, found.get(number, []), recipes.get(number, {}), verdicts[number])
            for number, claim in listed.items()
            if claim["source"] == name
        ]
        head = ["| | claim | paper | ours | verdict | report |", "|---:|---|---|---|---|---|"]
        parts += [f"## {title}", "\n".join([*head, *rows])]
    return "\n\n".join(parts) + "\n"


def _recipes(root: Path) -> dict[int, dict[str, str]]:
    """The recipes of the small scale that test each claim, by name, and what they expect."""
    tests: dict[int, dict[str, str]] = {}
    for recipe in sorted((root / "recipes").glob("*-small.yaml")):
        study = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        for claim in study.get("claims") or ():
            tests.setdefault(claim["claim"], {})[recipe.name] = json.dumps(claim["expect"])
    return tests


def _verdict(
    entries: Sequence[Mapping[str, Any]], claim: Mapping[str, Any], recipes: Mapping[str, str]
) -> str:
    """One verdict of all reports. Recipes that expect the same are one study on several models."""
    if "untestable" in claim:
        return f"not testable here: {claim['untestable']}"
    if not entries:
        return NOT_RUN
    tests: dict[str, list[str]] = {}
    short = [entry for entry in entries if _is_short(entry)]
    for entry in short or entries:
        test = recipes.get(entry.get("recipe", ""), entry["report"])
        tests.setdefault(test, []).append(entry["verdict"])
    verdict = overall(
        [
            overall([v for v in verdicts if v in (HELD, NOT_HELD)] or verdicts)
            for verdicts in tests.values()
        ]
    )
    if short:
        return f"{verdict} in short runs"
    missing = set(recipes) - {entry.get("recipe") for entry in entries}
    return PARTLY_HELD if missing and verdict == HELD else verdict


def _counts(verdicts: Sequence[str]) -> str:
    names = sorted(verdict.partition(":")[0] for verdict in verdicts)
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return f"Of {len(names)} claims: " + ", ".join(f"{n} {v}" for v, n in counts.items()) + "."


def _row(
    number: int,
    claim: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    recipes: Mapping[str, str],
    verdict: str,
) -> str:
    sentences = [part["sentence"] for entry in entries for part in entry["expectations"]]
    if entries and "note" in claim:
        sentences.append(f"*{claim['note']}*")
    untested = f" *Not tested: {claim['untested']}.*" if "untested" in claim else ""
    cells = [
        str(number),
        claim["text"] + untested,
        str(claim["paper"]),
        "<br>".join(sentences),
        verdict,
        ", ".join(_links(claim, entries, recipes)),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _links(
    claim: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], recipes: Mapping[str, str]
) -> list[str]:
    """To the reports, to studies of why it did not hold, and to recipes that have not run yet."""
    reports = [entry["report"] for entry in entries]
    if entries:
        reports += claim.get("follow_ups", ())
    done = {entry.get("recipe") for entry in entries}
    return [
        *(f"[{Path(path.partition('#')[0]).parent.name}](../{path})" for path in reports),
        *(f"[{name}](../recipes/{name})" for name in recipes if name not in done),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    parser.add_argument("--output", type=Path, help="the page (default docs/claims.md)")
    options = parser.parse_args()
    output = options.output or options.root / "docs" / "claims.md"
    write_text(output, page(options.root))
    print(f"the claims are in {output}")


if __name__ == "__main__":
    main()
