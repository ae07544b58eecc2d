"""Three lines to a tuned prompt: `tune`, `save`, `predict`."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import __version__
from ..artifacts.card import backbone_card, check_card, make_card
from ..artifacts.embedding import read_embedding, write_embedding
from ..artifacts.peft import read_adapter, write_adapter
from ..artifacts.prompt_file import check_backbone, load_prompt, save_prompt
from ..artifacts.run_folder import CONFIG, CURVE, MODEL, open_folders, save_model
from ..backbone import Backbone, load_backbone
from ..config.products import Member, run_configs
from ..errors import UserError
from ..files import sweep, write_text
from ..prompt import Prompt
from ..prompt.prompt import plain
from ..tasks import Form, Task, TaskConfig, load_task
from ..tasks.form import check_template
from ..tasks.sources import Row
from . import Cohort, Predictor, Run, RunConfig, RunFailedError, TuningConfig, Watcher, run_config
from .checkpoint import CHECKPOINT, load_checkpoint
from .curve import learning_curve
from .summary import as_csv, records
from .team import Team, make_team
from .track import Tracking, check_trackers

COHORT = "cohort.csv"
"""What the runs of a cohort came to, beside their folders."""


@dataclasses.dataclass
class Tuned:
    """A tuned prompt in use: its folded vectors, the frozen model under it, and its card."""

    prompt: Prompt
    backbone: Backbone
    card: dict[str, Any]
    folder: Path | None = None
    cost: dict[str, Any] | None = None
    """Seconds and memory of its training, shared with the runs beside it, where it was trained just now."""
    embedding: Tensor | None = None
    """What stands for its task when tasks are compared [K, P, H]; None: the prompt itself."""

    @property
    def metrics(self) -> dict[str, float]:
        return dict(self.card["metrics"])

    @property
    def form(self) -> Form:
        return Form(**self.card["task"]["form"])

    def predictor(self, scoring: str | None = None) -> Predictor:
        length = int(self.card["config"]["tuning"]["max_length"])
        longest = self.card["task"].get("answer_length")
        form, scoring = self.form, scoring or self.card["scoring"]
        return Predictor(
            self.backbone,
            self.prompt,
            form.labels,
            scoring,
            length,
            answer_length=longest,
            sentinel=form.sentinel,
        )

    def inputs(self, rows: Sequence[str | Mapping[str, Any]]) -> list[str]:
        """Texts, or rows with the task's columns, as the model reads them."""
        form, made = self.form, list[str]()
        rows = [rows] if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable) else rows
        for number, row in enumerate(rows, 1):
            check_question(row, number)
            if isinstance(row, str):
                if len(form.columns) != 1:
                    raise UserError(
                        f"This task reads the columns {', '.join(form.columns)}, not one text; give rows with --file."
                    )
                row = {form.columns[0]: row}
            made += form.inputs(Row(dict(row), f"text {number}"))
        return made

    def predict(
        self, rows: Sequence[str | Mapping[str, Any]], scoring: str | None = None
    ) -> list[str]:
        """An answer for each text (or row of columns), in order."""
        return self.predictor(scoring)(self.inputs(rows))

    def probabilities(self, rows: Sequence[str | Mapping[str, Any]]) -> list[dict[str, float]]:
        """The label words' shares of probability for each text."""
        return self.predictor().probabilities(self.inputs(rows))

    def export_peft(self, folder: str | Path) -> Path:
        """Write the prompt as a Hugging Face PEFT adapter."""
        write_adapter(Path(folder), self.prompt.fold(), self.backbone.family, self.backbone.name)
        return Path(folder)

    def save(self, folder: str | Path) -> Path:
        """Write the prompt and its card; a few kilobytes."""
        write_embedding(Path(folder), self.embedding)
        save_prompt(
            Path(folder),
            self.prompt,
            {name: value for name, value in self.card.items() if name != "prompt"},
        )
        return Path(folder)


def tune(
    task: str | Sequence[str] | None = None,
    *,
    output: str | Path | None = None,
    trackers: Sequence[str] = (),
    **settings: Any,
) -> Any:
    """Tune a prompt. `settings` are those of the command line: `steps=200`, `lr=0.1`, `prompt={"length": 10}`, `train="a.csv"`, ...

    Returns a `Tuned`. Settings that are lists (`seed=[0, 1, 2]`) make a cohort of all combinations on one backbone, and a list of `Tuned`
    in order, each run in a folder of its own below `output`; a run that left no prompt is there as the `RunFailedError` that tells why.
    """
    members = run_configs(sections({**({"task": task} if task is not None else {}), **settings}))
    folder = Path(output) if output is not None else None
    if members[0].apart:
        return tune_cohort(members, folder, trackers=trackers, alone=True)
    return tune_config(members[0].config, folder, trackers=trackers)


def load(
    folder: str | Path,
    model: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    backbone: Backbone | None = None,
) -> Tuned:
    """A saved prompt on its backbone, which is loaded by the name on the card unless given. A card never decides whose code runs."""
    folder = Path(folder)
    prompt, card = load_prompt(folder)
    check_card(folder, card)
    if backbone is None:
        own = str(folder / MODEL) if card.get("model") == MODEL else card["backbone"]["name"]
        backbone = load_backbone(model or own, dtype, device, trust_remote_code)
    check_backbone(folder, card, backbone)
    head = prompt.head_sizes()
    if prompt.table.shape[2] != backbone.hidden or (
        head is not None and head != (len(Form(**card["task"]["form"]).labels), backbone.features)
    ):
        raise UserError(
            f"The vectors in {folder} are not of {backbone.name}'s width; take a whole copy of the prompt."
        )
    return Tuned(
        prompt.to(backbone.device), backbone, card, folder, embedding=read_embedding(folder)
    )


def import_peft(
    adapter: str | Path,
    model: str | None = None,
    *,
    template: str = "{text}",
    label: str = "label",
    labels: Sequence[str] | Mapping[str, str] = (),
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    backbone: Backbone | None = None,
) -> Tuned:
    """A prompt from a Hugging Face PEFT adapter, on its base model. With `labels` it chooses among them; without, it writes freely."""
    adapter = Path(adapter)
    read = read_adapter(adapter)
    if backbone is None:
        name = model or read.base
        if not name:
            raise UserError(f"{adapter} does not name its base model; name it with --model.")
        backbone = load_backbone(name, dtype, device, trust_remote_code)
    if read.family not in (None, backbone.family) or read.vectors.shape[1] != backbone.hidden:
        raise UserError(
            f"The adapter {adapter} is for another model than {backbone.name}; name its own with --model."
        )
    if len(labels) == 1 or len(set(labels)) < len(labels):
        raise UserError(
            "An imported prompt needs two different labels or more to choose among, or none to write freely."
        )
    prompt = plain(read.vectors[None])
    form = Form(
        check_template(template),
        label,
        dict(labels) if isinstance(labels, Mapping) else {word: word for word in labels},
    )
    scoring = Predictor(
        backbone, prompt.to(backbone.device), form.labels, max_length=backbone.room
    ).scoring
    config = run_config(
        {
            "model": backbone.name,
            "preset": "prompt-tuning",
            "prompt": {"length": len(read.vectors)},
            "tuning": {"max_length": backbone.room},
        }
    )
    card = {
        "method": f"imported from PEFT ({read.kind})",
        "backbone": backbone_card(backbone),
        "task": {
            "name": adapter.resolve().name,
            "form": dataclasses.asdict(form),
            "commonest": None,
            "metrics": ["accuracy", "macro_f1"],
        },
        "metrics": {},
        "majority": {},
        "scoring": scoring,
        "config": config.plain(),
        "version": __version__,
    }
    return Tuned(prompt, backbone, card)


def check_question(question: Any, number: int) -> None:
    if not isinstance(question, str | Mapping):
        raise UserError(
            f"Question {number} is {question!r}; a question is a text, or a mapping of columns such as {{'text': '...'}}."
        )


def sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings put where a config keeps them: `steps` under tuning, `label` under task, the rest as it is."""
    placed: dict[str, Any] = {}
    for name, value in settings.items():
        section = next(
            (
                key
                for key, fields in SECTIONS.items()
                if name in fields and not isinstance(value, Mapping | TaskConfig | TuningConfig)
            ),
            None,
        )
        if name == "labels" and isinstance(value, Mapping):
            section = "task"
        if section is None:
            placed[name] = (
                {**placed.get(name, {}), **value} if isinstance(value, Mapping) else value
            )
        else:
            placed.setdefault(section, {})[name] = value
    return placed


SECTIONS = {
    "task": {f.name for f in dataclasses.fields(TaskConfig)},
    "tuning": {f.name for f in dataclasses.fields(TuningConfig)},
}


def tune_config(
    config: RunConfig,
    folder: Path | None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    backbone: Backbone | None = None,
    trackers: Sequence[str] = (),
) -> Tuned:
    """Run a config to its end, going on where an earlier try in the same folder left off; with others, where a launcher started them."""
    team = make_team(config.device)
    with team.exclusive(folder):
        (result,) = _tune(team, [config], [folder], overwrite, watcher, backbone, trackers)
    if isinstance(result, RunFailedError):
        raise result
    return result


def tune_cohort(
    members: Sequence[Member],
    folder: Path | None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    backbone: Backbone | None = None,
    trackers: Sequence[str] = (),
    began: Callable[[Sequence[Run]], object] = lambda runs: None,
    curves: bool = True,
    alone: bool = False,
) -> list[Tuned | RunFailedError]:
    """Run all members to their ends on one backbone, each in its own folder below `folder` and each from where it left off.

    A run that leaves no prompt is told by its error, after all others were saved. `began` hears of the runs before their first step.
    Without `curves` nothing is drawn, which of short runs would take longer than the runs. With `alone`, no other process may work in
    `folder` meanwhile; the workers of a study share theirs.
    """
    team = make_team(members[0].config.device)
    folders = [folder / member.name if folder is not None else None for member in members]
    with team.exclusive(folder if alone else None):
        results = _tune(
            team,
            [member.config for member in members],
            folders,
            overwrite,
            watcher,
            backbone,
            trackers,
            began,
            curves,
        )
        if folder is not None and team.writes:
            sweep(folder, [COHORT])
            write_text(folder / COHORT, as_csv(records(members, results, folder)))
    return results


def _tune(
    team: Team,
    configs: Sequence[RunConfig],
    folders: Sequence[Path | None],
    overwrite: bool,
    watcher: Watcher | None,
    backbone: Backbone | None,
    trackers: Sequence[str],
    began: Callable[[Sequence[Run]], object] = lambda runs: None,
    curves: bool = True,
) -> list[Tuned | RunFailedError]:
    check_trackers(trackers)
    tasks = team.all(lambda: _load_tasks(configs))
    first = configs[0]
    dtype = "fp32" if first.tuning.trains == "model" and first.dtype == "auto" else first.dtype
    backbone = backbone or team.all(
        lambda: team.load(first.model, dtype, first.device, first.trust_remote_code)
    )
    resumed = team.first(
        lambda: [
            not overwrite and folder is not None and (folder / CHECKPOINT).exists()
            for folder in folders
        ]
    )
    runs = team.all(
        lambda: [
            Run(c, task, backbone, not old, team)
            for c, task, old in zip(configs, tasks, resumed, strict=True)
        ]
    )
    team.first(lambda: open_folders(runs, folders, overwrite))
    for run, folder, old in zip(runs, folders, resumed, strict=True):
        if folder is not None and old:
            load_checkpoint(run, folder)
    for run, folder in zip(runs, folders, strict=True):
        if folder is not None and team.writes:
            run.config.save(folder / CONFIG)
    began(runs)
    with Tracking(trackers if team.writes else (), runs, folders, watcher) as watching:
        Cohort(runs, folders, watching).train()
    return [_finish(run, folder, curves) for run, folder in zip(runs, folders, strict=True)]


def _load_tasks(configs: Sequence[RunConfig]) -> list[Task]:
    """Each run's task; runs of the same task, and mixtures of it, share its rows."""
    loaded: dict[str, Task] = {}

    def load(config: TaskConfig) -> Task:
        if str(config) not in loaded:
            loaded[str(config)] = load_task(config, load)
        return loaded[str(config)]

    return [load(config.task) for config in configs]


def _finish(run: Run, folder: Path | None, curves: bool) -> Tuned | RunFailedError:
    try:
        run.restore_best()
    except RunFailedError as failed:
        return failed
    card = make_card(run)
    embedding = None if run.embedding is None else run.embedding[1]
    tuned = Tuned(
        run.prompt.fold().to(run.backbone.device), run.backbone, card, folder, run.cost, embedding
    )
    if folder is not None and run.team.writes:
        if curves:
            title = f"{run.task.name} on {run.backbone.name}: {run.config.method}, seed {run.config.seed}"
            learning_curve(
                run.history, run.metric, card["majority"][run.metric], title, folder / CURVE
            )
        if card["model"] is not None:
            save_model(run.backbone, folder / card["model"])
        tuned.save(folder)
    return tuned
