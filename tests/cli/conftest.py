"""Commands in processes of their own."""

from collections.abc import Callable, Iterator

import pytest

from ..processes import ForkServer, Process

COMMANDS = """
from softprompts.cli import COMMANDS, load_command
for name in COMMANDS:
    load_command(name)
"""
CHECK = """
import sys
from softprompts.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
heavy = {"torch", "transformers", "numpy"} & set(sys.modules)
print("imported:", *sorted(heavy), file=sys.stderr)
sys.exit(code)
"""
Start = Callable[[list[str]], Process]


@pytest.fixture(scope="session")
def start() -> Iterator[Start]:
    """Runs a command in a process of its own; its last line names the libraries it imported."""
    with ForkServer(COMMANDS) as server:
        yield lambda argv: server.run(argv, code=CHECK)
