"""`python -m softprompts`, and so `accelerate launch -m softprompts`."""

import sys

from .cli.main import main

sys.exit(main())
