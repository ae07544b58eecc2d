"""The prompts that are on the model's device, and how the rows of a batch use them.

Shape letters as in `backbone/backbone.py`; K prompts of a mixture, F numbers that a prompt's token
has in a table.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..backbone import Backbone, PromptCache, Text, to_device
from ..backbone.generative import Generative
from ..backbone.kv_cache import DecodingState
from ..prompt import Prompt
from ..prompt.prompt import mean_embedding
from ..prompt.route import GumbelRoute, TopRoute
from ..tuning.bank import BatchKind, PromptBank, Query, stacked_heads
from .prompt_store import Key, LoadedPrompt
from .recorded_rows import padded_rows
from .recording import PROMPT_COLUMNS, Recording
from .requests import Limits
from .row_pool import NO_ROWS, RowPool, Rows, index_of

Item = TypeVar("Item")
FEW_ROWS = 8
"""Rows of a recorded pass below which a batch is not split, so that its passes can be recorded."""


class DeviceTier:
    """Tables of prompt vectors, of linear heads, and of the keys and values of prompts."""

    def __init__(self, backbone: Backbone, limits: Limits) -> None:
        self.backbone, self.limits = backbone, limits
        device = backbone.device
        self.vectors = RowPool(backbone.hidden, torch.float32, device, limits.device_bytes)
        width = backbone.feature_size + 1
        self.heads = RowPool(width, torch.float32, device, limits.device_bytes // 4)
        """A row for each label: its weights, then its bias."""
        self.prefixes: RowPool | None = None
        self._shapes: list[tuple[int, int]] = []
        """Heads and their widths of the keys and values in a row of `prefixes`."""
        self.max_columns: int | None = None
        self.caches_prompts = True
        self.recording: Recording | None = None

    @property
    def recorded_sizes(self) -> int:
        return 0 if self.recording is None else self.recording.sizes

    def on_failed_step(self, error: Exception) -> None:
        """Record nothing from now on if an answer's next step could not be had so."""
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        if self.recording is not None and isinstance(error, RuntimeError) and not out_of_memory:
            self.recording.stop(error)

    def free_memory(self) -> None:
        """Release memory that can be filled again."""
        if self.recording is not None:
            self.recording.clear()
        self.backbone.free_memory()

    def drop(self, key: Key) -> None:
        for pool in (self.vectors, self.heads, self.prefixes):
            if pool is not None:
                pool.drop(key)

    def load(self, prompts: Sequence[LoadedPrompt]) -> None:
        """Bring prompts to the device, as many as fit."""
        keep = {prompt.key for prompt in prompts}
        for prompt in prompts:
            prompt.uses += 1
            if len(prompt.rows) and self.vectors.get(prompt.key) is None:
                self.vectors.put(prompt.key, prompt.rows, keep)
            head = prompt.tuned.prompt.head
            if head is not None and self.heads.get(prompt.key) is None:
                rows = torch.cat([head.weight, head.bias[:, None]], dim=1).detach()
                self.heads.put(prompt.key, rows, keep)

    def read(self, prompts: Sequence[LoadedPrompt]) -> None:
        """Have the model read prompts that it has not, for as many as their table takes."""
        missing = []
        for prompt in prompts:
            known = self.prefixes is not None and self.prefixes.get(prompt.key) is not None
            # a table that is full is not refilled by prompts that come only once
            free = self.prefixes is None or self.prefixes.has_space(len(prompt.rows))
            if not known and (free or prompt.uses > 1) and prompt.key in self.vectors:
                missing.append(prompt)
        if not missing or not self.caches_prompts:
            return
        vectors = [self._after_opening(prompt) for prompt in missing]
        lengths = torch.tensor([len(part) for part in vectors], device=self.backbone.device)
        cache = self.backbone.cache_prompts(pad_sequence(vectors, batch_first=True), lengths)
        self.caches_prompts = cache is not None
        if cache is None:
            return
        parts = [part.transpose(1, 2) for layer in cache.layers for part in layer]  # [N, P, A, D]
        rows = torch.cat([part.flatten(2) for part in parts], dim=2)
        if self.prefixes is None:
            limit = self.limits.prefix_bytes
            self.prefixes = RowPool(rows.shape[2], rows.dtype, rows.device, limit)
            self._shapes = [(part.shape[2], part.shape[3]) for part in parts]
            self.max_columns = cache.max_columns
        keep = {prompt.key for prompt in prompts}
        for prompt, row, own in zip(missing, rows, vectors, strict=True):
            self.prefixes.put(prompt.key, row[: len(own)], keep)

    def _after_opening(self, prompt: LoadedPrompt) -> Tensor:
        """A prompt after the ids before it [., H]."""
        opening = index_of(prompt.opening or [], self.backbone.device)
        vectors = self.vectors.gather([self.vectors.rows(prompt.key)])[0]
        return torch.cat([self.backbone.embedding(opening), vectors])

    def prefix_columns(self, longest: int) -> int:
        """The columns of cached prompts of which the longest has this many."""
        step = 1 if self.recording is None else PROMPT_COLUMNS
        return -(-longest // step) * step

    def prefix(self, parts: Sequence[Rows]) -> PromptCache:
        """The keys and values of each row's prompt."""
        assert self.prefixes is not None
        rows = self.prefixes.gather(parts, self.prefix_columns(max(map(len, parts))))
        sizes = [heads * width for heads, width in self._shapes]
        columns = [
            part.view(*part.shape[:2], *shape).transpose(1, 2)
            for part, shape in zip(torch.split(rows, sizes, dim=2), self._shapes, strict=True)
        ]
        lengths = index_of([len(part) for part in parts], rows.device)
        pairs = list(zip(columns[::2], columns[1::2], strict=True))
        return PromptCache(pairs, lengths, self.max_columns)


class ServedBank(PromptBank):
    """A few of many prompts: those of a batch."""

    def __init__(
        self, tier: DeviceTier, prompts: Sequence[LoadedPrompt], answer_length: int
    ) -> None:
        self.tier, self.prompts, self.answer_length = tier, prompts, answer_length
        self.backbone = tier.backbone
        self.predictors = [prompt.predictor for prompt in prompts]
        self.routes: dict[int, list[float]] = {}
        """The router's probabilities for the rows of the last batch that have a router."""

    def split(
        self, queries: Sequence[Query], sizes: Sequence[int], limits: Limits
    ) -> Iterator[tuple[BatchKind, list[int]]]:
        """All rows once, in batches of one kind within the limits; `sizes` are their tokens."""
        scoring = ["labels"] * len(queries)
        for kind, batch in self._batches(queries, scoring, limits.batch_rows):
            while batch:  # the longest texts are the first, and more of the shorter ones fit
                most = max(1, limits.batch_tokens // max(sizes[index] for index in batch))
                if kind.pool is None:  # with a head, a pass is not recorded
                    longest = max(self._columns(kind, queries[index]) for index in batch)
                    most = self._recorded_rows(most, longest)
                yield kind, batch[:most]
                batch = batch[most:]

    def _recorded_rows(self, most: int, columns: int) -> int:
        """How many of at most so many rows to take, so that their pass is recorded."""
        recording = self.tier.recording
        if recording is None:
            return most
        most = rows = 1 << (most.bit_length() - 1)  # passes have a power of two
        while rows > FEW_ROWS and not recording.fits(rows, columns):
            rows //= 2
        return rows if recording.fits(rows, columns) else most

    def _columns(self, kind: BatchKind, query: Query) -> int:
        """The columns that a row needs in a pass: of its text, and of its prompt if that is not
        cached."""
        number, row = query
        if kind.cached:
            return len(row) - len(self._opening(number) or ())
        return len(row) + self.predictors[number].prompt.config.length

    def score(
        self,
        kind: BatchKind,
        rows: Sequence[Query],
        candidates: Sequence[Sequence[Sequence[int]]],
    ) -> Tensor:
        """The log-probability of each row's own candidates [B, C]."""
        recording = self._recording(kind, rows) if kind.pool is None else None
        if recording is not None:
            prompt, text = self._prompts_and_text(kind, _padded(rows))
            scores = recording.scores(prompt, text, _padded(candidates))
            if scores is not None:
                return scores[: len(rows)]
        prompt, text = self._prompts_and_text(kind, rows)
        return self._backbone(kind, rows).scores(prompt, text, candidates)

    def prefill(self, kind: BatchKind, rows: Sequence[Query]) -> DecodingState:
        """Process prompts and texts up to where the answers begin; the state may have more rows
        than these."""
        recording = self._recording(kind, rows)
        if recording is not None:
            state = recording.prefill(*self._prompts_and_text(kind, _padded(rows)))
            if state is not None:
                return state
        prompt, text = self._prompts_and_text(kind, rows)
        backbone = self._backbone(kind, rows)
        assert isinstance(backbone, Generative)
        return backbone.prefill(prompt, text)

    def _recording(self, kind: BatchKind, rows: Sequence[Query]) -> Recording | None:
        """The recorded passes, if one for these rows is worth it."""
        recording, longest = self.tier.recording, max(self._columns(kind, row) for row in rows)
        fits = recording is not None and recording.fits(padded_rows(len(rows)), longest)
        return recording if fits else None

    # -- prompt vectors ----------------------------------------------------------------------------

    def _row_vectors(self, numbers: Sequence[int], text: Text, backbone: Backbone) -> Tensor:
        self.routes = {}
        pool = self.tier.vectors
        stored = [pool.rows(prompt.key) for prompt in self.prompts]
        configs = [predictor.prompt.config for predictor in self.predictors]
        constant = [NO_ROWS if self.prompts[n].routed else stored[n] for n in numbers]
        vectors = pool.gather(constant, max(configs[n].length for n in numbers))
        routed = [row for row, n in enumerate(numbers) if self.prompts[n].routed and len(stored[n])]
        if routed:
            prompts = [self.prompts[numbers[row]] for row in routed]
            part = text.rows(routed)
            means = mean_embedding(part.embeds, backbone.content_mask(part))
            mixed, probabilities = _mixed(pool, prompts, means)
            vectors[routed, : mixed.shape[1]] = mixed
            for row, prompt, values in zip(routed, prompts, probabilities.tolist(), strict=True):
                self.routes[row] = values[: prompt.tuned.prompt.config.count]
        others = [n for n in numbers if not len(stored[n]) and configs[n].length]
        self._route_rows(vectors, others, numbers, text, backbone)
        return vectors

    def _route_rows(
        self,
        vectors: Tensor,
        by_text: Iterable[int],
        numbers: Sequence[int],
        text: Text,
        backbone: Backbone,
    ) -> None:
        """Prompts that are not on the device, or whose route only they themselves can compute."""
        by_text = set(by_text)
        super()._route_rows(vectors, by_text, numbers, text, backbone)
        for row, number in enumerate(numbers):
            if number in by_text and (prompt := self._prompt(number)).reads_text:
                part = text.rows([row])
                probabilities = prompt.router_probabilities(
                    part.embeds, backbone.content_mask(part)
                )
                self.routes[row] = probabilities[0].tolist()

    def _prompt(self, number: int) -> Prompt:
        prompt, device = self.predictors[number].prompt, self.backbone.device
        return prompt if prompt.table.device == device else copy.deepcopy(prompt).to(device)

    def _row_heads(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        pool = self.tier.heads
        keys = [self.prompts[number].key for number in numbers]
        if not all(key in pool for key in keys):
            weight, bias = stacked_heads([self.predictors[n] for n in numbers], pool.table)
            return weight, bias
        parts = [pool.rows(key) for key in keys]
        rows = pool.gather(parts)
        counts = index_of([len(part) for part in parts], rows.device)
        absent = torch.arange(rows.shape[1], device=rows.device) >= counts[:, None]
        return rows[..., :-1], rows[..., -1].masked_fill(absent, -torch.inf)

    # -- prompts that the model has read already ---------------------------------------------------

    def _cached(self, queries: Sequence[Query]) -> list[bool]:
        tier = self.tier
        if not tier.caches_prompts:
            return [False] * len(queries)
        rows = [(self.prompts[number].opening, row) for number, row in queries]
        usable = [
            ids is not None and len(ids) < len(row) and list(row[: len(ids)]) == ids
            for ids, row in rows
        ]
        numbers = {number for (number, _), use in zip(queries, usable, strict=True) if use}
        tier.read([self.prompts[number] for number in sorted(numbers)])
        pool, limit = tier.prefixes, math.inf
        if pool is None:
            return [False] * len(queries)
        ready = {
            number: pool.rows(self.prompts[number].key)
            for number in numbers
            if self.prompts[number].key in pool
        }
        if tier.max_columns is not None:
            longest = tier.prefix_columns(max(map(len, ready.values()), default=0))
            limit = tier.max_columns - longest - self.answer_length
        return [
            use and number in ready and len(row) < limit
            for (number, row), use in zip(queries, usable, strict=True)
        ]

    def _opening(self, number: int) -> list[int] | None:
        return self.prompts[number].opening

    def _cached_prompts(self, numbers: Sequence[int]) -> PromptCache:
        assert self.tier.prefixes is not None
        return self.tier.prefix([self.tier.prefixes.rows(self.prompts[n].key) for n in numbers])


def _padded(items: Sequence[Item]) -> list[Item]:
    """As many as a recorded pass has: the first one again."""
    return [*items, *[items[0]] * (padded_rows(len(items)) - len(items))]


def _mixed(pool: RowPool, prompts: Sequence[LoadedPrompt], means: Tensor) -> tuple[Tensor, Tensor]:
    """The prompts [B, P, H] that mixtures give to texts with these mean embeddings [B, H], and the
    probabilities of their members [B, K]; all rows at once, however many mixtures there are."""
    configs = [prompt.tuned.prompt.config for prompt in prompts]
    most, longest = max(c.count for c in configs), max(c.length for c in configs)
    table = np.zeros((len(prompts), most, longest), np.int64)
    routers = np.zeros((len(prompts), most), np.int64)
    sizes = np.zeros((3, len(prompts), 1), np.int64)  # members, those used, whether at weight 1
    for row, (prompt, config) in enumerate(zip(prompts, configs, strict=True)):
        rows, route = pool.rows(prompt.key), prompt.tuned.prompt.route
        members = config.count * config.length
        table[row, : config.count, : config.length] = rows[:members].reshape(config.count, -1)
        routers[row, : config.count] = rows[members:]
        k = route.k if isinstance(route, TopRoute) else 1
        sizes[:, row, 0] = config.count, k or config.count, isinstance(route, GumbelRoute)
    counts, best, hard = to_device(torch.from_numpy(sizes), means.device)
    logits = torch.einsum("bh,bkh->bk", means, pool.take(routers))
    logits = logits.masked_fill(torch.arange(most, device=means.device) >= counts, -torch.inf)
    probabilities = logits.softmax(-1)
    rank = logits.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    weights = torch.where(hard.bool(), 1.0, probabilities) * (rank < best)
    return torch.einsum("bk,bkph->bph", weights, pool.take(table)), probabilities
