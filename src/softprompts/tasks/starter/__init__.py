"""The embedded starter tasks: customer messages to a helpdesk, each labelled six ways. `helpdesk/README.md` says how they were made."""

from pathlib import Path
from typing import Any

_HELPDESK = Path(__file__).parent / "helpdesk"

STARTERS: dict[str, dict[str, Any]] = {
    f"helpdesk/{label}": {
        "train": str(_HELPDESK / "train.jsonl"),
        "validation": str(_HELPDESK / "validation.jsonl"),
        "text": "text",
        "label": label,
    }
    for label in ("intent", "urgency", "sentiment", "area", "answerable", "register")
}
"""Task name to the settings it stands for."""
