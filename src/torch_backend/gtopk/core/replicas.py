"""A group whose ranks change during its lifetime: replicas leave, die, join and come back.

It has the methods that torchft expects of a process group: configure (up to 0.2) or reconfigure
with handles (later versions), abort, errored, shutdown, set_timeout and the collectives. It needs
neither torchft nor a default group of torch.distributed.
"""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import BroadcastOptions, Work
from torch.distributed import (
    DistBackendError,
    HashStore,
    PrefixStore,
    ProcessGroup,
    Store,
    TCPStore,
)

from gtopk.core import _native
from gtopk.core.backend import GtopkBackend

TIMEOUT = timedelta(seconds=60)
_NO_RANKS = "gtopk: the replicas' group has no ranks: call configure() first"


class Configured(NamedTuple):
    """What configure() gave a replica."""

    address: str
    rank: int
    size: int
    store: Store


class ReplicaGroup(ProcessGroup):
    """A torch process group that starts without ranks and gets them from configure().

    Any thread may call abort(), even while another is in configure(); operations in flight then
    fail. While the group has no ranks, every method of a process group raises
    torch.distributed.DistBackendError.
    """

    def __init__(self, timeout: timedelta = TIMEOUT) -> None:
        """Set the timeout of meetings, which is also the default timeout of operations."""
        super().__init__(0, 1)  # type: ignore[call-arg]  # torch's stubs lack this one
        self._timeout = timeout
        self._lock = threading.Lock()
        self._group: ProcessGroup | None = None
        self._backend: GtopkBackend | None = None
        self._alone: GtopkBackend | None = None
        self._store: TCPStore | None = None
        self._configured: Configured | None = None
        self._name = uuid.uuid4().hex
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
        """Replace the group's ranks by `world_size` ranks that meet in a store.

        Collective over the new ranks: it blocks until all have called it. This rank leaves the old
        group gracefully, unless errored(): operations in flight have 2 s to end, then they fail.

        Args:
            store_addr: "host:port/prefix" of a running TCPStore; the prefix must be new in each
                call.
            replica_id: meant for torchft's logs, like `quorum_id` and the arguments after it; not
                used.
            rank: this replica's rank, 0 <= rank < world_size.
            world_size: the number of replicas.
            quorum_id: not used.
            group_rank: not used.
            group_world_size: not used.
            global_ranks: not used.

        Raises:
            ValueError: a rank outside the group, or an invalid address.
            torch.distributed.DistBackendError: the ranks do not find each other, or abort() was
                called meanwhile. The group then has no ranks.
        """
        if not 0 <= rank < world_size:
            raise ValueError(
                f"gtopk: rank must be in [0, {world_size}) in a group of {world_size}, given {rank}"
            )
        self._configure(store_addr, rank, world_size, self._timeout)

    @property
    def timeout(self) -> timedelta:
        """The timeout of meetings, and the default timeout of operations."""
        return self._timeout

    def configured(self) -> Configured:
        """Return what the last configure() gave, even if narrow() has since removed ranks."""
        if self._configured is None:
            raise DistBackendError(_NO_RANKS)
        return self._configured

    def narrow(self, ranks: Sequence[int], name: str) -> None:
        """Continue with some of the ranks of the last configure(), in this order; collective.

        A rank's new number is its position in `ranks`. Ranks that are not in it keep their present
        group. name: must be new in each call. Raise as configure().
        """
        given = self.configured()
        self._meet(f"{given.address}/{name}", ranks.index(given.rank), len(ranks), self._timeout)

    def _configure(self, address: str, rank: int, size: int, timeout: timedelta) -> None:
        self._configured = None
        store = self._meet(address, rank, size, timeout)
        self._configured = Configured(address, rank, size, store)

    def _meet(self, address: str, rank: int, size: int, timeout: timedelta) -> Store:
        with self._lock:
            aborted = self._aborted
        self._keep_engine(timeout)
        self._leave()
        store = _store_at(address, timeout)
        backend = self._met(store, rank, size, f"replicas of {address}", timeout)
        self._keep_engine(timeout)  # start a new one if the old one has lost a replica
        backend._set_default_timeout(self._timeout)
        group = ProcessGroup(store, rank, size)
        group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        device = torch.device("cpu")
        group._register_backend(device, ProcessGroup.BackendType.CUSTOM, backend._backend)
        with self._lock:
            if self._aborted == aborted:
                self._group, self._backend = group, backend
                return store
        backend.abort()
        raise DistBackendError("gtopk: abort() was called while the group was being configured")

    @property
    def supports_reconfigure(self) -> bool:
        """Always true; torchft asks."""
        return True

    def get_reconfigure_handle(self) -> str:
        """Return the handle by which other replicas find this one.

        Also starts a store on this host, in case this replica becomes the first.
        """
        if self._store is None:
            self._store = TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
        place = f"{socket.gethostname()}:{self._store.port}"
        return json.dumps({"id": self._name, "store": place})

    def reconfigure(self, options: Any) -> Work:
        """Configure the replicas with these handles, which meet in the first one's store.

        Args:
            options: like torch 2.14's ReconfigureOptions. ``handles``: one per replica; a replica's
                rank is the position of its handle in the list (a set is sorted first). ``uuid``:
                new in each call, and the same on all replicas. ``timeout``: timeout of the meeting;
                None means the group's.

        Returns:
            A completed Work, because this call blocks.

        Raises:
            ValueError: the handles are not distinct, or this replica's is missing.
            torch.distributed.DistBackendError: as configure().
        """
        handles = options.handles
        handles = list(handles) if isinstance(handles, list) else sorted(handles)
        places = [json.loads(each) for each in handles]
        names = [each["id"] for each in places]
        if len(set(names)) < len(names) or self._name not in names:
            raise ValueError(
                "gtopk: reconfigure needs distinct handles, one of them this replica's; given "
                f"{len(names)}" + ("" if self._name in names else ", none of them this replica's")
            )
        timeout = self._timeout if options.timeout is None else options.timeout
        address = f"{places[0]['store']}/gtopk/{options.uuid}"
        self._configure(address, names.index(self._name), len(names), timeout)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        made: Work = c10d._create_work_from_future(done)  # type: ignore[attr-defined]
        return made

    def abort(self) -> None:
        """End the group at once, on all ranks; operations in flight fail."""
        with self._lock:
            self._aborted += 1
            backend = self._backend
        if backend is not None:
            backend.abort()

    def errored(self) -> Exception | None:
        """Return the error that ended the group, or None. An ended group needs configure()."""
        backend = self._backend
        if backend is None:
            return None
        error = backend.get_error().name
        if error == "SUCCESS":
            return None
        return DistBackendError(f"gtopk: the replicas' group has ended: {error}")

    def shutdown(self) -> None:
        """Leave the group; wait up to 2 s for operations in flight."""
        with self._lock:
            backend, self._backend, self._group = self._backend, None, None
        self._configured = None
        alone, self._alone = self._alone, None
        for each in (backend, alone):
            if each is not None:
                each.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later meetings, and the default of later operations."""
        self._timeout = timeout
        backend = self._backend
        if backend is not None:
            backend._set_default_timeout(timeout)

    def broadcast_one(self, tensor: torch.Tensor, root: int) -> Any:
        """Broadcast one tensor; torchft calls it this way."""
        options = BroadcastOptions()
        options.rootRank = root
        return self._ranks().broadcast([tensor], options)

    def current_backend(self) -> GtopkBackend:
        """Return the backend of the current ranks; raises DistBackendError if there are none."""
        self._ranks()
        backend = self._backend
        assert backend is not None
        return backend

    def rank(self) -> int:
        """Return this replica's rank in the group."""
        return int(self._ranks().rank())

    def size(self) -> int:
        """Return the number of replicas."""
        return int(self._ranks().size())

    def name(self) -> str:
        """Return the backend's name."""
        return "gtopk"

    getBackendName = name  # noqa: N815  # torchft's name for it

    def _ranks(self) -> ProcessGroup:
        group = self._group
        if group is None:
            raise DistBackendError(_NO_RANKS)
        return group

    def _met(
        self, store: Store, rank: int, size: int, name: str, timeout: timedelta
    ) -> GtopkBackend:
        return GtopkBackend(*_native.create_backend(store, rank, size, timeout, name))

    def _keep_engine(self, timeout: timedelta) -> None:
        """Keep this process's engine from ending between two groups.

        An engine that ended would wait for the goodbyes of replicas that stay. If the engine has
        lost a replica, this starts a new one, and the old one ends with the last group that uses
        it.
        """
        before = self._alone
        self._alone = self._met(HashStore(), 0, 1, "a replica alone", timeout)
        if before is not None:
            before.shutdown()

    def _leave(self) -> None:
        with self._lock:
            backend, self._backend, self._group = self._backend, None, None
        if backend is None:
            return
        # Skip this if nothing failed: other ranks may still be in an operation that this rank
        # finished.
        if backend.get_error().name != "SUCCESS":
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
    """Return a client of the store at "host:port/prefix"; an IPv6 host may stand in brackets."""
    place, _, prefix = address.partition("/")
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"gtopk: a store's address must be host:port/prefix, given '{address}'")
    client = TCPStore(
        host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=timeout
    )
    return PrefixStore(prefix, client)
