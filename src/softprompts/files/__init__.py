"""Files and folders that are complete or absent, and locks on folders."""

from .atomic import (
    NoPermissionError,
    check_readable,
    check_writable,
    host_id,
    make_folder,
    read_json,
    remove_stale,
    write_atomically,
    write_json,
    write_once,
    write_text,
)
from .staged import restore_folders, staged_files, staged_folder

__all__ = [
    "NoPermissionError",
    "check_readable",
    "check_writable",
    "host_id",
    "make_folder",
    "read_json",
    "remove_stale",
    "restore_folders",
    "staged_files",
    "staged_folder",
    "write_atomically",
    "write_json",
    "write_once",
    "write_text",
]
