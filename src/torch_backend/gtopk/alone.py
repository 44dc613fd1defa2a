"""A backend without torch's registry: for who keeps process groups of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend as TorchBackend

from gtopk import _native
from gtopk.backend import GtopkBackend

TIMEOUT = timedelta(minutes=30)


class _OfGtopk(type):
    """torch gives Python its own Backend for every backend, whose class says nothing."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, GtopkBackend):
            return True
        return isinstance(instance, TorchBackend) and instance.name() == "gtopk"


class Backend(metaclass=_OfGtopk):
    """What isinstance() takes for a backend of gtopk, whoever made it."""

    def __new__(cls, *_: object, **__: object) -> Backend:
        """Backends are made by create_backend()."""
        raise TypeError("gtopk: use gtopk.create_backend(store, rank, size, timeout)")


def create_backend(
    store: dist.Store, rank: int, size: int, timeout: timedelta = TIMEOUT, *, name: str = "gtopk"
) -> GtopkBackend:
    """Meet the other ranks in `store` as a group of `size`; blocks until all are there.

    Nothing is registered with torch.distributed, and no group of it is needed. The result has the
    methods of torch's Backend, which return Works (allreduce([tensor]).wait(), send, abort,
    shutdown, …), and sparse_all_reduce, statistics and get_error beside them.

    timeout: of the meeting, and the default of every operation. name: of the group; ranks may meet
    in one store under several names at once, and under the same again when a group is over.

    Raises ValueError for a rank that is none of the group's, torch.distributed.DistBackendError
    where ranks do not find each other.
    """
    if not 0 <= rank < size:
        raise ValueError(f"gtopk: rank {rank} of {size} ranks")
    return GtopkBackend(*_native.create_backend(store, rank, size, timeout, name))
