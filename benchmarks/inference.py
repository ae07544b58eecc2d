"""Inference against PEFT: one row of each of 64 tasks.

    python benchmarks/inference.py --model t5-tiny --output inference-cpu.json
    python benchmarks/inference.py --model t5-base --output inference-t5-base.json  # GPU

The same as `softprompts bench inference`; --help shows the options.
"""

import sys

from softprompts.cli.bench import script

if __name__ == "__main__":
    sys.exit(script("inference"))
