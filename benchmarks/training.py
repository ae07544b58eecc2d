"""Training against PEFT: seconds per step of one run, alone and in a cohort.

    python benchmarks/training.py --model t5-tiny --runs 8 --steps 10 --output training-cpu.json
    python benchmarks/training.py --model t5-base --prompt 100 --runs 32 --output base.json  # GPU

The same as `softprompts bench training`; --help shows the options.
"""

import sys

from softprompts.cli.bench import script

if __name__ == "__main__":
    sys.exit(script("training"))
