"""Several worker processes on this machine, started by the first."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

CHILD = "SOFTPROMPTS_BESIDE"
"""Environment variable of worker processes that another one started."""
EXIT_TIMEOUT = 30.0
"""Seconds that the others have to exit when no cells are left."""


def is_child() -> bool:
    return bool(os.environ.get(CHILD))


@contextmanager
def worker_processes(arguments: Sequence[str], workers: int) -> Iterator[None]:
    """Start workers beside this process, which share its cores and end with it.

    They run `softprompts study run` with these arguments.
    """
    if is_child():
        threading.Thread(target=_exit_with, args=(sys.stdin.fileno(),), daemon=True).start()
        workers = 1
    if workers == 1:
        yield
        return
    threads = torch.get_num_threads()
    share = max(1, threads // workers)
    environment = {**os.environ, "OMP_NUM_THREADS": str(share), CHILD: "1"}
    children: list[subprocess.Popen[bytes]] = []
    try:
        torch.set_num_threads(share)
        for _ in range(workers - 1):
            children.append(_start(arguments, environment))
        yield
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(EXIT_TIMEOUT)
    finally:
        for child in children:
            with child:  # closes its pipe, and waits for it
                child.kill()
        torch.set_num_threads(threads)


def _start(arguments: Sequence[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    child = subprocess.Popen(
        [sys.executable, "-m", "softprompts", "study", "run", "--quiet", *arguments],
        stdin=subprocess.PIPE,  # closed when this process ends, which the child notices
        stdout=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for this process only
    )
    # Waited for at once: the process of a dead child would otherwise still exist.
    threading.Thread(target=child.wait, daemon=True).start()
    return child


def _exit_with(pipe: int) -> None:
    """Exit when the process at the other end of the pipe ends; a study can stop at any time."""
    while os.read(pipe, 1024):  # not through sys.stdin, whose lock Python needs to exit
        pass
    os._exit(1)
