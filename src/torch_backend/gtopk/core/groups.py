"""Finds the gtopk backend of a torch.distributed process group."""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gtopk.core import _native
from gtopk.core.backend import GtopkBackend
from gtopk.core.torch_internals import backend_on, default_group, devices_of

if TYPE_CHECKING:
    from typing import TypeGuard

    from gtopk.core.replicas import ReplicaGroup

# torch's functions without the wrapper that logs errors: the wrapper looks up the group, and for a
# ReplicaGroup, which torch.distributed does not know, it replaces the error by another one.
all_gather: Any = inspect.unwrap(dist.all_gather)
all_reduce: Any = inspect.unwrap(dist.all_reduce)
broadcast: Any = inspect.unwrap(dist.broadcast)

# The result is cached: a lookup takes a few microseconds, and a group keeps its backend.
_found: weakref.WeakKeyDictionary[dist.ProcessGroup, GtopkBackend] = weakref.WeakKeyDictionary()


def backend_of(group: dist.ProcessGroup | None) -> GtopkBackend:
    """Return the gtopk backend of `group` (None: the default group), whatever devices it serves.

    For a ReplicaGroup, return the backend of its present ranks; each configure() makes a new one.

    Raises RuntimeError if no process group was initialised, ValueError if this rank is not in the
    group or the group uses another backend, and DistBackendError for a ReplicaGroup without ranks.
    """
    if group is None:
        group = default_group()
    if has_ranks_that_change(group):
        return group.current_backend()
    if group is dist.GroupMember.NON_GROUP_MEMBER:  # type: ignore[comparison-overlap]
        raise ValueError("gtopk: this rank is not a member of the group")
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"gtopk: group must be a ProcessGroup, given {type(group).__name__}")
    backend = _found.get(group)
    if backend is None:
        backend = _found[group] = _find(group)
    return backend


def has_ranks_that_change(group: object) -> TypeGuard[ReplicaGroup]:
    """Return whether `group` is a ReplicaGroup, which torch.distributed does not know."""
    return hasattr(group, "current_backend")


def ranks_of(group: dist.ProcessGroup | None) -> list[int]:
    """Return the ranks' numbers in the order of the group: global ranks if the group has them."""
    if has_ranks_that_change(group):
        return list(range(group.size()))
    return dist.get_process_group_ranks(group)


def rank_in(group: dist.ProcessGroup | None) -> int:
    """Return this rank's place in the group."""
    return group.rank() if has_ranks_that_change(group) else dist.get_rank(group)


def number_in(group: dist.ProcessGroup | None) -> int:
    """Return this rank's number as error texts name it; see ranks_of()."""
    return ranks_of(group)[rank_in(group)]


def meeting_place(group: dist.ProcessGroup | None) -> torch.device:
    """Return the device for the group's tensors: the CPU, unless the group has no CPU backend."""
    if group is None:
        group = default_group()
    cpu = torch.device("cpu")
    if has_ranks_that_change(group):
        return cpu
    devices = devices_of(group)
    return cpu if cpu in devices else devices[0]


def _find(group: dist.ProcessGroup) -> GtopkBackend:
    for device in devices_of(group):
        backend = backend_on(group, device)
        # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps every backend in one that checks its calls.
        backend = getattr(backend, "wrapped_pg", backend)
        number = _native.number_of(group, backend, device)
        if number is not None:
            return GtopkBackend(backend, number)
    raise ValueError(
        f"gtopk: the group's backend is '{dist.get_backend_config(group)}', not gtopk: use "
        "init_process_group('gtopk') or new_group(backend='gtopk')"
    )
