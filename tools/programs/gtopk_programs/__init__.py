"""The console commands: each runs the program of the same name from the package.

This is a separate package because importing gtopk imports torch, which takes seconds. The program
replaces this process, so signals and exit codes are its own.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from typing import NoReturn


def allreduce() -> NoReturn:
    """Runs gtopk-allreduce."""
    _run("gtopk-allreduce")


def info() -> NoReturn:
    """Runs gtopk-info."""
    _run("gtopk-info")


def pingpong() -> NoReturn:
    """Runs gtopk-pingpong."""
    _run("gtopk-pingpong")


def _run(name: str) -> NoReturn:
    program = pathlib.Path(__file__).parent / "bin" / name
    # Find the UCX that Python would load, even if its wheel is in another folder than this one.
    ucx = importlib.util.find_spec("libucx")
    if ucx is not None and ucx.submodule_search_locations:
        folder = os.path.join(ucx.submodule_search_locations[0], "lib")
        others = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = f"{folder}:{others}" if others else folder
    try:
        os.execv(program, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: cannot run {program}: {error.strerror}")
