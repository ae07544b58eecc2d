"""docs/speed.md: the models it lists as packed are those that the code packs."""

from pathlib import Path

from softprompts.backbone.speed.packed import MODEL_TYPES
from softprompts.backbone.speed.packed_rows import CAUSAL_TYPES, COMPOSITE_TYPES, MASKED_TYPES

PAGE = (Path(__file__).parents[1] / "docs" / "speed.md").read_text(encoding="utf-8")
PACKED = {
    "encoder-decoder": MODEL_TYPES,
    "decoder-only": CAUSAL_TYPES | COMPOSITE_TYPES,
    "encoder-only": MASKED_TYPES,
}
TYPES = {
    "T5": "t5",
    "mT5": "mt5",
    "FLAN-T5": "t5",
    "BART": "bart",
    "GPT-2": "gpt2",
    "OPT": "opt",
    "Llama": "llama",
    "Mistral": "mistral",
    "Qwen 2 and 3": "qwen2 qwen3",
    "Gemma 1 to 3": "gemma gemma2 gemma3_text gemma3",
    "Phi": "phi",
    "Phi-3": "phi3",
    "SmolLM2 and 3": "llama smollm3",
    "OLMo 1 and 2": "olmo olmo2",
    "StarCoder 2": "starcoder2",
    "Granite": "granite",
    "Cohere": "cohere",
    "GPT-NeoX (Pythia)": "gpt_neox",
    "StableLM": "stablelm",
    "BLOOM": "bloom",
    "MPT": "mpt",
    "BERT": "bert",
    "RoBERTa": "roberta",
    "XLM-R": "xlm-roberta",
    "CamemBERT": "camembert",
    "ELECTRA": "electra",
    "ModernBERT": "modernbert",
    "DistilBERT": "distilbert",
    "MiniLM": "bert",
    "DeBERTa": "deberta deberta-v2",
}
"""Transformers' model types of the models that the page names."""


def listed() -> dict[str, tuple[set[str], set[str]]]:
    """The model types that the table has as packed and as padded, by family."""
    table = PAGE.partition("## Which models are packed")[2].partition("\n##")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return {family.strip(): (types(packed), types(padded)) for family, packed, padded in rows[2:]}


def types(cell: str) -> set[str]:
    cell = cell.replace("others, such as ", "").replace(" and others", "")
    return {kind for name in cell.split(", ") for kind in TYPES[name.strip()].split()}


def test_the_models_listed_as_packed_are_packed() -> None:
    assert {family: packed for family, (packed, _) in listed().items()} == PACKED


def test_the_models_listed_as_padded_are_not() -> None:
    assert [family for family, (_, padded) in listed().items() if padded & PACKED[family]] == []
