"""JSON Schemas of configuration files, so that editors complete and check them.

`softprompts schema run` prints the one for `tune --config`, `softprompts schema study` the one for
study files; both are checked in under `docs/schema/`.
"""

from typing import Any

from .kinds import TABLES, Table
from .presets import PRESETS
from .products import TASK, may_vary
from .run import RunConfig
from .schema import Schema, Settings, schema_of
from .task import TaskConfig

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_OWN_KEYWORDS = ("nullable", "table", "brief", "below", "settings", "default")


def file_schema(kind: type[Settings], title: str) -> Schema:
    """The schema of a file that holds the settings of a class."""
    choices = {part: _choice(table) for part, table in TABLES.items()}
    return {"$schema": _DRAFT, "title": title, **_object(kind, ()), "$defs": choices}


def run_schema() -> Schema:
    """The schema of a file for `softprompts tune --config`."""
    return file_schema(RunConfig, "A run of softprompts tune")


def flat_run_settings() -> Schema:
    """The settings of a run as studies write them: sections may be left out."""
    properties = _object(RunConfig, ())["properties"]
    for section in ("tuning", "task"):
        properties = {**properties[section]["properties"], **properties}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _object(kind: type[Settings], above: tuple[str, ...]) -> Schema:
    properties = {
        name: _property((*above, name), schema)
        for name, schema in schema_of(kind)["properties"].items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(path: tuple[str, ...], schema: Schema) -> Schema:
    if schema.get("type") == "settings":
        return _object(schema["settings"], path)
    described = {"description": schema["description"]} if "description" in schema else {}
    if schema.get("type") == "choice":
        return described | {"$ref": f"#/$defs/{schema['table'].part}"}
    if path == ("preset",):
        schema = {**schema, "enum": list(PRESETS)}
    value = _value(schema, may_vary(path, schema))
    if path == TASK:
        value["anyOf"][-1]["items"] = {"anyOf": [value["anyOf"][0], _own_task()]}
    return described | value


def _own_task() -> Schema:
    """A task of a list that is given by its settings, with a name for its folder."""
    properties = {
        name: _value(schema, False)
        for name, schema in schema_of(TaskConfig)["properties"].items()
        if name != "task"
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value(schema: Schema, listed: bool) -> Schema:
    """A setting's value; where it may vary, also a list of values or a text with commas."""
    plain: Schema = {name: entry for name, entry in schema.items() if name not in _OWN_KEYWORDS}
    plain.pop("description", None)
    is_plain = isinstance(schema.get("default"), (str, int, float, bool, list, dict))
    default = {"default": schema["default"]} if is_plain else {}
    values: list[Schema] = [plain]
    if schema.get("nullable"):
        values.append({"type": "null"})
    if listed:
        values.append({"type": "array", "items": plain, "minItems": 1})
        if plain.get("type") != "string":
            values.append({"type": "string", "pattern": ","})
    return default | (values[0] if len(values) == 1 else {"anyOf": values})


def _choice(table: "Table[Any]") -> Schema:
    kinds = list(table)
    objects = []
    for kind in kinds:
        schema = table.schema(kind)
        options = {
            name: ({"description": option["description"]} if "description" in option else {})
            | _value(option, may_vary((name,), option))
            for name, option in schema["properties"].items()
        }
        objects.append(
            {
                "type": "object",
                "description": schema["description"],
                "properties": {"kind": {"const": kind}, **options},
                "required": ["kind", *schema["required"]],
                "additionalProperties": False,
            }
        )
    one: list[Schema] = [{"enum": kinds}, *objects]
    partial = {"type": "object", "not": {"required": ["kind"]}}
    several = {"type": "array", "items": {"anyOf": one}, "minItems": 1}
    return {"anyOf": [*one, partial, several, {"type": "string", "pattern": ","}]}
