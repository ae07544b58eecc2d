"""Prompts for vLLM: a client without softprompts sends what vLLM's documentation describes."""

import base64
import dataclasses
import io
import json
import runpy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from softprompts.backbone import Backbone, load_backbone
from softprompts.cli import main
from softprompts.serving.vllm import write_vllm
from softprompts.serving.vllm_client import SoftPrompt
from softprompts.tuning.tuned import Tuned

from ..chat_models import chat_model
from ..models import TEXTS, random_model
from .test_engine import tuned


def decoded(embeds: str) -> Tensor:
    """As vLLM reads `prompt_embeds`."""
    data = io.BytesIO(base64.b64decode(embeds, validate=True))
    tensor = torch.load(data, weights_only=True, map_location="cpu")
    assert tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
    assert tensor.dim() == 2
    return tensor


def greedy(backbone: Backbone, embeds: Tensor, tokens: int, stop: list[int]) -> str:
    """What a server with the model makes of input embeddings [T, H]."""
    with torch.no_grad():
        ids = backbone.model.generate(
            inputs_embeds=embeds[None],
            attention_mask=torch.ones(1, len(embeds), dtype=torch.long),
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=stop[0],
        )[0]
    text: str = backbone.tokenizer.decode([i for i in ids if i not in stop])
    return text.strip()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return saved(random_model("llama"), tmp_path_factory.mktemp("llama"))


def saved(backbone: Backbone, folder: Path) -> Backbone:
    """The model as it is loaded from a folder."""
    backbone.model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    return load_backbone(str(folder), "fp32", "cpu")


@pytest.fixture(scope="module")
def server(llama: Backbone) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server with vLLM's documented interface, and the requests it got."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append(body)
            embeds = decoded(body["prompt_embeds"])
            text = greedy(llama, embeds, body["max_tokens"], body["stop_token_ids"])
            choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
            reply = {"id": "1", "object": "text_completion", "created": 1, "model": body["model"]}
            data = json.dumps({**reply, "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}/v1", requests
    http.shutdown()
    http.server_close()


@pytest.mark.parametrize("place", ["prefix", "after-bos", "suffix"])
def test_the_client_answers_as_predict_does(llama: Backbone, place: str, tmp_path: Path) -> None:
    prompt = tuned(llama, 5, [], "is it {kind} ? {text}", length=4, place=place)
    write_vllm(tmp_path, prompt.prompt, prompt.card)
    client = SoftPrompt(tmp_path)
    rows = [{"text": f" {text} ", "kind": "good"} for text in [*TEXTS, TEXTS[0] * 20]]
    stop, tokens = client.settings["stop_token_ids"], client.settings["max_tokens"]
    answers = [greedy(llama, decoded(client.encoded(row)), tokens, stop) for row in rows]
    assert answers == prompt.predict(rows, verbose=False)
    assert len(set(answers)) > 1
    longest = client.embeds(rows[-1])
    assert len(longest) == 4 + client.settings["max_text_tokens"], "truncated as predict does"


def test_chat_prompts_keep_their_template(tmp_path: Path) -> None:
    backbone = saved(chat_model("llama-3"), tmp_path / "model")
    plain = tuned(backbone, 5, [], length=4)
    card = dataclasses.replace(plain.card, config={"tuning": {"max_length": 100, "chat": True}})
    prompt = Tuned(plain.prompt, backbone, card)
    write_vllm(tmp_path / "out", prompt.prompt, prompt.card)
    client = SoftPrompt(tmp_path / "out")
    predictor = prompt.predictor()
    for text in TEXTS:
        row = predictor.backbone.tokenise([text], predictor.budget)
        expected = torch.cat([prompt.prompt.table[0], backbone.embed_rows(row).embeds[0]])
        assert torch.equal(client.embeds(text), expected)


def test_the_exported_folder_needs_no_softprompts(
    llama: Backbone,
    server: tuple[str, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, requests = server
    prompt = tuned(llama, 5, [], length=4)
    prompt.save(tmp_path / "run")
    export = ["prompts", "export", str(tmp_path / "run"), "--format", "vllm"]
    assert main([*export, "--output", str(tmp_path / "out")]) == 0
    assert "--enable-prompt-embeds" in capsys.readouterr().out
    script = tmp_path / "out" / "client.py"
    assert "import softprompts" not in script.read_text()
    assert "from ." not in script.read_text()
    monkeypatch.setattr(
        "sys.argv", [str(script), *TEXTS[:2], "--url", url, "--served-model", "llama"]
    )
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == prompt.predict(TEXTS[:2], verbose=False)
    assert {request["model"] for request in requests} == {"llama"}
    assert main([*export, "--output", str(tmp_path / "out")]) == 2
    assert "already holds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "choices", "message"),
    [
        ("t5", {}, "vLLM takes prompts of decoder-only models, and random-t5 is encoder-decoder"),
        ("llama", {"count": 3, "route": "top1"}, "vLLM cannot route an input among 3 prompts"),
    ],
)
def test_what_vllm_cannot_take_is_refused(
    kind: str,
    choices: dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompt = tuned(random_model(kind), 5, ["good", "bad"], length=4, **choices)
    prompt.save(tmp_path / "run")
    command = ["prompts", "export", str(tmp_path / "run"), "--as", "vllm", "--output"]
    assert main([*command, str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
