"""What the steps of all packed models share: whether they are compiled and recorded."""

from collections.abc import Callable

from torch import Tensor

from .graphs import StepGraphs

DIVERGED = 1e15
"""A prompt with larger numbers has diverged; computing with it would harm other runs."""


class Packed:
    """A frozen model on packed rows."""

    gradients: Callable[..., tuple[Tensor, Tensor]]
    """Each row's loss, and the gradient with respect to prompts; see `Backbone.gradients`."""

    def __init__(self) -> None:
        self.graphs = StepGraphs()
        self.recorded = False
        """Whether steps are recorded and replayed: on a GPU, unless only a few steps follow."""
        self.compiled = False
        """Whether layers are compiled, too: when many steps follow."""

    def reserve(self, length: int) -> None:
        """Prepare for rows of up to `length` tokens, prompt included."""
