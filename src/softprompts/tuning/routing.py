"""What a mixture's router does with the rows of an evaluation, taken from the pass that answers
them.

Shape letters: B batch, K prompts in a mixture.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..prompt import Prompt
from .team import Team


class RouterWatch:
    """Sums over the rows that a prompt's router reads while it is watched."""

    def __init__(self, prompt: Prompt) -> None:
        self.router, self.count = prompt.route.router, len(prompt.table)
        self.sums = torch.zeros(self.count + 2, device=prompt.table.device)
        """The rows of each prompt, the routers' confidences and their entropies [K + 2]."""

    def __enter__(self) -> "RouterWatch":
        self.hook = None if self.router is None else self.router.register_forward_hook(self._add)
        return self

    def __exit__(self, *error: object) -> None:
        if self.hook is not None:
            self.hook.remove()

    @torch.no_grad()
    def _add(self, router: nn.Module, inputs: Any, logits: Tensor) -> None:
        """Count the rows with these logits [B, K]."""
        probabilities = logits.float().softmax(-1)
        chosen = nn.functional.one_hot(probabilities.argmax(-1), self.count).sum(0)
        entropy = -(probabilities * probabilities.clamp(min=1e-12).log()).sum()
        sure = probabilities.amax(-1).sum()
        self.sums += torch.cat([chosen.to(entropy.dtype), torch.stack([sure, entropy])])

    def clear(self) -> None:
        self.sums.zero_()

    def entry(self, team: Team) -> dict[str, Any]:
        """An evaluation's `router`: the mean probability of the prompt it chooses, its mean entropy
        as a share of the largest possible, and the share of rows that each prompt takes."""
        if self.router is None or self.count == 1:
            return {}
        team.sum([self.sums])
        *chosen, sure, entropy = self.sums.tolist()
        rows = max(1.0, sum(chosen))
        return {
            "router": {
                "confidence": round(sure / rows, 4),
                "entropy": round(entropy / rows / math.log(self.count), 4),
                "load": [round(part / rows, 4) for part in chosen],
            }
        }
