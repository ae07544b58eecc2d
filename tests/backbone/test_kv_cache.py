"""Reused keys and values: cached prompts of decoder-only models, and texts that all candidates
continue from. Results do not change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import transformers
from torch import Tensor, nn

from softprompts.backbone import Backbone, Causal, PromptCache, generative

from ..models import CAUSALS, ENCODER_DECODERS, TOY, random_causal, random_model

TEXTS = [text for text, _ in TOY[:5]]
LENGTHS = [3, 7, 1]
PROMPT_OF = [0, 1, 2, 1, 0]
"""The index of each text's prompt."""
LABELS = [
    ["positive", "negative"],
    ["it"],
    ["was great", "never", "the worst meal of my life"],
    ["positive", "negative"],
    ["it", "was"],
]
"""The labels of each text's task."""


def prompts() -> Tensor:
    """Three prompts of different lengths [3, 7, 32]."""
    own = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    return torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(3)) * own.unsqueeze(-1)


def cached(backbone: Causal) -> PromptCache:
    cache = backbone.cache_prompts(prompts(), torch.tensor(LENGTHS))
    assert cache is not None
    return cache.rows(torch.tensor(PROMPT_OF), 7)


@contextmanager
def calls(backbone: Backbone, parts: Callable[[str], bool]) -> Iterator[list[tuple[str, int]]]:
    """Records the calls of some of the model's modules, each with its number of columns."""
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
def test_a_cached_prompt_gives_the_same_results(kind: str) -> None:
    """Prompts and texts of all lengths in one batch, within gemma2's window."""
    backbone = random_causal(kind)
    short = TEXTS if kind != "gemma2" else ["never", "I love", "it was", "the", "again"]
    text = backbone.embed_rows(backbone.tokenise(short, 40))
    vectors, with_lengths = (
        prompts()[PROMPT_OF],
        text._replace(prompt_lengths=torch.tensor(LENGTHS)[PROMPT_OF]),
    )
    labels = [
        backbone.tokenise_targets(own)[:1] if kind == "gemma2" else backbone.tokenise_targets(own)
        for own in LABELS
    ]
    cache = cached(backbone)
    torch.testing.assert_close(
        backbone.prefill(cache, text).logits,
        backbone.prefill(vectors, with_lengths).logits,
        rtol=1e-5,
        atol=1e-5,
    )
    torch.testing.assert_close(
        backbone.scores(cache, text, labels),
        backbone.scores(vectors, with_lengths, labels),
        rtol=1e-5,
        atol=1e-5,
    )
    assert torch.equal(
        backbone.generate(cache, text, 4), backbone.generate(vectors, with_lengths, 4)
    )


def test_a_cached_prompt_is_not_processed_again() -> None:
    backbone = random_causal("llama")
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    cache = cached(backbone)
    with calls(backbone, lambda name: name.endswith("layers.0")) as seen:
        backbone.scores(cache, text, [backbone.tokenise_targets(["positive", "negative"])] * 5)
    assert seen[0][1] == text.mask.shape[1]
    assert len(seen) == 2, "the texts, and all candidates together"


def test_a_sliding_window_limits_the_cache() -> None:
    backbone = random_causal("gemma2")
    cache = backbone.cache_prompts(prompts(), torch.tensor(LENGTHS))
    assert cache is not None
    assert cache.max_columns == 16
    assert backbone.cache_prompts(torch.randn(1, 16, 32), torch.tensor([16])) is None, (
        "the first vectors have left the window"
    )
    assert backbone.cache_prompts(torch.randn(1, 0, 32), torch.tensor([0])) is None


def test_positions_that_depend_on_the_length_prevent_caching() -> None:
    backbone = random_causal("llama")
    backbone.model.config.rope_parameters = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 10000.0,
    }
    assert backbone.cache_prompts(prompts(), torch.tensor(LENGTHS)) is None


@pytest.mark.parametrize("kind", [*ENCODER_DECODERS, *CAUSALS])
@pytest.mark.parametrize("cache_bytes", [1, 2**32])
def test_candidates_continue_from_one_state(
    kind: str, cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row's labels, a few at a time or all together, against the losses of full rows, beyond
    gemma2's window."""
    monkeypatch.setattr(generative, "CACHE_BYTES", cache_bytes)
    backbone = random_model(kind)
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))._replace(
        prompt_lengths=torch.tensor(LENGTHS)[PROMPT_OF]
    )
    labels = [backbone.tokenise_targets(own) for own in LABELS]
    scores = backbone.scores(prompts()[PROMPT_OF], text, labels)
    assert scores.shape == (5, 3)
    for row, own in enumerate(labels):
        for column, target in enumerate(own):
            alone = -backbone.losses(
                prompts()[PROMPT_OF][row : row + 1], text.rows([row]), [target]
            ).nll[0]
            torch.testing.assert_close(scores[row, column], alone, rtol=1e-4, atol=1e-4)
        assert bool((scores[row, len(own) :] == -torch.inf).all())


@pytest.mark.parametrize("kind", ENCODER_DECODERS)
def test_the_encoders_keys_are_computed_once(kind: str) -> None:
    backbone = random_model(kind)
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    keys = {"bart": "encoder_attn.k_proj"}.get(kind, "EncDecAttention.k")
    with calls(backbone, lambda name: name.endswith((keys, "encoder"))) as seen:
        backbone.scores(
            prompts()[PROMPT_OF],
            text,
            [backbone.tokenise_targets([label for own in LABELS[:3] for label in own])] * 5,
        )
    names = [name for name, _ in seen]
    assert len(names) == len(set(names)) == 3, "the encoder and two layers' keys, each once"


@pytest.mark.parametrize("kind", [*ENCODER_DECODERS, *CAUSALS])
def test_each_row_ends_at_its_own_limit(kind: str) -> None:
    backbone = random_model(kind)
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    limits = [2, 6, 1, 4, 3]
    unlimited, own = (
        backbone.generate(prompts()[PROMPT_OF], text, 6),
        backbone.generate(prompts()[PROMPT_OF], text, limits),
    )
    for row, limit in enumerate(limits):
        assert torch.equal(own[row, :limit], unlimited[row, : min(limit, own.shape[1])])
        assert bool((own[row, limit:] == backbone.pad_id).all())


def test_what_follows_an_end_is_not_decoded_as_a_word() -> None:
    """GPT-2's tokenizer has no pad, and id 0, the fallback, is an exclamation mark."""
    backbone = random_causal("gpt2")
    backbone.model.config.pad_token_id = backbone.pieces("!")[0]
    assert backbone.decode(torch.tensor([[backbone.pad_id]])) != [""]
    generated = backbone.generate(
        prompts()[PROMPT_OF], backbone.embed_rows(backbone.tokenise(TEXTS, 40)), [1, 4, 4, 4, 4]
    )
    assert backbone.decode(generated[:1, 1:]) == [""]


def test_a_model_that_counts_columns_caches_no_prompts() -> None:
    """Pads between a cached prompt and a text would count in MPT's and GPT-Neo's distances."""
    config = transformers.GPTNeoConfig(
        vocab_size=400,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=16,
        max_position_embeddings=128,
    )
    backbone = Causal(transformers.GPTNeoForCausalLM(config), random_model("gpt2").tokenizer, "neo")
    assert backbone.cache_prompts(prompts(), torch.tensor(LENGTHS)) is None


@pytest.mark.parametrize("kind", CAUSALS)
def test_decoding_with_a_static_cache_gives_the_same(kind: str) -> None:
    """What a GPU records and replays, step by step; several times, because the cache is reused."""
    backbone = random_causal(kind)
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 20))
    for seed in range(3):
        prompt = torch.randn(len(TEXTS), 4, 32, generator=torch.Generator().manual_seed(seed))
        backbone.records_decoding = False
        plain = backbone.generate(prompt, text, 12)
        backbone.records_decoding = True
        assert torch.equal(backbone.generate(prompt, text, 12), plain)
    sliding = kind == "gemma2"
    assert len(backbone.decoding_graphs.graphs) == (0 if sliding else 1)


def test_a_model_whose_steps_cannot_be_recorded_still_generates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = random_causal("llama")
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 20))
    prompt = torch.randn(len(TEXTS), 4, 32, generator=torch.Generator().manual_seed(0))
    plain = backbone.generate(prompt, text, 12)

    def fails(*arguments: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    backbone.records_decoding = True
    monkeypatch.setattr("softprompts.backbone.speed.decoding.DecodingGraph.begin", fails)
    assert torch.equal(backbone.generate(prompt, text, 12), plain)
    assert backbone.records_decoding is False, "it is not tried again"
    assert "decoding_graphs" not in vars(backbone), "its memory is released"
