"""Recording a served model's passes on a GPU, if the model allows it."""

import logging
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ..backbone import Backbone, Causal, EncoderDecoder, Generative, PromptCache, Text
from ..backbone.batch import Candidates
from ..backbone.kv_cache import DecodingState
from ..backbone.speed.graphs import StepGraphs
from ..backbone.speed.inference import InferencePasses, Record, passes_for
from .recorded_rows import FEWEST_ROWS, RecordedRows
from .requests import Limits

log = logging.getLogger("softprompts.serving")

PROMPT_COLUMNS = 32
"""Cached prompts have a multiple of this many columns."""
NOT_RECORDED = "passes are no longer recorded, and answers take longer: %s"
MAX_GRAPHS = 256
"""Recorded passes to keep."""

Result = TypeVar("Result")


class Recording:
    """Passes of one model, and slots for answers; each size is recorded when it is first needed."""

    def __init__(self, passes: InferencePasses, limits: Limits) -> None:
        self.passes, self.limits, self.works = passes, limits, True
        self._rows: RecordedRows | None = None

    @property
    def sizes(self) -> int:
        """How many sizes of passes were recorded so far."""
        return getattr(self.passes.record, "recorded", 0)

    def fits(self, rows: int, columns: int) -> bool:
        """Whether a pass of this size is to be recorded."""
        return self.works and self.passes.fits(rows, columns)

    def scores(
        self, prompt: Tensor | PromptCache, text: Text, candidates: Candidates
    ) -> Tensor | None:
        """The log-probability of each row's candidates [B, C]; None if they cannot be had so."""
        return self._attempt(lambda: self.passes.scores(prompt, text, candidates))

    def prefill(self, prompt: Tensor | PromptCache, text: Text) -> DecodingState | None:
        """Process prompt and text, up to where the answer begins; None if that cannot be had so."""
        return self._attempt(lambda: self.passes.prefill(prompt, text))

    def _attempt(self, run: Callable[[], Result]) -> Result | None:
        try:
            return run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.stop(error)
            return None

    def stop(self, error: Exception) -> None:
        """Record nothing from now on."""
        if self.works:
            log.warning(NOT_RECORDED, error)
        self.works = False

    def clear(self) -> None:
        """Discard what was recorded, and its memory."""
        if isinstance(self.passes.record, StepGraphs):
            self.passes.record.clear()

    def empty_rows(self) -> RecordedRows:
        """Slots for new answers: the last ones again if they are free, because their steps are
        recorded."""
        if self._rows is None or len(self._rows):
            limits = self.limits
            self._rows = RecordedRows(
                self.passes.backbone, limits.slots, limits.cache_bytes, self.passes.record
            )
        return self._rows

    def try_out(self) -> None:
        """Score, read and decode once, also after a cached prompt."""
        backbone, rows = self.passes.backbone, FEWEST_ROWS
        text = backbone.embed_rows([[1, 2, 3]] * rows)
        vectors = torch.zeros(rows, 1, backbone.hidden, device=backbone.device)
        lengths = torch.ones(rows, dtype=torch.long, device=backbone.device)
        prompts = [vectors, backbone.cache_prompts(vectors, lengths)]
        slots = self.empty_rows()
        for prompt in prompts:
            if prompt is not None:
                self.passes.scores(prompt, text, [[[1, 2], [3, 4]]] * rows)
                state = self.passes.prefill(prompt, text)
                slots.join(state, range(rows), [4] * rows)
                slots.step([1] * rows).tolist()
                slots.leave(range(rows))


@torch.no_grad()
def try_recording(backbone: Backbone, limits: Limits) -> Recording | None:
    """The recorded passes of a model, if it is on a GPU and they work."""
    try:
        record = recorder(backbone) if _is_plain(backbone) else None
        passes = None if record is None else passes_for(backbone, record)
        if passes is None:
            return None
        recording = Recording(passes, limits)
        recording.try_out()
        return recording
    except Exception as error:  # the forward pass waits for the CPU, say, or memory is short
        log.warning(NOT_RECORDED, error)
        return None


def _is_plain(backbone: Backbone) -> bool:
    """Whether it answers as the families here do: a family that was added may differ."""
    family = type(backbone)
    return (
        issubclass(family, Causal | EncoderDecoder)
        and family.prefill in (Causal.prefill, EncoderDecoder.prefill)
        and family.scores is Generative.scores
    )


def recorder(backbone: Backbone) -> Record | None:
    """A recorder for the calling thread; None if the model cannot be recorded."""
    if backbone.device.type != "cuda" or backbone.is_spread:
        return None
    torch.cuda.set_device(backbone.device)
    return StepGraphs(MAX_GRAPHS)
