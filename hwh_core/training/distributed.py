"""Data parallelism over the processes that torchrun starts; a single process needs none of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .settings import TrainingError


@dataclass(frozen=True)
class Workers:
    """This process among all that train together."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, sequences: int) -> slice:
        """Rows of a batch of ``sequences`` that this process takes."""
        if sequences % self.world_size:
            raise TrainingError(
                f"a step of {sequences} sequences cannot be split evenly among {self.world_size} processes; choose "
                "tokens_per_step accordingly"
            )
        each = sequences // self.world_size
        return slice(self.rank * each, (self.rank + 1) * each)

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Mean of a scalar over all processes."""
        if self.world_size > 1:
            dist.all_reduce(value)
            value = value / self.world_size
        return value

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        if self.world_size == 1:
            return flag
        value = torch.tensor(int(flag), device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value.item())

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.world_size > 1:
            dist.barrier()


def start_workers() -> Workers:
    """Join the processes started by torchrun (WORLD_SIZE, RANK, LOCAL_RANK), or be the only one."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    if world_size == 1:
        return Workers(0, 1, torch.device("cuda" if cuda else "cpu"))
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if cuda:
        if torch.cuda.device_count() < local_size:
            raise TrainingError(
                f"{local_size} processes were started on this machine, which offers {torch.cuda.device_count()} GPUs; "
                "start as many processes as GPUs"
            )
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    return Workers(dist.get_rank(), world_size, device)


def stop_workers(workers: Workers) -> None:
    """Leave the group."""
    if workers.world_size > 1:
        dist.destroy_process_group()


def averaged_with_the_last(
    replicas: nn.parallel.DistributedDataParallel,
) -> Callable[[bool], contextlib.AbstractContextManager[Any]]:
    """What surrounds each micro-batch: gradients are averaged over processes in that for which it is given True."""
    return lambda last: contextlib.nullcontext() if last else replicas.no_sync()
