"""Results as Markdown tables, for a terminal and for the docs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PEERS = {"eager": "PEFT as it comes", "regions": "PEFT, its layers compiled"}
"""How PEFT answers."""

Result = dict[str, Any]
Cells = Sequence[str]


def table(results: Sequence[Result]) -> str:
    """Tables of results: those of one benchmark on one machine together, under a line that tells what they were measured on."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result["benchmark"], _surroundings(result)), []).append(result)
    parts = []
    for (name, where), some in groups.items():
        heads, rows = TABLES[name]
        lines = [heads, ["---"] * len(heads), *(row for result in some for row in rows(result))]
        parts.append(
            "\n".join([f"{name}: {where}", "", *("| " + " | ".join(line) + " |" for line in lines)])
        )
    return "\n\n".join(parts)


def _surroundings(result: Result) -> str:
    machine, versions = result["machine"], result["versions"]
    threads = (
        f", {machine['threads']} of {machine['cores']} cores" if machine["kind"] == "cpu" else ""
    )
    told = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers", "peft"))
    return f"{machine['device']}{threads}, {machine['dtype']}, {told}"


def _training(result: Result) -> list[Cells]:
    settings = result["settings"]
    peers = [name for name in result["subjects"] if name.startswith("peft")]
    rows: list[Cells] = []
    for name, found in result["subjects"].items():
        fast = " (PEFT's fastest)" if name == result["fastest"] and len(peers) > 1 else ""
        ratios = result["ratios"].get(name, {})
        apart = result["losses"]["max_relative_difference"].get(name)
        rows.append(
            [
                _model(settings),
                str(settings["prompt"]),
                found["about"] + fast,
                _span(found["seconds"], 1000, 2),
                _times(ratios.get(result["fastest"])),
                _times(ratios.get("ours")),
                _number(found["compile_s"], 1),
                _number(found["peak_gib"], 2),
                _short(found["tflops"])
                + (f" ({found['utilisation']:.0%})" if found["utilisation"] is not None else ""),
                f"{apart:.1e}" if apart is not None else "",
            ]
        )
    return rows


def _inference(result: Result) -> list[Cells]:
    settings = result["settings"]
    return [
        [
            _model(settings),
            str(result["tasks"]),
            found["about"],
            PEERS[way],
            _span(peer["seconds"], 1000, 1),
            _span(found["ours"], 1000, 1),
            _times(peer["ratio"]),
            f"{peer['agreement']:.1%}",
        ]
        for found in result["ways"].values()
        for way, peer in found["peft"].items()
    ]


def _decoding(result: Result) -> list[Cells]:
    settings = result["settings"]
    return [
        [
            _model(settings),
            str(settings["prompt"]),
            str(settings["new_tokens"]),
            str(found["batch"]),
            PEERS[way],
            _span(peer["seconds"], 1000, 1),
            _span(found["read"], 1000, 1),
            _span(found["remembered"], 1000, 1),
            _times(peer["ratio"]),
            f"{peer['agreement']:.1%}",
        ]
        for found in result["batches"]
        for way, peer in found["peft"].items()
    ]


def _smop(result: Result) -> list[Cells]:
    settings, names = (
        result["settings"],
        {"time": "training time", "memory": "training memory", "flops": "inference FLOPs"},
    )
    long, short = result["subjects"]["prompt-tuning"], result["subjects"]["smop"]
    told = {
        "time": (_span(long["seconds"], 1000, 2) + " ms", _span(short["seconds"], 1000, 2) + " ms"),
        "memory": (_number(long["peak_gib"], 2, " GiB"), _number(short["peak_gib"], 2, " GiB")),
        "flops": (
            f"{long['forward_flops'] / 1e12:.3g} T",
            f"{short['forward_flops'] / 1e12:.3g} T",
        ),
    }
    return [
        [
            _model(settings),
            names[what],
            *told[what],
            _percent(result["savings"][what]),
            _percent(result["paper"][what]),
        ]
        for what in names
    ]


TABLES: dict[str, tuple[Cells, Callable[[Result], list[Cells]]]] = {
    "training": (
        (
            *(
                "model",
                "prompt",
                "who",
                "ms for a step of one run",
                "times as fast as PEFT at its fastest",
                "as ours alone",
            ),
            *("compiling, s", "peak GiB", "TFLOP/s (of peak)", "losses apart"),
        ),
        _training,
    ),
    "inference": (
        (
            "model",
            "tasks",
            "answers",
            "beside",
            "its ms",
            "ours, ms",
            "times as fast",
            "answers that agree",
        ),
        _inference,
    ),
    "decoding": (
        (
            *(
                "model",
                "prompt",
                "new tokens",
                "batch",
                "beside",
                "its ms",
                "ours, prompt read, ms",
                "ours, prompt remembered, ms",
            ),
            *("times as fast", "tokens that agree"),
        ),
        _decoding,
    ),
    "smop": (
        ("model", "what", "prompt tuning, 100", "SMoP, 4 x 5", "saved", "saved in the paper"),
        _smop,
    ),
}
"""For each benchmark the heads of its columns, and the rows of a result."""


def _model(settings: Result) -> str:
    name = Path(settings["model"]).name
    return f"{name}, {settings['workload']}" if "workload" in settings else name


def _span(spread: dict[str, float], factor: float, digits: int) -> str:
    median, low, high = (spread[name] * factor for name in ("median", "p10", "p90"))
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _times(spread: dict[str, float] | None) -> str:
    return _span(spread, 1, 2) if spread is not None else ""


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return f"{value:.{digits}f}{unit}" if value is not None else ""


def _short(value: float | None) -> str:
    return f"{value:.3g}" if value is not None else ""


def _percent(share: float | None) -> str:
    return f"{share:.1%}" if share is not None else ""
