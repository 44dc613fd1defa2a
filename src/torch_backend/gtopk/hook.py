"""gtopk.sparse_hook, the DDP communication hook, and gtopk.attach, which registers it."""

# No `from __future__ import annotations`: DDP compares a hook's annotations with these types.
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gtopk.state import SparseState


def sparse_hook(state: SparseState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Exchange gradients sparsely while the backward goes on.

    ``gtopk.attach(ddp, density=…)`` makes the state and registers this; by hand it is
    ``ddp.register_comm_hook(state, gtopk.sparse_hook)``. The first backward compares the ranks'
    states.

    Args:
        state: a SparseState of the parameters of the model that DDP wraps.
        bucket: what DDP hands in: gradients of this rank, not divided by the number of ranks.

    Returns:
        A future of the bucket's buffer, averaged over the ranks. Errors of the exchange are its
        exception, which DDP raises from ``backward()``.

    Raises:
        ValueError: DDP and the state hold different parameters, the ranks' states differ, or the
            state's group is not gtopk's or has other ranks than DDP's.
        NotImplementedError: sparse gradients, and DDP's mixed_precision.
    """
    return state.overlap.arrive(bucket)


def attach(ddp: DistributedDataParallel, density: float = 0.001, **arguments: Any) -> SparseState:
    """Exchange the gradients of `ddp` sparsely from now on.

    ``state = gtopk.attach(DistributedDataParallel(model), density=0.001)``

    Args:
        ddp: its parameters and its process group become the state's.
        density: of SparseState.
        arguments: the others of SparseState, but for the parameters and the group.

    Returns:
        The state: residuals, to be saved with a checkpoint, and the density, which can be set.

    Raises:
        ValueError: `ddp` is no DistributedDataParallel; and as SparseState.
        NotImplementedError: as SparseState.
        RuntimeError: `ddp` has a communication hook already.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(
            "gtopk: attach takes the DistributedDataParallel around the model, given "
            f"{type(ddp).__name__}"
        )
    ignored = ddp.parameters_to_ignore
    parameters = [each for each in ddp.module.named_parameters() if each[0] not in ignored]
    state = SparseState(parameters, density, group=ddp.process_group, **arguments)
    ddp.register_comm_hook(state, sparse_hook)
    return state
