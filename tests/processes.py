"""Processes that start at once: a server that has the imports behind it forks them."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

SERVER = """
import json, os, signal, sys, traceback
exec(sys.argv[1])

def run(request):
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    for number, (path, mode) in enumerate(request["files"]):
        os.dup2(os.open(path, mode), number)
    sys.stdin = open(0)
    sys.argv = ["-c", *request["argv"]]
    code = 1
    try:
        exec(request["code"], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    request = json.loads(line)
    if "pid" in request:
        pid, status = os.waitpid(request["pid"], os.WNOHANG | os.WUNTRACED)
        stopped = pid and os.WIFSTOPPED(status)
        answer = "stopped" if stopped else os.waitstatus_to_exitcode(status) if pid else None
    else:
        answer = os.fork()
        if answer == 0:
            run(request)
    print(json.dumps(answer), flush=True)
"""
COMMAND = "import sys; from softprompts.cli import main; sys.exit(main(sys.argv[1:]))"
"""The code of `python -m softprompts`."""
TORCH = """
import torch
torch.set_num_threads(1)
import softprompts.study, softprompts.serving.engine, softprompts.cli
from softprompts.backbone import load_backbone
import transformers.models.t5.modeling_t5, transformers.models.t5.tokenization_t5
"""


class Process:
    """A process of a server, and what it printed."""

    def __init__(self, server: "ForkServer", request: Mapping[str, Any]) -> None:
        self.server = server
        folder = Path(tempfile.mkdtemp(dir=server.folder.name))
        self.printed = [folder / name for name in ("stdout", "stderr")]
        written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for path in self.printed:
            path.touch()  # it may be read before the process has begun
        files = [(os.devnull, os.O_RDONLY), *((str(path), written) for path in self.printed)]
        self.pid = server.ask({**request, "files": files})
        self.returncode: int | None = None
        self.stopped = False
        """Whether a signal has stopped it, which SIGCONT would continue."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def poll(self) -> int | None:
        if self.returncode is None:
            status = self.server.ask({"pid": self.pid})
            self.stopped = self.stopped or status == "stopped"
            self.returncode = status if status != "stopped" else None
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, if it runs, and wait until it has ended."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    @property
    def stdout(self) -> str:
        return self.printed[0].read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        return self.printed[1].read_text(encoding="utf-8")


class ForkServer:
    def __init__(self, imports: str) -> None:
        """`imports` is the code that runs once, before all processes."""
        command = [sys.executable, "-c", SERVER, imports]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()
        self.folder.cleanup()

    def ask(self, request: Mapping[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(
        self,
        argv: Sequence[str],
        code: str = COMMAND,
        folder: Path | None = None,
        **variables: str,
    ) -> Process:
        """A process that runs `code` (default: the command line) with arguments."""
        where = str(folder or Path.cwd())
        environment = {**os.environ, **variables}
        request = {"argv": list(argv), "code": code, "folder": where, "environment": environment}
        return Process(self, request)

    def run(self, argv: Sequence[str], **options: Any) -> Process:
        """The same, and wait until it has ended."""
        process = self.start(argv, **options)
        process.wait()
        return process


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.01)
