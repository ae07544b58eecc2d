"""The benchmarks: each runs, compares itself with PEFT for real, and refuses to give times where the two sides differ."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from softprompts.bench import inference, learners, main, training
from softprompts.bench.flops import t5_flops
from softprompts.errors import UserError

from ..conftest import DATA
from ..models import random_model, random_t5

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TRAINING = [
    "training",
    "--prompt",
    "5",
    "--batch",
    "4",
    "--steps",
    "2",
    "--warmup",
    "1",
    "--device",
    "cpu",
]
DECODING = [
    "decoding",
    "--prompt",
    "6",
    "--text",
    "5",
    "--new-tokens",
    "4",
    "--batches",
    "1,3",
    "--rounds",
    "2",
    "--device",
    "cpu",
]
INFERENCE = [
    "inference",
    "--tasks",
    "5",
    "--longest",
    "12",
    "--new-tokens",
    "3",
    "--rounds",
    "2",
    "--warmup",
    "1",
    "--device",
    "cpu",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tiny random models on disk."""
    found = {}
    for kind in ("t5", "llama"):
        folder, made = tmp_path_factory.mktemp(kind), random_model(kind)
        made.model.save_pretrained(folder)
        made.tokenizer.save_pretrained(folder)
        found[kind] = str(folder)
    return found


@pytest.fixture
def peer() -> None:
    pytest.importorskip("peft", reason="the peer of the benchmarks is not installed")


def result(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*argv, "--json", "--quiet"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {"device", "kind", "dtype", "threads"} <= told["machine"].keys()
    assert told["versions"]["torch"] == torch.__version__
    return told


def spreads(found: dict[str, float]) -> None:
    assert 0 < found["p10"] <= found["median"] <= found["p90"]


def agrees(found: dict[str, Any], ways: list[str]) -> None:
    assert list(found) == ways
    for peer in found.values():
        assert peer["agreement"] == 1
        spreads(peer["seconds"])
        spreads(peer["ratio"])


@pytest.mark.usefixtures("peer")
def test_training_takes_the_same_steps_as_peft(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "deep" / "training.json"
    argv = [
        *TRAINING,
        "--model",
        folders["t5"],
        "--runs",
        "3",
        "--alone",
        "2",
        "--peers",
        "eager,autocast",
        "--output",
        str(output),
    ]
    told = result(argv, capsys)
    assert json.loads(output.read_text()) == told
    assert told["settings"]["batch"] == 4
    assert list(told["subjects"]) == ["peft eager", "peft autocast", "ours", "cohort"]
    assert told["losses"]["max_relative_difference"].keys() == {"peft autocast", "ours", "cohort"}
    assert told["losses"]["max_relative_difference"]["cohort"] < 1e-5
    assert told["subjects"]["cohort"]["runs"] == 3
    assert told["ratios"]["cohort"].keys() == {"peft eager", "peft autocast", "ours"}
    for found in told["subjects"].values():
        spreads(found["seconds"])
        assert found["tflops"] > 0
        assert found["peak_gib"] is None
    for ratios in told["ratios"].values():
        for found in ratios.values():
            spreads(found)
    assert told["padding"] > 1


@pytest.mark.usefixtures("peer")
def test_training_of_a_decoder_only_model(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = result([*TRAINING, "--model", folders["llama"], "--runs", "1"], capsys)
    assert told["losses"]["max_relative_difference"]["ours"] < 1e-4
    assert told["subjects"]["ours"]["tflops"] is None


@pytest.mark.usefixtures("peer")
@pytest.mark.skipif(not (DATA / "glue" / "sst2").exists(), reason="SST-2 is not here")
def test_training_on_sst2(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    told = result(
        [
            *TRAINING,
            "--model",
            folders["t5"],
            "--runs",
            "2",
            "--workload",
            "sst2",
            "--data-dir",
            str(DATA),
        ],
        capsys,
    )
    assert told["losses"]["max_relative_difference"]["cohort"] < 1e-4


@pytest.mark.usefixtures("peer")
def test_a_peer_that_learns_something_else_is_noticed(
    folders: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    right = training.start
    monkeypatch.setattr(training, "start", lambda *given: right(*given) + 5.0)
    output = tmp_path / "none.json"
    assert main([*TRAINING, "--model", folders["t5"], "--runs", "1", "--output", str(output)]) == 1
    assert "do not learn the same: at step 0 of run 0" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.usefixtures("peer")
def test_a_cohort_that_mixes_its_rows_up_is_noticed(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = learners.Ours.__init__

    def wrong(self: learners.Ours, runs: Any, compiles: bool) -> None:
        right(self, runs, compiles)
        if len(runs) > 1:
            runs[0].targets, runs[1].targets = runs[1].targets, runs[0].targets

    monkeypatch.setattr(learners.Ours, "__init__", wrong)
    assert main([*TRAINING, "--model", folders["t5"], "--runs", "2"]) == 1
    assert "cohort and peft eager do not learn the same" in capsys.readouterr().err


def broken(*given: Any, **named: Any) -> None:
    """What stands for a compiler, or for what it made."""
    raise RuntimeError("no compiler\nat all")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[torch.nn.Module]:
    """The modules that go through the compiler, which is one that takes no time."""
    seen: list[torch.nn.Module] = []
    plain = torch.nn.Module.compile

    def quick(self: torch.nn.Module, **named: Any) -> None:
        seen.append(self)
        plain(self, backend="eager", **named)

    monkeypatch.setattr(torch.nn.Module, "compile", quick)
    return seen


@pytest.mark.usefixtures("peer")
def test_a_peer_whose_layers_are_compiled_learns_the_same(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], compiled: list[torch.nn.Module]
) -> None:
    told = result(
        [*TRAINING, "--model", folders["t5"], "--runs", "1", "--peers", "eager,regions"], capsys
    )
    assert told["losses"]["max_relative_difference"]["peft regions"] < 1e-4
    assert {type(layer).__name__ for layer in compiled} == {"T5Block"}
    assert not told["left_out"]


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize(
    ("argv", "kind", "layer"),
    [(INFERENCE, "t5", "T5Block"), (DECODING, "llama", "LlamaDecoderLayer")],
)
def test_a_peer_whose_layers_are_compiled_answers_the_same(
    argv: list[str],
    kind: str,
    layer: str,
    folders: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    compiled: list[torch.nn.Module],
) -> None:
    told = result([*argv, "--model", folders[kind], "--peers", "eager,regions"], capsys)
    assert {type(module).__name__ for module in compiled} == {layer}
    for found in told["ways"].values() if kind == "t5" else told["batches"]:
        agrees(found["peft"], ["eager", "regions"])
        assert not found["left_out"]


@pytest.mark.usefixtures("peer")
def test_a_compiled_peer_that_cannot_answer_is_left_out(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **_: setattr(self, "forward", broken)
    )
    told = result([*INFERENCE, "--model", folders["t5"], "--peers", "eager,regions"], capsys)
    for found in told["ways"].values():
        agrees(found["peft"], ["eager"])
        assert found["left_out"] == {"regions": "RuntimeError: no compiler"}


@pytest.mark.usefixtures("peer")
def test_a_compiled_peer_that_fails_is_told_and_the_rest_counts(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", broken)
    told = result(
        [*TRAINING, "--model", folders["t5"], "--runs", "1", "--peers", "eager,buckets"], capsys
    )
    assert told["left_out"] == {"peft buckets": "RuntimeError: no compiler"}
    assert told["fastest"] == "peft eager"


@pytest.mark.usefixtures("peer")
def test_inference_gives_the_answers_peft_gives(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = result([*INFERENCE, "--model", folders["t5"]], capsys)
    assert told["ways"].keys() == {"labels", "generate"}
    assert told["prompt_tokens"]["shortest"] < told["prompt_tokens"]["longest"] <= 12
    for found in told["ways"].values():
        spreads(found["ours"])
        agrees(found["peft"], ["eager"])


@pytest.mark.usefixtures("peer")
def test_answers_that_differ_are_noticed(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference.Switching, "chosen", lambda self, text: "maybe")
    assert main([*INFERENCE, "--model", folders["t5"]]) == 1
    assert "agree on 0.0% of the answers" in capsys.readouterr().err


@pytest.mark.usefixtures("peer")
def test_decoding_writes_the_tokens_peft_writes(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = result([*DECODING, "--model", folders["llama"]], capsys)
    assert [found["batch"] for found in told["batches"]] == [1, 3]
    for found in told["batches"]:
        spreads(found["read"])
        spreads(found["remembered"])
        agrees(found["peft"], ["eager"])


def test_smop_saves_what_its_shorter_prompt_saves(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "smop",
        "--model",
        folders["t5"],
        "--batch",
        "4",
        "--steps",
        "2",
        "--warmup",
        "1",
        "--device",
        "cpu",
    ]
    told = result(argv, capsys)
    assert told["subjects"].keys() == {"prompt-tuning", "smop"}
    assert 0.3 < told["savings"]["flops"] < 0.7  # 5 instead of 100 tokens before texts of about 115
    assert told["savings"]["memory"] is None  # on a CPU it is not measured
    assert told["paper"]["time"] == 0.146


def test_the_formula_counts_what_torch_counts() -> None:
    backbone = random_t5(vocab_size=300)
    backbone.model.set_attn_implementation("eager")
    embeds = torch.randn(3, 24, backbone.hidden, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        loss = backbone.model(
            inputs_embeds=embeds, labels=torch.ones(3, 8, dtype=torch.long), use_cache=False
        ).loss
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    told = t5_flops(backbone.model.config, [24] * 3, [8] * 3)
    assert told.forward == forward.get_total_flops()
    # the way back to the decoder's own first attention is not needed
    assert told.step == pytest.approx(
        forward.get_total_flops() + backward.get_total_flops(), rel=0.05
    )


def test_tables_of_several_results(
    folders: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bench_table

    names = [tmp_path / f"{batch}.json" for batch in (2, 3)]
    for name in names:
        flags = [
            "--model",
            folders["t5"],
            "--batch",
            name.stem,
            "--steps",
            "1",
            "--warmup",
            "0",
            "--device",
            "cpu",
            "--quiet",
        ]
        assert main(["smop", *flags, "--output", str(name)]) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["bench_table.py", *map(str, names)])
    bench_table.main()
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("smop: ")
    assert told[2].startswith("| model | what |")
    assert len(told) == 4 + 2 * 3


def test_bad_input_is_a_sentence() -> None:
    with pytest.raises(UserError, match="no benchmark 'speed'"):
        main(["speed"])
    with pytest.raises(UserError, match=r"--runs.*see softprompts bench training --help"):
        main(["training", "--runs", "many"])
    with pytest.raises(UserError, match="at least 1"):
        main(["training", "--steps", "0"])
    with pytest.raises(UserError, match="decoder-only"):
        main(["decoding", "--model", "t5-tiny", "--device", "cpu"])
