"""Configuration files in YAML."""

from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from ..files import similar_path
from .run import CONFIG_HEADER, sections
from .task import locate_data


class _DuplicateKeyError(yaml.YAMLError):
    """A mapping holds a key twice; the message names the key and its lines."""


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, which YAML allows, and reads keys such as yes and no as words."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            key.tag = key.tag.replace(":bool", ":str")
            line = key.start_mark.line + 1
            if first := lines.get((key.tag, key.value)):
                raise _DuplicateKeyError(f"{key.value} twice (lines {first} and {line})")
            lines[key.tag, key.value] = line
        return node


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a file; a duplicate key is an error, although YAML allows it."""
    try:
        settings = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise UserError(f"The config file {path} does not exist.{similar_path(path)}") from None
    except PermissionError:
        raise UserError(
            f"You do not have permission to read the config file {path}; ask its owner for "
            "access (chmod a+r)."
        ) from None
    except _DuplicateKeyError as error:
        raise UserError(f"{path} sets {error}; remove one of them.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"The config file {path} cannot be read as YAML ({reason}).") from None
    if not isinstance(settings, dict):
        raise UserError(f"The config file {path} contains no settings; see docs/configuration.md.")
    return settings


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a run in a file; paths of data start from the file's folder.

    In files that people write, settings of sections may stand at the top level.
    """
    settings = read_yaml(path)
    if not path.read_text(encoding="utf-8").startswith(CONFIG_HEADER):
        settings = sections(settings)
    if isinstance(task := settings.get("task"), dict):
        settings["task"] = locate_data(task, path.parent)
    return settings
