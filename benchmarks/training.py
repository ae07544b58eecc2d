"""Training beside PEFT: seconds for a step of one run, alone and in a cohort.

    python benchmarks/training.py --model t5-tiny --runs 8 --steps 10 --output training-cpu.json
    python benchmarks/training.py --model t5-base --prompt 100 --runs 32 --output training-t5-base.json      # on a GPU

The same as `softprompts bench training`; --help tells the options.
"""

import sys

from softprompts.cli.bench import script

if __name__ == "__main__":
    sys.exit(script("training"))
