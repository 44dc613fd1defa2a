"""A group whose ranks change while it lives: replicas that leave, die, join and come back.

Its methods are those that torchft wants of a process group: configure, abort, errored, shutdown,
set_timeout and the collectives. It needs no torchft, and no default group of torch.distributed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import (
    DistBackendError,
    PrefixStore,
    ProcessGroup,
    Store,
    TCPStore,
)

from gtopk import _native
from gtopk.backend import GtopkBackend

TIMEOUT = timedelta(seconds=60)


class ReplicaGroup(ProcessGroup):
    """A process group of torch's that begins without ranks, and gets them by configure().

    Any thread may call abort(), also while another is in configure(): who waits for an operation
    gets an error then. Every method of a process group raises torch.distributed.DistBackendError
    while it has no ranks.
    """

    def __init__(self, timeout: timedelta = TIMEOUT) -> None:
        """timeout: of a meeting, and of the operations that are given none."""
        super().__init__(0, 1)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._group: ProcessGroup | None = None
        self._backend: GtopkBackend | None = None
        self._aborted = 0

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        """Meet `world_size` ranks in the store at "host:port/prefix", in place of those before.

        Blocks until all are there. What is under way among the old ranks ends with an error. The
        prefix must be a new one each time. The other arguments are torchft's, for its own logs.

        Raises ValueError for a rank that is none of the group's or an address that is none,
        torch.distributed.DistBackendError where the ranks do not find each other, or abort() was
        called meanwhile; the group has no ranks then.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"gtopk: rank {rank} of {world_size} ranks")
        with self._lock:
            aborted = self._aborted
        self._leave()
        store = _store_at(store_addr, self._timeout)
        backend = GtopkBackend(
            *_native.create_backend(
                store, rank, world_size, self._timeout, f"replicas of {store_addr}"
            )
        )
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        device = torch.device("cpu")
        group._register_backend(device, ProcessGroup.BackendType.CUSTOM, backend._backend)
        with self._lock:
            if self._aborted == aborted:
                self._group, self._backend = group, backend
                return
        backend.abort()
        raise DistBackendError("gtopk: abort() was called while the group was configured")

    def abort(self) -> None:
        """End the group at once, on all ranks: whoever waits for an operation gets an error."""
        with self._lock:
            self._aborted += 1
            backend = self._backend
        if backend is not None:
            backend.abort()

    def errored(self) -> Exception | None:
        """What ended the group, where something has: it wants to be configured anew."""
        backend = self._backend
        if backend is None:
            return None
        error = backend.get_error().name
        if error == "SUCCESS":
            return None
        return DistBackendError(f"gtopk: the replicas' group is over: {error}")

    def shutdown(self) -> None:
        """Leave the group in order, after what is under way, for which it waits 2 s."""
        with self._lock:
            backend, self._backend, self._group = self._backend, None, None
        if backend is not None:
            backend.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Of meetings, and of operations that are given none, from now on."""
        self._timeout = timeout
        backend = self._backend
        if backend is not None:
            backend._set_default_timeout(timeout)

    def current_backend(self) -> GtopkBackend:
        """The backend of the present ranks; raises DistBackendError where there are none."""
        self._ranks()
        backend = self._backend
        assert backend is not None
        return backend

    def rank(self) -> int:
        """This replica's number in the group."""
        return int(self._ranks().rank())

    def size(self) -> int:
        """The number of replicas."""
        return int(self._ranks().size())

    def name(self) -> str:
        """Of the backend."""
        return "gtopk"

    getBackendName = name  # noqa: N815  # as torchft calls it

    def _ranks(self) -> ProcessGroup:
        group = self._group
        if group is None:
            raise DistBackendError(
                "gtopk: the replicas' group has no ranks: call configure() first"
            )
        return group

    def _leave(self) -> None:
        with self._lock:
            backend, self._backend, self._group = self._backend, None, None
        if backend is not None:
            backend.abort()
            backend.shutdown()


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: ReplicaGroup, *arguments: Any, **named: Any) -> Any:
        return getattr(self._ranks(), name)(*arguments, **named)

    call.__name__ = name
    call.__doc__ = f"ProcessGroup.{name}, among the replicas."
    return call


for _name in (
    "_allgather_base",
    "_reduce_scatter_base",
    "allgather",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
):
    setattr(ReplicaGroup, _name, _passed_on(_name))


def _store_at(address: str, timeout: timedelta) -> Store:
    """A client of the store at "host:port/prefix"; an IPv6 host may stand in brackets."""
    place, _, prefix = address.partition("/")
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"gtopk: a store's address is host:port/prefix, given '{address}'")
    client = TCPStore(
        host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=timeout
    )
    return PrefixStore(prefix, client)
