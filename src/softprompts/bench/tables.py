"""Results as Markdown tables, for the terminal and the docs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..analysis.markup import markdown_table
from ..analysis.spread import grouped

PEFT_NAMES = {"eager": "PEFT, eager", "regions": "PEFT, layers compiled"}
"""The modes of PEFT in inference."""

Result = dict[str, Any]
Cells = Sequence[str]


def table(results: Sequence[Result]) -> str:
    """One table per benchmark and environment, below a line that names them."""
    groups = grouped(((result["benchmark"], _environment(result)), result) for result in results)
    parts = []
    for (name, environment), group in groups.items():
        columns, rows = TABLES[name]
        body = markdown_table(columns, [row for result in group for row in rows(result)])
        parts.append(f"{name}: {environment}\n\n{body}")
    return "\n\n".join(parts)


def _environment(result: Result) -> str:
    machine, versions = result["machine"], result["versions"]
    on_cpu = machine["kind"] == "cpu"
    threads = f", {machine['threads']} of {machine['cores']} cores" if on_cpu else ""
    libraries = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers", "peft"))
    return f"{machine['device']}{threads}, {machine['dtype']}, {libraries}"


def _training(result: Result) -> list[Cells]:
    settings = result["settings"]
    peers = [name for name in result["subjects"] if name.startswith("peft")]
    rows: list[Cells] = []
    for name, subject in result["subjects"].items():
        fastest = " (PEFT's fastest)" if name == result["fastest"] and len(peers) > 1 else ""
        ratios = result["ratios"].get(name, {})
        difference = result["losses"]["max_relative_difference"].get(name)
        use = subject["utilisation"]
        rows.append(
            [
                _model(settings),
                str(settings["prompt"]),
                subject["about"] + fastest,
                _range(subject["seconds"], 1000, 2),
                _times(ratios.get(result["fastest"])),
                _times(ratios.get("ours")),
                _number(subject["compile_s"], ".1f"),
                _number(subject["peak_gib"], ".2f"),
                _number(subject["tflops"], ".3g") + (f" ({use:.0%})" if use is not None else ""),
                _number(difference, ".1e"),
            ]
        )
    return rows


def _inference(result: Result) -> list[Cells]:
    return [
        [
            _model(result["settings"]),
            str(result["tasks"]),
            scoring["about"],
            PEFT_NAMES[mode],
            _range(peer["seconds"], 1000, 1),
            _range(scoring["ours"], 1000, 1),
            _times(peer["ratio"]),
            f"{peer['agreement']:.1%}",
        ]
        for scoring in result["ways"].values()
        for mode, peer in scoring["peft"].items()
    ]


def _decoding(result: Result) -> list[Cells]:
    settings = result["settings"]
    return [
        [
            _model(settings),
            str(settings["prompt"]),
            str(settings["new_tokens"]),
            str(batch["batch"]),
            PEFT_NAMES[mode],
            _range(peer["seconds"], 1000, 1),
            _range(batch["read"], 1000, 1),
            _range(batch["remembered"], 1000, 1),
            _times(peer["ratio"]),
            f"{peer['agreement']:.1%}",
        ]
        for batch in result["batches"]
        for mode, peer in batch["peft"].items()
    ]


def _smop(result: Result) -> list[Cells]:
    long, short = result["subjects"]["prompt-tuning"], result["subjects"]["smop"]
    quantities: dict[str, tuple[str, Callable[[Result], str]]] = {
        "time": ("training time", lambda subject: _range(subject["seconds"], 1000, 2) + " ms"),
        "memory": ("training memory", lambda subject: _number(subject["peak_gib"], ".2f", " GiB")),
        "flops": (
            "inference FLOPs",
            lambda subject: _number(subject["forward_flops"] / 1e12, ".3g", " T"),
        ),
    }
    return [
        [
            _model(result["settings"]),
            title,
            show(long),
            show(short),
            _number(result["savings"][name], ".1%"),
            _number(result["paper"][name], ".1%"),
        ]
        for name, (title, show) in quantities.items()
    ]


TABLES: dict[str, tuple[Cells, Callable[[Result], list[Cells]]]] = {
    "training": (
        (
            "model",
            "prompt",
            "side",
            "ms per step of one run",
            "speed-up over PEFT at its fastest",
            "over ours alone",
            "compiling, s",
            "peak GiB",
            "TFLOP/s (of peak)",
            "largest difference of losses",
        ),
        _training,
    ),
    "inference": (
        (
            "model",
            "tasks",
            "answers",
            "compared with",
            "its ms",
            "ours, ms",
            "speed-up",
            "same answers",
        ),
        _inference,
    ),
    "decoding": (
        (
            "model",
            "prompt",
            "new tokens",
            "batch",
            "compared with",
            "its ms",
            "ours, ms",
            "ours with cached prompt, ms",
            "speed-up",
            "same tokens",
        ),
        _decoding,
    ),
    "smop": (
        ("model", "quantity", "prompt tuning, 100", "SMoP, 4 x 5", "saved", "saved in the paper"),
        _smop,
    ),
}
"""The columns of each benchmark's table, and a function from a result to its rows."""


def _model(settings: Result) -> str:
    name = Path(settings["model"]).name
    return f"{name}, {settings['workload']}" if "workload" in settings else name


def _range(spread: dict[str, float], factor: float, digits: int) -> str:
    median, low, high = (spread[name] * factor for name in ("median", "p10", "p90"))
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _times(spread: dict[str, float] | None) -> str:
    return _range(spread, 1, 2) if spread is not None else ""


def _number(value: float | None, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if value is not None else ""
