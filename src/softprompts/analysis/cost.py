"""What a method costs on a backbone: parameters, floating-point operations, memory.

Only a config is needed: models are built on the meta device, without weights. Operations follow
`flops.FORMULA`; the activations that a training step keeps are those that torch's autograd records
on the meta device. The same pass is counted by torch, so that a model which the formula does not
fit is refused.
"""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..backbone import Backbone
from ..backbone.backbone import DTYPES
from ..backbone.families import family_for
from ..backbone.load import inspect_config, load_error, quiet_transformers
from ..backbone.quantized import GROUP, QUANTIZED
from ..config import Choice, RunConfig, routes
from ..config.cost import CostSettings
from ..config.model_shapes import SHAPES, listing_shapes
from ..errors import UserError, setting
from ..prompt import Prompt
from ..prompt.prompt import empty_prompt
from ..prompt.shape import TokenLinear
from .flops import Architecture

TOLERANCE = 0.01
"""The largest difference between the formula and torch's count, as a share."""


@dataclass(frozen=True)
class Cost:
    """What one method costs on one backbone. Memory is in bytes."""

    model: str
    method: str
    count: int
    length: int
    """K = `count` prompts of P = `length` tokens."""
    batch: int
    parameters: int
    """Of the backbone."""
    trained: int
    stored: int
    """Parameters that one task needs beside the backbone, after folding."""
    training_flops: float
    """Of a step of `batch` rows."""
    inference_flops: float
    """Of the answer to one row."""
    weights: int
    state: int
    """What is trained (if it is not the model), its gradients and the optimiser's state."""
    activations: int
    """What a step keeps for its backward pass, with eager attention and without dropout."""
    step: dict[str, Any] | None = None
    """Seconds of a step as measured (median, p10, p90), where, and its peak memory."""

    @property
    def percent(self) -> float:
        """The trained parameters in percent of all, as in Lester 2021, Table 4."""
        frozen = 0 if self.trained >= self.parameters else self.parameters
        return 100 * self.trained / (frozen + self.trained)

    @property
    def memory(self) -> int:
        """Of a training step; of answering, if nothing is trained."""
        return self.weights + self.state + self.activations

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"percent": self.percent, "memory": self.memory}


@dataclass(frozen=True)
class Shape:
    """A model without weights."""

    name: str
    backbone: Backbone
    architecture: Architecture
    parameters: int
    dtype: str

    @classmethod
    def load(cls, name: str, dtype: str = "fp32", trust_remote_code: bool = False) -> "Shape":
        """A known shape, an included model, a model folder or a Hub id; only its config is read."""
        if name in SHAPES:
            config = transformers.AutoConfig.for_model(**SHAPES[name])
            family = family_for(config)
            assert family is not None
        else:
            with listing_shapes(name):
                family, config = inspect_config(name, trust_remote_code)
        compute = torch.bfloat16 if dtype in QUANTIZED else DTYPES[dtype]
        try:
            with quiet_transformers(), torch.device("meta"):
                model = getattr(transformers, family.auto_class(config)).from_config(
                    config,
                    dtype=compute,
                    attn_implementation="eager",
                    trust_remote_code=trust_remote_code,
                )
            backbone = family(model, None, name)
            architecture = Architecture.of(model, family.family)
        except Exception as error:  # a model may lack eager attention, or the usual sizes
            raise load_error(name, error) from None
        parameters = sum(part.numel() for part in model.parameters())
        head = model.get_output_embeddings()
        tied = head is not None and head.weight is backbone.embedding.weight
        if tied and _has_separate_head(config):
            parameters += head.weight.numel()
        shape = cls(name, backbone, architecture, parameters, dtype)
        if name not in SHAPES:  # which tests check
            shape.check_formula()
        return shape

    def forward(self, batch: int, length: int, target: int, device: Any = "meta") -> Any:
        """A pass of `batch` rows; of models without a decoder, up to the output layer."""
        model, family = self.backbone.model, self.architecture.family
        row = length + target if family == "decoder-only" else length
        size, dtype = (batch, row, self.backbone.hidden), model.dtype
        embeds = torch.zeros(size, dtype=dtype, device=device, requires_grad=True)
        if family == "encoder-decoder":
            ids = torch.zeros(batch, target, dtype=torch.long, device=device)
            return model(inputs_embeds=embeds, decoder_input_ids=ids, use_cache=False)
        if family != "decoder-only":
            return model.base_model(inputs_embeds=embeds)
        # without a mask, transformers looks for the limits of packed rows, which have no values
        mask = torch.ones(batch, row, dtype=torch.long, device=device)
        return model.base_model(inputs_embeds=embeds, attention_mask=mask, use_cache=False)

    def check_formula(self) -> None:
        """Refuse a model for which torch counts other operations than the formula."""
        length, target = 32, 2
        expected = self.architecture.forward(length, target).total
        if self.architecture.family != "encoder-decoder":
            expected -= 2 * target * self.architecture.head_weights
        try:
            with FlopCounterMode(display=False) as counter:
                self.forward(1, length, target)
        except Exception as error:  # a layer that needs values, such as a choice among experts
            raise load_error(self.name, error) from None
        counted = counter.get_total_flops()
        if abs(counted - expected) > TOLERANCE * expected:
            raise UserError(
                f"The formula does not fit {self.name}, whose model type is "
                f"{self.backbone.model.config.model_type}: torch counts {counted:.4g} operations "
                f"where it gives {expected:.4g}; choose a model with plain transformer layers."
            )

    @property
    def weights(self) -> int:
        """Bytes; of 8 and 4 bits, with a scale for each row or group of a row."""
        if self.dtype not in QUANTIZED:
            return self.parameters * (4 if self.dtype == "fp32" else 2)
        sizes = self.architecture
        matrices = sizes.layer_weights + sizes.decoder_weights + sizes.cross_weights
        scales = matrices // (sizes.width if QUANTIZED[self.dtype] == 8 else GROUP)
        return matrices * QUANTIZED[self.dtype] // 8 + 2 * (scales + self.parameters - matrices)


def _has_separate_head(config: Any) -> bool:
    """T5 v1.1 and mT5 have an output matrix of their own, which transformers adds only when it
    reads a checkpoint."""
    if config.model_type == "t5":
        return not getattr(config, "scale_decoder_outputs", True)
    return config.model_type in ("mt5", "umt5")


def method_cost(shape: Shape, config: RunConfig, rows: CostSettings) -> Cost:
    """The cost of a run's method on a backbone."""
    backbone, tuning, trains = shape.backbone, config.tuning, config.tuning.trains
    prompt = _prompt(config, backbone, rows.classes)
    architecture, features = shape.architecture, 0
    if prompt.head is not None:
        features = prompt.head.weight.numel()
        architecture = replace(architecture, head_weights=features)
    length, target = config.prompt.length + rows.text, rows.target if backbone.generates else 1
    limit = backbone.max_positions
    needed = length + target if architecture.family == "decoder-only" else length
    if limit is not None and needed > limit:
        raise UserError(
            f"{shape.name} takes at most {limit} tokens, and a row has {needed} with its prompt; "
            f"lower {setting('text')}."
        )
    of_prompt = sum(part.numel() for part in prompt.parameters()) if trains != "nothing" else 0
    of_model = shape.parameters if trains == "model" else 0
    folded = config.prompt.folded_count * config.prompt.length * backbone.hidden
    router = 0 if config.prompt.folded_count < 2 else _count(prompt.route)
    training_flops, state, activations = 0.0, 0, 0
    if trains != "nothing":
        per_row, per_step = prompt_flops(prompt, training=True)
        row = architecture.step(length, target, trains == "model") + per_row
        training_flops = tuning.batch_size * row + per_step
        trained = list(prompt.parameters())
        trained += list(backbone.model.parameters()) if trains == "model" else []
        state = sum(_state_bytes(part, tuning.optimizer) for part in trained)
        state -= 4 * of_model  # its weights are the backbone's
        activations = kept_activations(shape, tuning.batch_size, length, target, trains == "model")
        if prompt.head is None:  # the log-probabilities, in fp32
            activations += 4 * tuning.batch_size * target * backbone.vocab_size
    return Cost(
        model=shape.name,
        method=config.method,
        count=config.prompt.count,
        length=config.prompt.length,
        batch=tuning.batch_size,
        parameters=shape.parameters,
        trained=of_prompt + of_model,
        stored=of_model + folded + router + _count(prompt.head),
        training_flops=training_flops,
        inference_flops=architecture.answer(length, target).total + prompt_flops(prompt)[0],
        weights=shape.weights,
        state=state,
        activations=activations,
    )


def _prompt(config: RunConfig, backbone: Backbone, labels: int) -> Prompt:
    """With the head that the backbone needs; which one `auto` is depends on its words too."""
    head = config.prompt.head.kind
    if backbone.generates and head == "linear":
        backbone.with_head(nn.Linear(1, 1), [])  # type: ignore[arg-type]  # says why not
    if head == "auto":
        words = backbone.model.get_output_embeddings() is not None
        head = "words" if words else "linear"
        config = replace(config, prompt=replace(config.prompt, head=Choice(head)))
    return empty_prompt(config.prompt, backbone.hidden, head=(labels, backbone.feature_size))


def _count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(part.numel() for part in module.parameters())


def _state_bytes(parameter: torch.Tensor, optimizer: Choice) -> int:
    """In fp32: the parameter, its gradient, and AdamW's two moments or Adafactor's second one,
    which is factored if both sides are long."""
    count, sides = parameter.numel(), sorted(parameter.shape)[-2:]
    moments = 2 * count
    if optimizer.kind == "adafactor":
        long = len(sides) == 2 and sides[0] >= optimizer.options.get("factor_from", 128)
        moments = count // sides[0] + count // sides[1] if long else count
    return 4 * (2 * count + moments)


def prompt_flops(prompt: Prompt, training: bool = False) -> tuple[float, float]:
    """Operations of the prompt itself: for each row (its route), and for each step (its shape).

    A folded prompt has no shape, and one prompt no route.
    """
    count, length, hidden = prompt.table.shape
    folds_to_one = routes.schema(prompt.config.route.kind)["folds_to_one"]
    router, per_token = _linear_weights(prompt.route), _linear_weights(prompt.shape)
    if prompt.route.router is not None and not router:
        router = count * hidden  # a LinearRouter
    blend = 0 if not prompt.varies_by_row else count * length * hidden
    if not training:
        return (0.0 if folds_to_one else 2.0 * (router + blend)), 0.0
    passes = getattr(prompt.shape, "depth", 1) * count * length
    blended = 3 if prompt.route.reads_text else 2  # random choices have no gradient
    return 2.0 * (2 * router + blended * blend), 6.0 * passes * per_token


def _linear_weights(module: nn.Module) -> int:
    """The weights of linear layers and LSTMs that one token passes."""
    layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.LSTM)]
    own = [part for part in module.modules() if isinstance(part, TokenLinear)]
    weights = sum(
        weight.numel()
        for layer in layers
        for name, weight in layer.named_parameters(recurse=False)
        if "weight" in name
    )
    return weights + sum(layer.weight[0].numel() for layer in own)


@lru_cache(64)
def kept_activations(
    shape: Shape, batch: int, length: int, target: int, trains_model: bool = False
) -> int:
    """Bytes that a forward pass keeps for its backward pass, up to the logits."""
    model = shape.backbone.model
    own = {part.untyped_storage()._cdata for part in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    model.requires_grad_(trains_model)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = shape.forward(batch, length, target)
    del output  # only now: a storage that is freed lends its address to another
    return sum(kept.values())
