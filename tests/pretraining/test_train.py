"""Whole runs on a CPU: the loss falls, a run that goes on ends as if it had never stopped, the folder is a backbone, bad input is told."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from softprompts.backbone import load_backbone
from softprompts.backbone.load import EMBEDDED
from softprompts.cli.pretrain import main
from softprompts.errors import UserError
from softprompts.pretraining import train
from softprompts.pretraining.config import PretrainConfig
from softprompts.pretraining.train import Pretraining, pretrain

from ..models import TOKENS, random_t5

Make = Callable[..., PretrainConfig]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def lines(folder: Path) -> list[dict[str, Any]]:
    """Metrics, without what a clock says."""
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in read]


def test_the_loss_falls(make: Make, tmp_path: Path) -> None:
    card = pretrain(make(steps=80, batch_tokens=1600, lr=0.02, log_every=20), tmp_path / "run")
    curve = [line["loss"] for line in lines(tmp_path / "run") if "loss" in line]
    assert curve[-1]["all"] < curve[0]["all"] - 0.5
    assert all(curve[-1][name] < curve[0][name] for name in ("span", "prefix", "tasks"))
    assert card["losses"]["held_out"]["all"] < curve[0]["all"] - 0.5
    assert card["losses"]["blind"].keys() == card["losses"]["held_out"].keys()
    assert card["tokens"] == 80 * make(batch_tokens=1600).step_tokens
    assert json.loads((tmp_path / "run" / "training.json").read_text()) == card
    assert card["data"]["text"]["documents"] == 60
    assert card["data"]["tasks"]["examples"] == 40
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "optimizer": "adamw",
            "dropout": 0.1,
            "microbatches": 2,
            "tie": False,
            "objectives": {"span": 0.5, "tasks": 0.5},
        },
    ],
)
def test_a_run_that_pauses_after_every_step_ends_the_same(
    make: Make, tmp_path: Path, settings: dict[str, Any]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    pretrain(make(**settings), whole)
    card = pretrain(make(**settings, pause_after=1e-9), parts)
    for _ in range(5):
        assert not card.get("finished")
        assert not (parts / "model.safetensors").exists()
        card = pretrain(make(**settings, pause_after=1e-9), parts)
    assert card["finished"]
    assert same(whole, parts)
    assert lines(whole) == lines(parts)


def test_a_run_that_was_killed_goes_on(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    config = make(
        checkpoint_every=2, tokenizer=None, vocabulary=150, sentinels=9
    )  # a tokenizer of its own, kept for going on
    real = Pretraining.advance

    def die(run: Pretraining) -> torch.Tensor:
        if run.step == 5:
            raise MemoryError
        return real(run)

    monkeypatch.setattr(Pretraining, "advance", die)
    with pytest.raises(MemoryError):
        pretrain(config, killed)
    shutil.copytree(killed, whole)
    (whole / "checkpoint.safetensors").unlink()
    monkeypatch.setattr(Pretraining, "advance", real)
    monkeypatch.setattr(train, "train_tokenizer", None)
    pretrain(config, killed)
    pretrain(make(checkpoint_every=2, vocabulary=150, sentinels=9, tokenizer=str(killed)), whole)
    assert same(whole, killed)
    assert lines(whole) == lines(killed)


def test_microbatches_change_nothing_but_memory(make: Make, tmp_path: Path) -> None:
    for parts in (1, 5):
        pretrain(
            make(microbatches=parts, batch_tokens=300, optimizer="adamw", steps=1),
            tmp_path / str(parts),
        )
    one, five = (weights(tmp_path / parts) for parts in ("1", "5"))
    assert all((one[name] - five[name]).abs().max() < 1e-6 for name in one)
    assert lines(tmp_path / "1")[0]["loss"] == pytest.approx(
        lines(tmp_path / "5")[0]["loss"], abs=1e-4
    )


@pytest.mark.parametrize("tie", [True, False])
def test_the_folder_is_a_backbone(
    make: Make, tmp_path: Path, tie: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Pretraining] = []
    real = train._loop
    monkeypatch.setattr(train, "_loop", lambda run, *rest: runs.append(run) or real(run, *rest))
    pretrain(make(tie=tie), tmp_path / "run")
    backbone = load_backbone(str(tmp_path / "run"), device="cpu", dtype="fp32")
    ids = backbone.tokenizer("the cat sat", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        ours, theirs = (
            model(input_ids=ids, decoder_input_ids=ids).logits
            for model in (runs[0].model.eval(), backbone.model)
        )
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert ("lm_head.weight" in weights(tmp_path / "run")) == (not tie)
    assert ours.shape[-1] % 128 == 0
    loss = json.loads((tmp_path / "run" / "training.json").read_text())["losses"]["held_out"]["all"]
    assert loss < 2 * math.log(ours.shape[-1])


def test_a_model_that_looks_at_what_it_reads_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    text = [str(path) for path in (Path(__file__).parents[2] / "docs").glob("*.md")]
    common: dict[str, Any] = {
        "text": text,
        "held_out": 0.2,
        "steps": 1,
        "batch_tokens": 1200,
        "input_length": 64,
        "lr": 1e-9,
        "processes": 1,
    }
    small = {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "num_heads": 2,
    }
    gaps = {}
    for name, settings in {
        "new": {"tokenizer": str(EMBEDDED["t5-tiny"]), **small},
        "t5-tiny": {"from_model": "t5-tiny"},
    }.items():
        told = pretrain(PretrainConfig(**common, **settings, device="cpu"), tmp_path / name)[
            "losses"
        ]
        gaps[name] = told["blind"]["span"] - told["held_out"]["span"]
    assert abs(gaps["new"]) < 0.02
    assert gaps["t5-tiny"] > 1


def test_going_on_from_a_model(make: Make, tmp_path: Path) -> None:
    """LM adaptation: prefix LM from what was pretrained."""
    pretrain(
        make(steps=40, batch_tokens=1600, lr=0.02, tie=False, saved="bf16"), tmp_path / "first"
    )
    adapted = make(
        from_model=str(tmp_path / "first"),
        tokenizer=None,
        objectives={"prefix": 1},
        lr=1e-6,
        steps=2,
    )
    card = pretrain(adapted, tmp_path / "second")
    before = json.loads((tmp_path / "first" / "training.json").read_text())["losses"]["held_out"][
        "prefix"
    ]
    assert abs(card["losses"]["held_out"]["prefix"] - before) < 0.3
    assert card["losses"]["held_out"].keys() == {"prefix"}
    assert weights(tmp_path / "first")["lm_head.weight"].dtype == torch.bfloat16
    assert weights(tmp_path / "second")["lm_head.weight"].dtype == torch.float32
    assert (tmp_path / "second" / "tokenizer.json").read_bytes() == (
        tmp_path / "first" / "tokenizer.json"
    ).read_bytes()


KINDS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "v1.0": ("T5", {"feed_forward_proj": "relu"}, True),
    "v1.1": ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, False),
    "a head apart, and scaled": ("T5", {"feed_forward_proj": "relu"}, False),
    "one matrix, not scaled": (
        "T5",
        {"feed_forward_proj": "relu", "tie_word_embeddings": False},
        True,
    ),
    "mt5": ("MT5", {"tie_word_embeddings": False}, False),
    "umt5": ("UMT5", {}, False),
}
"""The config's class, its settings, and whether embeddings and output share their matrix."""


def family_folder(kind: str, words: Any, folder: Path) -> None:
    """A tiny random model of T5's family as its folders are: tie_word_embeddings false where the config had it so."""
    name, more, tie = KINDS[kind]
    shape = {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "num_heads": 2,
        "vocab_size": 256,
    }
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**shape, **TOKENS, **more)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    if not tie:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | more))


@pytest.mark.filterwarnings("ignore:.*tied weights mapping.*")
@pytest.mark.parametrize("kind", KINDS)
def test_adaptation_goes_on_from_every_kind_of_t5(
    make: Make, words: Any, tmp_path: Path, kind: str
) -> None:
    """With a rate of almost nothing the model that comes out answers as the one that went in; with more it learns."""
    first, same_again = tmp_path / "first", tmp_path / "same"
    family_folder(kind, words, first)
    settings = {
        "from_model": str(first),
        "tokenizer": None,
        "objectives": {"prefix": 1},
        "warmup": 0,
    }
    card = pretrain(make(**settings, steps=1, lr=1e-9), same_again)
    assert card["model"]["model_type"] == KINDS[kind][0].lower()
    assert card["model"]["tie"] is KINDS[kind][2]
    assert card["model"]["feed_forward_proj"] == KINDS[kind][1].get(
        "feed_forward_proj", "gated-gelu"
    )
    before, after = (
        load_backbone(str(folder), device="cpu", dtype="fp32") for folder in (first, same_again)
    )
    ids = before.tokenizer("the cat sat on the mat", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        old, new = (
            backbone.model(input_ids=ids, decoder_input_ids=ids).logits
            for backbone in (before, after)
        )
    torch.testing.assert_close(old, new, atol=1e-4, rtol=1e-4)
    learnt = pretrain(make(**settings, steps=60, lr=0.01, batch_tokens=1600), tmp_path / "learnt")
    assert learnt["losses"]["held_out"]["prefix"] < card["losses"]["held_out"]["prefix"] - 0.5


def test_a_model_is_named_as_elsewhere(
    make: Make, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the embedded one's name, or by a hub id: here one whose files the hub's cache holds already."""
    card = pretrain(
        make(
            from_model="t5-tiny", tokenizer=None, objectives={"prefix": 1}, steps=1, batch_tokens=50
        ),
        tmp_path / "tiny",
    )
    assert card["model"]["d_model"] == 256
    family_folder("v1.0", words, tmp_path / "hub" / "models--some--model" / "snapshots" / "abc")
    (tmp_path / "hub" / "models--some--model" / "refs").mkdir()
    (tmp_path / "hub" / "models--some--model" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    card = pretrain(
        make(from_model="some/model", tokenizer=None, objectives={"prefix": 1}, steps=1),
        tmp_path / "run",
    )
    assert card["model"]["d_model"] == 16
    assert card["config"]["from_model"] == "some/model"


def test_a_hub_model_that_cannot_be_reached_is_told(make: Make, tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"^The model 'no/such-t5' cannot be loaded .* name t5-tiny, a model folder, or a hub id in reach",
    ):
        pretrain(make(from_model="no/such-t5", tokenizer=None), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_lacks_weights_is_told(make: Make, words: Any, tmp_path: Path) -> None:
    family_folder("v1.1", words, tmp_path / "first")
    kept = {
        name: weight
        for name, weight in weights(tmp_path / "first").items()
        if not name.startswith("decoder.block")
    }
    save_file(kept, tmp_path / "first" / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks \d+ weights, the first decoder"):
        pretrain(make(from_model=str(tmp_path / "first"), tokenizer=None), tmp_path / "run")


def test_the_card_tells_the_sizes_of_the_model_and_no_others(make: Make, tmp_path: Path) -> None:
    first = pretrain(make(steps=1, d_ff=48, tie=False), tmp_path / "first")
    second = pretrain(
        make(steps=1, from_model=str(tmp_path / "first"), tokenizer=None, d_ff=999),
        tmp_path / "second",
    )
    assert first["model"] == second["model"]
    assert (first["model"]["d_ff"], first["model"]["num_layers"], first["model"]["tie"]) == (
        48,
        1,
        False,
    )
    assert first["config"]["d_ff"] == 48
    assert not {"size", "d_ff", "tie", "vocabulary", "sentinels"} & second["config"].keys()


@pytest.mark.parametrize(
    "flags",
    [
        ["--size", "tiny"],
        ["--d-model", "999"],
        ["--vocabulary", "300"],
        ["--no-tie"],
        ["--sentinels", "9"],
    ],
)
def test_sizes_are_for_a_new_model_alone(make: Make, tmp_path: Path, flags: list[str]) -> None:
    with pytest.raises(
        UserError, match=r"is for a new model, and the one of --from has its own; leave it out\.$"
    ):
        main(
            [
                "--text",
                make().text[0],
                "--from",
                "t5-tiny",
                *flags,
                "--output",
                str(tmp_path / "run"),
            ]
        )


def test_nobodys_work_is_overwritten(make: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pretrain(make(), run)
    with pytest.raises(UserError, match="already holds a model"):
        pretrain(make(), run)
    with pytest.raises(UserError, match="begins from"):
        pretrain(make(from_model=str(run)), run, overwrite=True)
    with pytest.raises(UserError, match="20 sentinels"):
        pretrain(
            make(objectives={"span": 1}, input_length=4000, batch_tokens=10000), run, overwrite=True
        )
    assert (run / "training.json").exists(), "what cannot begin replaces nothing"
    pretrain(make(steps=3), run, overwrite=True)
    assert {line["step"] for line in lines(run)} == {2, 3}
    (run / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="not pretrained here"):
        pretrain(make(), run, overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other things than a model"):
        pretrain(make(), tmp_path / "other", overwrite=True)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_other_settings_or_data_do_not_go_on(make: Make, tmp_path: Path, text_file: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(text_file.read_text())
    pretrain(make(text=[str(text)], pause_after=1e-9), tmp_path / "run")
    with pytest.raises(UserError, match="other settings"):
        pretrain(make(text=[str(text)], lr=0.5), tmp_path / "run")
    text.write_text(text_file.read_text() + "\n\nmore")
    with pytest.raises(UserError, match=r"data of the run .* has changed"):
        pretrain(make(text=[str(text)]), tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="damaged"):
        pretrain(make(text=[str(text)]), tmp_path / "run")


def test_a_loss_that_is_no_number_fails(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    config = make()
    monkeypatch.setattr(
        Pretraining,
        "_losses",
        lambda run, inputs, targets: (torch.full((len(inputs),), math.nan),) * 2,
    )
    monkeypatch.setattr(torch.Tensor, "backward", lambda *_: None)
    flags = [
        "--text",
        config.text[0],
        "--tokenizer",
        str(config.tokenizer),
        "--d-model",
        "16",
        "--input-length",
        "24",
        "--device",
        "cpu",
    ]
    assert (
        main(
            [*flags, "--batch-tokens", "320", "--log-every", "1", "--output", str(tmp_path / "run")]
        )
        == 1
    )
    assert "lower --lr" in capsys.readouterr().err


def test_the_command(make: Make, tmp_path: Path, capsys: Any) -> None:
    config = make()
    flags = [
        "--text", config.text[0], "--tasks", config.tasks[0], "--objectives", "span=0.5,tasks=0.5", "--vocabulary", "150",
        "--sentinels", "9", "--d-model", "16", "--d-kv", "8", "--d-ff", "16", "--num-layers", "1", "--num-decoder-layers", "1",
        "--num-heads", "2", "--no-tie",
        "--input-length", "24", "--batch-tokens", "320", "--tokens", "1500", "--device", "cpu", "--processes", "1", "--no-compile",
    ]  # fmt: skip
    assert main([*flags, "--json", "--output", str(tmp_path / "run")]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["finished"]
    assert card["tokens"] >= 1500 > card["tokens"] * (card["steps"] - 1) / card["steps"]
    assert card["config"]["tie"] is False
    assert main([*flags, "--overwrite", "--output", str(tmp_path / "run")]) == 0
    assert f"the model is in {tmp_path / 'run'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--text", "gone.txt"], "gone.txt does not exist"),
        ([], "name files with --text"),
        (["--objectives", "tasks=1"], "name files with --tasks"),
        (["--text", "x", "--objectives", "mask=1"], "no objective 'mask'"),
        (["--text", "x", "--objectives", "span=0"], "No objective has a share"),
        (
            ["--text", "x", "--objectives", "span"],
            r"objectives is 'span'; give NAME=NUMBER pairs such as span=1,prefix=1\.$",
        ),
        (["--text", "x", "--objectives", ""], "such as span=1,prefix=1"),
        (
            ["--text", "x", "--sentinels", "1", "--input-length", "128"],
            r"hide 7 spans, .* 1 sentinels; .* raise --sentinels",
        ),
        (
            ["--text", __file__, "--vocabulary", "3"],
            r"vocabulary of 3 pieces is too small .*; raise --vocabulary",
        ),
        (
            ["--text", __file__, "--vocabulary", "40"],
            r"vocabulary of 40 pieces is too small .*; raise --vocabulary",
        ),
        (
            ["--text", "x", "--target-length", "50"],
            "span corruption of inputs of 512 tokens writes 114",
        ),
        (["--text", "x", "--batch-tokens", "500"], "one row takes 626"),
        (
            ["--text", "x", "--batch-tokens", "2000", "--microbatches", "2"],
            "cannot be cut into 2 equal parts",
        ),
        (
            ["--text", "x", "--batch-tokens", "2000", "--objectives", "span=1,prefix=0.01"],
            "less than one of 3 rows",
        ),
        (["--text", "x", "--steps", "0"], "steps is 0"),
        (["--text", "x", "--lr", "nan"], "lr is 'nan'"),
        (["--text", "x", "--optimizer", "sgd"], "choose one of muon, adamw"),
        (["--text", "x", "--sizes", "3"], "see softprompts pretrain --help"),
        (["--text", __file__, "--from", "gone"], "The model 'gone' cannot be loaded"),
        (["--text", __file__, "--device", "tpu9"], "no device 'tpu9'"),
        (["--text", __file__, "--definitions", __file__], "cannot be read as JSON"),
    ],
)
def test_bad_settings_are_told(tmp_path: Path, flags: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        main([*flags, "--output", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_a_text_that_is_too_short_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("the cat sat on the mat")
    with pytest.raises(UserError, match="too few tokens"):
        main(
            [
                "--text",
                str(tmp_path / "short.txt"),
                "--vocabulary",
                "40",
                "--device",
                "cpu",
                "--output",
                str(tmp_path / "run"),
            ]
        )
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_no_t5_or_too_small_is_told(
    make: Make, tmp_path: Path, words_folder: Path
) -> None:
    shutil.copytree(words_folder, tmp_path / "bert")
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="bert model; pretraining goes on from a T5"):
        pretrain(make(from_model=str(tmp_path / "bert"), tokenizer=None), tmp_path / "run")
    pretrain(make(steps=1), tmp_path / "small")
    from softprompts.backbone.load import EMBEDDED

    with pytest.raises(UserError, match="fewer; take the tokenizer"):
        pretrain(
            make(from_model=str(tmp_path / "small"), tokenizer=str(EMBEDDED["t5-tiny"])),
            tmp_path / "run",
        )


def test_a_model_without_a_tokenizer_is_told(make: Make, tmp_path: Path) -> None:
    random_t5().model.save_pretrained(tmp_path / "bare")
    with pytest.raises(
        UserError, match=r"knows no words; take a copy of the model with its tokenizer files\.$"
    ):
        pretrain(
            make(from_model=str(tmp_path / "bare"), tokenizer=None, objectives={"prefix": 1}),
            tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_an_empty_corpus_is_told(make: Make, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    with pytest.raises(UserError, match="hold no text"):
        pretrain(make(text=[str(empty)]), tmp_path / "run")
    with pytest.raises(UserError, match="no text to train a tokenizer"):
        pretrain(
            make(text=[str(empty)], tasks=[], tokenizer=None, objectives={"span": 1}),
            tmp_path / "run",
        )


def test_help_names_every_setting(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert "--from VALUE" in told
    assert "--batch-tokens" in told
