"""SMoP beside prompt tuning with 100 tokens: time, memory and FLOPs saved, and what the paper reports.

    python benchmarks/smop.py --model t5-tiny --output smop-cpu.json
    python benchmarks/smop.py --model t5-large --output smop-t5-large.json      # on a GPU

The same as `softprompts bench smop`; --help tells the options.
"""

import sys

from softprompts.cli.bench import script

if __name__ == "__main__":
    sys.exit(script("smop"))
