"""What a prompt has learned."""

import json
import math
from pathlib import Path

import pytest
import torch

from softprompts import UserError, tune
from softprompts.analysis.explain import (
    Neighbour,
    _duplicates,
    _shared,
    explain,
    nearest_words,
    plain_word,
)
from softprompts.analysis.explain_page import describe, figure, findings, page
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone
from softprompts.cli import main
from softprompts.tasks import Example
from softprompts.tuning.tuned import Tuned

ROWS = [
    Example("the food was great", "positive"),
    Example("never again", "negative"),
    Example("what a lovely film", "positive"),
    Example("broken after a week", "negative"),
]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return _tuned(tmp_path_factory.mktemp("single"), "prompt-tuning", length=4)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return _tuned(tmp_path_factory.mktemp("mixture"), "smop", length=2, count=3)


def _tuned(folder: Path, preset: str, **prompt: int) -> Tuned:
    rows = [{"text": example.input, "mood": example.target} for example in ROWS * 2]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tune(
        train=str(folder / "rows.jsonl"), text="text", label="mood", preset=preset, prompt=prompt,
        steps=2, batch_size=4, device="cpu", verbose=False, baselines=False, output=folder / "run",
    )  # fmt: skip


def test_a_token_that_is_a_word_has_this_word_nearest(tiny: Backbone) -> None:
    ids = torch.tensor([tiny.word_pieces("great")[0], tiny.word_pieces("bad")[0]])
    near, _ = nearest_words(tiny, 3 * tiny.input_embeddings(ids))
    assert [plain_word(own[0].word) for own in near] == ["great", "bad"]
    assert all(math.isclose(own[0].cosine, 1, abs_tol=1e-3) for own in near)
    assert all(len(own) == 5 for own in near)
    assert all(own[0].cosine >= own[1].cosine for own in near)


def test_labels_near_duplicates_and_moves_are_found(single: Tuned) -> None:
    """A prompt made of known words; the third token is nearly the first."""
    backbone = single.backbone
    pieces = [backbone.word_pieces(word)[0] for word in ("positive", "house", "positive", "house")]
    words = backbone.input_embeddings(torch.tensor(pieces))
    start = words[None].clone()
    words[2] *= 1.01
    words[3] = -words[3]
    single.prompt.table.data.copy_(words[None])
    found = explain(single, start=start)
    assert found.labels["positive"] == 2
    assert found.duplicates == [[[0, 0], [0, 2]]]
    assert found.shared["positive"] == 2
    assert any("positive (2 tokens)" in sentence for sentence in findings(found))
    assert [token.moved for token in found.tokens] == pytest.approx([0, 0, 0.01, 2], abs=1e-3)
    assert found.nearest_cosine > found.random_cosine
    assert found.loss is None
    assert found.tokens[0].loss_without is None


def test_what_a_token_is_worth(single: Tuned) -> None:
    """Against the loss of the prompt without it, computed by hand."""
    found = explain(single, ROWS)
    backbone, prompt = single.backbone, single.prompt
    rows = backbone.tokenise([row.input for row in ROWS], single.predictor().budget)
    text = backbone.embed_rows(rows)
    targets = backbone.tokenise_targets([row.target for row in ROWS])

    def loss(vectors: torch.Tensor) -> float:
        with torch.no_grad():
            losses = backbone.losses(vectors.expand(len(rows), -1, -1), text, targets)
        return float(losses.nll.sum() / losses.tokens.sum())

    table = prompt.table.detach()
    whole = loss(table)
    assert found.loss == pytest.approx(whole, abs=1e-4)
    shorter = [loss(torch.cat([table[:, :p], table[:, p + 1 :]], dim=1)) for p in range(4)]
    assert [token.loss_without for token in found.tokens] == pytest.approx(
        [part - whole for part in shorter], abs=1e-4
    )


def test_which_inputs_a_mixture_sends_where(mixture: Tuned) -> None:
    before = mixture.prompt.table.detach().clone()
    found = explain(mixture, ROWS)
    assert torch.equal(mixture.prompt.table, before)
    assert [part.prompt for part in found.routing] == [0, 1, 2]
    assert sum(part.rows for part in found.routing) == len(ROWS)
    text = mixture.backbone.embed_rows(
        mixture.backbone.tokenise([row.input for row in ROWS], mixture.predictor().budget)
    )
    chosen = mixture.prompt.router_probabilities(text.embeds, text.mask).argmax(-1).tolist()
    assert [part.rows for part in found.routing] == [chosen.count(k) for k in range(3)]
    assert sum(sum(part.classes.values()) for part in found.routing) == len(ROWS)
    assert found.confidence is not None
    assert 1 / 3 <= found.confidence <= 1
    assert found.entropy is not None
    assert 0 <= found.entropy <= 1
    taken = {part.prompt for part in found.routing if part.rows}
    for token in found.tokens:
        if mixture.card.config["prompt"]["route"] == "top1" and token.prompt not in taken:
            assert token.loss_without == 0, "no row uses it"
    shown = describe(found)
    assert any(line.startswith("prompt 0 takes") for line in shown)
    assert figure(found, "a mixture").axes[-1].get_xlabel() == "prompt of the mixture"
    text = page(found, "a mixture")
    for part in found.routing:
        assert f"<tr><td>{part.prompt}</td><td class='number'>{part.rows}</td>" in text
        assert (f"<h3>Inputs of prompt {part.prompt}</h3>" in text) == bool(part.rows)


def test_the_text_shows_the_most_important_tokens(
    mixture: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = explain(mixture, ROWS)
    monkeypatch.setattr("softprompts.analysis.explain_page.MOST_TOKENS", 2)
    _, first, second, rest, *_ = describe(found)
    best = sorted(found.tokens, key=lambda token: -abs(token.loss_without or 0))[:2]
    names = {f"{token.prompt}.{token.position}" for token in best}
    assert {first.split()[0], second.split()[0]} == names
    assert rest == f"… and {len(found.tokens) - 2} less important tokens (--json has all)"
    assert page(found, "a mixture").count("<tr><td>") > len(found.tokens)


def test_the_router_over_training(
    mixture: Tuned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the run's evaluations: as text, JSON, HTML and PNG."""
    assert main(["explain", str(mixture.folder), "--output", str(tmp_path), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    (entry,) = json.loads((tmp_path / "explanation.json").read_text())["router_steps"]
    (line,) = RunFolder(Path(str(mixture.folder))).history()
    assert entry == {"step": 2, **line["router"]}
    assert f"{entry['confidence']:4.0%} {entry['entropy']:4.0%}" in shown.splitlines()[-2]
    assert "Between steps" not in shown
    assert "over training is unknown" not in shown
    text = (tmp_path / "explanation.html").read_text()
    assert "<h2>The router over training</h2>" in text
    assert "prompt 2 ends at" in text
    history = [line, {**line, "step": 4, "router": {**line["router"], "load": [0.5, 0.5, 0]}}]
    found = explain(mixture, ROWS, history=history, worth=False)
    assert any("Between steps 2 and 4 its confidence" in line for line in findings(found))
    labels = [axis.get_ylabel() for axis in figure(found, "a mixture").axes]
    assert labels[-3:] == ["router", "share of rows", "rows"]


def test_a_mixture_without_a_record_of_its_router(mixture: Tuned) -> None:
    """Such as one of an earlier version, whose evaluations lack it."""
    found = explain(mixture, ROWS, history=[{"step": 2, "loss": 1.0, "accuracy": 50.0}])
    assert found.router_steps == []
    assert any("over training is unknown" in sentence for sentence in findings(found))
    assert "The router over training" not in page(found, "a mixture")
    assert not any("router by training step" in line for line in describe(found))


def test_a_single_prompt_has_no_router(single: Tuned) -> None:
    assert not any("router" in sentence for sentence in findings(explain(single)))


def test_neighbours_of_one_meaning_are_a_tight_cluster(tiny: Backbone) -> None:
    """The mean cosine among the neighbours, computed by hand."""
    ids = torch.tensor([tiny.word_pieces("great")[0], tiny.word_pieces("bad")[0]])
    near, tightness = nearest_words(tiny, tiny.input_embeddings(ids), 3)
    cosines = []
    for own in near:
        pieces = tiny.tokenizer.convert_tokens_to_ids([n.word for n in own])
        unit = torch.nn.functional.normalize(tiny.input_embeddings(torch.tensor(pieces)), dim=1)
        cosines += [float(unit[a] @ unit[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert tightness == pytest.approx(sum(cosines) / 6, abs=1e-3)


def test_tokens_are_grouped_through_others() -> None:
    angles = torch.tensor([0.0, 0.2, 0.4, 2.0])
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)[None]
    assert _duplicates(vectors) == [[[0, 0], [0, 1], [0, 2]]]


def test_the_page_stands_alone(single: Tuned) -> None:
    found = explain(single, ROWS)
    text = page(found, "<title> & more")
    assert "&lt;title&gt; &amp; more" in text
    assert "http" not in text
    assert text.count("<tr>") == 1 + len(found.tokens)
    assert all(sentence.endswith(".") for sentence in findings(found))


def test_the_command(single: Tuned, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(single.folder)
    assert main(["explain", folder, "--output", str(tmp_path / "out"), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "nearest words" in shown
    assert "moved" in shown, "the run's start is made again"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("explanation.json", "explanation.html", "explanation.png"),
    }
    assert main(["explain", folder, "--json", "--device", "cpu"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert printed["rows"] > 0
    assert main(["explain", str(tmp_path / "nowhere")]) == 2
    assert "There is no prompt at" in capsys.readouterr().err


def test_a_prompt_without_tokens(single: Tuned) -> None:
    empty = Tuned(
        type(single.prompt)(
            single.prompt.table.detach()[:, :0], single.prompt.shape, single.prompt.route,
            single.prompt.config,
        ),
        single.backbone,
        single.card,
    )  # fmt: skip
    with pytest.raises(UserError, match="no tokens to explain"):
        explain(empty)


def test_words_shared_by_as_many_tokens_stand_in_the_order_of_the_tokens() -> None:
    words = [f"word{number}" for number in range(20)]
    own = [Neighbour(word, 0.5) for word in words]
    assert list(_shared([own, own])) == words
