"""Errors of a study, which spell settings as the keys of its file."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import UserError, as_flag, as_key

OPTIONS = {"output", "device", "task.data_dir", "workers", "only", "ray"}
"""Options of `softprompts study`, which it takes as flags."""


class StudyError(UserError):
    """A problem with a study. In Python, too, settings are the keys of its file."""

    def __str__(self) -> str:
        return self.spelled(as_key)

    @staticmethod
    def spelling(path: str, value: str | None = None) -> str:
        return as_flag(path, value) if path in OPTIONS else as_key(path, value)


@contextmanager
def study_errors(prefix: str = "") -> Iterator[None]:
    """Raise errors about a run or its data as errors of the study, after a `prefix`."""
    try:
        yield
    except UserError as error:
        raise StudyError(f"{prefix}{error.message}") from None
