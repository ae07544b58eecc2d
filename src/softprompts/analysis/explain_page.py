"""An explanation of a prompt as text, as a figure, and as one self-contained HTML page."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..files.figures import new_figure
from .curve_svg import CURVE_STYLE, curve_figure
from .explain import Explanation, TokenReport, plain_word
from .markup import html_page
from .summary import CurvePoint, Curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_TOKENS = 40
"""Tokens that the text shows; JSON and HTML have all."""
STYLE = """
:root { color-scheme: light dark; background: Canvas; color: CanvasText; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; overflow-wrap: normal; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: inline-block; height: .7em; background: #4477aa;
  width: calc(var(--share) * min(6rem, 12vw)); }
.bar.down { background: #ee6677; }
small { opacity: .8; }
@media (max-width: 40rem) { th, td { padding: .3rem .25rem; } }
"""


def describe(explanation: Explanation) -> list[str]:
    """The explanation as lines of text, with the tokens that matter most."""
    shown = sorted(explanation.tokens, key=_importance)[-MOST_TOKENS:]
    left_out = len(explanation.tokens) - len(shown)
    lines = [
        "token  nearest words (cosine)",
        *(_token_line(token, explanation) for token in explanation.tokens if token in shown),
        *([f"… and {left_out} less important tokens (--json has all)"] if left_out else []),
        *findings(explanation),
    ]
    for part in explanation.routing:
        classes = ", ".join(f"{name} {count}" for name, count in part.classes.items())
        lines.append(f"prompt {part.prompt} takes {part.rows} rows{': ' * bool(classes)}{classes}")
        lines += [f"    {text[:90]}" for text in part.examples]
    if explanation.router_steps:
        lines.append("router by training step: confidence, entropy, share of the rows per prompt")
    for at in explanation.router_steps:
        load = " ".join(f"{share:4.0%}" for share in at.load)
        lines.append(f"{at.step:>8,}  {at.confidence:4.0%} {at.entropy:4.0%}  {load}")
    return lines


def _importance(token: TokenReport) -> float:
    """How much the loss changes without it; if that is not known, how near it is to a word."""
    if token.loss_without is None:
        return max(neighbour.cosine for neighbour in token.neighbours)
    return abs(token.loss_without)


def _token_line(token: TokenReport, explanation: Explanation) -> str:
    words = ", ".join(f"{plain_word(n.word) or n.word} {n.cosine:.2f}" for n in token.neighbours)
    extra = "" if token.moved is None else f"  moved {token.moved:.2f}"
    if token.loss_without is not None:
        extra += f"  loss without {token.loss_without:+.4f}"
    return f"{name(token, explanation):6} {words}{extra}"


def name(token: TokenReport, explanation: Explanation) -> str:
    several = any(other.prompt for other in explanation.tokens)
    return f"{token.prompt}.{token.position}" if several else str(token.position)


def findings(explanation: Explanation) -> list[str]:
    """What the numbers say, in sentences."""
    sentences = [
        f"The cosine of a token and its nearest word is {explanation.nearest_cosine:.2f} on "
        f"average; for random vectors it is {explanation.random_cosine:.2f}."
    ]
    if explanation.neighbour_cosine is not None:
        sentences.append(
            "The nearest words of one token have a mean pairwise cosine of "
            f"{explanation.neighbour_cosine:.2f}; those of a random vector, "
            f"{explanation.random_neighbour_cosine:.2f}."
        )
    if explanation.labels:
        near = [
            f"{label} ({n} token{'s' if n > 1 else ''})"
            for label, n in explanation.labels.items()
            if n
        ]
        absent = [label for label, count in explanation.labels.items() if not count]
        missing = f"; not {', '.join(absent)}" if near and absent else ""
        sentences.append(
            f"Class labels among the neighbours: {', '.join(near) or 'none'}{missing}."
        )
    shared = list(explanation.shared.items())[:8]
    if shared:
        words = ", ".join(f"{word} ({count})" for word, count in shared)
        sentences.append(f"Several tokens share neighbours: {words}.")
    if explanation.duplicates:
        groups = "; ".join(
            ", ".join(f"{k}.{p}" for k, p in group) for group in explanation.duplicates
        )
        sentences.append(f"Near-duplicate tokens: {groups}.")
    if explanation.loss is not None:
        worth = sorted(explanation.tokens, key=lambda token: -(token.loss_without or 0))
        best = ", ".join(name(token, explanation) for token in worth[:3])
        sentences.append(
            f"The loss on {explanation.rows} rows is {explanation.loss:.4f}; removing token "
            f"{' or '.join(best.rsplit(', ', 1))} raises it most."
        )
    if explanation.confidence is not None and explanation.entropy is not None:
        sentences.append(
            f"The router gives the prompt it chooses {explanation.confidence:.0%} on average; its "
            f"entropy is {explanation.entropy:.0%} of the maximum."
        )
    if len(explanation.router_steps) > 1:
        first, last = explanation.router_steps[0], explanation.router_steps[-1]
        sentences.append(
            f"Between steps {first.step:,} and {last.step:,} its confidence went from "
            f"{first.confidence:.0%} to {last.confidence:.0%}, its entropy from "
            f"{first.entropy:.0%} to {last.entropy:.0%}."
        )
    elif not explanation.router_steps and any(token.prompt for token in explanation.tokens):
        sentences.append(
            "The router's confidence over training is unknown: the prompt has no recorded "
            "evaluations, or is from a version that did not record the router."
        )
    return sentences


def router_curves(explanation: Explanation) -> list[Curves]:
    """The router over training, in percent: how sure it was, and what each prompt took."""

    def points(values: Sequence[float]) -> list[CurvePoint]:
        return [
            {"step": at.step, "mean": 100 * value, "std": None, "runs": 1}
            for at, value in zip(explanation.router_steps, values, strict=True)
        ]

    steps = explanation.router_steps
    if not steps:
        return []
    sure = {
        "confidence": points([at.confidence for at in steps]),
        "entropy": points([at.entropy for at in steps]),
    }
    loads = {f"prompt {k}": points([at.load[k] for at in steps]) for k in range(len(steps[0].load))}
    return [
        {"task": "Router", "metric": "confidence and entropy (%)", "arms": sure},
        {"task": "Router", "metric": "share of the rows that a prompt takes (%)", "arms": loads},
    ]


def page(explanation: Explanation, title: str) -> str:
    """One HTML page without anything from outside."""
    largest = max((abs(token.loss_without or 0) for token in explanation.tokens), default=0) or 1
    rows = "".join(_row(token, explanation, largest) for token in explanation.tokens)
    sentences = "".join(f"<li>{html.escape(text)}</li>" for text in findings(explanation))
    drawn = "".join(curve_figure(c, i) for i, c in enumerate(router_curves(explanation)))
    training = f"<h2>The router over training</h2>{drawn}" if drawn else ""
    body = (
        f"<ul>{sentences}</ul><h2>Tokens</h2>"
        "<div class='scroll' tabindex='0'><table><thead><tr><th>token</th>"
        "<th>nearest words</th><th class='number'>moved</th><th class='number'>loss without it</th>"
        f"<th></th></tr></thead><tbody>{rows}</tbody></table></div>{_routing(explanation)}{training}"
    )
    return html_page(title, CURVE_STYLE + STYLE, body)


def _routing(explanation: Explanation) -> str:
    """Prompts by classes, shaded by the share of the class, and example inputs of each prompt."""
    parts = explanation.routing
    if not parts:
        return ""
    classes = list(dict.fromkeys(label for part in parts for label in part.classes))
    totals = {label: sum(part.classes.get(label, 0) for part in parts) for label in classes}
    names = "".join(f"<th class='number'>{html.escape(label)}</th>" for label in classes)
    rows = "".join(
        f"<tr><td>{part.prompt}</td><td class='number'>{part.rows}</td>"
        + "".join(_share(part.classes.get(label, 0), totals[label]) for label in classes)
        + "</tr>"
        for part in parts
    )
    examples = "".join(
        f"<h3>Inputs of prompt {part.prompt}</h3><ul>"
        + "".join(f"<li><small>{html.escape(text)}</small></li>" for text in part.examples)
        + "</ul>"
        for part in parts
        if part.examples
    )
    return (
        "<h2>What each prompt takes</h2><div class='scroll' tabindex='0'><table><thead><tr>"
        f"<th>prompt</th><th class='number'>rows</th>{names}</tr></thead><tbody>{rows}</tbody>"
        f"</table></div>{examples}"
    )


def _share(count: int, total: int) -> str:
    """A cell with the rows of a class, shaded by their share of it."""
    shade = f" style='background: rgb(68 119 170 / {0.5 * count / total:.2f})'" if count else ""
    return f"<td class='number'{shade}>{count or ''}</td>"


def _row(token: TokenReport, explanation: Explanation, largest: float) -> str:
    words = " ".join(
        f"<span style='opacity:{max(0.7, min(1.0, near.cosine + 0.4)):.2f}'>"
        f"{html.escape(plain_word(near.word) or near.word)} <small>{near.cosine:.2f}</small></span>"
        for near in token.neighbours
    )
    moved = "" if token.moved is None else f"{token.moved:.2f}"
    rise, bar = token.loss_without, ""
    if rise is not None:
        kind = "bar" if rise >= 0 else "bar down"
        bar = f"<span class='{kind}' style='--share:{abs(rise) / largest:.2f}'></span>"
    shown = "" if rise is None else f"{rise:+.4f}"
    return (
        f"<tr><td>{name(token, explanation)}</td><td>{words}</td><td class='number'>{moved}</td>"
        f"<td class='number'>{shown}</td><td>{bar}</td></tr>"
    )


def figure(explanation: Explanation, title: str) -> "Figure":
    """How far each token moved, what it is worth, and what a mixture's prompts take."""
    labels = [name(token, explanation) for token in explanation.tokens]
    panels: list[tuple[str, list[Any]]] = [
        ("distance from the start", [token.moved for token in explanation.tokens]),
        ("rise of the loss without it", [token.loss_without for token in explanation.tokens]),
        ("cosine of the nearest word", [t.neighbours[0].cosine for t in explanation.tokens]),
    ]
    known = [(text, values) for text, values in panels if values[0] is not None]
    count = len(known) + bool(explanation.routing) + 2 * bool(explanation.router_steps)
    width = min(14.0, max(6.0, 0.16 * len(labels) + 2))  # legible on a screen
    drawing = new_figure(width, 2.1 * count + 0.8, title)
    axes = drawing.subplots(count, 1, squeeze=False)[:, 0]
    for axis, (text, values) in zip(axes, known, strict=False):
        axis.bar(range(len(values)), values, color="#4477aa")
        axis.set_ylabel(text, fontsize=8)
        axis.axhline(0, color="grey", linewidth=0.6)
        _ticks(axis, labels)
    if explanation.router_steps:
        _training_panels(axes[len(known)], axes[len(known) + 1], explanation)
    if explanation.routing:
        _routing_panel(axes[-1], explanation)
    return drawing


def _ticks(axis: Any, labels: Sequence[str]) -> None:
    """At most about 25: of a large mixture, where its prompts begin."""
    starts = [i for i, label in enumerate(labels) if label.endswith(".0")]
    step = max(1, len(labels) // 25)
    shown = starts if step > 1 and 1 < len(starts) <= 25 else range(0, len(labels), step)
    axis.set_xticks(shown, [labels[i] for i in shown], fontsize=7)
    axis.set_xlabel("token (prompt.position)" if starts else "token", fontsize=8)
    axis.tick_params("y", labelsize=8)
    axis.margins(x=0.01)


def _training_panels(sure: Any, load: Any, explanation: Explanation) -> None:
    """How sure the router was at each evaluation, and what each prompt took."""
    at = explanation.router_steps
    steps = [entry.step for entry in at]
    sure.plot(steps, [entry.confidence for entry in at], marker="o", label="confidence")
    sure.plot(steps, [entry.entropy for entry in at], marker="o", label="entropy")
    sure.set_ylim(0, 1.03)
    sure.set_ylabel("router", fontsize=8)
    sure.legend(fontsize=7)
    for k in range(len(at[0].load)):
        below, above = ([sum(entry.load[:end]) for entry in at] for end in (k, k + 1))
        label = f"prompt {k}" if max(entry.load[k] for entry in at) >= 0.05 else None
        load.fill_between(steps, below, above, label=label)
    load.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    for axis in (sure, load):
        axis.margins(x=0.01)
        axis.tick_params(labelsize=8)
    load.set_ylim(0, 1)
    load.set_ylabel("share of rows", fontsize=8)
    load.set_xlabel("training step", fontsize=8)


def _routing_panel(axis: Any, explanation: Explanation) -> None:
    """Rows of each prompt, by class."""
    classes = list(dict.fromkeys(label for part in explanation.routing for label in part.classes))
    bottom = [0] * len(explanation.routing)
    for label in classes or [""]:
        parts = explanation.routing
        rows = [part.classes.get(label, 0) if classes else part.rows for part in parts]
        axis.bar(range(len(rows)), rows, bottom=bottom, label=label)
        bottom = [sum(pair) for pair in zip(bottom, rows, strict=True)]
    axis.set_ylabel("rows", fontsize=8)
    axis.set_xlabel("prompt of the mixture", fontsize=8)
    axis.set_xticks(range(len(bottom)))
    axis.tick_params(labelsize=8)
    if classes:
        axis.legend(fontsize=7)
