"""Parts of Hugging Face models: finding layers, fusing activations, selecting columns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers.activations import NewGELUActivation


def transformer_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a transformer, from the input on: the items of all outermost module lists."""
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    nested = {
        id(part)
        for stack in stacks
        for layer in stack
        for part in layer.modules()
        if part is not layer
    }
    return [layer for stack in stacks if id(stack) not in nested for layer in stack]


def fuse_gelu(model: Any) -> Any:
    """Replace tanh GELUs that are written as eight operations by torch's one; same function."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model


@contextmanager
def only_columns(encoder: nn.Module, columns: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
    """Inside, modules after the encoder see only the hidden states of `columns` [B, N].

    Some models (OPT) bypass their encoder's own call. For these, the yielded function selects the
    columns from the logits; for all others it returns the logits as they are.
    """
    selected: list[bool] = []

    def select(states: Tensor) -> Tensor:
        index = columns.unsqueeze(-1).to(states.device)  # which may be that of the last layer
        return states.gather(1, index.expand(-1, -1, states.shape[2]))

    def select_output(module: nn.Module, inputs: Any, output: Any) -> Any:
        selected.append(True)
        output.last_hidden_state = select(output.last_hidden_state)
        return output

    hook = encoder.register_forward_hook(select_output)
    try:
        yield lambda logits: logits if selected else select(logits)
    finally:
        hook.remove()
