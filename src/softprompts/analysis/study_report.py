"""A study's report: all records, the table of scores, the picture of model sizes, the analysis of its transfers."""

from collections.abc import Sequence
from pathlib import Path

from ..files import write_json, write_text
from ..files.names import safe_name
from ..study import STUDY
from ..study import cells as on_disk
from ..study.plan import Cell, Study
from ..study.records import METHODS, Record, as_csv, lines, markdown, records
from ..study.workers import State
from ..tasks.registry import BENCHMARKS
from .heatmaps import check, save
from .report import write_report
from .retrieval import KS
from .sizes import by_size, score_by_size


def write_study_report(study: Study, cells: Sequence[Cell], folder: Path, output: Path) -> Record:
    """The study's file, all records, the table of scores, the picture of model sizes, and for each backbone and variant its analysis."""

    check()
    for model in dict.fromkeys(cell.config.model for cell in cells):
        on_disk.check_model(cells, folder, model)
    state = State().look(cells, folder)
    found = records(cells, state)
    table = lines(found, _benchmarks(study))
    write_json(output / "records.json", found)
    write_text(
        output / "records.csv",
        as_csv([_flat(told) for told in found], [name for name in found[0] if name != "chosen"]),
    )
    write_text(output / "plan.yaml", (folder / STUDY).read_text())
    write_json(output / "scores.json", table)
    pictures = (
        _write_sizes(found, table, output) if len({line["backbone"] for line in table}) > 1 else ""
    )
    write_text(output / "scores.md", markdown(table) + pictures)
    ks = {variant: grid.retrieval.best for variant, grid in study.grids()}
    groups = list(dict.fromkeys((cell.variant, cell.backbone) for cell in cells))
    parts: Record = {}
    for variant, backbone in groups:
        own = [cell for cell in cells if (cell.variant, cell.backbone) == (variant, backbone)]
        name = "/".join(safe_name(part) for part in (variant, backbone) if part is not None)
        place = output / name if len(groups) > 1 else output
        if any(cell.stage == "transfer" and not cell.whole_model for cell in own):
            told = [
                record
                for record in found
                if (record["variant"], record["backbone"]) == (variant, backbone)
            ]
            parts[name] = write_report(
                *_analysed(told, own, state, folder),
                place,
                ks[variant] or KS,
                _machines(own, state),
            )
    return {
        "output": str(output),
        "done": len(state.done),
        "total": len(cells),
        "scores": table,
        "analyses": parts,
    }


def _machines(cells: Sequence[Cell], state: State) -> list[Record]:
    """What the cells ran on, each machine once; older results do not tell."""
    found: list[Record] = []
    for cell in cells:
        machine = state.results.get(cell.name, {}).get("machine")
        if machine is not None and machine not in found:
            found.append(machine)
    return found


def _benchmarks(study: Study) -> dict[str, Sequence[str]]:
    """The benchmarks that targets are named by, where there are others to tell them from: GLUE and SuperGLUE have a mean each."""
    named: dict[str, Sequence[str]] = {
        str(entry): BENCHMARKS[str(entry)]
        for _, grid in study.grids()
        for entry in grid.targets
        if str(entry) in BENCHMARKS
    }
    return named if any(len(grid.targets) > 1 for _, grid in study.grids()) else {}


def _write_sizes(found: Sequence[Record], table: Sequence[Record], output: Path) -> str:
    """Score against model size as PNG, SVG, CSV and JSON; the line that shows it on a page."""

    rows = by_size(
        table, {told["backbone"]: told["parameters"] for told in found if told["parameters"]}
    )
    save(score_by_size(rows), output, "sizes")
    write_json(output / "sizes.json", rows)
    write_text(output / "sizes.csv", as_csv(rows, list(rows[0])))
    return "\n![score by model size](sizes.png)\n"


def _analysed(
    found: Sequence[Record], cells: Sequence[Cell], state: State, folder: Path
) -> tuple[list[Record], list[Record], list[Record]]:
    """Records, task embeddings and retrieval runs, as the analysis takes them."""
    names = ("source", "target", "seed", "score", "metric", "majority", "rows")
    runs = [
        {name: told[name] for name in names}
        for told in found
        if told["stage"] in ("source", "baseline", "transfer")
    ]
    embeddings = [
        {
            "task": cell.source or cell.target,
            "seed": cell.seed,
            "vectors": on_disk.embedding(on_disk.place(folder, cell.name)),
        }
        for cell in cells
        if cell.stage in ("source", "baseline")
        and cell.name in state.done
        and cell.name not in state.failed
    ]
    retrieval = [
        {
            "method": told["stage"],
            **{name: told[name] for name in ("similarity", "k", "target", "seed", "score")},
        }
        for told in found
        if told["stage"] in METHODS
    ]
    return runs, embeddings, retrieval


def _flat(told: Record) -> Record:
    """A record for a table: its metrics in one column."""
    return {
        **told,
        "metrics": ";".join(f"{name}={value}" for name, value in (told["metrics"] or {}).items()),
    }
