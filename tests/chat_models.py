"""Tiny chat models: random Llamas whose tokenizers have the special tokens and the chat template of
a real family. Templates are cut down to what a conversation without tools needs."""

from functools import cache
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from softprompts.backbone import Causal

from .models import LINES, byte_tokenizer

LLAMA_3 = r"""{% set loop_messages = messages %}{% for message in loop_messages %}
{%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'
    + message['content'] | trim + '<|eot_id|>' %}
{%- if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{- content }}
{%- endfor %}{% if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

LLAMA_3_2 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

QWEN_2_5 = r"""{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. ' }}
    {{- 'You are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""

QWEN_3 = r"""{%- set ns = namespace(last_query_index=messages|length - 1) %}
{%- for message in messages %}
    {%- if message.role == "user" %}{%- set ns.last_query_index = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- else %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') }}
            {{- '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

GEMMA_3 = r"""{{ bos_token }}
{%- for message in messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""

SMOLLM_2 = r"""{% for message in messages %}
{%- if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face' }}
{{- '<|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}{% if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""

MISTRAL_1 = r"""{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/...') }}{% endif %}
{%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{- message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}"""

MISTRAL_3 = r"""{{- bos_token }}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- else %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}"""


class Family(NamedTuple):
    template: str
    bos: str | None
    eos: str
    end: str
    """What ends a turn."""
    special: tuple[str, ...] = ()
    sentencepiece: bool = False


LLAMA_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FAMILIES = {
    "llama-3": Family(LLAMA_3, "<|begin_of_text|>", "<|eot_id|>", "<|eot_id|>", LLAMA_TOKENS),
    "llama-3.2": Family(LLAMA_3_2, "<|begin_of_text|>", "<|eot_id|>", "<|eot_id|>", LLAMA_TOKENS),
    "qwen-2.5": Family(QWEN_2_5, None, "<|im_end|>", "<|im_end|>", CHATML),
    "qwen-3": Family(QWEN_3, None, "<|im_end|>", "<|im_end|>", (*CHATML, "<think>", "</think>")),
    "gemma-3": Family(
        GEMMA_3, "<bos>", "<eos>", "<end_of_turn>", ("<start_of_turn>", "<end_of_turn>")
    ),
    "smollm-2": Family(SMOLLM_2, None, "<|im_end|>", "<|im_end|>", CHATML),
    "mistral-0.1": Family(MISTRAL_1, "<s>", "</s>", "</s>", sentencepiece=True),
    "mistral-0.3": Family(MISTRAL_3, "<s>", "</s>", "</s>", ("[INST]", "[/INST]"), True),
}


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE over whole texts like Llama 2's and Mistral's: spaces are part of the words."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    letters = [chr(code) for code in range(33, 127)]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=[*letters, "▁", "\n"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([word for line in LINES for word in line.split()], trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def chat_tokenizer(family: str) -> Any:
    template, bos, eos, _, special, sentencepiece = FAMILIES[family]
    if sentencepiece:
        tokenizer = sentencepiece_tokenizer()
    else:
        named = {"eos_token": eos} | ({} if bos is None else {"bos_token": bos})
        tokenizer = byte_tokenizer(bos, **named)
    tokens = [AddedToken(token, special=token[1:].strip("/") != "think>") for token in special]
    tokenizer.add_tokens(tokens, special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer


@cache
def chat_model(family: str = "smollm-2", name: str | None = None) -> Causal:
    """A random Llama with the tokenizer of a family; always the same."""
    tokenizer = chat_tokenizer(family)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    return Causal(AutoModelForCausalLM.from_config(config), tokenizer, name or f"tiny-{family}")
