"""Tiny random models of every family, and their tokenizers."""

from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedTokenizerFast,
)

from softprompts.backbone import Backbone, Causal, EncoderDecoder, Masked
from softprompts.backbone.load import BUNDLED_MODELS

TOY = [
    ("the food was great and the staff kind", "positive"),
    ("what a lovely film", "positive"),
    ("best purchase I made this year, works every day", "positive"),
    ("I love it", "positive"),
    ("broken after a week and nobody answers", "negative"),
    ("dull, long and badly acted", "negative"),
    ("never again", "negative"),
    ("the worst meal of my life", "negative"),
]
LINES = [f"{text} {label} is it good" for text, label in TOY] * 5
SIZES = {
    "vocab_size": 16128,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
}
TOKENS = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}


@cache
def t5_tokenizer() -> Any:
    """t5-tiny's tokenizer: real words for random models. Loaded once, because that is slow."""
    return transformers.AutoTokenizer.from_pretrained(BUNDLED_MODELS["t5-tiny"])


def byte_tokenizer(
    opening: str | None = None, closing: str | None = None, **named: str
) -> PreTrainedTokenizerFast:
    """A byte-level BPE like GPT-2's, trained on the toy reviews; every text is put between the
    special tokens `opening` and `closing`."""
    special = list(dict.fromkeys([*named.values(), "<s>", "</s>"]))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        LINES,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer, opening, closing, {"bos_token": "<s>", "eos_token": "</s>", **named})


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer like BERT's for the toy reviews: [CLS] text [SEP]."""
    named = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    words = {word.strip(",") for line in LINES for word in line.split()}
    letters = [
        f"{mark}{letter}"
        for mark in ("", "##")
        for letter in "abcdefghijklmnopqrstuvwxyzI0123456789,"
    ]
    # not trained, because the trainer breaks ties differently every time
    pieces = [*named.values(), *letters, *sorted(words - set(letters))]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _wrapped(tokenizer, "[CLS]", "[SEP]", named)


def _wrapped(
    tokenizer: Tokenizer, opening: str | None, closing: str | None, named: dict[str, str]
) -> PreTrainedTokenizerFast:
    around = [token for token in (opening, closing) if token]
    if around:
        single = " ".join(part for part in (opening, "$A", closing) if part)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(t, tokenizer.token_to_id(t)) for t in around]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def random_t5(**overrides: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    config = transformers.T5Config(**(SIZES | overrides), **TOKENS, feed_forward_proj="gated-gelu")
    return EncoderDecoder(
        transformers.T5ForConditionalGeneration(config), t5_tokenizer(), "random-t5"
    )


def random_encoder_decoder(kind: str) -> EncoderDecoder:
    if kind == "t5":
        return random_t5()
    torch.manual_seed(0)
    if kind == "mt5":
        mt5 = transformers.MT5Config(**SIZES, **TOKENS, tie_word_embeddings=False)
        return EncoderDecoder(AutoModelForSeq2SeqLM.from_config(mt5), t5_tokenizer(), "random-mt5")
    words = byte_tokenizer("<s>", "</s>", pad_token="<pad>")
    bart = transformers.BartConfig(
        vocab_size=400,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=128,
        scale_embedding=True,
        init_std=0.2,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        decoder_start_token_id=words.eos_token_id,
        forced_eos_token_id=words.eos_token_id,
    )
    return EncoderDecoder(AutoModelForSeq2SeqLM.from_config(bart), words, "random-bart")


def random_causal(kind: str) -> Causal:
    torch.manual_seed(0)
    words = byte_tokenizer("<s>" if kind in ("llama", "gemma2") else None)
    common: dict[str, Any] = {
        "vocab_size": 400,
        "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id,
    }
    common["pad_token_id"] = words.eos_token_id
    if kind == "opt":
        sizes = {
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 32,
        }
        config: Any = transformers.OPTConfig(
            **common, **sizes, max_position_embeddings=128, init_std=0.2
        )
    elif kind == "gpt2":
        config = transformers.GPT2Config(
            **common, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.2
        )
    else:
        sizes = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
        extra = (
            {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16}
            if kind == "gemma2"
            else {}
        )
        name = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "gemma2": "Gemma2Config"}[kind]
        config = getattr(transformers, name)(
            **common, **sizes, **extra, max_position_embeddings=128, initializer_range=0.2
        )
    return Causal(AutoModelForCausalLM.from_config(config), words, f"tiny-{kind}")


def random_masked(kind: str) -> Masked:
    """BERT, RoBERTa and DeBERTa that fill masks; `minilm` is a BERT that cannot."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "initializer_range": 0.2,
    }
    if kind == "roberta":
        marks = {
            "cls_token": "<s>",
            "pad_token": "<pad>",
            "sep_token": "</s>",
            "unk_token": "<unk>",
            "mask_token": "<mask>",
        }
        words = byte_tokenizer("<s>", "</s>", **marks)
        config: Any = transformers.RobertaConfig(
            vocab_size=400,
            max_position_embeddings=130,
            type_vocab_size=1,
            pad_token_id=words.pad_token_id,
            **sizes,
        )
    else:
        words = word_tokenizer()
        more = (
            {
                "relative_attention": True,
                "pos_att_type": ["p2c", "c2p"],
                "position_biased_input": False,
            }
            if kind == "deberta"
            else {}
        )
        config_class = (
            transformers.DebertaV2Config if kind == "deberta" else transformers.BertConfig
        )
        config = config_class(
            vocab_size=len(words),
            max_position_embeddings=128,
            pad_token_id=words.pad_token_id,
            **more,
            **sizes,
        )
    auto = transformers.AutoModel if kind == "minilm" else AutoModelForMaskedLM
    return Masked(auto.from_config(config), words, f"tiny-{kind}")


ENCODER_DECODERS = ("t5", "mt5", "bart")
CAUSALS = ("gpt2", "llama", "qwen2", "gemma2", "opt")
MASKED = ("bert", "roberta", "deberta", "minilm")
KINDS = (*ENCODER_DECODERS, *CAUSALS, *MASKED)


def random_model(kind: str) -> Backbone:
    """A tiny random model by the name of its kind; always the same."""
    if kind in ENCODER_DECODERS:
        return random_encoder_decoder(kind)
    return random_causal(kind) if kind in CAUSALS else random_masked(kind)


TEXTS = ["the food was great", "never again", "I love it and the staff was kind"]


def peft_log_probs(backbone: Backbone, model: Any, length: int) -> Tensor:
    """Log-probability of each text's target by a PEFT model, one unpadded row at a time [B]."""
    log_probs = []
    for row, target in zip(
        backbone.tokenise(TEXTS, 40),
        backbone.tokenise_targets(["positive", "negative", "positive"]),
        strict=True,
    ):
        ids = torch.tensor([row])
        if isinstance(backbone, EncoderDecoder):
            logits = model(
                input_ids=ids, attention_mask=torch.ones_like(ids), labels=torch.tensor([target])
            ).logits[0]
        elif isinstance(backbone, Causal):
            sequence = torch.tensor([[*row, *target]])
            begin = length + len(row) - 1
            output = model(input_ids=sequence, attention_mask=torch.ones_like(sequence))
            logits = output.logits[0, begin : begin + len(target)]
        else:
            mask = length + row.index(backbone.tokenizer.mask_token_id)
            output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
            logits = output.logits[0, mask : mask + 1]
        target_ids = torch.tensor(target)[:, None]
        log_probs.append(logits.log_softmax(-1).gather(-1, target_ids).sum())
    return torch.stack(log_probs)


def our_log_probs(backbone: Backbone, vectors: Tensor) -> Tensor:
    """The same by a backbone with the prompt `vectors` [P, H]."""
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    targets = backbone.tokenise_targets(["positive", "negative", "positive"])
    return -backbone.losses(vectors.expand(3, -1, -1), text, targets).nll


def unpadded(batch: dict[str, Any]) -> list[list[int]]:
    """The rows of `input_ids` without their pads."""
    pairs = zip(batch["input_ids"], batch["attention_mask"], strict=True)
    return [[token for token, used in zip(*pair, strict=True) if used] for pair in pairs]
