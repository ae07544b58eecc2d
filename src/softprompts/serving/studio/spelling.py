"""How the studio's messages name settings: as its form does."""

from ...errors import as_key

FIELDS = {
    "name": "Name of the prompt",
    "text": "Column of the text",
    "label": "Column of the label",
    "free_text": "The labels are free text to generate",
    "steps": "Steps",
    "start": "Start from",
}
"""The labels of the form's fields, by the settings that they stand for."""


def as_field(path: str, value: str | None = None) -> str:
    """As it stands in the form, or else in words: `"Steps": 400`, `max length`."""
    name = as_key(path)
    shown = f'"{FIELDS[name]}"' if name in FIELDS else name.replace("_", " ")
    return shown + ("" if value is None else f": {value}")
