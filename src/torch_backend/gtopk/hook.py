"""gtopk.sparse_hook: the DDP communication hook. All it does is hand buckets to the state."""

# No `from __future__ import annotations`: DDP compares a hook's annotations with these types.
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from gtopk.state import SparseState


def sparse_hook(
    state: "SparseState", bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Exchange gradients sparsely while the backward goes on.

    ``ddp.register_comm_hook(state, gtopk.sparse_hook)``

    Args:
        state: a SparseState of the parameters of the model that DDP wraps.
        bucket: what DDP hands in: gradients of this rank, not divided by the number of ranks.

    Returns:
        A future of the bucket's buffer, averaged over the ranks. Errors of the exchange are its
        exception, which DDP raises from ``backward()``.

    Raises:
        ValueError: DDP and the state hold different parameters, or the group is not gtopk's.
        NotImplementedError: sparse gradients, and DDP's mixed_precision.
    """
    return state.overlap.arrive(bucket)
