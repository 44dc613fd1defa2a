"""The switch that delays and drops frames: its program, and the process that runs it.

This module depends on the compiler and the program's protocol (tools/netlab/switch/main.cpp), and
must not know how hosts are made. The process ends when its stdin ends, and so with the lab, however
the lab ends.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from netlab.impairment import Impairment

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SOURCES = pathlib.Path(__file__).resolve().parent / "switch"


@dataclass(frozen=True)
class SwitchCounters:
    """Counts of frames since the switch began. received: came in; forwarded: left it; lost: dropped
    as requested; overflowed: dropped because more than 64 MiB waited for a port; forgotten: dropped
    because their TCP connection had been idle for too long; refused: dropped by a port's shaped
    queue; missed: dropped because the switch was too slow; oversized: dropped because an offload
    was on. late_seconds, latest_seconds: mean and maximum delay of a frame after it was due.
    cpu_seconds: the switch's CPU time."""

    received: int
    forwarded: int
    lost: int
    overflowed: int
    forgotten: int
    refused: int
    missed: int
    oversized: int
    late_seconds: float
    latest_seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        return (
            f"switch: {self.received} frames in, {self.forwarded} out, {self.lost} lost as asked; "
            f"dropped: {self.refused} by full ports, {self.overflowed} as too many waited, "
            f"{self.forgotten} of forgotten connections, {self.missed + self.oversized} by "
            f"mistake; late {self.late_seconds * 1e6:.0f} us on average, "
            f"{self.latest_seconds * 1e3:.1f} ms at most; cpu {self.cpu_seconds:.2f} s"
        )


class Switch:
    """A running switch. enter: the argv prefix that enters its namespace. Raises RuntimeError if it
    cannot be compiled or started."""

    def __init__(
        self, enter: Sequence[str], impairment: Impairment, interfaces: Sequence[str]
    ) -> None:
        self.process = subprocess.Popen(
            [
                *(*enter, program()),
                str(round(impairment.delay * 1e9)),
                str(round(impairment.jitter * 1e9)),
                repr(impairment.loss),
                str(int(impairment.reorder)),
                str(impairment.seed),
                str(round(impairment.forget * 1e9)),
                *interfaces,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if self.process.stdout.readline() != "ready\n":
            said = self.process.stderr.read().strip()
            self.close()
            raise RuntimeError(f"the switch did not start: {said}")

    def counters(self) -> SwitchCounters:
        """Return what it has forwarded and dropped so far. Raises RuntimeError if it has ended."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the switch has ended: {self.process.stderr.read().strip()}")
        return SwitchCounters(**json.loads(line))

    def close(self) -> None:
        """Ends the switch and waits for its end."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


@functools.cache
def program() -> str:
    """Return the path of netlab-switch: the one that CMake built, if it is not older than its
    source; otherwise it is compiled here, once for each version of the source."""
    sources = sorted(_SOURCES.glob("*.?pp"))
    changed = max(source.stat().st_mtime for source in sources)
    for preset in ("release", "dev"):
        built = _ROOT / "build" / preset / "tools/netlab/netlab-switch"
        if built.exists() and built.stat().st_mtime >= changed:
            return str(built)
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    compiled = _ROOT / "build" / "netlab" / f"netlab-switch-{digest}"
    if not compiled.exists():
        _compile(sources, compiled)
    return str(compiled)


def _compile(sources: Sequence[pathlib.Path], program: pathlib.Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise RuntimeError("a link with delay or loss needs a C++ compiler: apt-get install g++")
    program.parent.mkdir(parents=True, exist_ok=True)
    # Compile it in a separate folder, because another lab may be looking for it.
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        made = pathlib.Path(folder) / program.name
        units = [str(source) for source in sources if source.suffix == ".cpp"]
        done = subprocess.run(
            [compiler, "-std=c++20", "-O2", "-o", str(made), *units],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"netlab-switch does not compile:\n{done.stderr.strip()}")
        os.replace(made, program)
