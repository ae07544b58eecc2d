"""A table of what serving.py measured.

python benchmarks/serving_table.py benchmarks/results/serving-t5-base-h200.json
"""

import json
import sys
from pathlib import Path
from typing import Any

Key = tuple[str, int, str]
"""Kind of answer, number of prompts, and their popularity."""
COLUMNS = {
    "ours": "ours",
    "http": "ours, HTTP",
    "switching": "PEFT, switching",
    "batched": "PEFT, batched per prompt",
}


def best_points(result: dict[str, Any]) -> dict[Key, dict[str, Any]]:
    """The point with the highest rate of each host; None: no rate met the target."""
    found: dict[Key, dict[str, Any]] = {}
    for cell in result["measurements"]:
        key = cell["kind"], cell["prompts"], cell["popularity"]
        if "best" in cell:
            found.setdefault(key, {})[cell["host"]] = cell["best"]
    return dict(sorted(found.items(), key=lambda item: (item[0][0] != "labels", *item[0][1:])))


def ratios(result: dict[str, Any]) -> dict[str, float]:
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


def table(result: dict[str, Any]) -> str:
    """Markdown: rows per second, and in brackets p50 and p99 in milliseconds."""
    points = best_points(result)
    hosts = [host for host in COLUMNS if any(host in found for found in points.values())]
    lines = [
        "| | prompts | " + " | ".join(COLUMNS[host] for host in hosts) + " | mean batch |",
        "|---" * (len(hosts) + 3) + "|",
    ]
    for (kind, prompts, popularity), found in points.items():
        cells = [_shown(found[host]) if host in found else "" for host in hosts]
        batch = found.get("ours") or {}
        mean = f"{batch['mean_batch']:.0f}" if batch else ""
        name = f"{prompts:,}" + (", Zipf" if popularity == "zipf" else "")
        lines.append(f"| {kind} | {name} | {' | '.join(cells)} | {mean} |")
    return "\n".join(lines)


def _shown(point: dict[str, Any] | None) -> str:
    if point is None:
        return "none"
    rate = point["offered_per_s"]
    shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    return f"{shown} ({1000 * point['p50_s']:,.0f}, {1000 * point['p99_s']:,.0f})"


def main() -> int:
    if len(sys.argv) != 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    result = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(table(result))
    for name, ratio in ratios(result).items():
        print(f"{name}: {ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
