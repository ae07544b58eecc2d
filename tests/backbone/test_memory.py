"""What is read once: prompts that a decoder-only model remembers, inputs that many candidates go on from. Nothing told changes by it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from softprompts.backbone import Backbone, Causal, writer
from softprompts.backbone.memory import Memory

from ..models import CAUSALS, ENCODER_DECODERS, KINDS, TOY, random_causal, random_model

TEXTS = [text for text, _ in TOY[:5]]
LENGTHS = [3, 7, 1]
WHO = [0, 1, 2, 1, 0]
"""The prompt of each text."""
ASKED = [
    ["positive", "negative"],
    ["it"],
    ["was great", "never", "the worst meal of my life"],
    ["positive", "negative"],
    ["it", "was"],
]
"""The labels of each text's own task."""


def prompts() -> Tensor:
    """Three prompts of different lengths [3, 7, 32]."""
    own = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    return torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(3)) * own.unsqueeze(-1)


def remembered(backbone: Causal) -> Memory:
    memory = backbone.remember(prompts(), torch.tensor(LENGTHS))
    assert memory is not None
    return memory.rows(torch.tensor(WHO), 7)


@contextmanager
def calls(backbone: Backbone, parts: Callable[[str], bool]) -> Iterator[list[tuple[str, int]]]:
    """The calls of some of the model's modules inside, each with the columns it was given."""
    seen: list[tuple[str, int]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda module, args, kwargs: seen.append(
            (name, next(t.shape[1] for t in (*args, *kwargs.values()) if torch.is_tensor(t)))
        )

    found: list[tuple[str, nn.Module]] = [
        (name, part) for name, part in backbone.model.named_modules() if parts(name)
    ]
    hooks = [part.register_forward_pre_hook(note(name), with_kwargs=True) for name, part in found]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("kind", CAUSALS)
def test_a_remembered_prompt_is_the_prompt(kind: str) -> None:
    """Prompts and texts of all lengths in one batch; gemma2's window is wider than these rows."""
    backbone = random_causal(kind)
    short = TEXTS if kind != "gemma2" else ["never", "I love", "it was", "the", "again"]
    text = backbone.embed_rows(backbone.tokenise(short, 40))
    read, given = prompts()[WHO], text._replace(given=torch.tensor(LENGTHS)[WHO])
    labels = [
        backbone.tokenise_targets(own)[:1] if kind == "gemma2" else backbone.tokenise_targets(own)
        for own in ASKED
    ]
    memory = remembered(backbone)
    torch.testing.assert_close(
        backbone.read(memory, text).logits, backbone.read(read, given).logits, rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(
        backbone.scores(memory, text, labels),
        backbone.scores(read, given, labels),
        rtol=1e-5,
        atol=1e-5,
    )
    assert torch.equal(backbone.generate(memory, text, 4), backbone.generate(read, given, 4))


def test_a_remembered_prompt_is_not_read() -> None:
    backbone = random_causal("llama")
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    memory = remembered(backbone)
    with calls(backbone, lambda name: name.endswith("layers.0")) as seen:
        backbone.scores(memory, text, backbone.tokenise_targets(["positive", "negative"]))
    assert seen[0][1] == text.mask.shape[1]
    assert len(seen) == 2, "the texts, and all candidates together"


def test_a_window_limits_what_is_remembered() -> None:
    backbone = random_causal("gemma2")
    memory = backbone.remember(prompts(), torch.tensor(LENGTHS))
    assert memory is not None
    assert memory.room == 16
    assert backbone.remember(torch.randn(1, 16, 32), torch.tensor([16])) is None, (
        "the first vectors have left the window"
    )
    assert backbone.remember(torch.randn(1, 0, 32), torch.tensor([0])) is None


def test_positions_that_stretch_forbid_it() -> None:
    backbone = random_causal("llama")
    backbone.model.config.rope_parameters = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 10000.0,
    }
    assert backbone.remember(prompts(), torch.tensor(LENGTHS)) is None


@pytest.mark.parametrize("kind", [*ENCODER_DECODERS, *CAUSALS])
@pytest.mark.parametrize("room", [1, 2**32])
def test_candidates_go_on_from_one_reading(
    kind: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row's own labels, a few at a time or all together, against the losses of whole rows; gemma2's window is full."""
    monkeypatch.setattr(writer, "ROOM", room)
    backbone = random_model(kind)
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))._replace(
        given=torch.tensor(LENGTHS)[WHO]
    )
    labels = [backbone.tokenise_targets(own) for own in ASKED]
    scores = backbone.scores(prompts()[WHO], text, labels)
    assert scores.shape == (5, 3)
    for row, own in enumerate(labels):
        for column, target in enumerate(own):
            alone = -backbone.losses(prompts()[WHO][row : row + 1], text.rows([row]), [target]).nll[
                0
            ]
            torch.testing.assert_close(scores[row, column], alone, rtol=1e-4, atol=1e-4)
        assert bool((scores[row, len(own) :] == -torch.inf).all())


@pytest.mark.parametrize("kind", ENCODER_DECODERS)
def test_what_was_encoded_gets_its_keys_once(kind: str) -> None:
    backbone = random_model(kind)
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    keys = {"bart": "encoder_attn.k_proj"}.get(kind, "EncDecAttention.k")
    with calls(backbone, lambda name: name.endswith((keys, "encoder"))) as seen:
        backbone.scores(
            prompts()[WHO],
            text,
            backbone.tokenise_targets([label for own in ASKED[:3] for label in own]),
        )
    names = [name for name, _ in seen]
    assert len(names) == len(set(names)) == 3, "the encoder and two layers' keys, each once"


@pytest.mark.parametrize("kind", KINDS)
def test_one_list_of_candidates_is_for_all_rows(kind: str) -> None:
    backbone = random_model(kind)
    if backbone.best_head(["positive"]) == "linear":
        pytest.skip("it has no words")
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    labels = backbone.tokenise_targets(["positive", "negative"])
    assert torch.equal(
        backbone.scores(prompts()[WHO], text, labels),
        backbone.scores(prompts()[WHO], text, [labels] * 5),
    )


@pytest.mark.parametrize("kind", [*ENCODER_DECODERS, *CAUSALS])
def test_each_row_ends_at_its_own_length(kind: str) -> None:
    backbone = random_model(kind)
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    limits = [2, 6, 1, 4, 3]
    whole, own = (
        backbone.generate(prompts()[WHO], text, 6),
        backbone.generate(prompts()[WHO], text, limits),
    )
    for row, limit in enumerate(limits):
        assert torch.equal(own[row, :limit], whole[row, : min(limit, own.shape[1])])
        assert bool((own[row, limit:] == backbone.pad).all())


def test_what_follows_an_end_is_no_word() -> None:
    """GPT-2's tokenizer has no pad, and the id that stands for one is an exclamation mark."""
    backbone = random_causal("gpt2")
    backbone.model.config.pad_token_id = backbone.pieces("!")[0]
    assert backbone.decode(torch.tensor([[backbone.pad]])) != [""]
    written = backbone.generate(
        prompts()[WHO], backbone.embed_rows(backbone.tokenise(TEXTS, 40)), [1, 4, 4, 4, 4]
    )
    assert backbone.decode(written[:1, 1:]) == [""]


def test_a_model_that_counts_columns_reads_its_prompts() -> None:
    """Pads between a remembered prompt and a text would count in MPT's and GPT-Neo's distances."""
    import transformers

    config = transformers.GPTNeoConfig(
        vocab_size=400, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=16,
        max_position_embeddings=128,
    )  # fmt: skip
    backbone = Causal(transformers.GPTNeoForCausalLM(config), random_model("gpt2").tokenizer, "neo")
    assert backbone.remember(prompts(), torch.tensor(LENGTHS)) is None


@pytest.mark.parametrize("kind", CAUSALS)
def test_steps_over_keys_and_values_that_stay_in_their_place_write_the_same(kind: str) -> None:
    """What a GPU records and replays, taken step by step; several times, so that what the last answer left behind does no harm."""
    backbone = random_causal(kind)
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 20))
    for seed in range(3):
        prompt = torch.randn(len(TEXTS), 4, 32, generator=torch.Generator().manual_seed(seed))
        backbone.records = False
        plain = backbone.generate(prompt, text, 12)
        backbone.records = True
        assert torch.equal(backbone.generate(prompt, text, 12), plain)
    sliding = kind == "gemma2"
    assert len(backbone.steps.kept) == (0 if sliding else 1)


def test_a_model_whose_steps_cannot_be_recorded_answers_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = random_causal("llama")
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 20))
    prompt = torch.randn(len(TEXTS), 4, 32, generator=torch.Generator().manual_seed(0))
    plain = backbone.generate(prompt, text, 12)

    def fails(*asked: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    backbone.records = True
    monkeypatch.setattr("softprompts.backbone.stepping.Stepping.begin", fails)
    assert torch.equal(backbone.generate(prompt, text, 12), plain)
    assert backbone.records is False, "it is not tried again"
    assert "steps" not in vars(backbone), "what was taken for it is given back"
