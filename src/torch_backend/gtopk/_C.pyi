"""The native module, as its bindings (bindings.cpp) define it."""
# ruff: noqa: N999

from datetime import timedelta

import torch
from torch._C._distributed_c10d import Backend, ReduceOp, Store, Work

torch_version: str

class GtopkBackend(Backend):
    """One process group."""

    def sparse_all_reduce(
        self,
        tensor: torch.Tensor,
        residual: torch.Tensor | None,
        k: int,
        algorithm: str,
        select: str,
        put_back: str,
        op: ReduceOp,
        timeout: timedelta | None = None,
    ) -> Work:
        """See gtopk.sparse_all_reduce; the future's value is [tensor]."""
    def statistics(self) -> dict[str, int | float | str]:
        """See gtopk.stats."""

def create_backend(
    store: Store, rank: int, size: int, timeout: timedelta, group_name: str
) -> GtopkBackend:
    """Meet the other ranks; blocks."""

def shutdown() -> None:
    """Leave every group that is still there. Idempotent, bounded in time."""

def selection_size(d: int, density: float) -> int:
    """k = min(d, max(1, floor(density * d + 1/2))), and 0 for d = 0."""
