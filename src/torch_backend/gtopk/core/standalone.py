"""A backend without torch's registry, for code that manages its own process groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend as TorchBackend

from gtopk.core import _native
from gtopk.core.backend import GtopkBackend

TIMEOUT = timedelta(minutes=30)


class _OfGtopk(type):
    """Makes isinstance() work: in Python every backend has the type of torch's Backend."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, GtopkBackend):
            return True
        return isinstance(instance, TorchBackend) and instance.name() == "gtopk"


class Backend(metaclass=_OfGtopk):
    """The class for ``isinstance(backend, gtopk.Backend)``, which any gtopk backend satisfies."""

    def __new__(cls, *_: object, **__: object) -> Backend:
        """Make no usable object; backends are made by create_backend()."""
        raise TypeError("gtopk: use gtopk.create_backend(store, rank, size, timeout)")


def create_backend(
    store: dist.Store, rank: int, size: int, timeout: timedelta = TIMEOUT, *, name: str = "gtopk"
) -> GtopkBackend:
    """Create a backend of `size` ranks that meet in `store`, without torch's registry.

    Nothing is registered with torch.distributed, and no process group is needed. Collective: it
    blocks until all ranks have called it.

    Args:
        store: the store in which the ranks meet; the same on all ranks. It must stay up until every
            pair of ranks that communicate has done so once.
        rank: this process's rank, 0 <= rank < size.
        size: the number of ranks.
        timeout: limits the meeting; also the default timeout of operations.
        name: the group's name, the same on all ranks. Ranks may meet in one store under several
            names at once, and reuse a name once its group has ended.

    Returns:
        The backend. It has the methods of torch's Backend, which return Works
        (``allreduce([tensor]).wait()``, send, abort, shutdown, …), plus sparse_all_reduce,
        statistics and get_error.

    Raises:
        ValueError: `rank` is not in the group.
        torch.distributed.DistBackendError: the ranks do not find each other in time.
    """
    if not 0 <= rank < size:
        raise ValueError(f"gtopk: rank must be in [0, {size}) in a group of {size}, given {rank}")
    return GtopkBackend(*_native.create_backend(store, rank, size, timeout, name))
