"""Configs: layers, YAML there and back, presets that fit the dataclasses, and sentences for what
does not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from softprompts.config import (
    PRESETS,
    Choice,
    PromptConfig,
    RunConfig,
    TaskConfig,
    TuningConfig,
    expand_lists,
    merge,
    read_yaml,
    run_config,
    schema_of,
    sections,
)
from softprompts.config.presets import preset_settings
from softprompts.config.schema import attribute_docs
from softprompts.errors import UserError

MODES = [
    (name, paper) for name in PRESETS for paper in (False, True) if not paper or PRESETS[name].paper
]


@pytest.mark.parametrize(("name", "paper"), MODES)
def test_presets_are_valid_and_survive_yaml(name: str, paper: bool, tmp_path: Path) -> None:
    config = run_config(
        {"preset": name, "paper": paper},
        {"task": {"task": "helpdesk/intent", "labels": {"a": "b"}}, "seed": 3},
    )
    config.save(tmp_path / "config.yaml")
    assert run_config(read_yaml(tmp_path / "config.yaml")) == config


def test_paper_presets_hold_the_papers_numbers() -> None:
    lester = run_config({"preset": "prompt-tuning", "paper": True})
    assert (lester.prompt.length, lester.prompt.start.kind, lester.prompt.unit) == (
        100,
        "labels",
        1.0,
    )
    assert (lester.tuning.optimizer.kind, lester.tuning.lr, lester.tuning.start_step) == (
        "adafactor",
        0.3,
        1_100_000,
    )
    assert (
        lester.tuning.batch_size,
        lester.tuning.steps,
        lester.tuning.dropout,
        lester.tuning.z_loss,
    ) == (32, 30_000, 0.1, 1e-4)
    assert (lester.task.task_word, lester.task.metric) == (False, "mean")
    assert lester.tuning.text_length == 512
    residual = run_config({"preset": "residual", "paper": True})
    assert (
        residual.prompt.shape.options["bottleneck"],
        residual.tuning.lr,
        residual.tuning.batch_size,
    ) == (800, 0.3, 8)
    assert (residual.tuning.dropout, residual.task.task_word) == (0.1, False)
    smop = run_config({"preset": "smop", "paper": "true"})
    assert (smop.prompt.count, smop.prompt.length, smop.tuning.lr, smop.tuning.warmup) == (
        4,
        5,
        0.5,
        0.06,
    )


def test_a_later_layer_wins_and_a_new_kind_drops_old_options() -> None:
    below = {"prompt": {"length": 5, "shape": {"kind": "residual", "bottleneck": 9}}}
    assert merge(below, {"prompt": {"shape": {"depth": 2}}})["prompt"]["shape"] == {
        "kind": "residual",
        "bottleneck": 9,
        "depth": 2,
    }
    assert merge(below, {"prompt": {"shape": "direct"}})["prompt"] == {
        "length": 5,
        "shape": {"kind": "direct"},
    }
    assert (
        merge(below, {"prompt": {"shape": Choice("residual", {"depth": 3})}})["prompt"]["shape"][
            "bottleneck"
        ]
        == 9
    )


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        ({"nope": 1}, "no setting nope"),
        ({"tuning": {"nope": 1}}, "no setting nope"),
        ({"tuning": {"lr": "fast"}}, "lr is 'fast'; give a number"),
        ({"tuning": {"lr": float("nan")}}, "; give a number"),
        ({"tuning": {"lr": -1}}, "must be a positive number"),
        ({"tuning": {"steps": 2.5}}, "; give a whole number"),
        ({"tuning": {"steps": 0}}, "at least 1"),
        ({"tuning": {"optimizer": "sgd"}}, "choose one of adamw, adafactor"),
        ({"tuning": {"dropout": 1.0}}, "dropout is 1.0"),
        ({"prompt": {"count": 4}}, "need a route"),
        ({"prompt": {"length": -1}}, "prompt.length is -1; it must not be negative"),
        ({"prompt": {"shape": {"bottleneck": 4}}}, "shape 'direct' has no option 'bottleneck'"),
        (
            {"prompt": {"start": {"kind": "vocabulary", "population": "all"}}},
            "start.population is 'all'; give a whole number",
        ),
        ({"prompt": 7}, "must be a mapping"),
        ({"prompt": {"shape": [1]}}, "prompt.shape is \\[1\\]; write the name of a kind"),
        (
            {
                "prompt": {"start": {"kind": "uniform", "low": 5}},
                "task": {"task": "helpdesk/intent"},
                "seed": -1,
            },
            "seed is -1; it must be from 0 to below",
        ),
    ],
)
def test_a_bad_setting_is_one_sentence(layer: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        run_config({"preset": "prompt-tuning"}, layer)


def test_a_preset_in_a_file_is_used() -> None:
    config = run_config({"preset": "smop", "tuning": {"steps": 7}})
    assert (config.prompt.count, config.prompt.route.kind, config.tuning.steps, config.method) == (
        4,
        "top1",
        7,
        "smop",
    )
    assert run_config({"preset": "smop", "paper": True}).method == "smop (paper)"


def test_explicit_steps_override_a_presets_epochs() -> None:
    assert run_config({"preset": "residual", "paper": True}).tuning.epochs == 20
    asked = run_config({"preset": "residual", "paper": True, "tuning": {"steps": 3}}).tuning
    assert (asked.steps, asked.epochs) == (3, None)


def test_steps_override_the_epochs_of_an_earlier_layer() -> None:
    """A saved config holds both, and flags come after it."""
    saved = run_config({"tuning": {"epochs": 5}}).plain()
    assert run_config(saved).tuning.epochs == 5
    tuning = run_config(saved, {"tuning": {"steps": 3}}).tuning
    assert (tuning.steps, tuning.epochs) == (3, None)
    (member,) = expand_lists(saved, {"tuning": {"steps": 3}})
    assert member.config.tuning.epochs is None
    with pytest.raises(UserError, match="Both steps and epochs set the length of training"):
        sections({"steps": 3, "epochs": 2})
    assert sections({"steps": 3, "epochs": None}) == {"tuning": {"steps": 3, "epochs": None}}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"step": 10}, r"There is no setting step; did you mean steps\?"),
        ({"learning": 10}, "There is no setting learning; `softprompts tune --help` lists"),
        ({"tuning": {"stepz": 1}}, r"There is no setting stepz; did you mean steps\?"),
        ({"prompt": {"lenght": 1}}, r"There is no setting prompt.lenght; did you mean prompt.leng"),
        ({"prompt": {"place": "sufix"}}, r"prompt.place is 'sufix'; did you mean suffix\?"),
        ({"steps": "1,000"}, "commas separate the values of a list; write 1000 for one number"),
        ({"prompt": {"length": 512}}, "prompt.length is 512, but the model sees at most 512"),
        ({"prompt": {"length": 40}, "max_length": 40}, "the model sees at most 40 tokens"),
    ],
)
def test_a_misspelled_setting_gets_a_suggestion(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        expand_lists(sections(settings))


def test_words_that_yaml_takes_for_booleans_are_refused() -> None:
    with pytest.raises(UserError, match="put quotes around the word"):
        run_config(yaml.safe_load("task: {labels: {0: no, 1: yes}}"))
    assert run_config({"task": {"text": "none"}}).task.text == "none", "a column may be called none"


def test_a_uniform_start_needs_low_below_high() -> None:
    start = {"kind": "uniform", "low": 5}
    with pytest.raises(UserError, match=r"start.low is 5.0; it must be below prompt.start.high"):
        run_config({"prompt": {"start": start}})


@pytest.mark.parametrize(
    ("part", "options", "why"),
    [
        ("shape", {"kind": "residual", "depth": 0}, "depth is 0; it must be from 1 to"),
        (
            "shape",
            {"kind": "residual", "dropout": 1},
            "dropout is 1.0; it must be from 0 to below 1",
        ),
        ("shape", {"kind": "encoder", "width": 0}, "width is 0; it must be from 1 to"),
        ("route", {"kind": "top1", "k": -1}, "k is -1; it must not be negative"),
        (
            "route",
            {"kind": "gumbel", "temperature": 0},
            "temperature is 0.0; it must be a positive number",
        ),
    ],
)
def test_options_have_ranges(part: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        run_config({"preset": "smop", "prompt": {part: options}})


def test_an_unknown_preset_is_one_sentence() -> None:
    with pytest.raises(UserError, match="no preset 'lora'"):
        preset_settings("lora")
    with pytest.raises(UserError, match="is not from a paper"):
        preset_settings("mixture", paper=True)


def test_label_values_that_yaml_takes_for_booleans_stay_words(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("task: {labels: {yes: good, no: bad, true: fine}}")
    config = run_config(read_yaml(tmp_path / "c.yaml"))
    assert config.task.labels == {"yes": "good", "no": "bad", "true": "fine"}


def test_a_bad_yaml_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: [1,")
    with pytest.raises(UserError, match="cannot be read as YAML"):
        read_yaml(tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text("just words")
    with pytest.raises(UserError, match="contains no settings"):
        read_yaml(tmp_path / "c.yaml")
    with pytest.raises(UserError, match="does not exist"):
        read_yaml(tmp_path / "d.yaml")


def test_yaml_numbers_without_a_dot_are_numbers() -> None:
    assert run_config(yaml.safe_load("tuning: {lr: 1e-3, warmup: 5}")).tuning.lr == 0.001


def test_every_setting_is_documented() -> None:
    for kind in (RunConfig, TaskConfig, PromptConfig, TuningConfig):
        undocumented = set(schema_of(kind)["properties"]) - set(attribute_docs(kind))
        assert undocumented == ({"task", "prompt", "tuning"} if kind is RunConfig else set())


def test_a_duplicate_setting_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("seed: 1\ntuning: {steps: 3, steps: 4}\n")
    with pytest.raises(UserError, match=r"sets steps twice \(lines 2 and 2\); remove one"):
        read_yaml(tmp_path / "c.yaml")


def test_a_merged_setting_may_be_overridden(tmp_path: Path) -> None:
    text = "a: &a {seed: 1}\nb: {c: &c {<<: *a, seed: 2}}\nd: {<<: *c, seed: 3}\n"
    (tmp_path / "c.yaml").write_text(text)
    settings = read_yaml(tmp_path / "c.yaml")
    assert settings == {"a": {"seed": 1}, "b": {"c": {"seed": 2}}, "d": {"seed": 3}}


def test_optimizers_may_be_a_list() -> None:
    for optimizers in ("adamw,adafactor", ["adamw", "adafactor"]):
        members = expand_lists({"tuning": {"optimizer": optimizers}})
        assert [member.name for member in members] == ["optimizer=adamw", "optimizer=adafactor"]
        assert [m.config.tuning.optimizer.kind for m in members] == ["adamw", "adafactor"]
