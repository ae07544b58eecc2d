"""A prompt's card: everything a stranger must know to use and to trust it."""

from pathlib import Path
from typing import Any

from .. import __version__
from ..backbone import Backbone
from ..errors import UserError
from ..tasks import Form
from ..tasks.form import check_template
from ..tasks.metrics import METRICS
from ..tasks.mixture import MEAN
from ..tuning import Run
from .prompt_file import CARD
from .run_folder import MODEL


def make_card(run: Run) -> dict[str, Any]:
    """Of a run that has ended."""
    best = run.best_entry
    return {
        "method": run.config.method,
        "backbone": backbone_card(run.backbone),
        "model": MODEL if "model" in run.trained else None,
        "task": run.task.card(),
        "metrics": {name: best[name] for name in run.task.metrics},
        "invalid": best["invalid"],
        "majority": run.task.majority(),
        "test": _tested(run),
        "scoring": run.config.tuning.scoring,
        "best_step": best["step"],
        "embedding": None if run.embedding is None else {"step": run.embedding[0]},
        "steps": run.step,
        "stopped": run.stopped,
        "failed": run.failed,
        "cut_texts": run.cut,
        "trained_parameters": sum(parameter.numel() for parameter in run.parameters()),
        "seed": run.config.seed,
        "config": run.config.plain(),
        "version": __version__,
    }


def _tested(run: Run) -> dict[str, float] | None:
    """The best prompt's scores on the examples that nothing was chosen by, where the task keeps some."""
    if not run.task.test:
        return None
    predictions = run.predictor()([e.input for e in run.task.test])
    return run.task.score(predictions, run.task.test)


def backbone_card(backbone: Backbone) -> dict[str, Any]:
    """What a prompt's card says of its backbone."""
    return {
        "name": backbone.name,
        "fingerprint": backbone.fingerprint,
        "family": backbone.family,
        "dtype": backbone.dtype,
        "hidden": backbone.hidden,
    }


def check_card(folder: Path, card: dict[str, Any]) -> None:
    """A card that lacks what using its prompt takes is told in a sentence."""
    try:
        form = Form(**card["task"]["form"])
        if form.definition is None:
            check_template(form.template)
        good = card["scoring"] in (("generate", "labels") if form.labels else ("generate",))
        good = good and all(
            name.rpartition(":")[2] in {*METRICS, MEAN} for name in card["task"]["metrics"]
        )
        if (
            not good
            or not isinstance(card["backbone"]["name"], str)
            or not isinstance(card["task"]["commonest"], str | None)
        ):
            raise ValueError("a usable task, scoring or backbone")
        int(card["config"]["tuning"]["max_length"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"The card {folder / CARD} is not whole (it lacks {error}); take a whole copy, or tune the prompt again."
        ) from None
