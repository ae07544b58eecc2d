"""`python -m softprompts`, and so `accelerate launch -m softprompts`."""

import sys

from .cli import main

sys.exit(main())
