"""What tests of the engine, the server and the studio share."""

import time

import pytest

from softprompts.serving.jobs import Job
from softprompts.serving.worker import Worker


@pytest.fixture
def slow_submissions(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each job, the event loop leaves the worker time to begin with it."""
    submit = Worker.submit

    def slowly(worker: Worker, job: Job) -> None:
        submit(worker, job)
        time.sleep(0.02)

    monkeypatch.setattr(Worker, "submit", slowly)
