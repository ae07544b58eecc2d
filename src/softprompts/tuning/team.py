"""Team: the processes that share one run, as `accelerate launch` starts them.

Every process holds the prompt, the optimiser's state and the data order, and takes the same steps.
Rows are shared out, and only gradients of the prompt are summed. One process writes. With
`accelerate launch --use_fsdp`, the frozen model's layers are sharded, too.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch import Tensor

from ..backbone import Backbone, load_backbone
from ..backbone.load import resolve_dtype
from ..config.run import SPREADS
from ..errors import UserError, setting
from ..files import exclusive

T = TypeVar("T")


class Team:
    """A single process. `Parallel` is what several do differently."""

    rank, size = 0, 1
    sharded = False
    """Whether the frozen model is sharded, so that the processes must call it in step."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def load(self, model: str, dtype: str, device: str, trust_remote_code: bool) -> Backbone:
        """The frozen model, on this process's device."""
        return load_backbone(model, dtype, device, trust_remote_code)

    def share(self, rows: Sequence[T]) -> list[T]:
        """This process's share of the rows."""
        return list(rows[self.rank :: self.size])

    def gather(self, results: Sequence[T]) -> list[T]:
        """The results of all processes for their shares, in the order of the rows."""
        return list(results)

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Sum every tensor over all processes, in place."""

    def on_main(self, work: Callable[[], T]) -> T:
        """The result of `work` in the main process, for all; its `UserError` is raised in all."""
        return work()

    def on_all(self, work: Callable[[], T]) -> T:
        """The result of `work` in each process; a `UserError` in one is raised in all."""
        return work()

    @contextmanager
    def exclusive(self, folder: Path | None) -> Iterator[None]:
        """Keep other commands out of a folder; the main process holds the lock."""
        with ExitStack() as stack:
            if folder is not None:
                self.on_main(lambda: stack.enter_context(exclusive(folder)))
            yield


class Parallel(Team):
    """The processes that `accelerate launch` or torchrun started."""

    def __init__(self, cpu: bool) -> None:
        self.state = PartialState(cpu=cpu)
        self.rank, self.size = self.state.process_index, self.state.num_processes
        self.sharded = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("true", "1")

    def load(self, model: str, dtype: str, device: str, trust_remote_code: bool) -> Backbone:
        """The frozen model; if it is sharded, each process has all of the embeddings and output."""
        if device in SPREADS:
            raise UserError(
                f"{setting('device', device)} spreads a model over the GPUs of one process; start "
                "one process, or shard the model with FSDP."
            )
        target = self.state.device
        dtype = resolve_dtype(dtype, target)
        if not self.sharded:
            return load_backbone(model, dtype, str(target), trust_remote_code)
        # optional parts of torch, which some builds lack
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # transformers would load empty weights in all processes but one
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        backbone = load_backbone(model, dtype, "cpu", trust_remote_code)
        _ = backbone.fingerprint, backbone.unit  # computed before the weights are sharded
        mesh = init_device_mesh(target.type, (self.size,))
        for block in backbone.blocks():
            fully_shard(block, mesh=mesh)
        backbone.model.to(target)
        backbone.disable_packing()  # the model itself must call its layers, to gather them
        return backbone

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """All in one message."""
        tensors = list(tensors)
        flat = torch.cat([tensor.detach().float().flatten() for tensor in tensors])
        torch.distributed.all_reduce(flat)
        start = 0
        for tensor in tensors:
            tensor.detach().copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def gather(self, results: Sequence[T]) -> list[T]:
        shares: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(shares, list(results))
        rows: list[Any] = [None] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            rows[rank :: self.size] = share
        return rows

    def on_main(self, work: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome = [work(), None]
            except UserError as error:
                outcome = [None, error.message]
        torch.distributed.broadcast_object_list(outcome, device=self.state.device)
        result, message = outcome
        if message is not None:
            raise UserError(message)
        return result  # type: ignore[no-any-return]

    def on_all(self, work: Callable[[], T]) -> T:
        result, message = None, ""
        try:
            result = work()
        except UserError as error:
            message = error.message
        messages: list[str] = [""] * self.size
        torch.distributed.all_gather_object(messages, message)
        failed = next((rank for rank, message in enumerate(messages) if message), None)
        if failed is not None:
            before = "" if failed == 0 else f"Process {failed}: "
            raise UserError(before + messages[failed])
        return result  # type: ignore[return-value]


def make_team(device: str = "auto") -> Team:
    """The team of this process: alone, unless a launcher started it."""
    variables = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
    if all(os.environ.get(name, "1") == "1" for name in variables):
        return Team()
    return Parallel(cpu=device == "cpu")


def leave_team() -> None:
    """Leave the other processes, if there are any."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
