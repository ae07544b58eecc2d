"""What a file outside the package registers works everywhere: in prompts of every family, on the
command line, in YAML, in cohorts, folded, saved and loaded."""

import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
import yaml

import softprompts
from softprompts.backbone.families import FAMILIES
from softprompts.config import TABLES, Choice, PromptConfig, run_config
from softprompts.errors import UserError
from softprompts.prompt import Material
from softprompts.prompt.prompt import build_prompt
from softprompts.tasks.metrics import METRICS
from softprompts.tasks.registry import _TASKS

from .models import KINDS, random_causal, random_model, random_t5
from .processes import ForkServer, Process
from .prompt.test_matrix import ROUTES, SHAPES, STARTS, check

START, SHAPE, ROUTE = {"kind": "noisy-zeros"}, {"kind": "scaled"}, {"kind": "mlp", "width": 6}
MATRIX = [
    *itertools.product([START], SHAPES, [ROUTE]),
    *itertools.product(STARTS, [SHAPE], [ROUTE]),
    *itertools.product([START], [SHAPE], [*ROUTES, ROUTE]),
]
PLUGIN = str(Path(__file__).with_name("plugin.py"))


@pytest.fixture(scope="module", autouse=True)
def plugin() -> Iterator[Any]:
    """The plugin, imported; other tests do not see what it registers."""
    tables = [*(table._classes for table in TABLES.values()), _TASKS, METRICS, FAMILIES]
    before = [dict(table) for table in tables]
    spec = importlib.util.spec_from_file_location("plugin_under_test", PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


class Run(Protocol):
    def __call__(self, *argv: str, folder: Path, **variables: str) -> Process: ...


@pytest.fixture
def run(torch_server: ForkServer) -> Run:
    """A command in a process of its own, which knows of the plugin only what it is told."""

    def command(*argv: str, folder: Path, **variables: str) -> Process:
        return torch_server.run(argv, folder=folder, **variables)

    return command


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_holds_for_registered_kinds(kind: str, tmp_path: Path) -> None:
    """Each registered kind with every kind of the other two choices."""
    check(random_model(kind), MATRIX, tmp_path)


def test_the_matrix_holds_for_a_registered_family(toy_model: Path, tmp_path: Path) -> None:
    """With the kinds of the package, and with registered ones."""
    toy = softprompts.load_backbone(str(toy_model), device="cpu")
    assert (toy.family, type(toy).__module__) == ("toy", "plugin_under_test")
    starts = itertools.cycle(STARTS)
    core = [(next(starts), shape, route) for shape in SHAPES for route in ROUTES]
    check(toy, [*core, *MATRIX], tmp_path)


def test_registered_kinds_in_python(toy_model: Path, tmp_path: Path) -> None:
    """A cohort of them; its prompts answer alike when they are loaded."""
    results = softprompts.tune(
        "plugin/odd-or-even",
        model=str(toy_model),
        prompt={"start": START, "shape": SHAPE, "route": ROUTE, "count": 2, "length": 2},
        seed=[0, 1],
        steps=2,
        batch_size=4,
        device="cpu",
        verbose=False,
        output=tmp_path,
    )
    texts = [{"number": number} for number in range(6)]
    for seed, tuned in enumerate(results):
        assert isinstance(tuned, softprompts.Tuned)
        assert set(tuned.metrics) == {"first-letter", "accuracy"}
        assert tuned.prompt.config.route.plain() == ROUTE
        loaded = softprompts.load(tmp_path / f"seed={seed}", device="cpu")
        assert loaded.predict(texts) == tuned.predict(texts)


def test_a_mixture_with_an_mlp_router_starts_another() -> None:
    """The router of a trained mixture comes along, on a backbone of another unit too."""
    t5 = random_t5()
    route = Choice.of(ROUTE)
    config = PromptConfig(5, 4, Choice.of(START), Choice.of(SHAPE), route)
    trained = build_prompt(config, Material(t5), 0, 4.0).eval()
    start = Choice("prompt", {"sources": ["trained"]})
    material = Material(t5, fetch=lambda name: trained.source())
    again = build_prompt(PromptConfig(5, 4, start, route=route), material, 1, 2.0).eval()
    embeds, mask = torch.randn(6, 7, 32), torch.ones(6, 7)
    torch.testing.assert_close(again(embeds, mask), trained(embeds, mask))
    assert not torch.equal(*trained(embeds, mask)[:2]), "rows get prompts of their own"


@pytest.fixture(scope="module")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 whose model type only the plugin knows."""
    folder, backbone = tmp_path_factory.mktemp("toy") / "model", random_causal("gpt2")
    backbone.model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "toy-lm", "architectures": ["ToyForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SHORT = ("--steps", "4", "--batch-size", "4", "--evaluate-every", "2", "--device", "cpu", "--json")


def test_registered_kinds_on_the_command_line(toy_model: Path, tmp_path: Path, run: Run) -> None:
    kinds = ["--prompt.start", "noisy-zeros", "--prompt.start.std", "0.2,0.3"]
    kinds += ["--prompt.shape", "scaled,direct", "--prompt.count", "3", "--prompt.length", "2"]
    kinds += ["--prompt.route", "mlp", "--prompt.route.width", "4"]
    task = ["--task", "plugin/odd-or-even", "--model", str(toy_model)]
    tuned = run(
        "tune", *task, *kinds, *SHORT, "--plugin", PLUGIN, "--output", "runs", folder=tmp_path
    )
    assert tuned.returncode == 0, tuned.stderr
    runs = json.loads(tuned.stdout)["runs"]
    assert len(runs) == 4, "lists of registered kinds and their options make a cohort"
    assert all(set(each["metrics"]) == {"first-letter", "accuracy"} for each in runs)
    assert {each["backbone"]["family"] for each in runs} == {"toy"}
    folder = str(tmp_path / runs[0]["folder"])
    answers = run("predict", folder, "number: 3", "--plugin", PLUGIN, folder=tmp_path)
    assert answers.returncode == 0, answers.stderr
    config = yaml.safe_load(Path(folder, "config.yaml").read_text())
    assert config["prompt"]["route"] == {"kind": "mlp", "width": 4}
    again = run(
        *("tune", "--config", f"{folder}/config.yaml", "--output", "again", "--json"),
        folder=tmp_path,
        SOFTPROMPTS_PLUGINS=PLUGIN,
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["metrics"] == runs[0]["metrics"], "the YAML file reproduces it"
    listed = run("tasks", "list", "--plugin", PLUGIN, "--json", folder=tmp_path)
    assert "plugin/odd-or-even" in listed.stdout


def test_without_the_plugin_a_kind_is_unknown(tmp_path: Path, run: Run) -> None:
    refused = run("tune", "--prompt.route", "mlp", "--prompt.count", "2", folder=tmp_path)
    assert refused.returncode == 2
    assert "There is no route 'mlp'; choose one of single," in refused.stderr
    refused = run("tune", "--plugin", "gone.py", "--prompt.route", "mlp", folder=tmp_path)
    assert refused.returncode == 2
    assert "The plugin gone.py cannot be loaded" in refused.stderr


def test_an_entry_point_names_a_plugin(toy_model: Path, tmp_path: Path, run: Run) -> None:
    """As an installed package does: its kinds need no flag."""
    package = tmp_path / "site" / "extra-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[softprompts.plugins]\nextra = extra_kinds\n")
    (tmp_path / "site" / "extra_kinds.py").write_text(Path(PLUGIN).read_text())
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    kinds = ["--prompt.route", "mlp", "--prompt.count", "2", "--prompt.route.width", "0"]
    refused = run("tune", *kinds, folder=tmp_path, PYTHONPATH=path)
    assert refused.returncode == 2
    assert "--prompt.route.width is 0; it must be at least 1." in refused.stderr
    tuned = run(
        *("tune", "--task", "plugin/odd-or-even", "--model", str(toy_model), *kinds[:4]),
        *("--prompt.start", "noisy-zeros", "--prompt.shape", "scaled", *SHORT),
        *("--output", "run"),
        folder=tmp_path,
        PYTHONPATH=path,
    )
    assert tuned.returncode == 0, tuned.stderr
    card = json.loads(tuned.stdout)
    assert set(card["metrics"]) == {"first-letter", "accuracy"}
    assert card["backbone"]["family"] == "toy"
    assert card["config"]["prompt"]["start"]["kind"] == "noisy-zeros"
    answers = run("predict", "run", "--json", "3", folder=tmp_path, PYTHONPATH=path)
    assert answers.returncode == 0, answers.stderr


def test_a_registered_kind_has_checked_options() -> None:
    with pytest.raises(UserError, match=r"start\.std is -1.0; it must not be negative"):
        run_config({"prompt": {"start": {"kind": "noisy-zeros", "std": -1}}})
    with pytest.raises(UserError, match="'scaled' has no option 'depth'"):
        run_config({"prompt": {"shape": {"kind": "scaled", "depth": 2}}})


def test_a_name_cannot_be_registered_twice(plugin: Any) -> None:
    with pytest.raises(ValueError, match="already a start named 'uniform'"):
        softprompts.register_start("uniform")(plugin.NoisyZeros)
    with pytest.raises(ValueError, match="already a shape named 'scaled'"):
        softprompts.register_shape("scaled")(plugin.MlpRoute)
