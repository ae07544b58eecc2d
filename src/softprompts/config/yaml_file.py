"""Configuration files in YAML."""

from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from ..files import similar_path
from .run import CONFIG_HEADER, sections
from .task import locate_data


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a file; a duplicate key is an error, although YAML allows it."""
    try:
        text = path.read_text(encoding="utf-8")
        settings, duplicate = yaml.safe_load(text), _duplicate_key(text)
    except FileNotFoundError:
        raise UserError(f"The config file {path} does not exist.{similar_path(path)}") from None
    except PermissionError:
        raise UserError(
            f"You do not have permission to read the config file {path}; ask its owner for "
            "access (chmod a+r)."
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"The config file {path} cannot be read as YAML ({reason}).") from None
    if not isinstance(settings, dict):
        raise UserError(f"The config file {path} contains no settings; see docs/configuration.md.")
    if duplicate is not None:
        raise UserError(f"{path} sets {duplicate}; remove one of them.")
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


def _duplicate_key(text: str) -> str | None:
    """A key that a mapping of a YAML text holds twice, with its lines."""
    nodes: list[Any] = [yaml.compose(text, yaml.SafeLoader)]
    seen: set[int] = set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            nodes += [value for _, value in node.value]
            lines: dict[tuple[str, str], int] = {}
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                line = key.start_mark.line + 1
                if (key.tag, key.value) in lines:
                    return f"{key.value} twice (lines {lines[key.tag, key.value]} and {line})"
                lines[key.tag, key.value] = line
    return None
