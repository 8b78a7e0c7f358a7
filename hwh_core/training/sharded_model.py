"""A model whose weights, gradients and moments are spread over the processes (FSDP2).

Matrices are spread: each process holds some rows of each, and all rows of a block while it computes that block. What
is no matrix (norm gains, decays, convolution taps) is little and stays whole in every process, in float32, so that
autocast rounds the same weights as without spreading.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ..modeling import HwHForCausalLM
from .compilation import NextTokenLoss, compile_in_place
from .distributed import Workers
from .sharding import whole


class ShardedModel:
    """``model`` spread over the processes of ``workers``; the first of them keeps ``model`` itself whole.

    ``trained`` is the model whose parameters are trained: a copy in the first process, ``model`` in the others.
    Matrices of blocks are gathered, and multiplied, in ``precision`` (bfloat16 or float32), gradients added in float32.
    """

    def __init__(self, model: HwHForCausalLM, workers: Workers, precision: str) -> None:
        self.workers = workers
        self.model = model
        self.trained = (copy.deepcopy(model) if workers.is_first else model).to(workers.device)
        for parameter in self.trained.parameters():
            dist.broadcast(parameter.data, 0)
        mesh = init_device_mesh(workers.device.type, (workers.world_size,))
        self.rest = [parameter for parameter in self.trained.parameters() if parameter.ndim != 2]
        rounded = torch.bfloat16 if precision == "bfloat16" else None
        # The residual stream between blocks and the embeddings stay in float32, as under autocast alone.
        policy = MixedPrecisionPolicy(param_dtype=rounded, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for block in self.trained.model.layers:
            fully_shard(block, mesh=mesh, mp_policy=policy, ignored_params=set(self.rest))
        self.loss = fully_shard(NextTokenLoss(self.trained), mesh=mesh, ignored_params=set(self.rest))

    def compile_blocks(self, backend: str = "inductor") -> None:
        """Compile what a block computes, not the gathering of its weights around it."""
        compile_in_place(self.trained.model.layers, self.trained.config.layers, backend)

    @contextlib.contextmanager
    def around(self, last: bool) -> Iterator[None]:
        """Surrounds a micro-batch; after the ``last`` averages gradients of what is whole in every process.

        Those of matrices are averaged in every backward pass: to keep them whole in between would take the memory that
        spreading saves.
        """
        yield
        if last:
            self._average_rest()

    def _average_rest(self) -> None:
        gradients = [parameter.grad for parameter in self.rest if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.workers.world_size
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    @torch.no_grad()
    def collect(self) -> None:
        """Bring the present weights into ``model`` of the first process; every process must ask."""
        for name, parameter in self.trained.named_parameters():
            full = whole(parameter)
            if self.workers.is_first:
                self.model.get_parameter(name).copy_(full)
