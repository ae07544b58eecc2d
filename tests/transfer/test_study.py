"""Studies: what is planned, that each cell is run once whatever is killed, and that results can be had again."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softprompts import cli
from softprompts.choice import from_mapping
from softprompts.errors import UserError
from softprompts.transfer.cells import CELLS, RESULT, commit, open_cell, place
from softprompts.transfer.claims import WORKERS, Claims
from softprompts.transfer.records import status
from softprompts.transfer.strategies import start_from
from softprompts.transfer.study import Cell, Study, plan, read_study
from softprompts.transfer.study_command import main
from softprompts.transfer.workers import State, StudyWatcher, cohort_of, work
from softprompts.tuning import Run

from .conftest import GRID, QUICK, Write

RECIPES = Path(__file__).parents[2] / "recipes"
ALL = 2 * 2 + 2 * 2 + 2 * 2 * 2 + 3 * 2 * 2  # sources, baselines, transfers; averages, mixtures and what starts from them


def planned(**changes: Any) -> list[Cell]:
    return plan(from_mapping(Study, {**GRID, **changes}))


def results(folder: Path) -> dict[str, dict[str, Any]]:
    return {str(path.parent.relative_to(folder / CELLS)): json.loads(path.read_text()) for path in (folder / CELLS).rglob(RESULT)}


def scores(folder: Path) -> dict[str, float]:
    return {name: told["score"] for name, told in results(folder).items()}


# -- the plan ----------------------------------------------------------------------------------------------------------------


def test_every_cell_is_planned_once_and_after_what_it_starts_from() -> None:
    cells = planned()
    assert len(cells) == len({cell.name for cell in cells}) == ALL
    for place_, cell in enumerate(cells):
        assert set(cell.needs) <= {before.name for before in cells[:place_]}
    transfer = next(cell for cell in cells if cell.stage == "transfer" and cell.seed == 1)
    assert transfer.starts == ("t5-tiny/source/helpdesk-intent/seed1",)
    assert (transfer.source, transfer.target, transfer.config.seed, transfer.config.tuning.steps) == (
        "helpdesk/intent", "helpdesk/urgency", 1, 2,
    )  # fmt: skip
    average = next(cell for cell in cells if cell.stage == "average")
    assert len(average.starts) == 4, "the source prompts of all seeds"
    assert average.like == "t5-tiny/baseline/helpdesk-urgency/seed0"
    assert {cell.config.tuning.steps for cell in cells if cell.stage in ("source", "mixture-source")} == {4}


def test_a_benchmark_is_one_source_and_many_targets() -> None:
    cells = planned(sources=["glue", "mnli"], targets=["spot-targets"], seeds=[0], retrieval={})
    sources = [cell for cell in cells if cell.stage == "source"]
    assert [cell.source for cell in sources] == ["glue", "glue/mnli"]
    assert str(sources[0].config.task.task).startswith("glue/cola+glue/sst2+")
    assert len([cell for cell in cells if cell.stage == "baseline"]) == 10
    assert len([cell for cell in cells if cell.stage == "transfer"]) == 20


def test_a_source_that_is_the_target_is_no_transfer() -> None:
    cells = planned(sources=["helpdesk/urgency", "helpdesk/area"])
    pairs = {(cell.source, cell.target) for cell in cells if cell.stage == "transfer"}
    assert ("helpdesk/urgency", "helpdesk/urgency") not in pairs
    assert ("helpdesk/urgency", "helpdesk/register") in pairs
    average = next(cell for cell in cells if cell.stage == "average" and cell.target == "helpdesk/urgency")
    assert all("area" in start for start in average.starts)


def test_variants_say_what_is_different() -> None:
    variants = {
        "long": {"source": {"steps": 9}},
        "model": {"settings": {"preset": "model-tuning", "prompt": {"length": 0}}, "retrieval": {}},
    }
    cells = planned(variants=variants, retrieval={})
    steps = {cell.variant: cell.config.tuning.steps for cell in cells if cell.stage == "source"}
    assert steps == {"long": 9, "model": 4}
    assert {cell.whole_model for cell in cells if cell.variant == "model"} == {True}
    assert cells[0].name.startswith("long/t5-tiny/source/")


def test_own_data_may_be_a_source_or_a_target(toy_csv: Path) -> None:
    own = {"name": "reviews", "train": str(toy_csv), "text": "review", "label": "mood"}
    cells = planned(sources=[own], targets=["helpdesk/urgency"], retrieval={})
    assert [cell.source for cell in cells if cell.stage == "source"] == ["reviews", "reviews"]
    assert cells[0].config.task.train == str(toy_csv)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"sources": ["helpdesk/nothing"]}, "There is no task 'helpdesk/nothing'"),
    ({"sources": ["mnli", "glue/mnli"], "retrieval": {}}, "names a source twice"),
    ({"targets": ["helpdesk/urgency", "helpdesk/urgency"]}, "name every backbone, source, target and seed once"),
    ({"seeds": [0, 0]}, "name every backbone, source, target and seed once"),
    ({"sources": [{"name": 3, "task": "glue"}]}, "a name that is no text"),
    ({"sources": [{"name": "x"}]}, "names no task"),
    ({"sources": [], "targets": [], "retrieval": {}}, "nothing to run"),
    ({"source": {"stepz": 3}}, "There is no setting stepz"),
    ({"settings": {"seed": 3}}, "settings.seed is the study's to set"),
    ({"target": {"model": "x"}}, "target.model is the study's to set"),
    ({"settings": {"task": "glue/mnli"}}, "settings.task is the study's to set"),
    ({"retrieval": {"best": [9]}}, "asks for the top 9, but there are 4 source prompts"),
    ({"retrieval": {"average": [0]}}, "it must be different numbers of at least 1"),
    ({"retrieval": {"similarity": "x"}}, "There is no similarity 'x'"),
    ({"retrieval": {"worst": [1]}}, "There is no setting retrieval.worst"),
    ({"settings": {**QUICK, "preset": "mixture"}, "retrieval": {"average": [2]}}, "cannot be averaged"),
    ({"settings": {"preset": "model-tuning"}}, "retrieval needs prompts"),
    ({"cohort": 0}, "cohort is 0"),
    ({"colour": 1}, "There is no setting colour"),
    ({"variants": {"a": {"stepz": 1}}}, "There is no setting a.stepz"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_bad_studies_are_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        planned(**changes)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("spot-*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_can_be_planned(path: Path) -> None:
    study = read_study(path)
    assert study.name == path.stem
    assert study.about
    cells = plan(study)
    stages = {cell.stage for cell in cells}
    assert {"baseline", "source", "transfer"} <= stages


def test_the_recipes_are_the_papers() -> None:
    paper, small = (read_study(RECIPES / f"spot-{scale}.yaml") for scale in ("paper", "small"))
    cells = plan(paper)
    assert (len(paper.sources), len({cell.target for cell in cells if cell.stage == "baseline"})) == (16, 10)
    assert {cell.config.tuning.steps for cell in cells if cell.stage == "source"} == {262_144}
    assert {cell.config.tuning.steps for cell in cells if cell.stage == "transfer"} == {100_000}
    assert {(cell.config.prompt.length, cell.config.tuning.embed_at) for cell in cells} == {(100, 10_000)}
    cells = plan(small)
    assert (len(small.sources), len({cell.target for cell in cells if cell.stage == "baseline"}), small.seeds) == (13, 10, [0, 1, 2])
    assert min(cell.config.tuning.steps for cell in cells if cell.stage == "source") >= 2000
    assert min(cell.config.tuning.steps for cell in cells if cell.stage == "transfer") >= 1000
    assert {cell.config.tuning.batch_size for cell in cells} == {32}


# -- running -----------------------------------------------------------------------------------------------------------------


def test_a_study_runs_every_cell_and_tells_what_it_came_to(whole: Path, model: str) -> None:
    found = results(whole)
    assert len(found) == ALL
    assert all(told["rows"] == 12 and told["majority"] > 0 for told in found.values() if told["stage"] != "mixture-source")
    assert len({told["score"] for told in found.values()}) > 3, "scores that could be mistaken for one another would prove nothing below"
    home = next(iter(found)).split("/")[0]
    transfer = found[f"{home}/transfer/helpdesk-intent--helpdesk-urgency/seed1"]
    assert transfer["config"]["prompt"]["start"]["sources"] == [str(place(whole, f"{home}/source/helpdesk-intent/seed1"))]
    average = found[f"{home}/average/helpdesk-urgency/k2/seed0"]
    assert len(average["chosen"]) == 2
    assert sum(chosen["weight"] for chosen in average["chosen"]) == pytest.approx(1)
    assert average["chosen"][0]["similarity"] >= average["chosen"][1]["similarity"]
    mixed = found[f"{home}/mixture-source/helpdesk-urgency/k1/seed0"]["config"]["task"]["task"].split("+")
    assert mixed[0] == "helpdesk/urgency"
    assert set(mixed[1:]) < {"helpdesk/intent", "helpdesk/area"}
    after = found[f"{home}/mixture/helpdesk-urgency/k1/seed0"]["config"]
    assert after["prompt"]["start"]["sources"] == [str(place(whole, f"{home}/mixture-source/helpdesk-urgency/k1/seed0"))]
    assert not list(whole.rglob(".claim-*"))
    assert not list((whole / WORKERS).iterdir())


def test_a_finished_study_runs_nothing_again(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")}
    assert main(["run", str(whole), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["done"], told["total"], told["missing"]) == (ALL, ALL, [])
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")} == before


@pytest.mark.parametrize(
    "kind", ["source/helpdesk-area/seed1", "transfer/helpdesk-intent--helpdesk-register/seed0", "average/helpdesk-urgency/k2/seed1"]
)
def test_a_cell_rerun_from_its_config_gives_the_recorded_score(whole: Path, tmp_path: Path, kind: str) -> None:
    (name,) = (name for name in results(whole) if name.endswith(kind))
    assert cli.main(["tune", "--config", str(place(whole, name) / "config.yaml"), "--output", str(tmp_path / "again"), "--quiet"]) == 0
    again = json.loads((tmp_path / "again" / "prompt.json").read_text())
    told = results(whole)[name]
    assert again["metrics"] == told["metrics"]
    assert again["config"] == told["config"]


def test_a_cohort_rerun_gives_the_recorded_scores(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (name,) = (name for name in results(whole) if name.endswith("transfer/helpdesk-area--helpdesk-urgency/seed1"))
    assert main(["rerun", str(whole), name, "--output", str(tmp_path / "again"), "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert {told["cell"] for told in cells} == set(results(whole)[name]["beside"])
    assert len(cells) > 1
    assert all(told["same"] and told["recorded"] == told["again"] == scores(whole)[told["cell"]] for told in cells)
    with pytest.raises(UserError, match="no result of a cell 'x'"):
        main(["rerun", str(whole), "x", "--output", str(tmp_path / "more")])


def test_status_and_report_of_a_study(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(whole), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["stages"]["transfer"] == {"done": 8, "total": 8}
    assert told["cells_per_minute"] > 0
    assert told["eta_seconds"] == 0
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    assert main(["report", str(whole), "--output", str(tmp_path / "report"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    records = json.loads((tmp_path / "report" / "records.json").read_text())
    assert {record["cell"]: record["score"] for record in records} == scores(whole)
    baselines = [r["score"] for r in records if r["stage"] == "baseline" and r["target"] == "helpdesk/urgency"]
    line = next(line for line in told["scores"] if line["source"] is None)
    assert line["targets"]["helpdesk/urgency"]["mean"] == pytest.approx(sum(baselines) / 2, abs=0.01)
    assert "(no transfer)" in (tmp_path / "report" / "scores.md").read_text()
    assert (tmp_path / "report" / "report.md").exists()


def test_stages_may_be_run_in_parts(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, folder = str(write(retrieval={}, seeds=[0])), str(tmp_path / "study")
    with pytest.raises(UserError, match="add source to --only"):
        main(["run", study, "--output", folder, "--only", "transfer"])
    with pytest.raises(UserError, match="no stage 'x'"):
        main(["run", study, "--output", folder, "--only", "x"])
    assert main(["run", study, "--output", folder, "--only", "source,baseline", "--device", "cpu"]) == 0
    assert {told["stage"] for told in results(Path(folder)).values()} == {"source", "baseline"}
    capsys.readouterr()
    assert main(["status", folder]) == 0
    assert "transfer        0 of 4" in capsys.readouterr().out


def test_a_changed_study_file_is_refused(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    small = {"targets": ["helpdesk/urgency"], "seeds": [0], "retrieval": {}}
    assert main(["run", str(write(**small)), "--output", str(folder), "--device", "cpu"]) == 0
    before = results(folder)
    with pytest.raises(UserError, match=r"was begun with tuning.steps 4 where it says 6 now \(and 1 more cells\); change it back"):
        main(["run", str(write(**small, source={"steps": 6})), "--output", str(folder)])
    assert results(folder) == before
    assert main(["run", str(write(**{**small, "seeds": [0, 1]})), "--output", str(folder), "--device", "cpu"]) == 0
    after = results(folder)
    assert len(after) == 2 * len(before)
    assert {name: after[name] for name in before} == before


def test_a_failed_source_is_told_and_blocks_what_starts_from_it(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write(seeds=[0], retrieval={}, targets=["helpdesk/urgency"], source={"steps": 4, "lr": 1e30})
    assert main(["run", str(study), "--output", str(tmp_path / "study"), "--json", "--device", "cpu"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert len(told["failed"]) == 2
    assert all("lower --lr" in why for why in told["failed"].values())
    assert len(told["blocked"]) == 2
    assert told["stages"]["baseline"] == {"done": 1, "total": 1}


def test_a_folder_of_other_things_is_left_alone(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="holds other things than a study"):
        main(["run", str(write()), "--output", str(tmp_path / "mine")])
    with pytest.raises(UserError, match="is no folder of a study"):
        main(["status", str(tmp_path / "mine")])


# -- kills and many workers --------------------------------------------------------------------------------------------------

FEW: dict[str, Any] = {"seeds": [0], "retrieval": {}}
START = "import sys, torch; torch.set_num_threads(1); from softprompts.transfer.study_command import main; sys.exit(main(sys.argv[1:]))"


def started(study: Path, folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", START, "run", str(study), "--output", str(folder), "--device", "cpu", "--cohort", "1", "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def wait_for(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_two_workers_one_killed(write: Write, whole: Path, tmp_path: Path) -> None:
    """The one that lives takes over what the other held; no cell is lost, none is run into the results twice."""
    study, folder = write(**FEW), tmp_path / "study"
    workers = [started(study, folder) for _ in range(2)]
    try:
        wait_for(lambda: len(list((folder / WORKERS).glob("[!.]*.json"))) == 2 and len(results(folder)) >= 2)
        victim = workers[0].pid
        wait_for(lambda: any(f"-{victim}-" in claim.read_text() for claim in folder.rglob(".claim-*") if claim.exists()))
        workers[0].send_signal(signal.SIGKILL)
        workers[0].wait()
        before = results(folder)
        assert workers[1].wait(timeout=240) == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    after = results(folder)
    assert {name: after[name] for name in before} == before, "finished cells stay as they are"
    assert len(after) == 8
    assert scores(folder).items() <= scores(whole).items()


def test_a_killed_study_goes_on(write: Write, whole: Path, tmp_path: Path) -> None:
    study, folder = write(**FEW), tmp_path / "study"
    worker = started(study, folder)
    try:
        wait_for(lambda: len(list(folder.rglob("checkpoint.safetensors"))) > 0 and len(results(folder)) >= 2)
    finally:
        worker.kill()
        worker.wait()
    before = results(folder)
    assert 0 < len(before) < 8
    assert status(plan(read_study(study)), folder)["running"] == [], "the dead hold nothing"
    assert main(["run", str(study), "--output", str(folder), "--device", "cpu"]) == 0
    after = results(folder)
    assert {name: after[name] for name in before} == before
    assert len(after) == 8
    assert scores(folder).items() <= scores(whole).items()


def test_a_claim_is_one_workers(tmp_path: Path) -> None:
    with Claims(tmp_path) as one, Claims(tmp_path) as other:
        assert one.take("a")
        assert not other.take("a")
        assert not one.take("a")
        assert other.take("b")
    with Claims(tmp_path) as third:
        assert third.take("a"), "who left holds nothing"


def test_of_many_that_race_one_gets_it(tmp_path: Path) -> None:
    workers = [Claims(tmp_path) for _ in range(8)]
    got: list[str] = []
    barrier = threading.Barrier(8)

    def race(claims: Claims) -> None:
        for number in range(20):
            barrier.wait()
            if claims.take(f"cell{number}"):
                got.append(f"cell{number}")

    threads = [threading.Thread(target=race, args=(claims,)) for claims in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(f"cell{number}" for number in range(20))


def test_the_silent_are_taken_over_and_notice(tmp_path: Path) -> None:
    with Claims(tmp_path, beat=3600) as silent, Claims(tmp_path, beat=0.01, stale=30) as other:
        assert silent.take("a")
        assert not other.take("a")
        os.utime(silent.sign, (time.time() - 60, time.time() - 60))
        assert other.take("a")
        assert not silent.take("a")
        assert silent._is_lost("a", silent.held["a"])
        time.sleep(0.1)
        assert not other.lost.is_set()


def test_a_worker_of_another_machine_is_judged_by_its_signs_of_life(tmp_path: Path) -> None:
    with Claims(tmp_path, beat=3600) as far, Claims(tmp_path) as near:
        far.sign.write_text(json.dumps({"host": "elsewhere", "pid": 2**22 + 1}))
        assert far.take("a")
        assert not near.take("a"), "its process is not ours to look for"
        far.sign.unlink()
        assert near.take("a")


class Robbed(StudyWatcher):
    """Someone takes the first cell over while it is tuned, and leaves without finishing it."""

    def __init__(self, folder: Path, own: Claims) -> None:
        self.other, self.own, self.robbed = Claims(folder), own, 0

    def stepped(self, run: Run) -> None:
        if not self.robbed:
            claim = next(iter(self.own.held.values()))
            claim.with_name(".claim-1").write_text(json.dumps({"worker": self.other.worker}))
            self.robbed += 1
            wait_for(self.own.lost.is_set, 20)

    def looked(self, state: State) -> None:
        if self.robbed:
            self.other.sign.unlink(missing_ok=True)


def test_a_worker_that_lost_a_cell_lets_it_go(write: Write, tmp_path: Path) -> None:
    cells = [cell for cell in plan(read_study(write(**FEW)), "cpu") if cell.stage == "baseline"]
    own = Claims(tmp_path / "study", beat=0.05)
    watcher = Robbed(tmp_path / "study", own)
    assert work(cells, tmp_path / "study", 4, watcher, claims=own).done == {cell.name for cell in cells}
    assert watcher.robbed == 1


def test_a_run_begun_elsewhere_is_begun_anew(tmp_path: Path) -> None:
    """Where the study's folder was moved, a run's config names source prompts that are not there."""
    cell = next(cell for cell in planned() if cell.stage == "transfer")
    home = place(tmp_path, cell.name)
    here, elsewhere = (start_from(cell.config, [folder / "source"]) for folder in (tmp_path, tmp_path / "other"))
    open_cell(cell, here, tmp_path)
    here.save(home / "config.yaml")
    (home / "checkpoint.safetensors").touch()
    open_cell(cell, here, tmp_path)
    assert (home / "checkpoint.safetensors").exists()
    open_cell(cell, elsewhere, tmp_path)
    assert sorted(path.name for path in home.iterdir()) == ["cell.json"]


def test_a_result_is_committed_once_and_what_is_done_is_not_claimed(tmp_path: Path) -> None:
    with Claims(tmp_path) as claims:
        assert claims.take("a")
        assert commit(tmp_path, {"cell": "a", "score": 1.0})
        assert not commit(tmp_path, {"cell": "a", "score": 2.0})
        claims.drop("a")
        assert not claims.take("a")
        assert results(tmp_path)["a"]["score"] == 1.0
        assert sorted(path.name for path in place(tmp_path, "a").iterdir()) == [RESULT]


def test_a_cohort_is_of_one_model_and_one_length() -> None:
    cells = planned(variants={"one": {}, "other": {"backbones": ["some/model"]}}, retrieval={})
    ready = State().ready(cells)
    first = cohort_of(ready, 100)
    assert len({(cell.config.model, cell.config.tuning.steps) for cell in first}) == 1
    assert len(cohort_of(ready, 3)) == 3
    whole = planned(settings={"preset": "model-tuning"}, retrieval={})
    assert len(cohort_of(State().ready(whole), 8)) == 1, "a whole model shares nothing"


def test_a_model_that_learned_starts_the_next(write: Write, tmp_path: Path) -> None:
    """Multi-task model tuning: the target's run begins with the source's model."""
    tuned = {**{name: value for name, value in QUICK.items() if name not in ("preset", "prompt", "lr")}, "preset": "model-tuning"}
    study = write(settings=tuned, sources=["helpdesk/intent+helpdesk/area"], targets=["helpdesk/urgency"], seeds=[0], retrieval={})
    assert work(plan(read_study(study), "cpu"), tmp_path / "study", 4).failed == set()
    (told,) = (told for told in results(tmp_path / "study").values() if told["stage"] == "transfer")
    assert told["config"]["model"].endswith("source/helpdesk-intent-helpdesk-area/seed0/model")
