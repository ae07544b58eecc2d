"""Decoding against PEFT: a decoder-only model with a cached prompt.

    python benchmarks/decoding.py --model llama-135m --batches 1,16 --output decoding-cpu.json
    python benchmarks/decoding.py --model SMOLLM2_FOLDER --dtype bf16 --output decoding.json  # GPU

The same as `softprompts bench decoding`; --help shows the options.
"""

import sys

from softprompts.cli.bench import script

if __name__ == "__main__":
    sys.exit(script("decoding"))
