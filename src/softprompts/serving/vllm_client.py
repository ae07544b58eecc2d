"""Ask a vLLM server with a soft prompt that `softprompts prompts export --as vllm` wrote.

    vllm serve MODEL --enable-prompt-embeds
    python client.py "Where is my parcel?" --url http://localhost:8000/v1

It needs torch, transformers, safetensors and openai, but not softprompts. vLLM accepts the
embeddings of a whole input [T, H], saved with torch.save and base64-encoded: here those of the
text's tokens, with the prompt's vectors in their place.
"""

import argparse
import base64
import io
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

SETTINGS, VECTORS = "vllm.json", "vectors.safetensors"


class SoftPrompt:
    """An exported prompt, with the tokenizer and the input embeddings of its model."""

    def __init__(self, folder: str | Path, model: str | None = None) -> None:
        self.settings = json.loads((Path(folder) / SETTINGS).read_text(encoding="utf-8"))
        self.vectors = load_file(Path(folder) / VECTORS)["vectors"]
        name = model or self.settings["model"]
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        self.embedding = AutoModelForCausalLM.from_pretrained(name).get_input_embeddings()

    def input(self, columns: str | dict[str, str]) -> str:
        """A text, or a row's columns, as the model reads it."""
        text: str = self.settings["template"]
        names: list[str] = self.settings["columns"]
        values = {names[0]: columns} if isinstance(columns, str) else columns
        for name in names:
            text = text.replace(f"{{{name}}}", str(values[name]).strip())
        return text

    @torch.no_grad()
    def embeds(self, columns: str | dict[str, str]) -> Tensor:
        """The embeddings of a text and its prompt [P + T, H]."""
        settings = self.settings
        special = bool(settings["add_special_tokens"])
        ids = self.tokenizer(self.input(columns), add_special_tokens=special)["input_ids"]
        closing, most = settings["closing_tokens"], settings["max_text_tokens"]
        if len(ids) > most:
            ids = [*ids[: most - closing], *ids[len(ids) - closing :]]
        text = self.embedding(torch.tensor(ids))
        place = settings["place"]
        at = {"prefix": 0, "after-bos": settings["opening_tokens"], "suffix": len(ids) - closing}
        before, after = text[: at[place]], text[at[place] :]
        return torch.cat([before, self.vectors.to(text.dtype), after])

    def encoded(self, columns: str | dict[str, str]) -> str:
        """The same as vLLM's `prompt_embeds`."""
        buffer = io.BytesIO()
        torch.save(self.embeds(columns).contiguous(), buffer)
        return base64.b64encode(buffer.getvalue()).decode("ascii")

    def request(self, columns: str | dict[str, str], served_model: str) -> dict[str, Any]:
        """The arguments of `openai.OpenAI().completions.create`."""
        return {
            "model": served_model,
            "prompt": None,
            "max_tokens": self.settings["max_tokens"],
            "temperature": 0,
            "extra_body": {
                "prompt_embeds": self.encoded(columns),
                "stop_token_ids": self.settings["stop_token_ids"],
            },
        }


def main() -> None:
    """Answer texts from the command line."""
    from openai import OpenAI

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--prompt", default=Path(__file__).parent, help="the exported folder")
    parser.add_argument("--model", help="the model's folder or name, if it has moved")
    parser.add_argument("--served-model", help="what the server calls it (default: the same)")
    parser.add_argument("--url", default="http://localhost:8000/v1")
    parser.add_argument("--api-key", default="EMPTY")
    options = parser.parse_args()
    prompt = SoftPrompt(options.prompt, options.model)
    client = OpenAI(base_url=options.url, api_key=options.api_key)
    name = options.served_model or options.model or prompt.settings["model"]
    for text in options.texts:
        reply = client.completions.create(**prompt.request(text, name))
        print(reply.choices[0].text.strip())


if __name__ == "__main__":
    main()
