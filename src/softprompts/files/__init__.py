"""Files and folders that are complete or absent, locks on folders, and safe names.

`files.tensors`, which needs torch, `files.figures` and `files.hub` are imported from their modules.
"""

from .atomic import (
    NoPermissionError,
    check_readable,
    check_writable,
    host_id,
    is_being_replaced,
    make_folder,
    process_exists,
    read_json,
    read_object,
    remove_stale,
    restore_folders,
    staged_files,
    staged_folder,
    write_atomically,
    write_csv,
    write_json,
    write_once,
    write_text,
)
from .lock import exclusive, wait_for_lock
from .names import (
    cache_folder,
    check_overwrite,
    checked_path,
    find_path,
    safe_name,
    short_paths,
    similar_path,
)

__all__ = [
    "NoPermissionError",
    "cache_folder",
    "check_overwrite",
    "check_readable",
    "check_writable",
    "checked_path",
    "exclusive",
    "find_path",
    "host_id",
    "is_being_replaced",
    "make_folder",
    "process_exists",
    "read_json",
    "read_object",
    "remove_stale",
    "restore_folders",
    "safe_name",
    "short_paths",
    "similar_path",
    "staged_files",
    "staged_folder",
    "wait_for_lock",
    "write_atomically",
    "write_csv",
    "write_json",
    "write_once",
    "write_text",
]
