"""Transfer end to end: what is chosen, tuned, kept and printed; resuming; errors."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import softprompts
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone
from softprompts.cli import main as cli
from softprompts.cli.transfer import main
from softprompts.cli.transfer_summary import describe_choice, describe_result
from softprompts.errors import UserError
from softprompts.files import read_json, write_json
from softprompts.library.library import Library
from softprompts.library.search import SIMILARITIES
from softprompts.transfer.settings import Request
from softprompts.transfer.strategies import shares
from softprompts.transfer.transfer import run_transfer
from softprompts.tuning import Watcher
from softprompts.tuning.tune import tune_config

from ..processes import ForkServer
from .runs import FEW, SETTINGS, SOURCES, target, vectors


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that took a step, once for each step."""
    taken: list[str] = []

    def on_step(self: Watcher, run: Any) -> None:
        start = run.config.prompt.start
        taken.append(
            "+".join(Path(name).name for name in start.options.get("sources", ())) or "usual"
        )

    monkeypatch.setattr(Watcher, "on_step", on_step)
    return taken


# -- choosing, tuning, keeping ---------------------------------------------------------------------


@pytest.mark.parametrize("similarity", list(SIMILARITIES))
def test_best_tunes_from_the_nearest_and_keeps_the_best(
    similarity: str, library: Path, backbone: Backbone, tmp_path: Path, steps: list[str]
) -> None:
    record = run_transfer(
        Request(target(), library, k=2, similarity=similarity), tmp_path / "out", backbone=backbone
    )
    assert json.loads((tmp_path / "out" / "choice.json").read_text()) == record
    probe = vectors(tmp_path / "out/runs/probe", "embedding")[0]
    near = {
        name: SIMILARITIES[similarity](probe, Library(library).entry(name).vectors()[0])
        for name in SOURCES[:3]
    }
    assert [row["name"] for row in record["ranked"]] == sorted(near, key=lambda name: -near[name])
    assert {row["name"]: row["similarity"] for row in record["ranked"]} == pytest.approx(
        near, abs=1e-5
    )
    assert {row["step"] for row in record["ranked"]} == {4}
    assert record["chosen"] == [row["name"] for row in record["ranked"]][:2]
    assert sorted(steps) == sorted(["usual", *record["chosen"]] * 4), (
        "the probe, which is the baseline too, and two runs"
    )
    best = max(record["results"], key=lambda result: result["score"])
    assert (
        record["kept"]
        == best["name"]
        == f"from-{record['runs'][record['results'].index(best)]['sources'][0]}"
    )
    torch.testing.assert_close(
        vectors(tmp_path / "out"), vectors(tmp_path / "out" / best["folder"])
    )
    _, card = RunFolder(tmp_path / "out").load(backbone)
    assert card.metrics["accuracy"] == best["score"]
    assert card.sources == [str(library / record["kept"].removeprefix("from-"))]


def test_a_probe_that_serves_as_the_baseline_is_not_said_to_resume(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    messages: list[str] = []

    class Listener(Watcher):
        def on_message(self, text: str) -> None:
            messages.append(text)

    request = Request(target(), library, k=1)
    run_transfer(request, tmp_path / "out", True, False, lambda _: Listener(), backbone)
    assert messages
    assert not [message for message in messages if "resuming" in message]


def test_the_saved_config_makes_the_same_run(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    run_transfer(Request(target(), library, k=2), tmp_path / "out", backbone=backbone)
    tune_config(RunFolder(tmp_path / "out").config(), tmp_path / "alone", backbone=backbone)
    torch.testing.assert_close(
        vectors(tmp_path / "alone"), vectors(tmp_path / "out"), rtol=1e-3, atol=1e-3
    )


def test_average_starts_from_the_weighted_mean(
    library: Path, backbone: Backbone, tmp_path: Path, steps: list[str]
) -> None:
    record = run_transfer(
        Request(target(), library, "average", probe_steps=2),
        tmp_path / "out",
        baseline=True,
        backbone=backbone,
    )
    alpha = shares([row["similarity"] for row in record["ranked"]])
    assert record["weights"] == dict(zip(record["chosen"], alpha, strict=True))
    assert record["runs"][0]["start"]["weights"] == alpha
    assert len(steps) == 2 + 4 + 4, "a short probe is not a baseline, so one was tuned"
    assert [result["name"] for result in record["results"]] == ["average"]
    assert record["baseline"]["folder"] == "runs/baseline"
    baseline_score = read_json(tmp_path / "out/runs/baseline/prompt.json")["metrics"]["accuracy"]
    points = record["results"][0]["score"] - baseline_score
    assert record["gain"] == {
        "points": pytest.approx(points, abs=1e-3),
        "error_reduction": pytest.approx(points / (100 - baseline_score), abs=1e-3),
        "p": pytest.approx(record["gain"]["p"]),
        "rows": read_json(tmp_path / "out/runs/baseline/prompt.json")["task"]["rows"]["validation"],
    }
    assert 0 < record["gain"]["p"] <= 1


def test_mixture_tunes_on_all_tasks_first(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    record = run_transfer(
        Request(target(), library, "mixture", k=2, probe_steps=1, mixture_steps=3),
        tmp_path / "out",
        backbone=backbone,
    )
    tasks = [row["task"] for row in record["ranked"][:2]]
    assert record["mixture"]["task"] == "+".join(["helpdesk/urgency", *tasks])
    mixed = read_json(tmp_path / "out/runs/mixture/prompt.json")
    assert (mixed["task"]["name"], mixed["steps"], mixed["best_step"]) == (
        record["mixture"]["task"],
        3,
        3,
    )
    start = read_json(tmp_path / "out/prompt.json")["config"]["prompt"]["start"]
    assert start == {"kind": "prompt", "sources": [str(tmp_path / "out/runs/mixture")]}
    assert read_json(tmp_path / "out/prompt.json")["task"]["name"] == "helpdesk/urgency"
    assert record["baseline"] is None


@pytest.mark.parametrize("home", ["data", ""])
def test_a_mixture_without_rows_is_refused_before_the_probe(
    library: Path,
    backbone: Backbone,
    tmp_path: Path,
    steps: list[str],
    monkeypatch: pytest.MonkeyPatch,
    home: str,
) -> None:
    monkeypatch.setenv("SOFTPROMPTS_DATA", home and str(tmp_path / home))
    copied = tmp_path / "library"
    shutil.copytree(library, copied)
    card = read_json(copied / "area/prompt.json")
    card["task"]["name"] = card["config"]["task"]["task"] = "glue/rte"
    write_json(copied / "area/prompt.json", card)
    mixture_request = Request(target(), copied, "mixture", k=1)
    where = "not in .*/data" if home else "not available from the Hub"
    error = (
        f"rows of glue/rte, which are {where}; name a folder .* data_dir, or use strategy='best'"
    )
    with pytest.raises(UserError, match=error):
        run_transfer(mixture_request, tmp_path / "out", backbone=backbone)
    assert steps == []
    assert not (tmp_path / "out").exists()
    run_transfer(
        dataclasses.replace(mixture_request, strategy="best"), tmp_path / "best", backbone=backbone
    )


def test_a_named_source_and_all_of_them_need_no_probe(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    named = run_transfer(
        Request(target(), library, "named", source="area"),
        tmp_path / "named",
        baseline=True,
        backbone=backbone,
    )
    every = run_transfer(Request(target(), library, "all"), tmp_path / "all", backbone=backbone)
    assert named["chosen"] == ["area"]
    assert {path.name for path in (tmp_path / "named/runs").iterdir()} == {
        "from-area",
        "baseline",
        "cohort.csv",
    }
    assert {result["name"] for result in every["results"]} == {
        "from-area",
        "from-intent",
        "from-register",
    }
    scores = {result["name"]: result["score"] for result in every["results"]}
    assert scores[every["kept"]] == max(scores.values()) > min(scores.values())
    assert named["results"][0]["score"] == scores["from-area"]
    torch.testing.assert_close(
        vectors(tmp_path / "all"), vectors(tmp_path / "all/runs" / every["kept"])
    )
    same_task = run_transfer(
        Request(target(), library, "named", source="urgency"), tmp_path / "own", backbone=backbone
    )
    assert same_task["kept"] == "from-urgency", "a named source may have the target's own task"


def test_other_lengths_and_too_few_sources_are_printed(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    printed: list[str] = []
    request = Request(target(prompt={"length": 2}), library, k=9, probe_steps=1)
    run_transfer(
        request,
        tmp_path / "out",
        backbone=backbone,
        on_choice=lambda record: printed.append(describe_choice(record)),
    )
    assert "area has 3 tokens: its first 2 start the run" in printed[0]
    assert "from each of the 3 prompts (of 9 requested) most similar to the probe" in printed[0]
    named = Request(target(prompt={"length": 5}), library, "named", "area")
    run_transfer(
        named,
        tmp_path / "named",
        backbone=backbone,
        on_choice=lambda record: printed.append(describe_choice(record)),
    )
    assert "area has 3 tokens: sampled vocabulary fills up to 5" in printed[1]
    run_transfer(
        Request(target(seed=1), library, probe_steps=1),
        tmp_path / "seed",
        backbone=backbone,
        on_choice=lambda record: printed.append(describe_choice(record)),
    )
    assert ["not all sources have the probe's seed" in text for text in printed] == [
        False,
        False,
        True,
    ]


@pytest.mark.usefixtures("loads_backbone")
def test_transfer_in_python(library: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, **FEW, "library": library}
    tuned = softprompts.transfer("helpdesk/urgency", output=tmp_path / "best", k=1, **settings)
    record = read_json(tmp_path / "best/choice.json")
    assert tuned.folder == tmp_path / "best"
    assert tuned.metrics["accuracy"] == record["results"][0]["score"]
    assert tuned.predict(["The door will not lock."]) in ([word] for word in tuned.form.labels)
    softprompts.transfer("helpdesk/urgency", output=tmp_path / "named", source="area", **settings)
    assert read_json(tmp_path / "named/choice.json")["chosen"] == ["area"]
    for wrong, sentence in (
        ({"seed": [0, 1]}, "seed is a list"),
        (
            {"strategy": "luck"},
            "strategy is 'luck'; choose one of best, average, mixture, named, all",
        ),
        ({"strategy": "all", "source": "area"}, "source is for strategy='named'"),
        ({"strategy": "named"}, "give both or neither"),
    ):
        with pytest.raises(UserError, match=sentence):
            softprompts.transfer("helpdesk/urgency", output=tmp_path / "none", **settings, **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "none").exists()


# -- resuming --------------------------------------------------------------------------------------


def test_a_finished_transfer_trains_nothing_but_a_new_baseline(
    library: Path, backbone: Backbone, tmp_path: Path, steps: list[str]
) -> None:
    request = Request(target(), library, k=1, probe_steps=1)
    first = run_transfer(request, tmp_path / "out", backbone=backbone)
    assert first["gain"] is None
    steps.clear()
    assert run_transfer(request, tmp_path / "out", backbone=backbone) == first
    assert steps == []
    again = run_transfer(request, tmp_path / "out", baseline=True, backbone=backbone)
    assert steps == ["usual"] * 4
    assert again["baseline"]["score"] is not None
    assert again["results"] == first["results"]


def test_other_settings_need_overwrite(
    library: Path, backbone: Backbone, tmp_path: Path, steps: list[str]
) -> None:
    request = Request(target(), library, k=1)
    first = run_transfer(request, tmp_path / "out", backbone=backbone)
    before = (tmp_path / "out/choice.json").read_bytes()
    other = Request(
        target(seed=1),
        library,
        "named",
        source="register" if first["chosen"] != ["register"] else "area",
    )
    with pytest.raises(UserError, match="holds a transfer with other settings"):
        run_transfer(other, tmp_path / "out", backbone=backbone)
    with pytest.raises(UserError, match="There is no prompt missing in the library"):
        run_transfer(
            Request(target(), library, "named", source="missing"),
            tmp_path / "out",
            overwrite=True,
            backbone=backbone,
        )
    assert (tmp_path / "out/choice.json").read_bytes() == before
    steps.clear()
    assert run_transfer(request, tmp_path / "out", overwrite=True, backbone=backbone) == first
    assert len(steps) == 4 + 4, "the probe, which is the baseline too, and the run"
    steps.clear()
    run_transfer(other, tmp_path / "out", overwrite=True, backbone=backbone)
    assert len(steps) == 4
    assert {path.name for path in (tmp_path / "out/runs").iterdir()} == {
        f"from-{other.source}",
        "cohort.csv",
    }


def test_a_corrupted_choice_can_be_overwritten(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    request, path = Request(target(), library, "named", "area"), tmp_path / "out/choice.json"
    complete = run_transfer(request, tmp_path / "out", backbone=backbone)
    path.write_text('{"request": ')
    with pytest.raises(UserError, match="is corrupted, or not written by softprompts"):
        run_transfer(request, tmp_path / "out", backbone=backbone)
    for damage in (
        {"runs": 5},
        {"runs": []},
        {"runs": [{"name": 1}]},
        {"ranked": []},
        {"chosen": None},
    ):
        path.write_text(json.dumps(complete | damage))
        with pytest.raises(
            UserError, match="is corrupted or from another version; start again with overwrite"
        ):
            run_transfer(request, tmp_path / "out", backbone=backbone)
    assert run_transfer(request, tmp_path / "out", overwrite=True, backbone=backbone) == complete


KILLED = """
import os, signal, sys
from pathlib import Path
from softprompts.tuning import Watcher
from tests.transfer.runs import sensitive_model
from tests.transfer.test_transfer import request
from softprompts.transfer.transfer import run_transfer
remaining = 6
def on_step(self, run):
    global remaining
    remaining -= 1
    if remaining == 0:
        os.kill(os.getpid(), signal.SIGKILL)
Watcher.on_step = on_step
run_transfer(request(Path(sys.argv[1])), Path(sys.argv[2]), backbone=sensitive_model())
"""


def request(library: Path) -> Request:
    return Request(target(), library, k=1)


def test_a_killed_transfer_resumes_with_the_same_result(
    library: Path,
    backbone: Backbone,
    tmp_path: Path,
    steps: list[str],
    torch_server: ForkServer,
) -> None:
    """It is killed after four steps of the probe and two of the run."""
    argv, root = [str(library), str(tmp_path / "out")], Path(__file__).parents[2]
    killed = torch_server.run(argv, code=KILLED, folder=root)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    choice_so_far = read_json(tmp_path / "out/choice.json")
    assert choice_so_far["chosen"]
    assert "results" not in choice_so_far
    assert not (tmp_path / "out/prompt.json").exists()
    record = run_transfer(request(library), tmp_path / "out", backbone=backbone)
    assert set(steps) == set(record["chosen"]) == set(choice_so_far["chosen"]), (
        "the probe was finished, and is not trained again"
    )
    assert 2 <= len(steps) <= 3, (
        "a checkpoint after every step: at most the step at the kill is taken again"
    )
    uninterrupted = run_transfer(request(library), tmp_path / "whole", backbone=backbone)
    assert uninterrupted == record
    torch.testing.assert_close(vectors(tmp_path / "out"), vectors(tmp_path / "whole"))


# -- output ----------------------------------------------------------------------------------------


def test_the_command_on_the_included_model(
    tmp_path: Path, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts are tuned and added, then one is transferred."""
    flags = [
        "--preset",
        "prompt-tuning",
        "--prompt.length",
        "2",
        "--steps",
        "2",
        "--batch-size",
        "2",
        "--max-length",
        "16",
    ]
    flags += ["--scoring", "labels", "--shots", "1", "--cap-validation", "2", "--device", "cpu"]

    assert (
        cli(["tune", "--task", "helpdesk/register", *flags, "--output", str(tmp_path / "register")])
        == 0
    )
    Library(tmp_path / "library").add(tmp_path / "register")
    Library(tmp_path / "library").add(library / "intent")
    capsys.readouterr()
    command = [
        "--to",
        "helpdesk/urgency",
        "--library",
        str(tmp_path / "library"),
        *flags,
        "--output",
        str(tmp_path / "out"),
    ]
    assert main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["chosen"] == ["register"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "left out: intent: it was tuned on a different backbone, not t5-tiny" in text
    assert "compared with the baseline:" in text, (
        "the probe had all the steps of a run, so it is the baseline"
    )
    assert text.splitlines()[-1] == f"the prompt and choice.json are in {tmp_path / 'out'}"
    assert cli(["predict", str(tmp_path / "out"), "Where is it?"]) == 0


def test_the_choice_is_printed_with_its_reasons(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    printed: list[str] = []
    request = Request(target(), library, "average", k=2, probe_steps=2)
    record = run_transfer(
        request,
        tmp_path / "out",
        baseline=True,
        backbone=backbone,
        on_choice=lambda record: printed.append(describe_choice(record)),
    )
    (text,) = printed
    lines = text.splitlines()
    assert lines[0] == "a probe of 2 steps, compared by per_token_average_cosine"
    assert "were embedded at step 4;" in lines[1]
    record["ranked"][0]["step"] = 3
    assert "were embedded at steps 3, 4;" in describe_choice(record)
    assert lines[2].split() == ["rank", "source", "task", "similarity", "weight", "chosen"]
    for line, row in zip(lines[3:6], record["ranked"], strict=True):
        assert line.split()[1:4] == [row["name"], row["task"], f"{row['similarity']:.4f}"]
        assert line.endswith("yes") == (row["name"] in record["chosen"])
    assert lines[-1].startswith(
        "average: one run starts from the mean of the 2 prompts most similar"
    )
    ended = describe_result(record, tmp_path / "out")
    assert "baseline (the usual start)" in ended
    assert f"compared with the baseline: {record['gain']['points']:+.1f} points" in ended


def test_a_failed_run_is_printed_and_the_others_count() -> None:
    good = {
        "name": "from-a",
        "folder": "runs/from-a",
        "metric": "accuracy",
        "score": 40.0,
        "majority": 30.0,
        "best_step": 4,
    }
    bad = dict.fromkeys(good) | {
        "name": "from-b",
        "failed": True,
        "stopped": "the loss was not finite",
    }
    usual = good | {
        "name": "baseline",
        "folder": "runs/baseline",
        "score": 50.0,
        "failed": False,
        "stopped": None,
    }
    record = {
        "results": [good | {"failed": False, "stopped": None}, bad],
        "baseline": usual,
        "kept": "from-a",
    }
    text = describe_result(
        record | {"gain": {"points": -10.0, "error_reduction": -0.2}}, Path("out")
    )
    assert "from-b failed: the loss was not finite" in text
    assert "kept: from-a, accuracy 40.0" in text
    assert "compared with the baseline: -10.0 points; relative error reduction -20.0 %" in text
    assert f"the baseline is better; its prompt is in {Path('out/runs/baseline')}" in text


@pytest.mark.usefixtures("loads_backbone")
def test_without_a_successful_run_there_is_no_prompt(
    library: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [
        "--to",
        "helpdesk/urgency",
        "--from",
        "area",
        "--preset",
        "prompt-tuning",
        "--steps",
        "3",
        "--lr",
        "1e30",
        "--shots",
        "2",
    ]
    output = ["--library", str(library), "--output", str(tmp_path / "out")]
    assert cli(["transfer", *flags, *output]) == 1
    assert "No run from a source produced a prompt; from-area: " in capsys.readouterr().err
    assert not (tmp_path / "out/prompt.json").exists()


BAD = [
    (["--to", "helpdesk/nothing"], "There is no task 'helpdesk/nothing'"),
    (["--to", "helpdesk/urgency", "--library", "{tmp}/nowhere"], "There is no library at"),
    (
        ["--to", "helpdesk/urgency", "--library", "{tmp}/nowhere", "--from", "missing"],
        "There is no library at",
    ),
    (
        [
            "--to",
            "helpdesk/urgency",
            "--preset",
            "prompt-tuning",
            "--prompt.length",
            "5",
            "--strategy",
            "average",
        ],
        "can be a source for helpdesk/urgency: 3 (area, intent, register), because each has "
        "3 tokens and the target 5, and only prompts of the target's length are averaged (give the "
        "target 3, or tune sources of 5); 1 (urgency), because it was tuned on the target's own "
        "task (keep_same_task keeps prompts of the target's own task).",
    ),
    (
        ["--to", "helpdesk/urgency", "--from", "missing"],
        "There is no prompt missing in the library",
    ),
    (["--to", "helpdesk/urgency", "--k", "0"], "k is 0; it must be at least 1"),
    (["--to", "helpdesk/urgency", "--k", "many"], "k is 'many'; give a whole number"),
    (
        ["--to", "helpdesk/urgency", "--similarity", "euclid"],
        "--similarity is 'euclid'; choose one of",
    ),
    (["--to", "helpdesk/urgency", "--all", "--from", "area"], "not allowed with argument"),
    (["--to", "helpdesk/urgency", "--seed", "0,1"], "seed is a list"),
    (
        ["--to", "helpdesk/urgency", "--task", "helpdesk/area"],
        "Both --to and --task name the target",
    ),
    (
        ["--to", "helpdesk/urgency", "--preset", "model-tuning"],
        "Only a prompt can start from another prompt",
    ),
    (
        ["--to", "helpdesk/urgency", "--preset", "prompt-tuning", "--prompt.length", "600"],
        "the model sees at most 512 tokens",
    ),
    (
        ["--train", "{tmp}/mine.csv", "--text", "a", "--label", "b", "--strategy", "mixture"],
        "A mixture joins tasks by their names",
    ),
    (["--library", "{library}"], "No target is given"),
    (
        ["--to", "helpdesk/urgency", "--output", "x" * 300],
        "cannot be accessed (File name too long)",
    ),
    (
        ["--to", "helpdesk/urgency", "--output", "{tmp}/taken"],
        "already holds a run of another command",
    ),
    (["--to", "helpdesk/urgency", "--output", "{tmp}/strange"], "not written by softprompts"),
]


@pytest.mark.parametrize(("argv", "sentence"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
@pytest.mark.usefixtures("loads_backbone")
def test_bad_input_is_one_sentence_and_nothing_is_written(
    argv: list[str], sentence: str, library: Path, tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/prompt.json").write_text("{}")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange/choice.json").write_text("[]")
    (tmp_path / "mine.csv").write_text("a,b\n" + "x,y\nw,z\n" * 10)
    before = sorted(tmp_path.rglob("*"))
    argv = [part.format(tmp=tmp_path, library=library) for part in argv]
    with pytest.raises(UserError) as error:
        main(
            [
                "--output",
                str(tmp_path / "out"),
                "--library",
                str(library),
                "--steps",
                "2",
                "--quiet",
                *argv,
            ]
        )
    assert sentence in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "softprompts transfer --to helpdesk/urgency" in shown
    assert "--json" in shown
