"""Explanations of a study's prompts, which its claims about words and routing are judged by."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from ..artifacts.file_names import EXPLANATION
from ..backbone import load_backbone
from ..files import write_json
from ..study.plan import Cell
from ..study.study import Study
from ..tasks import load_task
from ..tuning.tuned import load
from .explain import explain
from .runs import CHOICES


def unexplained(study: Study) -> list[Cell]:
    """The finished cells with a prompt that no explanation was written for."""
    folders = [(cell, study.folder.cell(cell.name)) for cell in study.cells()]
    return [
        cell
        for cell, run in folders
        if cell.stage not in CHOICES
        and run.is_done
        and run.has_prompt
        and run.card().prompt.length > 0
        and not (run.path / EXPLANATION).exists()
    ]


def explain_study(
    study: Study,
    cells: Sequence[Cell],
    device: str = "auto",
    data_dir: str | None = None,
    models: Mapping[str, str] | None = None,
    on_cell: Callable[[], object] = lambda: None,
) -> None:
    """Write `explanation.json` into the folders of cells; what tokens are worth is left out.

    Mixtures are explained on their task's validation rows, which say where inputs are sent.
    """
    backbone_of = lru_cache(1)(load_backbone)
    for cell in cells:
        folder = study.folder.cell(cell.name)
        dtype = folder.card().backbone.dtype or "auto"
        model = (models or {}).get(cell.backbone, folder.config().model)
        tuned = load(folder.path, backbone=backbone_of(model, dtype, device))
        layers = [{"task": {"data_dir": data_dir}}] if data_dir else []
        mixed = len(tuned.prompt.table) > 1
        examples = load_task(folder.config(*layers).task).validation if mixed else ()
        explanation = explain(tuned, examples, worth=False, history=folder.history())
        write_json(folder.path / EXPLANATION, explanation.plain())
        on_cell()
