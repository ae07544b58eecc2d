"""What SMoP saves against prompt tuning with 100 tokens, beside the numbers of the paper.

    python benchmarks/smop.py --model t5-tiny --output smop-cpu.json
    python benchmarks/smop.py --model t5-large --output smop-t5-large.json  # GPU

The same as `softprompts bench smop`; --help shows the options.
"""

import sys

from softprompts.cli.bench import script

if __name__ == "__main__":
    sys.exit(script("smop"))
