"""One matrix: every start x shape x route on a tiny random T5; on each other kind of model, every
shape x route, with a start each. The kinds come from the tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone
from softprompts.config import Choice, PromptConfig, routes, shapes, starts
from softprompts.config.kinds import Table
from softprompts.errors import UserError
from softprompts.prompt import Material, Prompt, Source
from softprompts.prompt.prompt import build_prompt

from ..cards import card
from ..models import KINDS, random_model
from ..processes import ForkServer

TEXTS = [
    "a short one",
    "this text is a good deal longer than the others and so it is padded least",
    "the food was great",
    "never again",
]
LABELS = ["positive", "negative"]
TARGETS = ["positive", "negative", "positive", "negative"]


def variants(table: "Table[Any]", options: dict[str, list[dict[str, Any]]]) -> list[Any]:
    """Every kind of a table, with its defaults unless options are given for it."""
    return [{"kind": kind, **each} for kind in table for each in options.get(kind, [{}])]


STARTS = variants(
    starts,
    {
        "text": [{"text": "is it good"}],
        "prompt": [{"sources": ["source"]}, {"sources": ["one", "other"], "weights": [1, 3]}],
    },
)
SHAPES = variants(
    shapes,
    {
        "residual": [
            {"bottleneck": 16},
            {"bottleneck": 8, "shared": False, "dropout": 0.1},
            {"bottleneck": 16, "skip": False},
        ],
        "encoder": [{"width": 16}, {"network": "lstm", "width": 8}],
    },
)
ROUTES = variants(routes, {"top1": [{}, {"noise": 0}]})
SOURCE = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(9))


def build(
    backbone: Backbone, start: Any, shape: Any, route: Any, source: Source | None = None
) -> Prompt:
    count = 1 if Choice.of(route).kind == "single" else 4
    head = Choice(backbone.default_head(LABELS))
    config = PromptConfig(5, count, Choice.of(start), Choice.of(shape), Choice.of(route), head=head)
    material = Material(
        backbone, LABELS, lambda name: source or Source(SOURCE), backbone.feature_size
    )
    return build_prompt(config, material, 0, backbone.unit)


def losses(backbone: Backbone, prompt: Prompt, rng: torch.Generator | None = None) -> torch.Tensor:
    """Per-row loss [B]."""
    backbone = backbone.with_head(prompt.head, LABELS)
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    return backbone.losses(
        prompt(text.embeds, text.mask, rng), text, backbone.tokenise_targets(TARGETS)
    ).nll


def losses_of_all(
    backbone: Backbone,
    prompts: Sequence[Prompt],
    rngs: Sequence[torch.Generator | None] | None = None,
) -> torch.Tensor:
    """Per-row loss [N, B] of every prompt on the same texts, in one pass; prompts that answer
    through heads of their own take one each."""
    rngs = rngs or [None] * len(prompts)
    if prompts[0].head is not None:
        return torch.stack(
            [losses(backbone, prompt, rng) for prompt, rng in zip(prompts, rngs, strict=True)]
        )
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    vectors = torch.cat(
        [prompt(text.embeds, text.mask, rng) for prompt, rng in zip(prompts, rngs, strict=True)]
    )
    repeated = text.rows([*range(len(TEXTS))] * len(prompts))
    return backbone.losses(
        vectors, repeated, backbone.tokenise_targets(TARGETS) * len(prompts)
    ).nll.view(len(prompts), -1)


def check(backbone: Backbone, choices: Sequence[tuple[Any, Any, Any]], folder: Path) -> None:
    """Of every start, shape and route: the loss falls; folding, saving and loading change
    nothing."""
    prompts = [build(backbone, *choice) for choice in choices]
    rngs = [torch.Generator().manual_seed(0) for _ in choices]
    optimizer = torch.optim.AdamW(
        [parameter for prompt in prompts for parameter in prompt.parameters()], lr=0.03
    )
    with torch.no_grad():
        before = losses_of_all(backbone, [prompt.eval() for prompt in prompts]).sum(1)
    for _ in range(8):
        loss = losses_of_all(backbone, [prompt.train() for prompt in prompts], rngs).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        unfolded = losses_of_all(backbone, [prompt.eval() for prompt in prompts])
        for choice, now, then in zip(choices, unfolded.sum(1), before, strict=True):
            assert now < then, f"{choice} learns"
        folded = losses_of_all(backbone, [prompt.fold() for prompt in prompts])
        torch.testing.assert_close(folded, unfolded, rtol=1e-5, atol=1e-5)
        loaded = []
        for prompt in prompts:
            RunFolder(folder).save(prompt, card(backbone))
            loaded.append(RunFolder(folder).load(backbone)[0])
        assert torch.equal(losses_of_all(backbone, loaded), folded)


@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_loss_falls_and_folding_changes_nothing(
    t5: Backbone, shape: Any, route: Any, tmp_path: Path
) -> None:
    check(t5, [(start, shape, route) for start in STARTS], tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "t5"])
def test_the_matrix_holds_on_every_family(kind: str, tmp_path: Path) -> None:
    matrix = [(shape, route) for shape in SHAPES for route in ROUTES]
    check(
        random_model(kind),
        [(STARTS[index % len(STARTS)], *choice) for index, choice in enumerate(matrix)],
        tmp_path,
    )


@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_prompt_started_from_a_source_gives_its_outputs_at_step_0(
    t5: Backbone, shape: Any, route: Any
) -> None:
    prompt = build(t5, {"kind": "prompt", "sources": ["source"]}, shape, route).eval()
    text = t5.embed_rows(t5.tokenise(TEXTS, 40))
    rounding = (
        1e-5 if "lstm" in str(shape) or "soft" in str(route) else 0
    )  # torch's LSTM has two kernels; probabilities sum to 1 but for rounding
    torch.testing.assert_close(
        prompt(text.embeds, text.mask), SOURCE.expand(4, 5, 32), rtol=0, atol=rounding
    )


@pytest.mark.parametrize("kind", ["top1", "top2", "gumbel"])
def test_a_mixture_started_from_a_mixture_gives_its_outputs_at_step_0(
    t5: Backbone, kind: str
) -> None:
    text = t5.embed_rows(t5.tokenise(TEXTS, 40))
    trained = build(t5, "normal", {"kind": "residual", "bottleneck": 16}, kind)
    again = build(
        t5,
        {"kind": "prompt", "sources": ["source"]},
        {"kind": "residual", "bottleneck": 8},
        kind,
        trained.source(),
    )
    torch.testing.assert_close(
        again.eval()(text.embeds, text.mask), trained.eval()(text.embeds, text.mask)
    )
    with pytest.raises(UserError, match=f"routed by .*{kind}"):
        build(
            t5, {"kind": "prompt", "sources": ["source"]}, "direct", "stochastic", trained.source()
        )


@pytest.mark.parametrize("route", ["soft", "top1", "top2", "gumbel", "stochastic"])
def test_prompts_that_start_alike_grow_apart(t5: Backbone, route: str) -> None:
    prompt = build(t5, {"kind": "prompt", "sources": ["source"]}, "direct", route)
    optimizer = torch.optim.AdamW(prompt.parameters(), lr=0.03)
    rng = torch.Generator().manual_seed(0)
    for _ in range(40):
        optimizer.zero_grad()
        losses(t5, prompt.train(), rng).sum().backward()
        optimizer.step()
    apart = torch.cdist(prompt.table.flatten(1), prompt.table.flatten(1))
    assert bool((apart[~torch.eye(4, dtype=torch.bool)] > 0.01).any())


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_rows_and_targets_do_not_touch_each_other(t5: Backbone, route: Any) -> None:
    """Permuting rows, changing another row's text, or only a target never moves a row's logits or
    route."""
    prompt = build(t5, "normal", "direct", route).eval()
    targets = t5.tokenise_targets(TARGETS)

    def run(texts: list[str], labels: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        text = t5.embed_rows(t5.tokenise(texts, 40))
        with torch.no_grad():
            scores = t5.scores(prompt(text.embeds, text.mask), text, [labels] * len(texts))
            return scores, prompt.router_probabilities(text.embeds, text.mask).argmax(-1)

    scores, routes = run(TEXTS, targets[:2])
    order = [2, 0, 3, 1]
    permuted, permuted_routes = run([TEXTS[i] for i in order], targets[:2])
    torch.testing.assert_close(permuted, scores[order], rtol=1e-5, atol=1e-5)
    assert permuted_routes.tolist() == routes[order].tolist()
    changed, changed_routes = run(
        [
            TEXTS[0],
            "something else altogether, and much, much longer than anything before it was",
            *TEXTS[2:],
        ],
        targets[:2],
    )
    torch.testing.assert_close(changed[[0, 2, 3]], scores[[0, 2, 3]], rtol=1e-5, atol=1e-5)
    assert changed_routes[[0, 2, 3]].tolist() == routes[[0, 2, 3]].tolist()
    assert (
        run(TEXTS, t5.tokenise_targets(["something else", "entirely"]))[1].tolist()
        == routes.tolist()
    )
    with torch.no_grad():
        whole = losses(t5, prompt)
        text = t5.embed_rows(t5.tokenise(TEXTS, 40))
        other = t5.losses(
            prompt(text.embeds, text.mask),
            text,
            [targets[0], t5.tokenise_targets(["a wholly different target"])[0], *targets[2:]],
        ).nll
    torch.testing.assert_close(other[[0, 2, 3]], whole[[0, 2, 3]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_size_and_padding_do_not_matter(t5: Backbone, shape: Any, route: Any) -> None:
    prompt = build(t5, "normal", shape, route).eval()
    rows, targets = t5.tokenise(TEXTS, 40), t5.tokenise_targets(TARGETS)
    with torch.no_grad():
        whole = losses(t5, prompt)
        for row in range(4):
            text = t5.embed_rows([rows[row]])
            alone = t5.losses(prompt(text.embeds, text.mask), text, [targets[row]]).nll
            torch.testing.assert_close(alone, whole[row : row + 1], rtol=1e-5, atol=1e-5)
        padded = t5.embed_rows([*rows, [5] * 50])  # beside a longer row
        vectors = prompt(padded.embeds, padded.mask)
        again = t5.losses(vectors, padded, [*targets, targets[0]]).nll[:4]
        torch.testing.assert_close(again, whole, rtol=1e-5, atol=1e-5)


def test_a_prompt_of_length_0_equals_no_prompt(t5: Backbone) -> None:
    prompt = build_prompt(PromptConfig(length=0), Material(t5), 0)
    text = t5.embed_rows(t5.tokenise(TEXTS, 40))
    ours = t5.losses(prompt(text.embeds, text.mask), text, t5.tokenise_targets(TARGETS))
    ids, mask = t5.collate(t5.tokenise(TEXTS, 40))
    labels, kept = t5.collate(t5.tokenise_targets(TARGETS))
    theirs = t5.model(
        input_ids=ids, attention_mask=mask, labels=labels.masked_fill(kept == 0, -100)
    ).loss
    torch.testing.assert_close(ours.nll.sum() / ours.tokens.sum(), theirs)


def test_saved_prompts_answer_alike_in_a_fresh_process(
    t5: Backbone, tmp_path: Path, torch_server: ForkServer
) -> None:
    """Every shape x route, saved here and loaded by a process that knows nothing of it."""
    from safetensors.torch import load_file, save_file

    embeds, mask = torch.randn(3, 6, 32), torch.ones(3, 6)
    expected = {}
    for index, (shape, route) in enumerate((shape, route) for shape in SHAPES for route in ROUTES):
        prompt = build(t5, "normal", shape, route).eval()
        with torch.no_grad():
            for parameter in prompt.parameters():  # as if trained
                parameter.add_(0.1 * torch.randn_like(parameter))
        RunFolder(tmp_path / str(index)).save(prompt, card(t5))
        expected[str(index)] = prompt(embeds, mask).detach()
    save_file({"embeds": embeds, "mask": mask}, tmp_path / "in.safetensors")
    code = """
import sys, pathlib
from safetensors.torch import load_file, save_file
from softprompts.artifacts.run_folder import RunFolder
home = pathlib.Path(sys.argv[1])
inputs = load_file(home / "in.safetensors")
prompts = {folder.name: RunFolder(folder).load()[0] for folder in home.iterdir() if folder.is_dir()}
answers = {name: prompt(**inputs).detach().contiguous() for name, prompt in prompts.items()}
save_file(answers, home / "out.safetensors")
"""
    assert torch_server.run([str(tmp_path)], code=code).returncode == 0
    answers = load_file(tmp_path / "out.safetensors")
    assert answers.keys() == expected.keys()
    for index, answer in answers.items():
        torch.testing.assert_close(answer, expected[index], rtol=1e-5, atol=1e-5)
