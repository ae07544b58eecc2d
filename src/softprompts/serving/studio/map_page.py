"""A map of tasks: prompts near each other have similar vectors; colours are scores."""

import asyncio
import string
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UserError
from ..requests import ServedPrompt
from .context import Page, Studio, Visit, score_of
from .markup import ROOT, Child, Html, element, link, notice, paragraph, prompt_link, prompt_path
from .markup import section, table, text

PATH = f"{ROOT}/map"
MOST_POINTS = 500
SIMILAR = 5
WIDTH, HEIGHT, MARGIN = 720, 460, 40
SHADES = 10
"""Shades of the scores; `studio.css` has them."""
MOST_CLUSTERS = 12


@dataclass(frozen=True)
class Embedded:
    """Prompts, and the vectors that they are compared by."""

    names: list[str]
    vectors: Tensor
    """[N, H], each of length 1."""

    @property
    def similarities(self) -> Tensor:
        return self.vectors @ self.vectors.T


async def embedded(studio: Studio, prompts: Sequence[ServedPrompt]) -> Embedded:
    """The task embeddings of prompts, kept until some of them change."""
    origin = tuple((prompt.name, prompt.created) for prompt in prompts)
    work = asyncio.to_thread(_embed, studio, [prompt.name for prompt in prompts])
    return await studio.cached("map", origin, work)


def _embed(studio: Studio, names: Sequence[str]) -> Embedded:
    vectors: dict[str, Tensor] = {}
    for name in names:
        try:
            vector = torch.tensor(studio.engine.embedding(name))
        except UserError:
            continue  # removed meanwhile
        if vector.numel() and bool(vector.isfinite().all()):
            vectors[name] = torch.nn.functional.normalize(vector, dim=0)
    stacked = torch.stack(list(vectors.values())) if vectors else torch.zeros(0, 1)
    return Embedded(list(vectors), stacked)


async def similar_prompts(studio: Studio, visit: Visit, name: str) -> list[tuple[str, float]]:
    """The prompts whose tasks are most like one's, with their similarities."""
    known = await embedded(studio, (await visit.prompts(studio))[:MOST_POINTS])
    if name not in known.names:
        return []
    row = known.similarities[known.names.index(name)].tolist()
    pairs = [pair for pair in zip(known.names, row, strict=True) if pair[0] != name]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:SIMILAR]


async def show(studio: Studio, visit: Visit) -> Page:
    prompts = await visit.prompts(studio)
    shown = prompts[:MOST_POINTS]
    known = await embedded(studio, shown)
    if len(known.names) < 2:
        return Page("Map of tasks", notice("A map needs at least two prompts."), PATH)
    places, groups = await asyncio.to_thread(lambda: (_places(known.vectors), _clusters(known)))
    scores = {p.name: score[1] for p in shown if (score := score_of(p.card)) is not None}
    more = len(prompts) - len(shown)
    body: list[Child] = [
        paragraph(
            "Prompts whose vectors are similar are near each other. The letter is the cluster; "
            "the colour is the score, from low (light) to high (dark)."
        ),
        paragraph(f"{more:,} more prompts are not drawn.") if more else None,
        _picture(known.names, places, groups, scores),
        section("Clusters", _cluster_table(known, groups, scores)),
    ]
    return Page("Map of tasks", text(body), PATH)


def _places(vectors: Tensor) -> Tensor:
    """The first two principal components [N, 2], each between 0 and 1."""
    centred = vectors.double() - vectors.double().mean(0)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    places = (left * values)[:, :2]
    if places.shape[1] < 2:
        places = torch.nn.functional.pad(places, (0, 2 - places.shape[1]))
    # the sign of a component is arbitrary; it is fixed so that the map stays the same
    largest = places.gather(0, places.abs().argmax(0, keepdim=True))
    places = places * torch.where(largest < 0, -1.0, 1.0)
    low, high = places.amin(0), places.amax(0)
    return (places - low) / (high - low).clamp(min=1e-9)


def _clusters(known: Embedded) -> list[int]:
    """The cluster of each prompt: groups are merged by their mean similarity, as long as that is
    above the mean of all pairs."""
    similarities = known.similarities.double()
    count = len(similarities)
    off_diagonal = similarities.sum() - similarities.diagonal().sum()
    threshold = float(off_diagonal / (count * (count - 1)))
    groups = [[index] for index in range(count)]
    sums = similarities.clone()
    sums.fill_diagonal_(-torch.inf)
    sizes = torch.ones(count, dtype=torch.float64)
    alive = torch.ones(count, dtype=torch.bool)
    while int(alive.sum()) > 1:
        means = sums / (sizes[:, None] * sizes[None])
        best = int(means.argmax())
        one, other = divmod(best, count)
        few_enough = int(alive.sum()) <= MOST_CLUSTERS
        if few_enough and float(means[one, other]) <= threshold:
            break
        groups[one] += groups[other]
        sums[one] += sums[other]
        sums[:, one] += sums[:, other]
        sums[one, one] = -torch.inf
        sums[other], sums[:, other] = -torch.inf, -torch.inf
        sizes[one] += sizes[other]
        alive[other] = False
    alive_groups = [sorted(groups[index]) for index in range(count) if alive[index]]
    clusters = [0] * count
    for number, group in enumerate(sorted(alive_groups, key=lambda g: (-len(g), g))):
        for index in group:
            clusters[index] = number
    return clusters


def _letter(cluster: int) -> str:
    return string.ascii_uppercase[cluster % len(string.ascii_uppercase)]


def _shade(name: str, scores: dict[str, float]) -> str:
    if name not in scores:
        return "shade-none"
    return f"shade-{round(max(0.0, min(100.0, scores[name])) / 100 * SHADES)}"


def _picture(
    names: Sequence[str], places: Tensor, groups: Sequence[int], scores: dict[str, float]
) -> Html:
    marks = []
    labelled = len(names) <= 60
    for name, (x, y), group in zip(names, places.tolist(), groups, strict=True):
        left = MARGIN + x * (WIDTH - 2 * MARGIN)
        top = MARGIN + y * (HEIGHT - 2 * MARGIN)
        score = f", {scores[name]:.1f}" if name in scores else ""
        near_edge = x > 0.75
        caption = element(
            "text",
            name if len(name) <= 24 else f"{name[:23]}…",
            x=f"{left + (-16 if near_edge else 16):.0f}",
            y=f"{top + 4:.0f}",
            text_anchor="end" if near_edge else "start",
            class_="name",
        )
        marks.append(
            link(
                prompt_path(name),
                element("title", f"{name}: cluster {_letter(group)}{score}"),
                element("circle", cx=f"{left:.0f}", cy=f"{top:.0f}", r=12, class_=_shade(name, scores)),
                element(
                    "text", _letter(group), x=f"{left:.0f}", y=f"{top + 4:.0f}", class_="letter"
                ),
                caption if labelled else None,
            )
        )
    picture = element(
        "svg",
        *marks,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="map",
        role="group",
        aria_label="Map of tasks; the table below lists the same prompts",
    )
    return element("figure", picture)


def _cluster_table(known: Embedded, groups: Sequence[int], scores: dict[str, float]) -> Html:
    similarities = known.similarities
    rows: list[list[Child]] = []
    for cluster in sorted(set(groups)):
        members = [index for index, group in enumerate(groups) if group == cluster]
        part = similarities[members][:, members]
        pairs = len(members) * (len(members) - 1)
        mean = float(part.sum() - part.diagonal().sum()) / pairs if pairs else None
        own = [scores[known.names[i]] for i in members if known.names[i] in scores]
        links: list[Child] = []
        for index in members:
            links += [prompt_link(known.names[index]), ", "]
        rows.append(
            [
                _letter(cluster),
                links[:-1],
                "" if mean is None else f"{mean:.3f}",
                f"{sum(own) / len(own):.1f}" if own else "",
            ]
        )
    columns = ["Cluster", "Prompts", "Mean similarity", "Mean score"]
    return table("Clusters of similar tasks", columns, rows, numbers=[2, 3], class_="texts")
