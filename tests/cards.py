"""Cards made cheaply."""

from typing import Any

from softprompts.artifacts.card import BackboneCard, Card, PromptCard, TaskCard
from softprompts.backbone import Backbone


def card(backbone: Backbone | None = None, **parts: Any) -> Card:
    """A card of a task without a format, for a backbone or for one that does not exist."""
    described = (
        BackboneCard(name="some-t5", fingerprint="abc")
        if backbone is None
        else BackboneCard.describing(backbone)
    )
    defaults = {
        "prompt": PromptCard(length=1),
        "backbone": described,
        "task": TaskCard(name="mood", metrics=["accuracy"]),
    }
    return Card(**defaults | parts)
