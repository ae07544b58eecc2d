"""Recording a served model's passes on a GPU, if the model allows it."""

import logging

import torch

from ..backbone import Backbone
from ..backbone.speed.graphs import StepGraphs
from ..backbone.speed.inference import InferencePasses, Record, passes_for
from .recorded_rows import ROWS, RecordedRows
from .requests import Limits

log = logging.getLogger("softprompts.serving")

PROMPT_COLUMNS = 32
"""Cached prompts have a multiple of this many columns."""


class Recording:
    """Passes of one model, and slots for answers; each size is recorded when it is first needed."""

    def __init__(self, passes: InferencePasses, limits: Limits) -> None:
        self.passes, self.limits = passes, limits
        self._rows: RecordedRows | None = None

    @property
    def sizes(self) -> int:
        """How many sizes of passes were recorded so far."""
        return getattr(self.passes.record, "recorded", 0)

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
        """Score, read and decode once."""
        backbone, rows = self.passes.backbone, ROWS[0]
        text = backbone.embed_rows([[1, 2, 3]] * rows)
        prompt = torch.zeros(rows, 1, backbone.hidden, device=backbone.device)
        self.passes.scores(prompt, text, [[[1, 2], [3, 4]]] * rows)
        state = self.passes.prefill(prompt, text)
        assert state is not None
        slots = self.empty_rows()
        slots.join(state, range(rows), [4] * rows)
        slots.step([1] * rows).tolist()
        slots.leave(range(rows))


@torch.no_grad()
def try_recording(backbone: Backbone, limits: Limits) -> Recording | None:
    """The recorded passes of a model, if it is on a GPU and they work."""
    record = recorder(backbone)
    passes = None if record is None else passes_for(backbone, record)
    if passes is None:
        return None
    recording = Recording(passes, limits)
    try:
        recording.try_out()
    except Exception as error:  # the model waits for the CPU, say, or memory is short
        log.warning("passes are not recorded, and answers take longer: %s", error)
        backbone.free_memory()
        return None
    return recording


def recorder(backbone: Backbone) -> Record | None:
    """Where passes can be recorded, by the thread that calls this."""
    if backbone.device.type != "cuda" or backbone.is_spread:
        return None
    torch.cuda.set_device(backbone.device)
    return StepGraphs()
