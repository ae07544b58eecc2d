"""A cell's run: its folder, where it starts, and its result."""

import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from ..artifacts.card import Card
from ..artifacts.study_folder import CellResult, ChosenSource, StudyFolder
from ..backbone.hardware import environment
from ..config import RunConfig, TaskConfig, absolute_data, run_config, sections
from ..errors import UserError, as_key, setting
from ..library.search import DECIMALS, SIMILARITIES, rank
from ..transfer.strategies import multi_task, shares, start_from
from ..tuning import RunFailedError
from ..tuning.tune import keep_scoring
from ..tuning.tuned import Tuned
from .plan import Cell


def check_fingerprints(
    cells: Iterable[Cell], folder: StudyFolder, model: str, fingerprint: str | None = None
) -> None:
    """Check that all finished cells of a frozen model used the same weights.

    With a `fingerprint`, those of the model that has it now.
    """
    reference = None
    for cell in cells:
        frozen = cell.config.model == model and not cell.trains_model
        result = folder.cell(cell.name).result() if frozen else None
        if result is None or result.fingerprint is None:
            continue
        if result.fingerprint != (fingerprint or result.fingerprint):
            different = (
                f"{cell.name} was run on a different version of {model} than the current one"
                if reference is None
                else f"{cell.name} and {reference} were run on different versions of {model}"
            )
            raise UserError(
                f"{different}, so scores and prompts cannot be compared; "
                f"choose another {setting('output')}, or remove the cells of one version."
            )
        if fingerprint is None:
            fingerprint, reference = result.fingerprint, cell.name


def task_key(task: TaskConfig) -> str:
    """What a task is, wherever its rows are."""
    settings = absolute_data(dataclasses.asdict(task)) | {"data_dir": None}
    return json.dumps(settings, sort_keys=True)


def check_rows(
    names: Iterable[str], folder: StudyFolder, digests: Mapping[str, Mapping[str, str]]
) -> None:
    """Check that finished cells used the rows that their tasks have now.

    `digests` are those of the rows now, by the keys of tasks.
    """
    for name in names if digests else ():
        result = folder.cell(name).result()
        if result is None or result.data is None or result.config is None:
            continue
        current = digests.get(task_key(TaskConfig.of(result.config["task"])))
        if current is not None and current != result.data:
            raise UserError(
                f"The rows of {result.target or result.source} have changed since {name} was run, "
                "so their scores cannot be compared; restore the old rows, "
                f"or run the study again with another {setting('output')}."
            )


def open_cell(cell: Cell, config: RunConfig, folder: StudyFolder) -> None:
    """Prepare a cell's folder.

    A run without a checkpoint starts anew, and so does one whose settings name other folders,
    because the study was moved.
    """
    run = folder.cell(cell.name)
    if not run.has_checkpoint or (run.has_config and _origins(run.config()) != _origins(config)):
        run.clear()
    run.write_plan(cell.plain())


def _origins(config: RunConfig) -> tuple[object, ...]:
    return config.model, config.device, absolute_data(config.task.plain()), config.prompt.start


def scored_alike(cell: Cell, cells: Mapping[str, Cell], folder: StudyFolder) -> Cell:
    """The cell with the scoring, and the use of a chat template, that cells like it on its model
    began with.

    Earlier versions generated answers to your own labelled data, and used no template, by default;
    a study that one began ends as it began.
    """
    others = [
        name
        for name, other in cells.items()
        if other.config.model == cell.config.model
        and other.config.tuning.scoring == "auto"
        and other.config.tuning.chat is None
        and _is_labelled(other.config) == _is_labelled(cell.config)
    ]
    runs = map(folder.cell, (cell.name, *others))
    return dataclasses.replace(cell, config=keep_scoring(cell.config, runs))


def _is_labelled(config: RunConfig) -> bool:
    return config.task.task is None and not config.task.free_text


def resolve_start(
    cell: Cell, cells: Mapping[str, Cell], folder: StudyFolder
) -> tuple[RunConfig, list[ChosenSource]]:
    """The config of a cell's run, once the cells it needs are done.

    They give its start, and to a mixture the tasks it learns.
    """
    config = _chosen_settings(cell, cells, folder)
    if not cell.starts:
        return config, []
    if cell.like is None:
        start, chosen = folder.cell(cell.starts[0]), [ChosenSource(cell.starts[0])]
        if cell.trains_model:
            return dataclasses.replace(config, model=str(start.model)), chosen
        return start_from(config, [start.path]), chosen
    nearest = _nearest(cell, folder)
    if cell.stage == "mixture-source":
        tasks = [str(cells[source.cell].config.task.task) for source in nearest]
        return multi_task(config, tasks), nearest
    weights = shares([source.similarity or 0.0 for source in nearest])
    chosen = [
        dataclasses.replace(source, weight=weight)
        for source, weight in zip(nearest, weights, strict=True)
    ]
    return start_from(config, [folder.cell(source.cell).path for source in chosen], weights), chosen


def _chosen_settings(cell: Cell, cells: Mapping[str, Cell], folder: StudyFolder) -> RunConfig:
    """The cell's config with the settings of the best of its `choices`; the first of equals."""
    results = {name: folder.cell(name).result() for name in cell.choices}
    scores = {name: r.score for name, r in results.items() if r and r.score is not None}
    if not scores:
        return cell.config
    best = max(scores, key=lambda name: scores[name])
    return run_config(cell.config.plain(), sections(dict(cells[best].choice)))


def _nearest(cell: Cell, folder: StudyFolder) -> list[ChosenSource]:
    """The k source prompts most similar to a cell's baseline; failed runs left none."""
    similarity = SIMILARITIES[str(cell.similarity)]
    baseline = task_embedding(folder, str(cell.like))
    results = {name: folder.cell(name).result() for name in cell.starts}
    similarities = {
        name: round(similarity(baseline, task_embedding(folder, name)), DECIMALS)
        for name, result in results.items()
        if result is not None and result.score is not None
    }
    return [ChosenSource(name, similarities[name]) for name in rank(similarities)[: cell.k]]


def task_embedding(folder: StudyFolder, name: str) -> Tensor:
    """All tokens of a cell's task embedding [K * P, H]; without one, of its prompt."""
    return folder.cell(name).task_vectors().flatten(0, -2)


def saved_config(folder: StudyFolder, result: CellResult, data_dir: str | None = None) -> RunConfig:
    """The config that a finished cell was run with.

    Its sources are where the study's folder is now; its rows may be elsewhere, too.
    """
    config = folder.cell(result.cell).config(
        {} if data_dir is None else {"task": {"data_dir": data_dir}}
    )
    starts = [folder.cell(source.cell) for source in result.chosen]
    # A mixture takes the tasks of the sources it chose, not their prompts.
    if not starts or result.stage == "mixture-source":
        return config
    if starts[0].model.exists():  # which was tuned whole
        return dataclasses.replace(config, model=str(starts[0].model))
    return start_from(
        config, [start.path for start in starts], config.prompt.start.options.get("weights")
    )


def make_result(
    cell: Cell, chosen: list[ChosenSource], outcome: Tuned | RunFailedError, **how: Any
) -> CellResult:
    """The result of a cell's run; `how` says who ran it, when and beside which others."""
    result = CellResult(
        cell.name, **cell.identity(), chosen=chosen, **how, finished=round(time.time(), 3)
    )
    if isinstance(outcome, RunFailedError):
        return dataclasses.replace(
            result, failed=outcome.spelled(as_key), config=cell.plain()["config"]
        )
    card, cost, backbone = outcome.card, outcome.cost, outcome.backbone
    return dataclasses.replace(
        result,
        score=card.score,
        metric=card.metric,
        metrics=card.metrics,
        majority=card.majority[card.metric],
        data=card.task.digests,
        rows=card.task.rows["validation"],
        **score_fields(card),
        best_step=card.best_step,
        steps=card.steps,
        seconds=None if cost is None else round(cost["seconds"] / cost["runs"], 3),
        cohort=None if cost is None else cost["runs"],
        failed=card.stopped if card.failed else None,
        fingerprint=card.backbone.fingerprint,
        parameters=sum(parameter.numel() for parameter in backbone.model.parameters()),
        machine=environment(backbone.device, backbone.dtype),
        config=card.config,
    )


def score_fields(card: Card) -> dict[str, Any]:
    """What a result says about its score, besides the score itself."""
    validation, test = (card.scores.get(split, {}) for split in ("validation", "test"))

    def baseline(report: Mapping[str, Any], name: str) -> Any:
        found = report.get("baselines", {}).get(name)
        return found and found["metrics"][card.metric]

    return {
        "interval": validation.get("intervals", {}).get(card.metric),
        "bag_of_words": baseline(validation, "bag_of_words"),
        "test": card.test and card.test[card.metric],
        "test_rows": test.get("rows") or card.task.rows.get("test"),
        "test_majority": baseline(test, "majority"),
        "test_interval": test.get("intervals", {}).get(card.metric),
    }


def commit(folder: StudyFolder, result: CellResult) -> None:
    """Write a cell's result unless it has one, and remove its checkpoint."""
    cell = folder.cell(result.cell)
    cell.write_result(result)
    cell.remove_checkpoint()
