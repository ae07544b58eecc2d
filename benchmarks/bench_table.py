"""Markdown tables from benchmark results, for the docs.

python benchmarks/bench_table.py benchmarks/results/training-h200.json ...
"""

import json
import sys
from pathlib import Path

from softprompts.bench.tables import table


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("Name the JSON files that benchmarks wrote with --output.")
    print(table([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]))


if __name__ == "__main__":
    main()
