"""Studies: the plan, and errors in the file."""

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from softprompts.analysis.study_report import _benchmarks
from softprompts.analysis.tables import markdown, score_table
from softprompts.artifacts.study_folder import CellResult, StudyFolder
from softprompts.errors import UserError
from softprompts.study.checks import check_data
from softprompts.study.config import StudyConfig, check_study, read_study
from softprompts.study.plan import Cell, plan
from softprompts.tasks.registry import BENCHMARKS

from ..conftest import DATA
from .conftest import QUICK, as_runs, planned

RECIPES = Path(__file__).parents[2] / "recipes"
ALL = (
    2 * 2 + 2 * 2 + 2 * 2 * 2 + 3 * 2 * 2
)  # sources, baselines, transfers; averages, mixtures and what starts from them


def test_every_cell_is_planned_once_and_after_its_sources() -> None:
    cells = planned()
    assert len(cells) == len({cell.name for cell in cells}) == ALL
    for index, cell in enumerate(cells):
        assert set(cell.needs) <= {before.name for before in cells[:index]}
    transfer = next(cell for cell in cells if cell.stage == "transfer" and cell.seed == 1)
    assert transfer.starts == ("t5-tiny/source/helpdesk-intent/seed1",)
    assert (transfer.source, transfer.target, transfer.seed, transfer.config.tuning.steps) == (
        "helpdesk/intent", "helpdesk/urgency", 1, 2,
    )  # fmt: skip
    average = next(cell for cell in cells if cell.stage == "average")
    assert len(average.starts) == 4, "the source prompts of all seeds"
    assert average.like == "t5-tiny/baseline/helpdesk-urgency/seed0"
    assert {
        cell.config.tuning.steps for cell in cells if cell.stage in ("source", "mixture-source")
    } == {4}


def test_tasks_start_from_different_tokens() -> None:
    """Otherwise all prompts of one seed were similar; a transfer has the seed of its baseline."""
    cells = plan(read_study(RECIPES / "spot-smoke.yaml"))
    first = {
        cell.source or cell.target: cell.config.seed
        for cell in cells
        if cell.stage in ("source", "baseline") and cell.seed == 0
    }
    assert len(set(first.values())) == len(first) == 6
    assert all(
        cell.config.seed == first[cell.target]
        for cell in cells
        if cell.stage == "transfer" and cell.seed == 0
    )


def test_a_benchmark_is_one_source_and_many_targets() -> None:
    cells = planned(sources=["glue", "mnli"], targets=["spot-targets"], seeds=[0], retrieval={})
    sources = [cell for cell in cells if cell.stage == "source"]
    assert [cell.source for cell in sources] == ["glue", "glue/mnli"]
    assert str(sources[0].config.task.task).startswith("glue/cola+glue/sst2+")
    assert len([cell for cell in cells if cell.stage == "baseline"]) == 10
    assert len([cell for cell in cells if cell.stage == "transfer"]) == 20


def test_a_source_that_is_the_target_is_not_a_transfer() -> None:
    cells = planned(sources=["helpdesk/urgency", "helpdesk/area"])
    pairs = {(cell.source, cell.target) for cell in cells if cell.stage == "transfer"}
    assert ("helpdesk/urgency", "helpdesk/urgency") not in pairs
    assert ("helpdesk/urgency", "helpdesk/register") in pairs
    average = next(
        cell for cell in cells if cell.stage == "average" and cell.target == "helpdesk/urgency"
    )
    assert all("area" in start for start in average.starts)


def test_a_task_may_start_from_its_own_prompt_on_request() -> None:
    cells = planned(sources=["helpdesk/urgency", "helpdesk/area"], own_task=True)
    assert len([cell for cell in cells if cell.stage == "transfer"]) == 2 * 2 * 2
    average = next(
        cell for cell in cells if cell.stage == "average" and cell.target == "helpdesk/urgency"
    )
    assert all("area" in start for start in average.starts), (
        "retrieval never chooses the task itself"
    )


def test_only_variants_are_run_unless_one_changes_nothing(tmp_path: Path) -> None:
    """What the docs say, and what `study run` prints."""
    slow = {"settings": {"lr": 0.1}}
    without = StudyConfig.of({"targets": ["helpdesk/intent"], "variants": {"slow": slow}})
    assert without.skips_own_settings
    assert [name for name, _ in without.grids()] == ["slow"]
    path = tmp_path / "study.yaml"
    path.write_text(
        "targets: [helpdesk/intent]\nsettings: {lr: 0.3, steps: 5}\n"
        "variants: {base: {}, slow: {settings: {lr: 0.1}}}\n"
    )
    both = read_study(path)
    assert not both.skips_own_settings
    assert {name: grid.settings for name, grid in both.grids()} == {
        "base": {"lr": 0.3, "steps": 5},
        "slow": {"lr": 0.1, "steps": 5},
    }
    assert not StudyConfig.of({"targets": ["helpdesk/intent"]}).skips_own_settings


def test_variants_say_what_differs() -> None:
    variants = {
        "long": {"source": {"steps": 9}},
        "model": {"settings": {"preset": "model-tuning", "prompt": {"length": 0}}, "retrieval": {}},
    }
    cells = planned(variants=variants, retrieval={})
    steps = {cell.variant: cell.config.tuning.steps for cell in cells if cell.stage == "source"}
    assert steps == {"long": 9, "model": 4}
    assert {cell.trains_model for cell in cells if cell.variant == "model"} == {True}
    assert cells[0].name.startswith("long/t5-tiny/source/")


def test_own_data_may_be_a_source_or_a_target(toy_csv: Path) -> None:
    user_data = {"name": "reviews", "train": str(toy_csv), "text": "review", "label": "mood"}
    cells = planned(sources=[user_data], targets=["helpdesk/urgency"], retrieval={})
    assert [cell.source for cell in cells if cell.stage == "source"] == ["reviews", "reviews"]
    assert cells[0].config.task.train == str(toy_csv)


OWN = {"name": "mine", "train": "mine.csv", "text": "review", "label": "stars"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"sources": ["helpdesk/nothing"]}, "There is no task 'helpdesk/nothing'"),
    ({"sources": ["mnli", "glue/mnli"], "retrieval": {}}, "names a source twice"),
    (
        {"targets": ["helpdesk/urgency", "helpdesk/urgency"]},
        "name every backbone, source, target and seed once",
    ),
    ({"seeds": [0, 0]}, "name every backbone, source, target and seed once"),
    ({"sources": [{"name": 3, "task": "glue"}]}, "a name that is not text"),
    ({"sources": [{"name": "x"}]}, "names no task"),
    ({"sources": [], "targets": [], "retrieval": {}}, "nothing to run"),
    (
        {"source": {"stepz": 3}},
        r"There is no setting stepz, which is under source; did you mean steps\?",
    ),
    (
        {"target": {"colour": 3}},
        "There is no setting colour, which is under target; `softprompts tune --help`",
    ),
    (
        {"target": {"lr": -1.0}},
        r"baseline/helpdesk-urgency/seed0 cannot run: lr is -1.0; it must be a positive number",
    ),
    ({"settings": {"seed": 3}}, "settings.seed is set by the study"),
    ({"target": {"model": "x"}}, "target.model is set by the study"),
    ({"settings": {"task": "glue/mnli"}}, "settings.task is set by the study"),
    ({"retrieval": {"best": [9]}}, "asks for the top 9, but there are 4 source prompts"),
    (
        {"sources": [OWN, "helpdesk/area"], "retrieval": {"mixture": [3]}},
        "only 2 source prompts can be mixed in, because data with settings",
    ),
    (
        {"targets": []},
        "The study names no targets, which retrieval needs; add some, or leave retrieval out",
    ),
    ({"sources": []}, "The study names no sources"),
    ({"seeds": []}, "The study names no seeds"),
    ({"retrieval": {"average": [0]}}, "it must be different numbers of at least 1"),
    ({"retrieval": {"similarity": "x"}}, "retrieval.similarity is 'x'; choose one of"),
    ({"retrieval": {"worst": [1]}}, "There is no setting retrieval.worst"),
    (
        {"settings": {**QUICK, "preset": "mixture"}, "retrieval": {"average": [2]}},
        "cannot be averaged",
    ),
    ({"settings": {"preset": "model-tuning"}}, "retrieval needs prompts"),
    ({"cohort": 0}, "cohort is 0"),
    ({"colour": 1}, "There is no setting colour"),
    ({"variants": {"a": {"stepz": 1}}}, "The variant a cannot be used: There is no setting stepz"),
    ({"variants": {"a": 3}}, "The variant a is 3; it must be a mapping"),
    ({"seeds": [], "retrieval": {}}, "no seeds"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_errors_in_a_study_are_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        planned(**changes)


def test_missing_and_empty_keys_are_named(tmp_path: Path) -> None:
    for text in (
        "sources: [helpdesk/area]\nretrieval: {best: [1]}\n",
        "targets:\nsources: [helpdesk/area]\nretrieval: {best: [1]}\n",
    ):
        (tmp_path / "study.yaml").write_text(text)
        with pytest.raises(UserError, match="The study names no targets"):
            plan(read_study(tmp_path / "study.yaml"))


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    for text, twice in (
        (
            "seeds: [0]\ntargets: [helpdesk/area]\nseeds: [1]\n",
            r"seeds twice \(lines 1 and 3\); remove one of them",
        ),
        (
            "targets: [helpdesk/area]\ntarget: {steps: 1, steps: 2}\n",
            r"steps twice \(lines 2 and 2\)",
        ),
        ("targets: [{name: a, name: b, train: x.csv}]\n", "name twice"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=twice):
            read_study(path)
    path.write_text(
        "targets: [helpdesk/area]\nsource: &all {steps: 1}\ntarget: {<<: *all, steps: 2}\n"
        "settings: {1: a, '1': b}\n"
    )
    assert read_study(path).target == {"steps": 2}


def test_mixtures_take_sources_with_task_names_only() -> None:
    cells = planned(sources=[OWN, "helpdesk/area"], retrieval={"mixture": [2]})
    mixed = [cell for cell in cells if cell.stage == "mixture-source"]
    assert {start.split("/")[2] for cell in mixed for start in cell.starts} == {"helpdesk-area"}
    assert not any(cell.is_blocked(set()) for cell in cells)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("spot-*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_can_be_planned(path: Path) -> None:
    study = read_study(path)
    assert study.name == path.stem
    assert study.about
    cells = plan(study)
    stages = {cell.stage for cell in cells}
    assert {"baseline", "source", "transfer"} <= stages


@pytest.mark.skipif(not DATA.exists(), reason="the tasks' data is not here")
@pytest.mark.parametrize("name", ["spot-small", "spot-table1-small", "spot-figure1-small"])
def test_the_small_recipes_need_only_the_data_at_hand(name: str, tmp_path: Path) -> None:
    check_data(plan(read_study(RECIPES / f"{name}.yaml"), None, str(DATA)), StudyFolder(tmp_path))


def test_the_recipes_are_the_papers() -> None:
    paper, small = (read_study(RECIPES / f"spot-{scale}.yaml") for scale in ("paper", "small"))
    cells = plan(paper)
    assert (
        len(paper.sources),
        len({cell.target for cell in cells if cell.stage == "baseline"}),
    ) == (16, 10)
    assert {cell.config.tuning.steps for cell in cells if cell.stage == "source"} == {262_144}
    assert {cell.config.tuning.steps for cell in cells if cell.stage == "transfer"} == {100_000}
    assert {(cell.config.prompt.length, cell.config.tuning.embed_at) for cell in cells} == {
        (100, 10_000)
    }
    cells = plan(small)
    assert (
        len(small.sources),
        len({cell.target for cell in cells if cell.stage == "baseline"}),
        small.seeds,
    ) == (13, 10, [0, 1, 2])
    assert min(cell.config.tuning.steps for cell in cells if cell.stage == "source") >= 2000
    assert min(cell.config.tuning.steps for cell in cells if cell.stage == "transfer") >= 1000
    assert {cell.config.tuning.batch_size for cell in cells} == {32}


def test_the_sources_and_targets_are_those_of_the_papers_table_2() -> None:
    sources, targets = BENCHMARKS["spot-sources"], BENCHMARKS["spot-targets"]
    (c4, *named) = read_study(RECIPES / "spot-paper.yaml").sources
    assert c4["name"] == "c4"
    assert set(named) == set(sources)
    assert (len(sources), len(targets)) == (15, 10)
    assert not set(sources) & set(targets), "no source is a target"
    assert set(read_study(RECIPES / "spot-small.yaml").sources) == set(sources) - {
        "superglue/record",
        "nli/doc_nli",
    }


def result(cell: Cell, score: float) -> CellResult:
    return CellResult(cell.name, **cell.identity(), score=score)


def test_table_1_has_a_mean_of_glue_and_one_of_superglue_for_every_source() -> None:
    study = read_study(RECIPES / "spot-table1.yaml")
    results = [result(cell, index % 97 * 1.0) for index, cell in enumerate(plan(study))]
    table = score_table(as_runs(results), _benchmarks(study))
    assert len(table) == 1 + 14 + 1 + 1
    for row in table:
        of_row = [r for r in results if (r.variant, r.source) == (row["variant"], row["source"])]
        for name in ("glue", "superglue"):
            expected = fmean(r.score or 0.0 for r in of_row if r.target in BENCHMARKS[name])
            mean = row["benchmarks"][name]
            assert mean is not None
            assert mean["mean"] == pytest.approx(expected, abs=0.01)
    assert "| mean of glue | mean of superglue |" in markdown(table)


def test_a_mean_is_over_all_targets_or_missing() -> None:
    """A source that is a target itself has one target less, so its mean could not be compared."""
    cells = planned(sources=["helpdesk/urgency", "helpdesk/area"], retrieval={})
    table = score_table(as_runs([result(cell, 50.0) for cell in cells]))
    means = {row["source"]: row["mean"] and row["mean"]["mean"] for row in table}
    assert means == {None: 50.0, "helpdesk/urgency": None, "helpdesk/area": 50.0}


@pytest.mark.parametrize(
    ("entry", "name", "other"),
    [
        ("boolq", "superglue/boolq", "boolq"),
        ({"task": ["copa", "boolq"]}, "copa+boolq", "None"),
        ({"name": "both", "task": ["copa", "boolq"]}, "both", "copa+boolq"),
    ],
)
def test_a_claim_names_a_source_as_its_runs_do(entry: Any, name: str, other: str) -> None:
    def study(source: str) -> StudyConfig:
        expect = [{"better": {"source": source}, "than": 0}]
        claim = {"claim": 1, "text": "It helps.", "paper": "+1", "expect": expect}
        return StudyConfig.of(
            {"sources": [entry], "targets": ["helpdesk/intent"], "claims": [claim]}
        )

    assert name in {cell.source for cell in plan(study(name))}
    check_study(study(name))
    with pytest.raises(UserError, match=f"names the source '{re.escape(other)}'"):
        check_study(study(other))
