"""Tables of what serving.py measured, as in results/serving.md.

python benchmarks/serving_table.py benchmarks/results/serving-t5-tiny-cpu.json
python benchmarks/serving_table.py benchmarks/results/serving-*-h200.json
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]
Key = tuple[str, int, str]
"""Kind of answer, number of prompts, and their popularity."""
COLUMNS = {
    "ours": "ours",
    "http": "ours, HTTP",
    "switching": "PEFT, switching",
    "batched": "PEFT, batched",
}
KINDS = {"labels": "labels", "generate": "generation"}


def best_points(result: Result) -> dict[Key, dict[str, Any]]:
    """The point with the highest rate of each host; None: no rate met the target."""
    found: dict[Key, dict[str, Any]] = {}
    for cell in result["measurements"]:
        key = cell["kind"], cell["prompts"], cell["popularity"]
        if "best" in cell:
            found.setdefault(key, {})[cell["host"]] = cell["best"]
    return dict(sorted(found.items(), key=lambda item: (item[0][0] != "labels", *item[0][1:])))


def ratios(result: Result) -> dict[str, float]:
    """Our rate by each peer's at the same p99, and that with most prompts by that with fewest."""
    points = best_points(result)
    rates = {
        key: {host: point["offered_per_s"] for host, point in hosts.items() if point}
        for key, hosts in points.items()
    }
    found: dict[str, float] = {}
    for pair in result.get("pairs", []):
        few, many = sorted(map(int, pair["rows_per_s"]))
        found[f"{pair['kind']}: {many} prompts / {few}, closed loops in turn"] = pair["ratio"]
    for (kind, prompts, popularity), hosts in rates.items():
        for host, rate in hosts.items():
            if host != "ours" and "ours" in hosts:
                name = f"{kind}, {prompts} prompts ({popularity}): ours / {host}"
                found[name] = hosts["ours"] / rate
    for kind in dict.fromkeys(kind for kind, _, _ in rates):
        ours = {
            prompts: hosts["ours"]
            for (other, prompts, popularity), hosts in rates.items()
            if (other, popularity) == (kind, "uniform") and "ours" in hosts
        }
        if len(ours) > 1:
            few, many = min(ours), max(ours)
            found[f"{kind}: {many} prompts / {few}"] = ours[many] / ours[few]
    return found


def table(*results: Result) -> str:
    """Markdown: rows per second, and in parentheses p50 and p99 in milliseconds. Those of several
    models are named."""
    points = [best_points(result) for result in results]
    seen = {host for found in points for hosts in found.values() for host in hosts}
    hosts = [host for host in COLUMNS if host in seen]
    rows = []
    for result, found in zip(results, points, strict=True):
        model = f"{result['settings']['model']}, " if len(results) > 1 else ""
        for (kind, prompts, popularity), best in found.items():
            zipf = ", Zipf" if popularity == "zipf" else ""
            cells = [_shown(best[host]) if host in best else "" for host in hosts]
            rows.append([model + KINDS[kind], f"{prompts:,}{zipf}", *cells])
    return _markdown(["", "prompts", *(COLUMNS[host] for host in hosts)], rows)


def summary(result: Result) -> str:
    """Markdown: the least and the most over numbers of prompts, all equally popular, of our rate by
    PEFT's, and of the rows per second of CPU time at these rates; and the median ratio of closed
    loops with most and with fewest prompts."""
    pairs = {pair["kind"]: f"{pair['ratio']:.2f}" for pair in result.get("pairs", [])}
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for (kind, _, popularity), hosts in best_points(result).items():
        if popularity == "uniform":
            sustained = {host: point for host, point in hosts.items() if point}
            by_kind.setdefault(kind, []).append(sustained)
    rows = []
    for kind, cells in by_kind.items():
        faster = [
            _range(
                points["ours"]["offered_per_s"] / points[peer]["offered_per_s"]
                for points in cells
                if {"ours", peer} <= points.keys()
            )
            for peer in ("switching", "batched")
        ]
        per_cpu = [
            _range(p["answered"] / p["cpu_s"] for p in (points.get(host) for points in cells) if p)
            for host in ("ours", "switching", "batched")
        ]
        rows.append([KINDS[kind], *faster, *per_cpu, pairs.get(kind, "")])
    head = ["", "ours / switching", "ours / batched"]
    head += ["per CPU second: ours", "switching", "batched", "most / fewest"]
    return _markdown(head, rows)


def library(result: Result) -> str:
    """What a library takes, in a line."""
    engine = max(result["engines"], key=lambda engine: engine["prompts"])
    parts = [
        f"{result['library']['disk_mib']:,.0f} MiB on disk",
        f"{engine['memory_mib']:,.0f} MiB in memory",
        f"{engine['device_mib']:,.0f} MiB on the device",
        f"loaded at {engine['loads_per_s']:,.0f} per second",
    ]
    return f"{engine['prompts']:,} prompts: {', '.join(parts)}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return re.sub(r"\|  (?=\|)", "| ", "\n".join(lines))


def _range(values: Iterable[float]) -> str:
    """The least and the most; empty if there are none."""
    shown = [_rate(value) for value in sorted(values)]
    ends = dict.fromkeys([*shown[:1], *shown[-1:]])
    return " to ".join(ends)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _shown(point: dict[str, Any] | None) -> str:
    if point is None:
        return "none"
    shown = _rate(point["offered_per_s"])
    return f"{shown} ({1000 * point['p50_s']:,.0f}, {1000 * point['p99_s']:,.0f})"


def main() -> int:
    if len(sys.argv) < 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    results = [json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]]
    print(table(*results))
    for result in results:
        print(f"\n{result['settings']['model']}; {library(result)}\n\n{summary(result)}\n")
        for name, ratio in ratios(result).items():
            print(f"{name}: {ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
