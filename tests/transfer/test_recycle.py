"""Recycling: exact where embeddings are rotated, by words elsewhere, or a clear error."""

import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import softprompts
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone, EncoderDecoder
from softprompts.cli import main as cli
from softprompts.cli.recycle import main
from softprompts.config import Choice, PromptConfig
from softprompts.errors import UserError
from softprompts.files import write_json
from softprompts.files.tensors import write_tensors
from softprompts.library.library import Library
from softprompts.prompt.prompt import Prompt, folded_prompt
from softprompts.transfer.recycle import recycle, shared_words
from softprompts.transfer.settings import Recycling
from softprompts.tuning import Predictor

from ..models import random_t5


def rotation(size: int) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(1)))[0]


def rotated(backbone: Backbone, scale: float = 3.0, tokenizer: Any = None) -> Backbone:
    """The model with its embeddings rotated and scaled, perhaps with another vocabulary."""
    model = copy.deepcopy(backbone.model)
    table = model.get_input_embeddings().weight
    table.data.copy_(scale * table @ rotation(table.shape[1]))
    return EncoderDecoder(model, tokenizer or backbone.tokenizer, "rotated")


def same_in_other_coordinates(backbone: Backbone) -> Backbone:
    """A T5 that computes the same: all that reads or writes the residual stream is rotated.

    The gains of its norms are 1, as in a new T5.
    """
    model = rotated(backbone, scale=1.0).model
    matrix = rotation(backbone.hidden)
    for name, weight in model.named_parameters():
        kind = name.split(".")[-2]
        if kind in ("q", "k", "v", "wi_0", "wi_1"):
            weight.data.copy_(weight @ matrix)
        elif kind in ("o", "wo"):
            weight.data.copy_(matrix.T @ weight)
    return EncoderDecoder(model, backbone.tokenizer, "same")


def other_order(backbone: Backbone, shared: int) -> tuple[Any, list[int]]:
    """A tokenizer with reversed ids and `shared` common pieces; the old id of each new one."""
    usable = set(backbone.common_pieces(shared).tolist())
    state = json.loads(backbone.tokenizer.backend_tokenizer.to_str())
    pieces = state["model"]["vocab"]
    order = [*range(3), *reversed(range(3, len(pieces)))]
    state["model"]["vocab"] = [
        [pieces[old][0] if old in usable or old < 3 else f"q{old}", pieces[old][1]] for old in order
    ]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    return tokenizer, order


def mixture(vectors: Tensor) -> Prompt:
    router = torch.randn(len(vectors), vectors.shape[2], generator=torch.Generator().manual_seed(3))
    return folded_prompt(
        vectors,
        {"weight": router},
        PromptConfig(count=len(vectors), length=vectors.shape[1], route=Choice("top1")),
    )


def random_vectors(count: int, hidden: int) -> Tensor:
    return torch.randn(count, 5, hidden, generator=torch.Generator().manual_seed(2))


def test_least_squares_is_exact_where_the_space_is_rotated_and_scaled(t5: Backbone) -> None:
    prompt = folded_prompt(random_vectors(1, t5.hidden))
    recycled = recycle(prompt, t5, rotated(t5))
    assert torch.allclose(recycled.table, 3 * prompt.table @ rotation(t5.hidden), atol=1e-3)
    assert (recycled.config.length, recycled.config.count) == (5, 1)


def test_a_model_that_computes_the_same_gives_the_same_answers(t5: Backbone) -> None:
    other, labels, texts = (
        same_in_other_coordinates(t5),
        ["negative", "positive"],
        ["what a lovely film", "never again"],
    )
    for prompt in (
        folded_prompt(random_vectors(1, t5.hidden)),
        mixture(random_vectors(3, t5.hidden)),
    ):
        expected = Predictor(t5, prompt, labels).probabilities(texts)
        mapped = Predictor(other, recycle(prompt, t5, other), labels).probabilities(texts)
        unmapped = Predictor(other, prompt, labels).probabilities(texts)
        assert mapped == [pytest.approx(row, rel=1e-3) for row in expected]
        assert unmapped != [pytest.approx(row, rel=1e-3) for row in expected]


def test_a_mixture_is_mapped_with_its_router(t5: Backbone) -> None:
    prompt, other = mixture(random_vectors(3, t5.hidden)), rotated(t5)
    recycled = recycle(prompt, t5, other)
    assert torch.allclose(recycled.table, 3 * prompt.table @ rotation(t5.hidden), atol=1e-3)
    ids = t5.common_pieces(50)
    before, after = (
        b.input_embeddings(ids) @ p.router_tensors()["weight"].T
        for p, b in ((prompt, t5), (recycled, other))
    )
    assert torch.allclose(before, after, atol=1e-3)


def test_only_shared_tokens_are_used(t5: Backbone) -> None:
    tokenizer, order = other_order(t5, shared=400)
    model = copy.deepcopy(t5.model)
    table = model.get_input_embeddings().weight
    noise = torch.randn(table.shape, generator=torch.Generator().manual_seed(4))
    shared = set(t5.common_pieces(400).tolist())
    for new, old in enumerate(order):
        table.data[new] = (
            t5.input_embeddings(torch.tensor(old)) if old in shared else 50 * noise[new]
        ) @ rotation(t5.hidden)
    other = EncoderDecoder(model, tokenizer, "other")
    pairs = shared_words(t5, other)
    assert pairs[:, 0].tolist() == t5.common_pieces(400).tolist()
    assert [order[new] for new in pairs[:, 1].tolist()] == pairs[:, 0].tolist()
    prompt = folded_prompt(random_vectors(1, t5.hidden))
    assert torch.allclose(
        recycle(prompt, t5, other).table, prompt.table @ rotation(t5.hidden), atol=1e-3
    )
    with pytest.raises(
        UserError,
        match="share 20 tokens, and a linear map needs 32; use method='words'",
    ):
        recycle(prompt, t5, other, Recycling(words=20))


def test_a_vector_near_a_token_becomes_that_token(t5: Backbone) -> None:
    other = rotated(t5)
    ids = t5.common_pieces(300)[[7, 100, 250]]
    prompt = folded_prompt((2 * t5.input_embeddings(ids) + 0.01)[None])
    assert torch.allclose(recycle(prompt, t5, other, "words").table[0], other.input_embeddings(ids))
    several = recycle(prompt, t5, other, Recycling("words", nearest=2)).table[0]
    cosines = torch.nn.functional.cosine_similarity(several, other.input_embeddings(ids))
    assert bool((cosines > 0.7).all())
    assert bool((cosines < 0.999).all())


def test_tokens_that_begin_words_are_distinguished(t5: Backbone) -> None:
    """BERT's `##ing` is T5's `ing` and its `great` T5's `▁great`; GPT-2 writes `Ġgreat`."""
    marks = {
        "bert": Tokenizer(
            models.WordPiece({"[UNK]": 0, "great": 1, "##ing": 2, "ing": 3}, unk_token="[UNK]")
        ),
        "gpt2": Tokenizer(models.BPE({"Ġgreat": 1, "ing": 2, "great": 3}, [])),
    }
    for tokenizer in marks.values():
        other: Any = SimpleNamespace(
            tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer),
            common_pieces=lambda _: torch.arange(1, 4),
        )
        pairs = shared_words(t5, other).tolist()
        spelled = [(t5.tokenizer.convert_ids_to_tokens(ours), theirs) for ours, theirs in pairs]
        assert {("▁great", 1), ("ing", 2)} <= set(spelled)
        assert ("ing", 3) not in spelled


def test_prompts_that_cannot_be_mapped_are_reported(t5: Backbone) -> None:
    other = rotated(t5)
    with pytest.raises(UserError, match="method is 'sideways'; choose one of least-squares, words"):
        recycle(folded_prompt(random_vectors(1, t5.hidden)), t5, other, "sideways")
    with pytest.raises(UserError, match="router of a mixture cannot be mapped by words"):
        recycle(mixture(random_vectors(2, t5.hidden)), t5, other, "words")
    headed = folded_prompt(
        random_vectors(1, t5.hidden), like=PromptConfig(head=Choice("linear")), head=(2, t5.hidden)
    )
    with pytest.raises(UserError, match="linear head"):
        recycle(headed, t5, other)
    with pytest.raises(UserError, match="no vectors"):
        recycle(folded_prompt(torch.zeros(1, 0, t5.hidden)), t5, other)


def saved(folder: Path, toy: Path, model: Backbone, **settings: Any) -> Path:
    model.model.save_pretrained(folder / "old")
    model.tokenizer.save_pretrained(folder / "old")
    softprompts.tune(
        model=str(folder / "old"),
        train=str(toy),
        text="review",
        label="mood",
        steps=3,
        batch_size=4,
        output=folder / "run",
        device="cpu",
        dtype="fp32",
        preset="prompt-tuning",
        prompt={"length": 4},
        **settings,
    )
    new = rotated(model, scale=1.0)
    new.model.save_pretrained(folder / "new")
    new.tokenizer.save_pretrained(folder / "new")
    return folder / "run"


def test_the_command_writes_a_prompt_that_can_be_used_and_tuned(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tmp_path, toy_csv, random_t5(vocab_size=16100))
    out, options = tmp_path / "out", ["--model", str(tmp_path / "new"), "--device", "cpu"]
    assert main([str(run), *options, "--output", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    card = RunFolder(out).card()
    assert printed == card.plain() | {"folder": str(out)}
    assert card.lineage is not None
    assert card.lineage.recycled_from == str(run)
    assert card.lineage.metrics == RunFolder(run).card().metrics
    assert card.lineage.how["words"] > 5000
    assert card.metrics == {}
    used = softprompts.load(out, device="cpu", dtype="fp32")
    assert used.backbone.name == str(tmp_path / "new")
    assert set(used.predict(["never again"], "labels")) <= {"negative", "positive"}
    started = softprompts.tune(
        model=str(tmp_path / "new"),
        train=str(toy_csv),
        text="review",
        label="mood",
        steps=1,
        lr=1e-9,
        preset="prompt-tuning",
        prompt={"length": 4, "start": {"kind": "prompt", "sources": [str(out)]}},
        device="cpu",
        dtype="fp32",
    )
    assert torch.allclose(started.prompt.table, used.prompt.table, atol=1e-4)


def test_the_command_reports_bad_input_and_changes_nothing(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tmp_path, toy_csv, random_t5(vocab_size=16100))
    new, old, out = (str(tmp_path / name) for name in ("new", "old", "out"))

    def refused(*argv: str) -> str:
        with pytest.raises(UserError) as error:
            main([*argv, "--device", "cpu"])
        return str(error.value)

    assert "There is no prompt at" in refused(
        str(tmp_path / "none"), "--model", new, "--output", out
    )
    assert "name the right one with --from-model" in refused(
        str(run), "--model", new, "--from-model", new, "--output", out
    )
    stale = json.loads((run / "prompt.json").read_text())
    write_json(
        shutil.copytree(run, tmp_path / "stale") / "prompt.json",
        stale | {"backbone": stale["backbone"] | {"fingerprint": "abc"}},
    )
    message = refused(str(tmp_path / "stale"), "--model", new, "--output", out)
    assert f"was tuned on another version of {old}; name the right one with --from-model" in message
    assert "itself; use it as it is" in refused(str(run), "--model", old, "--output", out)
    assert "holds a run;" in refused(str(run), "--model", new, "--output", str(run))
    assert "The output folder has no name" in refused(str(run), "--model", new, "--output", "")
    assert "ridge is 0.0" in refused(str(run), "--model", new, "--output", out, "--ridge", "0")
    assert not (tmp_path / "out").exists()
    assert (
        main(
            [
                str(run),
                "--model",
                new,
                "--output",
                out,
                "--method",
                "words",
                "--nearest",
                "3",
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    assert "already holds prompt.json" in refused(str(run), "--model", new, "--output", out)
    write_tensors(Path(out) / "embedding.safetensors", {"vectors": torch.ones(1, 4, 32)})
    library = Library(tmp_path / "library")
    library.add(run, "mine")
    assert (
        main(
            [
                "mine",
                "--library",
                str(library.folder),
                "--model",
                new,
                "--output",
                out,
                "--overwrite",
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    assert RunFolder(Path(out)).embedding() is None, "the embedding of another prompt is removed"
    library.add(Path(out), "theirs")
    capsys.readouterr()
    assert cli(["prompts", "show", "theirs", "--library", str(library.folder)]) == 0
    assert f"started from  mine, of {old}" in capsys.readouterr().out
    assert RunFolder(Path(out)).card().plain()["lineage"]["how"]["method"] == "least-squares"
