"""The benchmarks run, compare with PEFT, and give no times where the two sides differ."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, MptConfig

from softprompts.analysis.flops import Architecture
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Causal
from softprompts.bench import inference, learners, training
from softprompts.bench.flops import t5_flops
from softprompts.cli import main as cli
from softprompts.cli.bench import main
from softprompts.errors import UserError

from ..conftest import DATA
from ..models import byte_tokenizer, random_masked, random_model, random_t5
from ..scripts import load_script

TRAINING = [
    *("training", "--prompt", "5", "--batch", "4", "--steps", "2", "--warmup", "1"),
    *("--device", "cpu"),
]
DECODING = [
    *("decoding", "--prompt", "6", "--text", "5", "--new-tokens", "4", "--batches", "1,3"),
    *("--rounds", "2", "--device", "cpu"),
]
INFERENCE = [
    *("inference", "--tasks", "5", "--longest", "12", "--new-tokens", "3", "--rounds", "2"),
    *("--warmup", "1", "--device", "cpu"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tiny random models on disk."""
    folders = {}
    for kind in ("t5", "llama"):
        folder, backbone = tmp_path_factory.mktemp(kind), random_model(kind)
        backbone.model.save_pretrained(folder)
        backbone.tokenizer.save_pretrained(folder)
        folders[kind] = str(folder)
    return folders


@pytest.fixture
def peft() -> None:
    pytest.importorskip("peft", reason="PEFT is not installed")


def result(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*argv, "--json", "--quiet"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {"device", "kind", "dtype", "threads"} <= printed["machine"].keys()
    assert printed["versions"]["torch"] == torch.__version__
    return printed


def check_spread(spread: dict[str, float]) -> None:
    assert 0 < spread["p10"] <= spread["median"] <= spread["p90"]


def check_agreement(peers: dict[str, Any], modes: list[str]) -> None:
    assert list(peers) == modes
    for peer in peers.values():
        assert peer["agreement"] == 1
        check_spread(peer["seconds"])
        check_spread(peer["ratio"])


@pytest.mark.usefixtures("peft")
def test_training_takes_the_same_steps_as_peft(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "deep" / "training.json"
    flags = ["--runs", "3", "--alone", "2", "--peers", "eager,autocast", "--output", str(output)]
    measured = result([*TRAINING, "--model", folders["t5"], *flags], capsys)
    assert json.loads(output.read_text()) == measured
    assert measured["settings"]["batch"] == 4
    assert list(measured["subjects"]) == ["peft eager", "peft autocast", "ours", "cohort"]
    differences = measured["losses"]["max_relative_difference"]
    assert differences.keys() == {"peft autocast", "ours", "cohort"}
    assert differences["cohort"] < 1e-5
    assert measured["subjects"]["cohort"]["runs"] == 3
    assert measured["ratios"]["cohort"].keys() == {"peft eager", "peft autocast", "ours"}
    for subject in measured["subjects"].values():
        check_spread(subject["seconds"])
        assert subject["tflops"] > 0
        assert subject["peak_gib"] is None
    for ratios in measured["ratios"].values():
        for ratio in ratios.values():
            check_spread(ratio)
    assert measured["padding"] > 1


@pytest.mark.usefixtures("peft")
def test_training_of_a_decoder_only_model(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = result([*TRAINING, "--model", folders["llama"], "--runs", "1"], capsys)
    assert measured["losses"]["max_relative_difference"]["ours"] < 1e-4
    assert measured["subjects"]["ours"]["tflops"] is None


@pytest.mark.usefixtures("peft")
@pytest.mark.skipif(not (DATA / "glue" / "sst2").exists(), reason="SST-2 is not here")
def test_training_on_sst2(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--runs", "2", "--workload", "sst2", "--data-dir", str(DATA)]
    measured = result([*TRAINING, "--model", folders["t5"], *flags], capsys)
    assert measured["losses"]["max_relative_difference"]["cohort"] < 1e-4


@pytest.mark.usefixtures("peft")
def test_a_peer_that_learns_something_else_is_noticed(
    folders: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    start = training.start
    monkeypatch.setattr(training, "start", lambda *args: start(*args) + 5.0)
    output = tmp_path / "none.json"
    flags = ["--model", folders["t5"], "--runs", "1", "--output", str(output)]
    assert cli(["bench", *TRAINING, *flags]) == 1
    assert "do not train the same way: at step 0 of run 0" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.usefixtures("peft")
def test_a_cohort_that_mixes_its_rows_up_is_noticed(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    init = learners.OurRuns.__init__

    def swap_targets(self: learners.OurRuns, runs: Any, compiles: bool) -> None:
        init(self, runs, compiles)
        if len(runs) > 1:
            runs[0].targets, runs[1].targets = runs[1].targets, runs[0].targets

    monkeypatch.setattr(learners.OurRuns, "__init__", swap_targets)
    assert cli(["bench", *TRAINING, "--model", folders["t5"], "--runs", "2"]) == 1
    assert "cohort and peft eager do not train the same way" in capsys.readouterr().err


def broken(*args: Any, **options: Any) -> None:
    """In place of a compiler, or of what it made."""
    raise RuntimeError("no compiler\nat all")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[torch.nn.Module]:
    """The modules that are compiled, by a backend that takes no time."""
    modules: list[torch.nn.Module] = []
    compile_module = torch.nn.Module.compile

    def fast(self: torch.nn.Module, **options: Any) -> None:
        modules.append(self)
        compile_module(self, backend="eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", fast)
    return modules


@pytest.mark.usefixtures("peft")
def test_a_peer_whose_layers_are_compiled_learns_the_same(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], compiled: list[torch.nn.Module]
) -> None:
    measured = result(
        [*TRAINING, "--model", folders["t5"], "--runs", "1", "--peers", "eager,regions"], capsys
    )
    assert measured["losses"]["max_relative_difference"]["peft regions"] < 1e-4
    assert {type(layer).__name__ for layer in compiled} == {"T5Block"}
    assert not measured["left_out"]


@pytest.mark.usefixtures("peft")
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
    measured = result([*argv, "--model", folders[kind], "--peers", "eager,regions"], capsys)
    assert {type(module).__name__ for module in compiled} == {layer}
    for part in measured["ways"].values() if kind == "t5" else measured["batches"]:
        check_agreement(part["peft"], ["eager", "regions"])
        assert not part["left_out"]


@pytest.mark.usefixtures("peft")
def test_a_compiled_peer_that_cannot_answer_is_left_out(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **_: setattr(self, "forward", broken)
    )
    measured = result([*INFERENCE, "--model", folders["t5"], "--peers", "eager,regions"], capsys)
    for scoring in measured["ways"].values():
        check_agreement(scoring["peft"], ["eager"])
        assert scoring["left_out"] == {"regions": "RuntimeError: no compiler"}


@pytest.mark.usefixtures("peft")
def test_a_compiled_peer_that_fails_is_recorded_and_the_rest_counts(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", broken)
    measured = result(
        [*TRAINING, "--model", folders["t5"], "--runs", "1", "--peers", "eager,buckets"], capsys
    )
    assert measured["left_out"] == {"peft buckets": "RuntimeError: no compiler"}
    assert measured["fastest"] == "peft eager"


@pytest.mark.usefixtures("peft")
def test_inference_gives_the_answers_peft_gives(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = result([*INFERENCE, "--model", folders["t5"]], capsys)
    assert measured["ways"].keys() == {"labels", "generate"}
    assert measured["prompt_tokens"]["shortest"] < measured["prompt_tokens"]["longest"] <= 12
    for scoring in measured["ways"].values():
        check_spread(scoring["ours"])
        check_agreement(scoring["peft"], ["eager"])


@pytest.mark.usefixtures("peft")
def test_answers_that_differ_are_noticed(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference.SwitchingPeft, "best_label", lambda self, text: "maybe")
    assert cli(["bench", *INFERENCE, "--model", folders["t5"]]) == 1
    assert "agree on 0.0% of the answers" in capsys.readouterr().err


@pytest.mark.usefixtures("peft")
def test_decoding_generates_the_tokens_peft_generates(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = result([*DECODING, "--model", folders["llama"]], capsys)
    assert [batch["batch"] for batch in measured["batches"]] == [1, 3]
    for batch in measured["batches"]:
        check_spread(batch["read"])
        check_spread(batch["remembered"])
        check_agreement(batch["peft"], ["eager"])


def test_smop_saves_what_its_shorter_prompt_saves(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--batch", "4", "--steps", "2", "--warmup", "1", "--device", "cpu"]
    measured = result(["smop", "--model", folders["t5"], *flags], capsys)
    assert measured["subjects"].keys() == {"prompt-tuning", "smop"}
    assert (
        0.3 < measured["savings"]["flops"] < 0.7
    )  # 5 instead of 100 tokens before texts of about 115
    assert measured["savings"]["memory"] is None  # not measured on a CPU
    assert measured["paper"]["time"] == 0.146


def test_the_formula_matches_torch() -> None:
    backbone = random_t5(vocab_size=300)
    backbone.model.set_attn_implementation("eager")
    embeds = torch.randn(3, 24, backbone.hidden, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        loss = backbone.model(
            inputs_embeds=embeds, labels=torch.ones(3, 8, dtype=torch.long), use_cache=False
        ).loss
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    architecture = Architecture.of(backbone.model, backbone.family)
    flops = t5_flops(architecture, [24] * 3, [8] * 3)
    assert flops.forward == forward.get_total_flops()
    # the backward pass of the decoder's first self-attention is not needed
    assert flops.step == pytest.approx(
        forward.get_total_flops() + backward.get_total_flops(), rel=0.05
    )


def test_tables_of_several_results(
    folders: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [tmp_path / f"{batch}.json" for batch in (2, 3)]
    for name in names:
        flags = ["--batch", name.stem, "--steps", "1", "--warmup", "0", "--device", "cpu"]
        command = ["smop", "--model", folders["t5"], *flags, "--quiet", "--output", str(name)]
        assert main(command) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["bench_table.py", *map(str, names)])
    load_script("benchmarks/bench_table.py").main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("smop: ")
    assert lines[2].startswith("| model | quantity |")
    assert len(lines) == 4 + 2 * 3


def test_bad_input_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="no benchmark 'speed'"):
        main(["speed"])
    with pytest.raises(UserError, match="runs is 'many'; give a whole number"):
        main(["training", "--runs", "many"])
    with pytest.raises(UserError, match="at least 1"):
        main(["training", "--steps", "0"])
    with pytest.raises(UserError, match="decoder-only"):
        main(["decoding", "--model", "t5-tiny", "--device", "cpu"])


@pytest.mark.usefixtures("peft")
def test_training_of_an_encoder_whose_vocabulary_lacks_the_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows are predicted as words all the same, and not with a linear head."""
    RunFolder(tmp_path).save_model(random_masked("bert"))
    measured = result([*TRAINING, "--model", str(tmp_path / "model"), "--runs", "1"], capsys)
    assert measured["losses"]["max_relative_difference"]["ours"] < 1e-4


@pytest.mark.usefixtures("peft")
def test_a_model_whose_heads_peft_does_not_find(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = MptConfig(vocab_size=400, d_model=32, n_layers=1, n_heads=4, max_seq_len=64)
    model = AutoModelForCausalLM.from_config(config)
    RunFolder(tmp_path).save_model(Causal(model, byte_tokenizer(), "mpt"))
    chosen = ["--model", str(tmp_path / "model")]
    measured = result([*TRAINING, *chosen, "--runs", "1"], capsys)
    assert measured["losses"]["max_relative_difference"]["ours"] < 1e-4
    with pytest.raises(UserError, match="cannot cache a prompt"):
        main([*DECODING, *chosen])


def test_an_encoder_that_cannot_fill_masks_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path).save_model(random_masked("minilm"))
    with pytest.raises(UserError, match="has no output layer for words"):
        main(["training", "--model", str(tmp_path / "model"), "--device", "cpu"])
