"""A map of tasks: prompts near each other have similar vectors; colours are scores."""

import asyncio
import string
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UserError
from .context import Page, Studio, Visit, score_of
from .markup import (
    ROOT,
    Child,
    Html,
    element,
    link,
    notice,
    paragraph,
    prompt_link,
    prompt_path,
    section,
    shortened,
    table,
    text,
)

PATH = f"{ROOT}/map"
MOST_POINTS = 500
WIDTH, HEIGHT, MARGIN = 720, 460, 40
SHADES = 10
"""Shades of the scores; `studio.css` has them."""
MOST_CLUSTERS = 12
RADIUS, ROUNDS = 12, 60
LETTER, MOST_LETTERS = 6.8, 28
"""The width of a letter, and the most letters of a name."""


Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


@dataclass(frozen=True)
class TaskMap:
    """Prompts, and what the map shows of their vectors."""

    names: list[str]
    similarities: Tensor
    """[N, N]"""
    points: list[list[float]]
    """Where each is in the picture."""
    clusters: list[int]
    """The number of each one's cluster."""


def _map(studio: Studio, names: Sequence[str]) -> TaskMap | None:
    """None if there are fewer than two prompts."""
    known: dict[str, Tensor] = {}
    for name in names:
        with suppress(UserError):  # removed meanwhile
            vector = torch.tensor(studio.engine.embedding(name))
            if vector.numel() and bool(vector.isfinite().all()):
                known[name] = torch.nn.functional.normalize(vector, dim=0)
    if len(known) < 2:
        return None
    vectors = torch.stack(list(known.values()))
    similarities = vectors @ vectors.T
    points = _spread(_places(vectors)).tolist()
    return TaskMap(list(known), similarities, points, _clusters(similarities.double()))


async def show(studio: Studio, visit: Visit) -> Page:
    prompts = await visit.prompts(studio)
    shown = prompts[:MOST_POINTS]
    names = [prompt.name for prompt in shown]
    origin = [(prompt.name, prompt.created) for prompt in shown]
    known = await studio.cached("map", origin, lambda: asyncio.to_thread(_map, studio, names))
    if known is None:
        return Page("Map of tasks", notice("A map needs at least two prompts."), PATH)
    scores = {p.name: score[1] for p in shown if (score := score_of(p.card)) is not None}
    more = len(prompts) - len(shown)
    body: list[Child] = [
        paragraph(
            "Prompts whose vectors are similar are near each other. The letter is the cluster; "
            "the stronger the colour, the higher the score."
        ),
        _legend(scores),
        paragraph(f"{more:,} more prompts are not drawn.") if more else None,
        _picture(known, scores),
        paragraph("Scroll the map sideways to see all of it.", class_="hint phone"),
        section("Clusters", _cluster_table(known, scores)),
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
    spread = high - low  # 0 across the line that two prompts are on
    return torch.where(spread > 1e-6, (places - low) / spread.clamp(min=1e-6), 0.5)


def _clusters(similarities: Tensor) -> list[int]:
    """The cluster of each prompt: groups are merged by their mean similarity, as long as that is
    above the mean of all pairs."""
    count = len(similarities)
    off_diagonal = similarities.sum() - similarities.diagonal().sum()
    threshold = float(off_diagonal / (count * (count - 1)))
    groups = [[index] for index in range(count)]
    sums = similarities.clone()
    while len(groups) > 1:
        sizes = torch.tensor([len(group) for group in groups], dtype=torch.float64)
        means = (sums / (sizes[:, None] * sizes)).fill_diagonal_(-torch.inf)
        one, other = sorted(divmod(int(means.argmax()), len(groups)))
        if len(groups) <= MOST_CLUSTERS and float(means[one, other]) <= threshold:
            break
        groups[one] += groups.pop(other)
        sums[one] += sums[other]
        sums[:, one] += sums[:, other]
        stay = [index for index in range(len(sums)) if index != other]
        sums = sums[stay][:, stay]
    clusters = [0] * count
    ordered = sorted(map(sorted, groups), key=lambda group: (-len(group), group))
    for number, group in enumerate(ordered):
        for index in group:
            clusters[index] = number
    return clusters


def _letter(cluster: int) -> str:
    return string.ascii_uppercase[cluster % len(string.ascii_uppercase)]


def _shade(name: str, scores: dict[str, float]) -> str:
    """The colour of a score, between those of the lowest and the highest one."""
    if name not in scores:
        return "shade-none"
    low, high = min(scores.values()), max(scores.values())
    share = (scores[name] - low) / (high - low) if high > low else 1.0
    return f"shade-{round(share * SHADES)}"


def _legend(scores: dict[str, float]) -> Html | None:
    """What the colours mean."""
    if not scores:
        return None
    low, high = min(scores.values()), max(scores.values())
    steps = range(SHADES + 1) if high > low else [SHADES]
    swatches = [
        element("circle", class_=f"shade-{step}", cx=10 + 18 * index, cy=10, r=8)
        for index, step in enumerate(steps)
    ]
    key = element(
        "svg",
        element("title", f"Colours of the scores from {low:.1f} to {high:.1f}"),
        *swatches,
        class_="swatches",
        role="img",
        viewBox=f"0 0 {2 + 18 * len(swatches)} 20",
        width=2 + 18 * len(swatches),
        height=20,
    )
    words = [f"Score {low:.1f} ", key, f" {high:.1f}"] if high > low else ["Score ", key, high]
    return paragraph(*words, class_="legend")


def _spread(places: Tensor) -> Tensor:
    """Points of the picture [N, 2], moved apart where they overlap."""
    size = torch.tensor([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN], dtype=torch.float64)
    points = places * size + MARGIN
    # equal points need a direction to part in
    angles = torch.arange(len(points), dtype=torch.float64)
    points = points + 0.5 * torch.stack([angles.cos(), angles.sin()], 1)
    for _ in range(ROUNDS):
        offsets = points[:, None] - points[None]
        distances = offsets.norm(dim=2).clamp(min=1e-6)
        pushes = (2 * RADIUS + 2 - distances).clamp(min=0) / 2
        pushes.fill_diagonal_(0)
        if not bool(pushes.any()):
            break
        points = points + (offsets / distances[..., None] * pushes[..., None]).sum(1)
        points = torch.minimum(points.clamp(min=RADIUS + 2), size + 2 * MARGIN - RADIUS - 2)
    return points


def _caption(name: str, x: float, y: float, taken: list[Box]) -> Html | None:
    """The name of a point right or left of it, where nothing is in the way; then that is taken."""
    shown = shortened(name, MOST_LETTERS)
    width = LETTER * len(shown)
    for anchor, left in (("start", x + RADIUS + 3), ("end", x - RADIUS - 3 - width)):
        box = (left, y - 8, left + width, y + 8)
        inside = left >= 0 and left + width <= WIDTH
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            edge = f"{left + (width if anchor == 'end' else 0):.0f}"
            values = {"x": edge, "y": f"{y + 4:.0f}", "text_anchor": anchor}
            return element("text", shown, class_="name", **values)
    return None


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _picture(known: TaskMap, scores: dict[str, float]) -> Html:
    marks = []
    taken = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in known.points]
    for name, (x, y), group in zip(known.names, known.points, known.clusters, strict=True):
        score = f", {scores[name]:.1f}" if name in scores else ""
        circle = {"cx": f"{x:.0f}", "cy": f"{y:.0f}", "r": str(RADIUS)}
        letter = {"x": f"{x:.0f}", "y": f"{y + 4:.0f}"}
        marks.append(
            link(
                prompt_path(name),
                element("title", f"{name}: cluster {_letter(group)}{score}"),
                element("circle", class_=_shade(name, scores), **circle),
                element("text", _letter(group), class_="letter", **letter),
                _caption(name, x, y, taken),
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
    return element("figure", picture, class_="scroll")


def _cluster_table(known: TaskMap, scores: dict[str, float]) -> Html:
    similarities, groups = known.similarities, known.clusters
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
    return table(
        "Clusters of similar tasks", columns, rows, numbers=[2, 3], class_="texts", titled=True
    )
