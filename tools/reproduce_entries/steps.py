"""Runs steps and exchanges on a shaped link with tools/bench/run. Needs root."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable

from reproduce_entries import ROOT
from reproduce_entries.entry import Result

BENCHMARK = ROOT / "tools" / "bench" / "run"
BUILT = ROOT / "build" / "release" / "tools" / "bench"
MOST_BUSY = 0.8  # share of the cores; docs/lab.md allows no claim of time above it


def said(benchmark: str, hosts: int, rate: str, *options: str) -> str:
    """Return the output of a benchmark with one rank on each of this many hosts."""
    lab = ("--hosts", str(hosts), "--rate", rate)
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), benchmark, *lab, "--", *options],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def program(name: str) -> str:
    """Return the path of a program that must have been built."""
    path = BUILT / name
    if not path.exists():
        raise RuntimeError(f"not built: cmake --build build/release --target {name}")
    return str(path)


def busy(text: str) -> float:
    """Return the share of the machine's cores that was busy."""
    (found,) = re.findall(r"cores busy (\d+)%", text)
    return int(found) / 100


def timed(ways: Iterable[str], hosts: int, rate: str, turns: int, *options: str) -> Result:
    """Time steps of a training with each way to exchange, in turn; see parsed()."""
    names = list(ways)
    settings = ("-n", str(turns), *options, "--ways", *names)
    return parsed(said("ways", hosts, rate, *settings), names)


def parsed(text: str, ways: Iterable[str]) -> Result:
    """Parse tools/bench/ways.py: for each way [median, least, KB], and how busy cores were."""
    rows = text.partition("# of rank 0")[0]
    found = {}
    for name in ("no_sync", *ways):
        (row,) = re.findall(rf"^{name} +(\S+) +(\S+) +\S+ +\S+ +(\S+)", rows, re.MULTILINE)
        found[name] = [float(each) for each in row]
    return {"ways": found, "busy": busy(text)}
