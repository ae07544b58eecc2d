"""Parts of Hugging Face models: finding layers, replacing functions, selecting columns."""

from collections.abc import Callable, Iterator, Sequence
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
def replaced_forwards(forwards: Sequence[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Inside, each of the modules has another forward function."""
    before = [vars(module).get("forward") for module, _ in forwards]
    for module, forward in forwards:
        module.forward = forward
    try:
        yield
    finally:
        for (module, _), own in zip(forwards, before, strict=True):
            del module.forward
            if own is not None:  # that of a model that is spread
                module.forward = own


@contextmanager
def replaced_attention(implementations: Sequence[tuple[Any, str]]) -> Iterator[None]:
    """Inside, models with these configs use other attention functions, by name."""
    before = [config._attn_implementation for config, _ in implementations]
    for config, name in implementations:
        config._attn_implementation = name
    try:
        yield
    finally:
        for (config, _), own in zip(implementations, before, strict=True):
            config._attn_implementation = own


@contextmanager
def only_columns(encoder: nn.Module, columns: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
    """Inside, modules after the encoder see only the hidden states of `columns` [B, N].

    Some models bypass their encoder's own call and call its decoder (OPT). Others are their own
    encoder (Llama 4): for these, the yielded function selects the columns from the logits; for all
    others it returns the logits as they are.
    """
    selected: list[bool] = []

    def select(states: Tensor) -> Tensor:
        index = columns.unsqueeze(-1).to(states.device)  # which may be that of the last layer
        return states.gather(1, index.expand(-1, -1, states.shape[2]))

    def select_output(module: nn.Module, inputs: Any, output: Any) -> Any:
        if getattr(output, "last_hidden_state", None) is not None and not selected:
            selected.append(True)
            output.last_hidden_state = select(output.last_hidden_state)
        return output

    decoder = getattr(encoder, "decoder", None)
    parts = [encoder, decoder] if isinstance(decoder, nn.Module) else [encoder]
    hooks = [part.register_forward_hook(select_output) for part in parts]
    try:
        yield lambda logits: logits if selected else select(logits)
    finally:
        for hook in hooks:
            hook.remove()
