"""Prometheus metrics: HTTP requests by route and prompt, and the engine's state when scraped.

The names of prompts are labels, of which Prometheus should have few: the first ones used get their
own, and all later ones are counted as `other`.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .requests import Stats

OTHER = "other"
SECONDS = (
    *(0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
GAUGES = {
    "waiting": "Texts in the queue.",
    "decoding": "Answers being generated.",
    "last_batch": "Rows of the last forward pass.",
    "known": "Prompts that are available.",
    "in_memory": "Prompts in CPU memory.",
    "on_device": "Prompts on the model's device.",
    "prefixes": "Prompts whose keys and values are cached.",
}
COUNTERS = {
    "passes": "Forward passes; rows divided by passes is the mean batch size.",
    "rows": "Rows of all forward passes.",
    "requests": "Questions that the engine accepted.",
    "refused": "Questions refused because the queue was full.",
    "cancelled": "Questions whose client disconnected.",
    "expired": "Questions that timed out.",
    "failed": "Questions that failed.",
    "prompt_tokens": "Tokens of questions, and vectors of prompts.",
    "completion_tokens": "Generated tokens.",
    "loads": "Prompts read from disk.",
    "device_hits": "Prompts found on the device.",
    "device_misses": "Prompts copied to the device.",
    "prefix_hits": "Prompts whose keys and values were found in the cache.",
    "prefix_misses": "Prompts whose keys and values were computed.",
}


class EngineCollector(Collector):
    """The engine's counts, read when they are scraped."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self.stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = self.stats()
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"softprompts_engine_{name}", text, getattr(stats, name))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"softprompts_engine_{name}", text, getattr(stats, name))


class Metrics:
    def __init__(self, stats: Callable[[], Stats], most_prompts: int = 100) -> None:
        self.most_prompts = most_prompts
        self._prompts: set[str] = set()
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(stats))
        self.requests = Counter(
            "softprompts_http_requests",
            "HTTP requests.",
            ["route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "softprompts_request_seconds",
            "Seconds from a request to the end of its answer.",
            ["route", "prompt"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.first_token = Histogram(
            "softprompts_first_token_seconds",
            "Seconds from a request to the first piece of its answer.",
            ["prompt"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.tokens = Counter(
            "softprompts_tokens",
            "Tokens of answered requests.",
            ["prompt", "kind"],
            registry=self.registry,
        )

    def count(
        self,
        route: str,
        status: int,
        seconds: float,
        prompt: str | None,
        tokens: dict[str, int],
        first_token: float | None,
    ) -> None:
        """Count a finished request; `prompt` is one that exists, or None."""
        self.requests.labels(route, str(status)).inc()
        if prompt is None:
            return
        if len(self._prompts) < self.most_prompts:
            self._prompts.add(prompt)
        label = prompt if prompt in self._prompts else OTHER
        self.seconds.labels(route, label).observe(seconds)
        if first_token is not None:
            self.first_token.labels(label).observe(first_token)
        for kind, count in tokens.items():
            if count:
                self.tokens.labels(label, kind).inc(count)

    def text(self) -> bytes:
        return generate_latest(self.registry)
