"""What the pages share: the engine, the rights of whoever asks, and the request's own values."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from fastapi import Request

from ...analysis.curve_svg import curve_figure
from ...analysis.summary import Curves
from ...artifacts.card import Card
from ..answers import Asker
from ..async_engine import AsyncEngine
from ..gate import exchange_of
from ..http_errors import HttpError
from ..keys import Key
from ..requests import ServedPrompt, UnknownPrompt
from .markup import Html, element
from .tuning_runs import TuningRuns

T = TypeVar("T")
CACHED = 64
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Page:
    """What a page shows; the frame around it is the same for all."""

    title: str
    body: Html
    current: str = ""
    """The path of its entry in the navigation bar."""
    status: int = 200


@dataclass
class Studio:
    """The server's side of all pages."""

    engine: AsyncEngine
    timeout: float
    studies: list[Path]
    runs: TuningRuns
    max_body: int
    """Bytes of an upload."""
    cache: OrderedDict[str, tuple[Any, Any]] = field(default_factory=OrderedDict)
    """Values that take long to compute, each with what it was computed from."""

    async def cached(self, name: str, origin: Any, compute: Callable[[], Awaitable[T]]) -> T:
        """A value that is computed again when its origin changes."""
        known = self.cache.get(name)
        if known is not None and known[0] == origin:
            self.cache.move_to_end(name)
            value: T = known[1]
            return value
        value = await compute()
        self.cache[name] = origin, value
        while len(self.cache) > CACHED:
            self.cache.popitem(last=False)
        return value


@dataclass
class Visit:
    request: Request
    key: Key
    query: Mapping[str, list[str]]
    form: Mapping[str, list[str]]
    body: str
    """Of a request that is not a form."""

    @classmethod
    async def of(cls, request: Request) -> "Visit":
        if request.method == "POST":
            _check_origin(request)
        raw = (await request.body()).decode("utf-8", "replace")
        is_form = request.headers.get("content-type", "").partition(";")[0] == FORM
        form = parse_qs(raw, keep_blank_values=True) if is_form else {}
        query = parse_qs(request.url.query, keep_blank_values=True)
        return cls(request, exchange_of(request).key, query, form, "" if is_form else raw)

    def value(self, name: str, default: str = "") -> str:
        """A value of the form, or else of the address."""
        return (self.form.get(name) or self.query.get(name) or [default])[0].strip()

    def values(self, name: str) -> list[str]:
        return [*self.form.get(name, ()), *self.query.get(name, ())]

    @property
    def name(self) -> str:
        """The prompt or the run that the address names."""
        return str(self.request.path_params["name"])

    @property
    def unrestricted(self) -> bool:
        return self.key.prompts is None

    async def prompts(self, studio: Studio) -> list[ServedPrompt]:
        """The prompts that the key may use."""
        served = await asyncio.to_thread(studio.engine.prompts)
        return [prompt for prompt in served if self.key.allows(prompt.name)]

    async def prompt(self, studio: Studio, name: str) -> ServedPrompt:
        if not self.key.allows(name):
            raise UnknownPrompt(f"There is no prompt {name!r}.")
        served = await asyncio.to_thread(studio.engine.prompt, name)
        exchange_of(self.request).prompt = name
        return served

    def asker(self, studio: Studio, name: str) -> Asker:
        return Asker(studio.engine, name, self.key, studio.timeout)


def _check_origin(request: Request) -> None:
    """Refuse forms of other sites, with which a browser would send the key along."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HttpError(403, "This form was sent from another site; open the studio itself.")


def is_number(value: str) -> bool:
    """Whether a text is a whole number of a sensible size."""
    return value.isascii() and value.isdigit() and len(value) < 10


def figures(curves: Sequence[Curves]) -> Html | None:
    """Learning curves side by side."""
    pictures = [Html(curve_figure(curve, number)) for number, curve in enumerate(curves)]
    return element("div", *pictures, class_="figures") if pictures else None


def score_of(card: Card) -> tuple[str, float] | None:
    """The first metric and the score that a prompt is judged by; None if it was not scored."""
    if not card.task.metrics:
        return None
    scores = card.judged.get("metrics") or card.metrics
    value = scores.get(card.metric)
    return None if value is None else (card.metric, float(value))


def size_of(card: Card) -> str:
    """The size of a prompt: `20 tokens`, `4 × 20 tokens`."""
    count = f"{card.prompt.count} × " if card.prompt.count > 1 else ""
    return f"{count}{card.prompt.length} tokens"
