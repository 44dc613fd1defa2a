"""Decides which UCX this process uses: the one in the wheel, or one that is already loaded.

Two copies of UCX in one process share symbols and crash. The loader finds libraries by SONAME,
which is libucp.so.0 in all versions, so a library loaded later uses the first copy.
"""

from __future__ import annotations

import ctypes
import os
import re

_LIBRARY = re.compile(r"lib(?:ucp|uct|ucs|ucm)\.so(?:\.|$)")


def load() -> None:
    """Load the UCX of the wheel libucx, unless the process has already loaded one that is as new.

    Without that wheel the loader looks for the system's UCX.

    Raises ImportError, naming both, if the loaded UCX is older.
    """
    try:
        import libucx
    except ModuleNotFoundError:
        return
    lib = os.path.join(os.path.dirname(os.path.abspath(libucx.__file__)), "lib")
    if _is_present(lib, libucx.__version__):
        return
    try:
        libucx.load_library()
    except OSError as error:
        raise ImportError(f"gtopk: UCX cannot be loaded: {error}{in_this_process()}") from error
    # RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY makes the wheel load another UCX.
    _is_present(lib, libucx.__version__)


def in_this_process() -> str:
    """Return an ending for an error text: which UCX is loaded; empty if none is."""
    libraries = _mapped()
    return f". In this process: {_describe(libraries)}" if libraries else ""


def _is_present(lib: str, needed: str) -> bool:
    """Return whether the process has loaded the UCX in `lib`, or one at least as new as `needed`.

    Raises ImportError if the loaded UCX is older.
    """
    others = _mapped()
    if not others:
        return False
    if any(_is_below(path, lib) for path in others):
        return True
    version = _version_of(others)
    if version is not None and version[:2] >= tuple(map(int, needed.split(".")[:2])):
        return True
    raise ImportError(
        f"gtopk: this process has already loaded {_describe(others)}, but gtopk needs UCX {needed} "
        f"({os.path.join(lib, 'libucp.so')}) or newer. A process can have only one UCX. Load "
        "gtopk's first: call libucx.load_library() before importing whatever loads the other one, "
        "such as mpi4py, which then uses gtopk's too"
    )


def _mapped() -> list[str]:
    """Return the paths of the UCX libraries loaded in this process, libucp first."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            paths = {line.rstrip("\n").split(maxsplit=5)[-1] for line in lines}
    except OSError:  # no /proc
        return []
    found = (path for path in paths if _LIBRARY.match(os.path.basename(path)))
    return sorted(found, key=lambda path: ("libucp" not in os.path.basename(path), path))


def _is_below(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def _version_of(libraries: list[str]) -> tuple[int, ...] | None:
    """Return the version of the loaded UCX; None if its libucp is not loaded."""
    for path in libraries:
        if os.path.basename(path).startswith("libucp"):
            numbers = [ctypes.c_uint() for _ in range(3)]
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            library.ucp_get_version(*map(ctypes.byref, numbers))
            return tuple(number.value for number in numbers)
    return None


def _describe(libraries: list[str]) -> str:
    version = _version_of(libraries)
    known = "of an unknown version" if version is None else ".".join(map(str, version))
    return f"UCX {known} ({libraries[0]})"
