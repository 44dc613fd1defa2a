"""Loads the native module gtopk._C, once, behind the UCX that it is to use.

It must not be imported by ``_autoload`` before a process group is asked for.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.metadata
import multiprocessing.util
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_leaves: int | None = None  # the process that leave_at_exit() was called in


@functools.cache
def load() -> ModuleType:
    """Load the native module.

    Raises ImportError that says what is missing, or of another version than it was built with.
    """
    import torch

    _load_ucx()
    try:
        module = importlib.import_module("gtopk._C")
    except ImportError as error:
        raise ImportError(
            f"gtopk: the native module cannot be loaded: {error}. Loaded: torch "
            f"{torch.__version__}; wanted: {_wanted_torch()}. Install gtopk again with the torch "
            "it is to run with (pip install --force-reinstall gtopk)"
        ) from error
    check_torch(module.torch_version, torch.__version__)
    return module


def leave_at_exit() -> None:
    """Leave the groups that nobody destroyed before torch and the interpreter come down.

    Idempotent, once per process: children of multiprocessing forget what their parent registered,
    and run no atexit functions, as they end by os._exit().
    """
    global _leaves
    if _leaves == os.getpid():
        return
    _leaves = os.getpid()
    shutdown = load().shutdown
    atexit.register(shutdown)
    # Any priority: what has none is never run at exit.
    multiprocessing.util.Finalize(None, shutdown, exitpriority=0)


def check_torch(built: str, loaded: str) -> None:
    """Raise ImportError unless both are of one minor version.

    c10d's virtual tables change with every minor version of torch; patch versions keep them.
    """
    if built.split(".")[:2] != loaded.split(".")[:2]:
        raise ImportError(
            f"gtopk: built with torch {built}, loaded is torch {loaded}: they must agree in the "
            f"first two numbers. Install torch=={'.'.join(built.split('.')[:2])}.*, or build gtopk "
            "with this torch"
        )


def _load_ucx() -> None:
    # The wheel's UCX must be in the process first: two copies of libucp in one process crash at
    # exit. Without the wheel the loader looks for a UCX of the system.
    try:
        import libucx
    except ModuleNotFoundError:
        return
    libucx.load_library()


def _wanted_torch() -> str:
    """The requirement on torch in the package's metadata, for messages."""
    try:
        requirements = importlib.metadata.requires("gtopk") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    return next((each for each in requirements if each.startswith("torch")), "unknown")
