"""An explanation of a prompt as text, as a figure, and as one self-contained HTML page."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .explain import Explanation, TokenReport, plain_word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: inline-block; height: .7em; background: #4477aa; }
.bar.down { background: #ee6677; }
small { opacity: .7; }
"""


def describe(explanation: Explanation) -> list[str]:
    """The explanation as lines of text."""
    lines = [
        "token  nearest words (cosine)",
        *(_token_line(token, explanation) for token in explanation.tokens),
        *findings(explanation),
    ]
    for part in explanation.routing:
        classes = ", ".join(f"{name} {count}" for name, count in part.classes.items())
        lines.append(f"prompt {part.prompt} takes {part.rows} rows{': ' * bool(classes)}{classes}")
        lines += [f"    {text[:90]}" for text in part.examples]
    return lines


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
    if explanation.labels:
        near = [f"{label} ({n} tokens)" for label, n in explanation.labels.items() if n]
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
            f"The loss on {explanation.rows} rows is {explanation.loss:.4f}; it rises most without "
            f"token {best}."
        )
    if explanation.confidence is not None and explanation.entropy is not None:
        sentences.append(
            f"The router gives the prompt it chooses {explanation.confidence:.0%} on average; its "
            f"entropy is {explanation.entropy:.0%} of the largest possible."
        )
    return sentences


def page(explanation: Explanation, title: str) -> str:
    """One HTML page without anything from outside."""
    largest = max((abs(token.loss_without or 0) for token in explanation.tokens), default=0) or 1
    rows = "".join(_row(token, explanation, largest) for token in explanation.tokens)
    sentences = "".join(f"<li>{html.escape(text)}</li>" for text in findings(explanation))
    routing = "".join(
        f"<h3>Prompt {part.prompt}: {part.rows} rows</h3>"
        f"<p>{html.escape(_classes(part.classes))}</p>"
        + "".join(f"<p><small>{html.escape(text)}</small></p>" for text in part.examples)
        for part in explanation.routing
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><ul>{sentences}</ul><table><thead><tr><th>token</th>"
        "<th>nearest words</th><th class='number'>moved</th><th class='number'>loss without it</th>"
        f"<th></th></tr></thead><tbody>{rows}</tbody></table>{routing}</body></html>"
    )


def _row(token: TokenReport, explanation: Explanation, largest: float) -> str:
    words = " ".join(
        f"<span style='opacity:{max(0.35, min(1.0, near.cosine + 0.2)):.2f}'>"
        f"{html.escape(plain_word(near.word) or near.word)} <small>{near.cosine:.2f}</small></span>"
        for near in token.neighbours
    )
    moved = "" if token.moved is None else f"{token.moved:.2f}"
    rise, bar = token.loss_without, ""
    if rise is not None:
        kind = "bar" if rise >= 0 else "bar down"
        bar = f"<span class='{kind}' style='width:{6 * abs(rise) / largest:.2f}rem'></span>"
    shown = "" if rise is None else f"{rise:+.4f}"
    return (
        f"<tr><td>{name(token, explanation)}</td><td>{words}</td><td class='number'>{moved}</td>"
        f"<td class='number'>{shown}</td><td>{bar}</td></tr>"
    )


def _classes(classes: dict[str, int]) -> str:
    return ", ".join(f"{label} {count}" for label, count in classes.items())


def figure(explanation: Explanation, title: str) -> "Figure":
    """How far each token moved, what it is worth, and what a mixture's prompts take."""
    from matplotlib.figure import Figure

    labels = [name(token, explanation) for token in explanation.tokens]
    panels: list[tuple[str, list[Any]]] = [
        ("distance from the start", [token.moved for token in explanation.tokens]),
        ("rise of the loss without it", [token.loss_without for token in explanation.tokens]),
        ("cosine of the nearest word", [t.neighbours[0].cosine for t in explanation.tokens]),
    ]
    known = [(text, values) for text, values in panels if values[0] is not None]
    count = len(known) + bool(explanation.routing)
    width = min(14.0, max(6.0, 0.16 * len(labels) + 2))  # legible on a screen
    drawing = Figure(figsize=(width, 2.1 * count + 0.8), layout="constrained")
    axes = drawing.subplots(count, 1, squeeze=False)[:, 0]
    for axis, (text, values) in zip(axes, known, strict=False):
        axis.bar(range(len(values)), values, color="#4477aa")
        axis.set_ylabel(text, fontsize=8)
        axis.axhline(0, color="grey", linewidth=0.6)
        _ticks(axis, labels)
    if explanation.routing:
        _routing_panel(axes[-1], explanation)
    drawing.suptitle(title, fontsize=10)
    return drawing


def _ticks(axis: Any, labels: Sequence[str]) -> None:
    step = max(1, len(labels) // 25)
    axis.set_xticks(range(0, len(labels), step), labels[::step], fontsize=7)


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
    if classes:
        axis.legend(fontsize=7)
