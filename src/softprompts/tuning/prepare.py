"""What a run needs before its first step: settings that fit, its prompt, its token budget."""

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

from ..artifacts.run_folder import RunFolder
from ..backbone import Backbone, chats_by_default
from ..config import Choice, RunConfig, TaskConfig, TuningConfig, absolute_data
from ..config.run import MAX_LENGTH, check_head, whole_model_error
from ..errors import UserError, setting
from ..prompt import Material, Prompt, Source, build_prompt, empty_prompt
from ..tasks import Task


def check_trainable(config: RunConfig, task: Task, backbone: Backbone, sharded: bool) -> None:
    """Refuse settings that fit neither each other nor the backbone, which may be `sharded`."""
    whole_model = config.tuning.trains == "model"
    if config.tuning.trains != "nothing" and (config.prompt.length == 0) != whole_model:
        raise UserError(
            "A prompt of length 0 has nothing to train, and "
            f"{setting('tuning.trains', 'model')} leaves no prompt; "
            f"{setting('preset', 'model-tuning')} sets both."
        )
    if whole_model and (backbone.dtype != "fp32" or sharded or backbone.is_spread):
        raise whole_model_error()
    if backbone.generates:
        check_head(config, backbone.name)
    if not task.labels and not backbone.generates:
        raise UserError(
            f"The answers of {task.name} are free text, which {backbone.name} cannot generate; "
            f"choose another {setting('model')}."
        )


def resolve(config: RunConfig, task: Task, backbone: Backbone) -> RunConfig:
    """The config with the backbone's defaults filled in, so that it reproduces the run."""
    prompt, tuning = config.prompt, config.tuning
    if prompt.head.kind == "auto":
        prompt = dataclasses.replace(prompt, head=Choice(backbone.default_head(task.labels)))
    # answers to your own labelled data are labels; named tasks follow the papers
    default: Any = (
        "labels" if config.task.task is None and task.labels else backbone.default_scoring
    )
    longest = tuning.text_length + prompt.length if tuning.text_length else MAX_LENGTH
    tuning = dataclasses.replace(
        tuning,
        scoring=default if tuning.scoring == "auto" else tuning.scoring,
        max_length=tuning.max_length or min(longest, backbone.max_positions or longest),
        text_length=None,  # which max_length now says
        chat=chats_by_default(backbone) if tuning.chat is None else tuning.chat,
    )
    data = TaskConfig.of(absolute_data(config.task.plain()))
    return dataclasses.replace(
        config, dtype=backbone.dtype, task=data, prompt=prompt, tuning=tuning
    )


def initial_prompt(config: RunConfig, task: Task, backbone: Backbone) -> Prompt:
    """The prompt at step 0."""
    material = Material(
        backbone,
        task.start_words,
        lambda name: load_source(name, backbone),
        backbone.feature_size,
        len(task.labels),
    )
    return build_prompt(config.prompt, material, config.seed, backbone.unit)


def empty_prompt_for(config: RunConfig, task: Task, backbone: Backbone) -> Prompt:
    """The prompt that a checkpoint is loaded into."""
    sizes = (len(task.labels), backbone.feature_size)
    return empty_prompt(config.prompt, backbone.hidden, backbone.unit, head=sizes)


def load_source(name: str, backbone: Backbone) -> Source:
    """A trained prompt of this backbone by its folder."""
    prompt, card = RunFolder(Path(name)).load()
    if prompt.config.length == 0:
        raise UserError(
            f"{name} has no prompt vectors to start from: its run tuned the whole model, or "
            "nothing; name a run that tuned a prompt."
        )
    card.check_backbone(backbone, name)
    return prompt.source()


def check_instruction(task: Task, backbone: Backbone, budget: int) -> None:
    """Refuse an instruction that leaves none of `budget` tokens for a text."""
    for member in task.members:
        before = member.form.before
        if before and len(backbone.token_ids([before])[0]) >= budget:
            raise UserError(
                "The instruction and its examples leave no tokens for the text; "
                f"shorten them, or raise {setting('tuning.max_length')}."
            )


def class_weights(task: Task) -> list[float]:
    """The weight of each training row: 1 on average, and the same in total for all classes."""
    if not task.labels:
        raise UserError(
            f"{task.name} has no classes to balance; leave out {setting('tuning.balance')}."
        )
    weights = list[float]()
    for member in task.members:
        counts = Counter(example.target for example in member.train)
        mean = len(member.train) / len(counts)
        weights += [mean / counts[example.target] for example in member.train]
    return weights


def count_steps(tuning: TuningConfig, batches_per_epoch: int) -> int:
    if tuning.trains == "nothing":
        return 0
    if tuning.epochs is None:
        return tuning.steps
    return math.ceil(tuning.epochs * batches_per_epoch / tuning.accumulate - 1e-9)
