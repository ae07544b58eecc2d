"""Team: the processes that work on one run. `accelerate launch` starts them; rows are shared out, only prompt gradients are summed.

Every process holds the whole prompt, the optimiser's state and the data order, and takes the same steps; one of them writes. With
`accelerate launch --use_fsdp` the frozen model's layers are sharded among them too.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..backbone import Backbone, EncoderDecoder, load_backbone
from ..backbone.load import default_dtype
from ..errors import UserError
from ..files.lock import exclusive

T = TypeVar("T")


class Team:
    """One process by itself; what more than one do differently is in `Parallel`."""

    rank, size = 0, 1
    sharded = False
    """Whether the frozen model is spread over the processes, so that they must call it in step with each other."""

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files and speaks to people."""
        return self.rank == 0

    def load(self, model: str, dtype: str, device: str, trust_remote_code: bool) -> Backbone:
        """The frozen model, where this process needs it."""
        return load_backbone(model, dtype, device, trust_remote_code)

    def share(self, rows: Sequence[T]) -> list[T]:
        """This process's rows of those that all work on."""
        return list(rows[self.rank :: self.size])

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Every tensor summed over all processes, in place."""

    def together(self, mine: Sequence[T]) -> list[T]:
        """What every process's rows came to, in the order of `share`."""
        return list(mine)

    def first(self, work: Callable[[], T]) -> T:
        """What the process that writes makes of `work`, told to all; so is a sentence for the user."""
        return work()

    def all(self, work: Callable[[], T]) -> T:
        """Done by every process; where one of them has a sentence for the user, all stop with it."""
        return work()

    @contextmanager
    def exclusive(self, folder: Path | None) -> Iterator[None]:
        """Keep other commands out of a folder; the process that writes holds the lock."""
        with ExitStack() as stack:
            if folder is not None:
                self.first(lambda: stack.enter_context(exclusive(folder)))
            yield


class Parallel(Team):
    """The processes that `accelerate launch` (or torchrun) started."""

    def __init__(self, cpu: bool) -> None:
        from accelerate import PartialState

        self.state = PartialState(cpu=cpu)
        self.rank, self.size = self.state.process_index, self.state.num_processes
        self.sharded = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("true", "1")

    def load(self, model: str, dtype: str, device: str, trust_remote_code: bool) -> Backbone:
        """On this process's own device; the layers sharded, where that was asked for: embeddings and output stay whole on each."""
        place = self.state.device
        if dtype == "auto":
            dtype = default_dtype(place)
        if not self.sharded:
            return load_backbone(model, dtype, str(place), trust_remote_code)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = (
            "false"  # transformers would give all but one process empty weights
        )
        backbone = load_backbone(model, dtype, "cpu", trust_remote_code)
        _ = backbone.fingerprint, backbone.unit  # read while the weights are whole
        mesh = init_device_mesh(place.type, (self.size,))
        for block in backbone.blocks():
            fully_shard(block, mesh=mesh)
        backbone.model.to(place)
        if isinstance(backbone, EncoderDecoder):
            backbone.packed = None  # its layers are called by the model alone, which gathers them
        return backbone

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """As one message."""
        tensors = list(tensors)
        flat = torch.cat([tensor.detach().float().flatten() for tensor in tensors])
        torch.distributed.all_reduce(flat)
        begin = 0
        for tensor in tensors:
            tensor.detach().copy_(flat[begin : begin + tensor.numel()].view_as(tensor))
            begin += tensor.numel()

    def together(self, mine: Sequence[T]) -> list[T]:
        gathered: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(gathered, list(mine))
        whole: list[Any] = [None] * sum(map(len, gathered))
        for rank, part in enumerate(gathered):
            whole[rank :: self.size] = part
        return whole

    def first(self, work: Callable[[], T]) -> T:
        told: list[Any] = [None, None]
        if self.writes:
            try:
                told = [work(), None]
            except UserError as error:
                told = [None, str(error)]
        torch.distributed.broadcast_object_list(told, device=self.state.device)
        if told[1] is not None:
            raise UserError(told[1])
        done: T = told[0]
        return done

    def all(self, work: Callable[[], T]) -> T:
        done, wrong = None, ""
        try:
            done = work()
        except UserError as error:
            wrong = str(error)
        told: list[str] = [""] * self.size
        torch.distributed.all_gather_object(told, wrong)
        rank = next((rank for rank, sentence in enumerate(told) if sentence), None)
        if rank is not None:
            raise UserError(told[rank] if rank == 0 else f"Process {rank}: {told[rank]}")
        return done  # type: ignore[return-value]


def make_team(device: str = "auto") -> Team:
    """The team this process was started in: by itself, unless a launcher says otherwise."""
    sizes = [
        os.environ.get(name, "1")
        for name in ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
    ]
    if all(size == "1" for size in sizes):
        return Team()
    return Parallel(cpu=device == "cpu")


def leave_team() -> None:
    """Part in peace, where there is a team."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
