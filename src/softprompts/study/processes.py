"""Several processes at one study, of which one was started by a person and starts the others."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

BESIDE = "SOFTPROMPTS_BESIDE"
"""Set for a process that another one started to work beside it."""
PATIENCE = 30.0
"""Seconds that the others have to end by themselves when nothing is left to do."""


@contextmanager
def company(argv: Sequence[str], workers: int) -> Iterator[None]:
    """Inside, this process is one of so many that are given the same command, each with its share of the cores; they end with it."""
    import torch

    if os.environ.get(BESIDE):
        threading.Thread(target=_leave_with, args=(sys.stdin.fileno(),), daemon=True).start()
    if workers == 1:
        yield
        return
    before = torch.get_num_threads()
    share = max(1, before // workers)
    command = [sys.executable, "-m", "softprompts", "study", "run", "--quiet", *argv]
    surroundings = {**os.environ, "OMP_NUM_THREADS": str(share), BESIDE: "1"}
    others: list[subprocess.Popen[bytes]] = []
    try:
        torch.set_num_threads(share)
        for _ in range(workers - 1):
            # A session of its own, so that Ctrl-C is for this process; a pipe, so that it notices when this one is gone.
            others.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    env=surroundings,
                    start_new_session=True,
                )
            )
            threading.Thread(
                target=others[-1].wait, daemon=True
            ).start()  # so that one that dies is not counted as alive
        yield
        for other in others:
            _ended(other, PATIENCE)
    finally:
        for other in others:
            if other.poll() is None:
                other.kill()
            other.wait()
            if other.stdin is not None:
                other.stdin.close()
        torch.set_num_threads(before)


def _leave_with(pipe: int) -> None:
    """End this process when the one that holds the other end of the pipe is gone; a study may be left at any moment."""
    while os.read(pipe, 1024):  # not through sys.stdin, whose lock Python wants when it ends
        pass
    os._exit(1)


def _ended(other: "subprocess.Popen[bytes]", seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        other.wait(seconds)
