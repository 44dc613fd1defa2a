"""Loads the library for the running version of torch, once, after loading its UCX.

``_autoload`` must not import this module before a process group is requested.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing.util
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    import torch
    from torch._C._distributed_c10d import Backend, ProcessGroup, Store

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_leaves: int | None = None  # the process that called leave_at_exit()


@functools.cache
def load() -> Any:
    """Load the library; return its operators, ``torch.ops.gtopk`` (operators.cpp).

    Raises ImportError, which says what is missing, which versions of torch are supported, or that
    the process has loaded another UCX.
    """
    import torch

    from gtopk.core import _ucx

    name = library_for(torch.__version__, os.listdir(_PACKAGE))
    _ucx.load()
    try:
        torch.ops.load_library(os.path.join(_PACKAGE, name))
    except OSError as error:
        raise ImportError(
            f"gtopk: the library {name} cannot be loaded: {error}. Loaded: torch "
            f"{torch.__version__}. Install gtopk again (pip install --force-reinstall gtopk)"
            f"{_ucx.in_this_process()}"
        ) from error
    return torch.ops.gtopk


class Gate(Protocol):
    """torch.classes.gtopk.Gate: the parts of a step wait for one another at it (gtopk/gate.hpp)."""

    def arrive(self, happened: bool) -> None:
        """Report whether one of the parts happened; the last arrival decides for all."""

    def shut(self) -> None:
        """Abort the step, so that no part commits."""


def gate(arrivals: int) -> Gate:
    """Make a gate that waits for `arrivals` parts."""
    import torch

    load()
    return cast("Gate", torch.classes.gtopk.Gate(arrivals))


class SparseOptions(Protocol):
    """torch.classes.gtopk.SparseOptions: the options of calls (sparse_options.cpp)."""

    def traits(self) -> dict[str, bool]:
        """Return the traits of a call with these options, by name."""

    def most_delivered(self, d: int, ranks: int) -> int:
        """Return the largest number of entries that a result of d elements can have."""


def sparse_options(*named: str | float | None) -> SparseOptions:
    """Make the options from their values, in the order of gtopk.ops.options.SparseOptions.

    Raises ValueError for a value that is invalid in any group.
    """
    import torch

    load()
    return cast("SparseOptions", torch.classes.gtopk.SparseOptions(*named))


def fail(future: torch.futures.Future[Any], error: Exception) -> None:
    """Complete a future with an error that DDP raises unchanged; runs its callbacks here."""
    load().fail(future, type(error).__name__, str(error))


def library_for(torch: str, files: Iterable[str]) -> str:
    """Return the file among `files` that was built for this version of torch.

    The minor version must match exactly: c10d's vtables change with each minor version, but not
    with patch versions, and a library built for another minor version may load without an error.
    Raises ImportError if no file matches.
    """
    there = sorted(
        tuple(map(int, found.groups()))
        for found in (re.fullmatch(r"_torch_(\d+)_(\d+)\.so", each) for each in files)
        if found
    )
    major, minor = map(int, torch.split(".")[:2])
    if (major, minor) not in there:
        versions = ", ".join(f"{each[0]}.{each[1]}" for each in there) or "none"
        raise ImportError(
            f"gtopk: no library for torch {torch}; available for: {versions}. Install "
            "one of these versions of torch, or a gtopk that was built for this one"
        )
    return f"_torch_{major}_{minor}.so"


def check_torch(module: str, first: tuple[int, int], last: tuple[int, int]) -> None:
    """Raise ImportError unless the loaded torch is one whose internals `module` knows."""
    import torch

    major, minor = map(int, torch.__version__.split(".")[:2])
    if not first <= (major, minor) <= last:
        raise ImportError(
            f"gtopk: {module} relies on what is private in torch, as it is in versions "
            f"{first[0]}.{first[1]} to {last[0]}.{last[1]}, but torch {torch.__version__} is "
            "loaded: install one of these versions, or a gtopk that supports this one"
        )


def create_backend(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    name: str,
    *,
    reconfigurable: bool = False,
) -> tuple[Backend, int]:
    """Meet the other ranks of the group `name`; blocks. Returns the backend and its number.

    reconfigurable: if true, the ranks meet only in the backend's reconfigure() (torch 2.14 and up).

    Raises ImportError as load() does, and torch.distributed.DistBackendError if the ranks do not
    find each other or GTOPK_SECRET is invalid.
    """
    import torch

    native = load()
    leave_at_exit()
    # Operators can neither take nor return a Backend, so a group carries it.
    carrier = _carrier(store, rank, size)
    milliseconds = round(timeout.total_seconds() * 1000)
    number: int = native.create_backend(carrier.boxed(), milliseconds, name, reconfigurable)
    return carrier._get_backend(torch.device("cpu")), number


def number_of(group: ProcessGroup, backend: Backend, device: torch.device) -> int | None:
    """Return the number by which operators know the backend of `group`; None if it is not gtopk's.

    The group may wrap the backend. device: the device for which `group` uses the backend.
    """
    import torch
    from torch.distributed import HashStore, ProcessGroup

    cpu = torch.device("cpu")
    if device != cpu or group._get_backend(cpu) is not backend:
        carrier = _carrier(HashStore(), backend.rank(), backend.size())
        carrier.bound_device_id = group.bound_device_id  # registering passes it to the backend
        carrier._register_backend(cpu, ProcessGroup.BackendType.CUSTOM, backend)
        group = carrier
    number: int | None = load().number_of(group.boxed())
    return number


def leave_at_exit() -> None:
    """Arrange to leave the remaining groups before torch and the interpreter shut down.

    Idempotent per process. Children of multiprocessing forget what their parent registered, and end
    with os._exit(), so they run no atexit functions.
    """
    global _leaves
    if _leaves == os.getpid():
        return
    _leaves = os.getpid()
    shutdown = load().shutdown
    atexit.register(lambda: shutdown(_uncaught_error()))
    # The value of exitpriority does not matter, but without one the function would not run at exit.
    multiprocessing.util.Finalize(None, shutdown, args=("",), exitpriority=0)


def _uncaught_error() -> str:
    """Return the text of the exception that ends this process; empty if there is none."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # up to Python 3.11
    return "" if error is None else f"{type(error).__name__}: {error}"


def _carrier(store: Store, rank: int, size: int) -> ProcessGroup:
    from torch.distributed import ProcessGroup

    return ProcessGroup(store, rank, size)
