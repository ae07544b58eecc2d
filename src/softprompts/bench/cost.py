"""The cost of methods on backbones: counted, and on request timed on this machine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..analysis.cost import Cost, Shape, method_cost
from ..backbone import Backbone
from ..backbone.hardware import environment
from ..config import RunConfig, schema_of, sections
from ..config.cost import CostSettings, method_configs
from .learners import our_run, set_compile
from .measure import spread
from .models import load_model
from .training import Subject, measure_all
from .workload import RunBatches

WARMUP, STEPS = 2, 5
"""Untimed and timed steps."""


def cost(
    model: str | Sequence[str] = "t5-base",
    *,
    measure: bool = False,
    device: str = "auto",
    **settings: Any,
) -> list[Cost]:
    """What methods cost on backbones, one row for each combination.

    `model` is one or several known shapes, such as t5-xxl, model folders or Hub ids; only configs
    are read. `text`, `target`, `classes` and `dtype` describe the rows and the frozen model;
    further settings are those of `tune`, any of them a list. `measure`: also time a training step
    on `device`, with random weights where only a shape is known.
    """
    known = schema_of(CostSettings)["properties"]
    rows = CostSettings.of({name: settings.pop(name) for name in known if name in settings})
    models = [model] if isinstance(model, str) else list(model)
    configs = list(method_configs(sections(settings)))
    return list(costs(models, configs, rows, device if measure else None))


def costs(
    models: Sequence[str],
    configs: Sequence[RunConfig],
    rows: CostSettings,
    device: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Cost]:
    """Every method on every model, one at a time; timed on `device` if there is one."""
    for name in models:
        say(f"counting {name}")
        shape = Shape.load(name, rows.dtype, any(config.trust_remote_code for config in configs))
        counted = [method_cost(shape, config, rows) for config in configs]
        backbone: Backbone | None = None
        for result, config in zip(counted, configs, strict=True):
            if device is not None and config.tuning.trains != "nothing":
                if backbone is None or not backbone.frozen:
                    say(f"loading {name}")
                    backbone = load_model(name, rows.dtype, device, config.seed)
                result = replace(result, step=time_step(backbone, config, rows, say))
            yield result


def time_step(
    backbone: Backbone, config: RunConfig, rows: CostSettings, say: Callable[[str], None]
) -> dict[str, Any]:
    """The seconds of a training step as `tune` takes it, without compiling, and its peak memory."""
    batches = _batches(backbone, config, rows)
    set_compile(backbone, False)
    make = partial(our_run, backbone, batches, config.plain(), config.seed, compiles=False)
    subject = Subject(config.method, config.method, make)
    *_, (measured, _) = measure_all([subject], backbone, WARMUP, STEPS, say)
    found = measured[subject.name]
    return {
        **spread(found.seconds),
        "peak_gib": found.peak_gib,
        **environment(backbone.device, backbone.dtype),
    }


def _batches(backbone: Backbone, config: RunConfig, rows: CostSettings) -> RunBatches:
    """Random texts of one length; for an encoder-only model with words, each ends in a mask."""
    rng, size = np.random.default_rng(config.seed), config.tuning.batch_size
    shape = (WARMUP + STEPS, size)
    texts = rng.integers(100, backbone.vocab_size, (*shape, rows.text)).tolist()
    words = rng.integers(100, backbone.vocab_size, (*shape, rows.target)).tolist()
    if not backbone.generates:
        head = config.prompt.head.kind
        if head == "auto":
            head = backbone.default_head(["yes", "no"])
        mask = backbone.tokenizer.mask_token_id
        if head == "linear":
            words = [[[0] for _ in batch] for batch in words]
        else:
            texts = [[[*text[:-1], mask] for text in batch] for batch in texts]
            words = [[target[:1] for target in batch] for batch in words]
    return RunBatches(texts, words)
