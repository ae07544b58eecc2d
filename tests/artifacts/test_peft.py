"""PEFT both ways, checked with PEFT itself: we read what it saves, it loads what we write, and the
logits are the same."""

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from softprompts.artifacts.peft import read_adapter, write_adapter
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone, Causal, EncoderDecoder, Masked
from softprompts.cli import main
from softprompts.config import Choice, PromptConfig, run_config
from softprompts.errors import UserError
from softprompts.prompt import Material
from softprompts.prompt.prompt import build_prompt
from softprompts.tasks import load_task
from softprompts.tuning.tune import tune_config
from softprompts.tuning.tuned import import_peft, load

from ..cards import card
from ..conftest import GOLDEN, golden
from ..models import (
    KINDS,
    TEXTS,
    byte_tokenizer,
    our_log_probs,
    peft_log_probs,
    random_model,
    word_tokenizer,
)

peft = importlib.import_module("peft") if importlib.util.find_spec("peft") else None
needs_peft = pytest.mark.skipif(peft is None, reason="PEFT is not installed")
WORDED = [kind for kind in KINDS if kind != "minilm"]


@needs_peft
@pytest.mark.parametrize("shape", ["direct", "residual", "encoder"])
@pytest.mark.parametrize("kind", WORDED)
@torch.no_grad()
def test_peft_loads_what_we_export_with_the_same_logits(
    kind: str, shape: str, tmp_path: Path
) -> None:
    backbone = random_model(kind)
    prompt = build_prompt(
        PromptConfig(length=5, shape=Choice(shape)), Material(backbone), 0, backbone.unit
    )
    write_adapter(tmp_path, prompt.fold(), backbone.family, backbone.name)
    model = peft.PeftModel.from_pretrained(random_model(kind).model, tmp_path).eval()
    expected = peft_log_probs(backbone, model, 5)
    torch.testing.assert_close(
        our_log_probs(backbone, prompt.fold().table), expected, rtol=1e-4, atol=1e-4
    )
    assert not torch.allclose(
        our_log_probs(backbone, prompt.fold().table[:, :0]), expected, rtol=1e-4, atol=1e-4
    ), "the prompt matters"


@needs_peft
@pytest.mark.parametrize("kind", ["distilbert", "mpt"])
@torch.no_grad()
def test_peft_need_not_find_the_number_of_heads(kind: str, tmp_path: Path) -> None:
    """PEFT does not know what these models call it."""
    torch.manual_seed(0)
    backbone: Backbone
    if kind == "mpt":
        mpt = transformers.MptConfig(
            vocab_size=400, d_model=32, n_layers=2, n_heads=4, max_seq_len=64
        )
        backbone = Causal(AutoModelForCausalLM.from_config(mpt), byte_tokenizer(), kind)
    else:
        words = word_tokenizer()
        bert = transformers.DistilBertConfig(
            vocab_size=len(words), dim=32, hidden_dim=32, n_layers=2, n_heads=4
        )
        backbone = Masked(AutoModelForMaskedLM.from_config(bert), words, kind)
    prompt = build_prompt(PromptConfig(length=5), Material(backbone), 0, backbone.unit).fold()
    write_adapter(tmp_path, prompt, backbone.family, backbone.name)
    expected = our_log_probs(backbone, prompt.table)
    model = peft.PeftModel.from_pretrained(backbone.model, tmp_path).eval()
    actual = peft_log_probs(backbone, model, 5)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@needs_peft
@pytest.mark.parametrize("config", ["PromptTuningConfig", "PromptEncoderConfig"])
@pytest.mark.parametrize("kind", WORDED)
@torch.no_grad()
def test_we_import_what_peft_saves_with_the_same_logits(
    kind: str, config: str, tmp_path: Path
) -> None:
    backbone = random_model(kind)
    options = {"encoder_hidden_size": 16} if config == "PromptEncoderConfig" else {}
    settings = getattr(peft, config)(
        task_type=backbone.peft_task_type, num_virtual_tokens=6, **options
    )
    torch.manual_seed(3)
    model = peft.get_peft_model(random_model(kind).model, settings).eval()
    model.save_pretrained(tmp_path / "adapter")
    rows = load_file(tmp_path / "adapter" / "adapter_model.safetensors")["prompt_embeddings"]
    assert len(rows) == (12 if backbone.family == "encoder-decoder" else 6), "the dead second half"
    tuned = import_peft(tmp_path / "adapter", backbone=backbone, labels=["positive", "negative"])
    torch.testing.assert_close(
        our_log_probs(backbone, tuned.prompt.table),
        peft_log_probs(backbone, model, 6),
        rtol=1e-4,
        atol=1e-4,
    )
    tuned.save(tmp_path / "ours")
    again = load(tmp_path / "ours", backbone=backbone)
    assert again.predict(TEXTS, scoring="labels") == tuned.predict(TEXTS, scoring="labels")
    assert again.card.method.startswith("imported from PEFT")


def _rescore(path: Path, score: float) -> None:
    card = json.loads(path.read_text())
    card["metrics"] = dict.fromkeys(card["metrics"], score)
    path.write_text(json.dumps(card))


@needs_peft
def test_the_default_run_exports_a_mean_prompt_that_peft_loads_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run_config(
        {
            "device": "cpu",
            "task": {"task": "helpdesk/register", "cap": 8, "cap_validation": 6},
            "prompt": {"length": 2, "count": 3},
            "tuning": {"steps": 2, "batch_size": 4, "max_length": 40},
        }
    )
    tuned = tune_config(config, tmp_path / "run")
    assert tuned.prompt.config.count == 3, "the default is a mixture"
    output = tmp_path / "adapter"
    assert main(["prompts", "export", str(tmp_path / "run"), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "PEFT cannot route" in printed
    assert re.search(r"on 6 rows, where the mixture has [\d.]+ \(p = [\d.]+\);", printed)
    _rescore(tmp_path / "run" / "prompt.json", 1.5)
    again = ["prompts", "export", str(tmp_path / "run"), "--output", str(tmp_path / "again")]
    assert main(again) == 0
    printed = capsys.readouterr().out
    assert re.search(r"on 6 rows, where the mixture has 1\.5;", printed), "rows that disagree"
    model = peft.AutoPeftModelForSeq2SeqLM.from_pretrained(  # finds t5-tiny
        output, dtype=torch.float32
    ).eval()
    task = load_task(config.task)
    mean = tuned.averaged([example.input for example in task.validation]).prompt.table
    routed = torch.stack([tuned.averaged([e.input]).prompt.table for e in task.validation])
    torch.testing.assert_close(mean, routed.mean(0))
    with torch.no_grad():
        torch.testing.assert_close(
            our_log_probs(tuned.backbone, mean),
            peft_log_probs(tuned.backbone, model, 2),
            rtol=1e-4,
            atol=1e-4,
        )
    again = import_peft(output, labels=tuned.form.labels, device="cpu")
    assert again.backbone.name == "t5-tiny", "the bundled model by its name"
    texts = [example.input for example in task.validation]
    tuned.export_peft(tmp_path / "by-texts", texts)
    assert torch.equal(read_adapter(tmp_path / "by-texts").vectors, read_adapter(output).vectors)


@pytest.mark.parametrize(
    ("name", "auto"),
    [("peft_t5", AutoModelForSeq2SeqLM), ("peft_causal_gpt2", AutoModelForCausalLM)],
)
def test_the_official_adapters_are_read(name: str, auto: Any) -> None:
    numbers = golden(name)
    family = EncoderDecoder if name == "peft_t5" else Causal
    backbone = family(auto.from_pretrained(GOLDEN / f"{name}_model"), None, name)
    adapter = read_adapter(GOLDEN / f"{name}_adapter")
    assert adapter.task_type == backbone.peft_task_type
    torch.testing.assert_close(
        adapter.vectors, torch.tensor(numbers["prompt_used"]).view_as(adapter.vectors)
    )
    assert len(adapter.vectors) == numbers["num_virtual_tokens"]


@pytest.fixture
def adapter(tmp_path: Path, t5: Backbone) -> Path:
    write_adapter(
        tmp_path / "adapter",
        build_prompt(PromptConfig(length=5), Material(t5), 0).fold(),
        t5.family,
        t5.name,
    )
    return tmp_path / "adapter"


def edited(adapter: Path, **changes: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"peft_type": "LORA"}, "of type LORA, which is not a soft prompt"),
        ({"peft_type": "PREFIX_TUNING"}, "of type PREFIX_TUNING"),
        ({"task_type": "SEQ_CLS"}, "adapter for SEQ_CLS, whose trained head"),
        ({"task_type": "CAUSAL_LM"}, "is for a different model, not random-t5"),
        ({"num_virtual_tokens": 4}, "does not hold the 4 prompt vectors"),
        ({"num_virtual_tokens": None}, "does not hold the None prompt vectors"),
        ({"base_model_name_or_path": ["x"]}, "base model that .* names is invalid"),
        ({"task_type": ["x"]}, "whose trained head"),
        ({"peft_type": {}}, "which is not a soft prompt"),
    ],
)
def test_an_adapter_that_is_not_a_prompt_of_this_model_is_a_clear_error(
    adapter: Path, t5: Backbone, changes: dict[str, Any], why: str
) -> None:
    edited(adapter, **changes)
    with pytest.raises(UserError, match=why):
        import_peft(adapter, backbone=t5)


def test_an_adapter_that_names_no_model_needs_one(adapter: Path) -> None:
    for name in ("", None):
        edited(adapter, base_model_name_or_path=name)
        with pytest.raises(UserError, match="does not name its base model"):
            import_peft(adapter)


def test_corrupted_adapters_are_clear_errors(adapter: Path, t5: Backbone, tmp_path: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-40])
    with pytest.raises(UserError, match="corrupted"):
        import_peft(adapter, backbone=t5)
    save_file({"prompt_embeddings": torch.full((5, 32), float("nan"))}, weights)
    with pytest.raises(UserError, match="not finite"):
        import_peft(adapter, backbone=t5)
    save_file(
        {
            "prompt_embeddings": torch.zeros(5, 32),
            "base_model.classifier.weight": torch.zeros(2, 32),
        },
        weights,
    )
    with pytest.raises(UserError, match="trains more than its prompt"):
        import_peft(adapter, backbone=t5)
    save_file({"prompt_embeddings": torch.zeros(5, 8)}, weights)
    with pytest.raises(UserError, match="for a different model"):
        import_peft(adapter, backbone=t5)
    weights.rename(adapter / "adapter_model.bin")
    with pytest.raises(UserError, match="pickled, which is unsafe"):
        import_peft(adapter, backbone=t5)
    with pytest.raises(UserError, match=r"holds no adapter_config.json"):
        import_peft(tmp_path, backbone=t5)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"count": 4, "route": Choice("top1")}, "route an input among 4 prompts"),
        ({"place": "suffix"}, "is elsewhere"),
        ({"head": Choice("linear")}, "cannot hold this prompt's linear head"),
    ],
)
def test_what_peft_does_not_support_is_refused(
    config: dict[str, Any], why: str, tmp_path: Path
) -> None:
    backbone = random_model("minilm")
    prompt = build_prompt(
        PromptConfig(length=5, **config), Material(backbone, ["a", "b"], None, 32), 0
    )
    with pytest.raises(UserError, match=why):
        write_adapter(tmp_path / "adapter", prompt.fold(), backbone.family, backbone.name)
    assert not (tmp_path / "adapter").exists()


def test_a_mixture_that_folds_to_one_prompt_exports(tmp_path: Path) -> None:
    backbone = random_model("t5")
    prompt = build_prompt(
        PromptConfig(length=5, count=3, route=Choice("stochastic")), Material(backbone), 0
    )
    write_adapter(tmp_path, prompt.fold(), backbone.family, backbone.name)
    torch.testing.assert_close(read_adapter(tmp_path).vectors, prompt.table.mean(0))


def test_the_command_line_both_ways(
    tmp_path: Path, toy_csv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, back, ours = str(tmp_path / "adapter"), str(tmp_path / "back"), str(tmp_path / "run")
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    tune_config(
        run_config({"preset": "residual", "task": task, "tuning": {"steps": 4, "batch_size": 4}}),
        Path(ours),
    )
    assert main(["prompts", "export", ours, "--output", out]) == 0
    assert "PeftModel.from_pretrained" in capsys.readouterr().out
    labels = ["--labels", "negative,positive", "--text", "review", "--label", "mood"]
    assert main(["prompts", "import", out, "--output", back, "--json", *labels]) == 0
    assert json.loads(capsys.readouterr().out)["backbone"]["name"] == "t5-tiny"
    assert torch.equal(
        load_file(f"{back}/prompt.safetensors")["vectors"],
        load_file(f"{ours}/prompt.safetensors")["vectors"],
    )
    answers = []
    for folder in (ours, back):
        assert (
            main(["predict", folder, "--file", str(toy_csv), "--scoring", "labels", "--quiet"]) == 0
        )
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert main(["evaluate", back, "--file", str(toy_csv), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["majority"]["accuracy"] == 50.0
    for argv, why in (
        (["prompts", "export", ours, "--output", out], "already holds adapter_config.json"),
        (["prompts", "import", out, "--output", back], "already holds prompt.json"),
        (["prompts", "send", ours], "There is no action 'send'"),
        (
            ["prompts", "export", str(tmp_path / "nowhere"), "--output", out, "--overwrite"],
            "There is no prompt at",
        ),
        (["evaluate", back, "--quiet"], "was imported, so it has no rows"),
    ):
        assert main(argv) == 2
        assert why in capsys.readouterr().err
    assert main(["prompts", "import", out, "--output", back, "--overwrite"]) == 0, (
        "without labels it writes freely"
    )
    assert main(["predict", back, "what a lovely film", "--quiet", "--json"]) == 0
    assert main(["predict", back, "what a lovely film", "--scoring", "labels"]) == 2
    assert "has no labels to choose among; use --scoring generate" in capsys.readouterr().err


def test_an_imported_prompt_starts_a_run(
    adapter: Path, t5: Backbone, tmp_path: Path, toy_csv: Path
) -> None:
    """PEFT cannot do this: its prompts cannot be trained further."""
    imported = import_peft(adapter, backbone=t5, labels={"0": "no", "1": "yes"})
    assert imported.form.words == {"0": "no", "1": "yes"}
    assert imported.card.config["prompt"]["length"] == 5
    imported.save(tmp_path / "source")
    start = {"kind": "prompt", "sources": [str(tmp_path / "source")]}
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    config = run_config(
        {
            "preset": "residual",
            "task": task,
            "tuning": {"steps": 4, "batch_size": 4},
            "prompt": {"length": 5, "start": start},
        }
    )
    assert tune_config(config, None, backbone=t5).card.steps == 4


def test_saved_prompts_of_an_encoder_keep_their_place(tmp_path: Path) -> None:
    backbone = random_model("bert")
    assert isinstance(backbone, Masked)
    config = PromptConfig(length=5, place="after-bos")
    RunFolder(tmp_path).save(build_prompt(config, Material(backbone), 0), card(backbone))
    assert RunFolder(tmp_path).load()[0].config.place == "after-bos"
