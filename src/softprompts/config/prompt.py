"""What a prompt is before it is trained, as settings."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..errors import UserError, setting
from .kinds import heads, routes, shapes, starts
from .schema import Choice, Settings, option

MAX_TOKENS = 2**20
"""The most prompt tokens, and the largest width of a network: more would fill the memory."""


@dataclass(frozen=True)
class PromptConfig(Settings):
    """A soft prompt: start x shape x route, its length, its place and its head."""

    section: ClassVar[str] = "prompt"

    length: int = option(20, minimum=0)
    """Prompt tokens P, per prompt if there are several."""

    count: int = option(1, minimum=1)
    """Number of prompts K in a mixture; 1 is a single prompt."""

    start: Choice = option(factory=lambda: Choice("vocabulary"), table=starts)
    """How the prompt is initialised."""

    shape: Choice = option(factory=lambda: Choice("direct"), table=shapes)
    """How trained parameters become prompt vectors."""

    route: Choice = option(factory=lambda: Choice("single"), table=routes)
    """Which prompt an input gets, when there are several."""

    place: Literal["prefix", "after-bos", "suffix"] = "prefix"
    """Where the prompt goes: before the text (prefix), after its first special token (after-bos),
    or after its last word (suffix)."""

    head: Choice = option(factory=lambda: Choice("auto"), table=heads)
    """How an encoder-only model predicts labels."""

    unit: float | None = option(None, exclusiveMinimum=1e-6, exclusiveMaximum=1e6)
    """Scale of the trained parameters of prompt, network and router; default: that of the
    backbone's embeddings. The papers use 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count * self.length > MAX_TOKENS:
            raise UserError(
                f"{self.count:,} x {self.length:,} prompt tokens do not fit into memory; lower "
                f"{setting('prompt.length')} (the model sees 512 tokens by default, prompt and "
                f"text together) or {setting('prompt.count')}."
            )
        if self.count > 1 and self.route.kind == "single":
            raise UserError(
                f"{self.count} prompts need a route that chooses among them; "
                f"set {setting('prompt.route')} to one of "
                f"{', '.join(kind for kind in routes if kind != 'single')}."
            )

    @property
    def folded_count(self) -> int:
        """The number of prompts after folding."""
        return 1 if routes.schema(self.route.kind)["folds_to_one"] else self.count
