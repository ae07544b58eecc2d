"""Learning curves as inline SVG: lines with bands, in the page's own colours, with text for readers
that show no pictures."""

import html
import math
from collections.abc import Sequence

from .markup import html_table
from .spread import plus_minus
from .summary import CurvePoint, Curves

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 46, 12, 12, 40
DASHES = ("", "7 3", "2 3", "9 3 2 3")
COLOURS = 6
"""Colours are variables of the page's style (`--line-0` and so on); then another dash begins."""
MOST_ARMS = 12
CURVE_STYLE = """
:root { --rule: #8886; --line-0: #0060a8; --line-1: #b84a00; --line-2: #00704f; --line-3: #a3467f;
  --line-4: #7a5d00; --line-5: #444; }
@media (prefers-color-scheme: dark) { :root { --line-0: #6cb8ff; --line-1: #ff9a55;
  --line-2: #4fd1a5; --line-3: #f0a0cf; --line-4: #e5c75c; --line-5: #ccc; } }
figure { margin: 1.2rem 0; } svg, img { max-width: 100%; height: auto; }
figure > svg { width: 44rem; }
svg text { fill: currentColor; font-size: 12px; }
.grid { stroke: var(--rule); stroke-width: .5; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem; }
.key { width: 2rem; height: .65rem; margin-right: .4rem; }
details { margin: .5rem 0; } summary { cursor: pointer; }
"""
"""What a page with curves needs in its style."""


def curve_figure(curves: Curves, number: int) -> str:
    """A figure with its legend and, folded away, its numbers; only the best arms if they are
    many."""
    arms = _shown(curves)
    left_out = len(curves["arms"]) - len(arms)
    note = f" The {left_out} arms with the lowest last values are not drawn." if left_out else ""
    title = f"{curves['task']}: {curves['metric']} by training step"
    return (
        f"<figure>{_svg(arms, title, f'curve-{number}', note)}"
        f"<figcaption>{html.escape(title)}.{note}{_legend(arms)}</figcaption>"
        f"<details><summary>Numbers</summary>{_numbers(curves)}</details>"
        "</figure>"
    )


def _shown(curves: Curves) -> dict[str, list[CurvePoint]]:
    sign = -1 if curves["metric"] == "loss" else 1
    ranked = sorted(curves["arms"], key=lambda name: -sign * curves["arms"][name][-1]["mean"])
    return {name: points for name, points in curves["arms"].items() if name in ranked[:MOST_ARMS]}


def _svg(arms: dict[str, list[CurvePoint]], title: str, identity: str, note: str) -> str:
    points = [point for part in arms.values() for point in part]
    steps = [point["step"] for point in points]
    values = [value for point in points for value in _band(point)]
    margin = 0.05 * (max(values) - min(values)) or 1.0
    low, high = min(values) - margin, max(values) + margin
    last, first = max(steps), min(0, *steps)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / max(1, last - first)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = []
    for value in _ticks(low, high):
        parts.append(
            f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y(value):.1f}' "
            f"y2='{y(value):.1f}'/><text x='{LEFT - 6}' y='{y(value) + 4:.1f}' "
            f"text-anchor='end'>{value:g}</text>"
        )
    parts += [
        f"<text x='{x(step):.1f}' y='{HEIGHT - BOTTOM + 18}' text-anchor='middle'>{step:,g}</text>"
        for step in _ticks(first, last)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f"<text x='{middle}' y='{HEIGHT - 4}' text-anchor='middle'>step</text>")
    for index, part in enumerate(arms.values()):
        band = [(x(p["step"]), *(y(value) for value in _band(p))) for p in part]
        edge = [*((a, top) for a, _, top in band), *((a, low) for a, low, _ in reversed(band))]
        colour = f"var(--line-{index % COLOURS})"
        if any(point["std"] for point in part):
            parts.append(f"<polygon points='{_path(edge)}' fill='{colour}' fill-opacity='.15'/>")
        line = _path([(x(p["step"]), y(p["mean"])) for p in part])
        parts.append(
            f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='2' "
            f"stroke-dasharray='{DASHES[index // COLOURS % len(DASHES)]}'/>"
        )
        if len(part) == 1:  # a line of one point cannot be seen
            at, height = x(part[0]["step"]), y(part[0]["mean"])
            parts.append(f"<circle cx='{at:.1f}' cy='{height:.1f}' r='4' fill='{colour}'/>")
    return (
        f"<svg role='img' aria-labelledby='{identity}-title {identity}-text' "
        f"viewBox='0 0 {WIDTH} {HEIGHT}'><title id='{identity}-title'>{html.escape(title)}</title>"
        f"<desc id='{identity}-text'>{html.escape(_description(arms) + note)}</desc>"
        f"{''.join(parts)}</svg>"
    )


def _band(point: CurvePoint) -> tuple[float, float]:
    width = point["std"] or 0.0
    return point["mean"] - width, point["mean"] + width


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers between two values."""
    rough = (high - low) / 5 or 1.0
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step)
    return [round(index * step, 10) for index in range(first, math.floor(high / step) + 1)]


def _description(arms: dict[str, list[CurvePoint]]) -> str:
    lasts = [f"{name} ends at {points[-1]['mean']:.1f}" for name, points in arms.items()]
    banded = any(point["std"] for points in arms.values() for point in points)
    return f"{'; '.join(lasts)}." + " Bands are one standard deviation over seeds." * banded


def _legend(arms: dict[str, list[CurvePoint]]) -> str:
    entries = "".join(
        "<li><svg class='key' viewBox='0 0 32 10' aria-hidden='true'><line x1='0' x2='32' y1='5' "
        f"y2='5' stroke='var(--line-{index % COLOURS})' stroke-width='2.5' "
        f"stroke-dasharray='{DASHES[index // COLOURS % len(DASHES)]}'/></svg>"
        f"{html.escape(name)}</li>"
        for index, name in enumerate(arms)
    )
    return f"<ul class='legend'>{entries}</ul>"


def _numbers(curves: Curves) -> str:
    steps = sorted({point["step"] for part in curves["arms"].values() for point in part})
    known = {
        (name, point["step"]): point for name, part in curves["arms"].items() for point in part
    }
    rows = [
        [f"{step:,}", *(_cell(known.get((name, step))) for name in curves["arms"])]
        for step in steps
    ]
    return html_table(["step", *curves["arms"]], rows)


def _cell(point: CurvePoint | None) -> str:
    if point is None:
        return ""
    return plus_minus(point, 3 if abs(point["mean"]) < 10 else 1)
