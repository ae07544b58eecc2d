"""A summary of runs as Markdown, and as one self-contained HTML page.

The page is legible on a phone, in dark mode and by a screen reader.
"""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..version import __version__
from .curve_svg import CURVE_STYLE, curve_figure
from .findings import HELD
from .markup import WEAK, html_page, html_table, markdown_table
from .spread import SIGNIFICANCE, number, plus_minus
from .summary import MEAN, Difference, Score, Summary, Table

MOST_CONFIGS, MOST_OPEN = 60, 30
"""Configs on the page, and rows of a table that is not folded away."""
TIED = "≈"
STYLE = (
    CURVE_STYLE
    + """
:root { color-scheme: light dark; --text: #1b1b1b; --back: #fff; --soft: #f3f3f3; }
@media (prefers-color-scheme: dark) { :root { --text: #ececec; --back: #161616; --soft: #242424; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--rule); text-align: right;
  white-space: nowrap; }
th[scope=row], th:first-child, .text { text-align: left; } th, td { vertical-align: top; }
th[scope=row] { font-weight: normal; position: sticky; left: 0; background: var(--back);
  max-width: 16rem; white-space: normal; }
img { background: #fff; }
pre { background: var(--soft); padding: .7rem; overflow-x: auto; font-size: .85rem; }
details details { margin-left: 1.2rem; }
.claim { border-left: 3px solid var(--rule); padding: 0 1rem; margin: 1rem 0; }
.claim h3 { font-size: 1rem; margin: 0; } .claim p, .claim ul { margin: .3rem 0; }
.verdict { background: var(--soft); border-radius: .3rem; padding: .1rem .5rem; }
.held { font-weight: bold; }
"""
)


# -- text that both forms share --------------------------------------------------------------------


def introduction(summary: Summary) -> list[str]:
    """What the folder holds, in sentences."""
    seeds, count = summary["seeds"], summary["runs"]
    runs = f"{count} run{'s' if count != 1 else ''}"
    over = f" with the seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else ""
    sentences = [f"{runs}{over}."]
    if summary["unfinished"]:
        sentences.append(f"{summary['unfinished']} more are not finished.")
    for name, reason in summary["failed"].items():
        sentences.append(f"{name} failed: {reason}")
    return sentences


def table_notes(table: Table) -> list[str]:
    """How to read a table."""
    notes = []
    if len(table["arms"]) > 1 and any(arm["runs"] for arm in table["arms"]):
        notes.append(
            f"Mean ± standard deviation over seeds. Bold: the best of its column; {TIED}: no "
            f"significant difference from the best (corrected p ≥ {SIGNIFICANCE})."
        )
    weak = [task["name"] for task in table["tasks"] if task["weak"]]
    if weak:
        notes.append(
            f"{WEAK} No arm is above the majority class by two standard errors, so nothing can be "
            f"concluded from {', '.join(weak)}."
        )
    return notes


def difference_note(table: Table) -> str:
    count = sum(row["p"] is not None for row in table["differences"])
    corrected = (
        f" Corrected: for all {count} comparisons of this table (Holm)." if count > 1 else ""
    )
    return (
        "Differences in points with 95 % intervals (Student's t), and p-values of paired tests: "
        "over rows where predictions were saved, otherwise over seeds, or over tasks and seeds."
        f"{corrected}"
    )


def _score(score: Score | None) -> str:
    """In bold type, as Markdown has it, if it is the best of its column."""
    if score is None:
        return ""
    text = f"{plus_minus(score)}{' ' + TIED if score['tied'] else ''}"
    return f"**{text}**" if score["best"] else text


def _score_table(table: Table) -> tuple[list[str], list[list[str]]]:
    """The headings, and a row for each arm and for the majority class."""
    splits = {task["split"] for task in table["tasks"]}
    columns = {MEAN: MEAN} if any(MEAN in arm["scores"] for arm in table["arms"]) else {}
    majority = ["majority class", *("" for _ in columns)]
    for task in table["tasks"]:
        split = f", {task['split']}" if len(splits) > 1 else ""
        weak = WEAK if task["weak"] else ""
        columns[task["name"]] = f"{task['name']}{weak} ({task['metric']}{split})"
        majority.append(number(task["majority"]))
    arms = [
        [arm["name"], *(_score(arm["scores"].get(name)) for name in columns)]
        for arm in table["arms"]
    ]
    return ["arm", *columns.values()], [*arms, majority]


def _difference_cells(row: Difference) -> list[str]:
    interval = row["interval"]
    return [
        row["arm"],
        row["reference"],
        row["task"],
        f"{row['difference']:+z.1f}",
        "" if interval is None else f"{number(interval[0])} to {number(interval[1])}",
        _p(row["p"]),
        _p(row["p_corrected"]),
        f"{row['pairs']:,} {row['over']}",
    ]


DIFFERENCE_HEADINGS = (
    *("arm", "against", "task", "difference", "95 % interval", "p", "corrected p", "pairs"),
)


def _p(value: float | None) -> str:
    return "" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _cost_rows(table: Table) -> list[list[str]]:
    known = [arm for arm in table["arms"] if arm["trained_parameters"] or arm["seconds"]]
    return [
        [
            arm["name"],
            "" if arm["trained_parameters"] is None else f"{arm['trained_parameters']:,}",
            number(arm["seconds"]),
        ]
        for arm in known
    ]


COST_HEADINGS = ("arm", "trained parameters", "seconds per run")
CHOICE_HEADINGS = ("arm", "task", "settings", "score on held-out rows", "")
CLAIM_HEADINGS = ("claim", "paper", "ours", "verdict")


def _claim_cells(claim: Mapping[str, Any]) -> list[str]:
    return [
        f"{claim['claim']}. {claim['text']}",
        claim["paper"],
        "; ".join(part["sentence"] for part in claim["expectations"]),
        claim["verdict"],
    ]


def _choice_cells(choice: Mapping[str, Any]) -> list[str]:
    chosen = "chosen" if choice["best"] else ""
    return [choice["arm"], choice["task"], choice["settings"], number(choice["score"]), chosen]


def _machine(machine: Mapping[str, str]) -> str:
    return ", ".join(
        value if name in ("device", "dtype") else f"{name} {value}"
        for name, value in machine.items()
    )


def _yaml(settings: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)


# -- Markdown --------------------------------------------------------------------------------------


def markdown(summary: Summary, title: str) -> str:
    parts = [f"# {title}", " ".join(introduction(summary))]
    if summary["claims"]:
        parts += ["## Claims", markdown_table(CLAIM_HEADINGS, map(_claim_cells, summary["claims"]))]
    for table in summary["tables"]:
        parts += [f"## {table['title']}", markdown_table(*_score_table(table))]
        parts += table_notes(table)
        if table["differences"]:
            parts += [
                "### Differences",
                difference_note(table),
                markdown_table(DIFFERENCE_HEADINGS, map(_difference_cells, table["differences"])),
            ]
        if cost := _cost_rows(table):
            parts += ["### Cost", markdown_table(COST_HEADINGS, cost)]
    if summary["choices"]:
        chosen = map(_choice_cells, summary["choices"])
        parts += ["## Chosen settings", markdown_table(CHOICE_HEADINGS, chosen)]
    if summary["machines"]:
        parts += ["## Environment", *(f"- {_machine(m)}" for m in summary["machines"])]
    if summary["common"]:
        parts += ["## Settings", f"```yaml\n{_yaml(summary['common'])}```"]
        parts += [
            f"{name}:\n\n```yaml\n{_yaml(settings)}```"
            for name, settings in summary["settings"].items()
            if settings
        ]
    return "\n\n".join(parts) + "\n"


# -- HTML ------------------------------------------------------------------------------------------


def page(summary: Summary, title: str, figures: Sequence[Path] = ()) -> str:
    """The page; `figures` are PNG files to show in it."""
    parts = [f"<p>{html.escape(text)}</p>" for text in introduction(summary)]
    if summary["claims"]:
        parts.append("<h2>Claims</h2>" + "".join(map(_claim_section, summary["claims"])))
    parts += map(_table_section, summary["tables"])
    if summary["curves"]:
        drawn = "".join(curve_figure(c, index) for index, c in enumerate(summary["curves"]))
        parts.append(f"<h2>Learning curves</h2>{drawn}")
    if summary["choices"]:
        rows = [_choice_cells(choice) for choice in summary["choices"]]
        chosen = html_table(CHOICE_HEADINGS, rows)
        parts.append(f"<h2>Chosen settings</h2><details><summary>All</summary>{chosen}</details>")
    if figures:
        parts.append("<h2>Figures</h2>" + "".join(map(_picture, figures)))
    parts.append(_settings_section(summary))
    return html_page(title, STYLE, "".join(parts))


def _claim_section(claim: Mapping[str, Any]) -> str:
    parts = "".join(f"<li>{html.escape(part['sentence'])}</li>" for part in claim["expectations"])
    kind = " held" if claim["verdict"] == HELD else ""
    return (
        f"<section class='claim'><h3>{claim['claim']}. {html.escape(claim['text'])}</h3>"
        f"<p><span class='verdict{kind}'>{html.escape(claim['verdict'])}</span> "
        f"Paper: {html.escape(claim['paper'])}</p><ul>{parts}</ul></section>"
    )


def _table_section(table: Table) -> str:
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table_notes(table))
    rows = {task["rows"] for task in table["tasks"]}
    counts = ", ".join(
        f"{t['name']}: {t['rows']:,} {t['split']} rows" for t in table["tasks"] if t["rows"]
    )
    section = f"<h2>{html.escape(table['title'])}</h2>{html_table(*_score_table(table))}{notes}" + (
        f"<p>{html.escape(counts)}.</p>" if rows != {None} else ""
    )
    if table["differences"]:
        rows_of = [_difference_cells(row) for row in table["differences"]]
        shown = " open" if len(rows_of) <= MOST_OPEN else ""
        section += (
            f"<details{shown}><summary>Differences</summary>"
            f"<p>{html.escape(difference_note(table))}</p>"
            f"{html_table(DIFFERENCE_HEADINGS, rows_of)}</details>"
        )
    if cost := _cost_rows(table):
        section += f"<details><summary>Cost</summary>{html_table(COST_HEADINGS, cost)}</details>"
    return section


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    name = path.stem.replace("-", " ").replace("_", " ")
    return (
        f"<figure><img alt='Figure: {html.escape(name)}' src='data:image/png;base64,{data}'>"
        f"<figcaption>{html.escape(name)}</figcaption></figure>"
    )


def _settings_section(summary: Summary) -> str:
    parts = ["<h2>Environment and settings</h2><ul>"]
    parts += [f"<li>{html.escape(_machine(machine))}</li>" for machine in summary["machines"]]
    parts.append(f"<li>this page: softprompts {__version__}</li></ul>")
    blocks = {
        "The study file": summary["study"],
        "Settings that all runs share": summary["common"] and _yaml(summary["common"]),
        **{
            f"Settings of {name}": _yaml(settings)
            for name, settings in summary["settings"].items()
            if settings
        },
    }
    parts += [_folded(name, text) for name, text in blocks.items() if text]
    configs = {f"config.yaml of {n}": _yaml(c) for n, c in summary["configs"].items()}
    if len(configs) > MOST_CONFIGS:
        parts.append("<p>The whole configs of all runs are in summary.json.</p>")
    elif configs:
        listed = "".join(_folded(name, text) for name, text in configs.items())
        parts.append(f"<details><summary>The config of each run</summary>{listed}</details>")
    return "".join(parts)


def _folded(name: str, text: str) -> str:
    return (
        f"<details><summary>{html.escape(name)}</summary><pre>{html.escape(text)}</pre></details>"
    )
