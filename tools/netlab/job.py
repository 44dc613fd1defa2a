"""Runs one command as P ranks: start, watch, collect output, end.

This module handles processes, and must not know how hosts are made. Signals go only to processes
that the job started, each the leader of its own process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class RankResult:
    """The end of one rank. returncode is -N after signal N; output is its stdout and stderr
    interleaved ("" when shown on the terminal); cpu_seconds is user and system time of the process
    with its threads; seconds is wall time from start to exit."""

    rank: int
    returncode: int
    output: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its ranks in order, and whether the watchdog ended it. machine_cpu_share:
    busy share (0…1) of all the machine's cores while the job ran, including other work. No time
    should be claimed from a run above 0.8."""

    ranks: list[RankResult]
    timed_out: bool
    seconds: float
    machine_cpu_share: float

    @property
    def ok(self) -> bool:
        """Whether every rank exited with code 0 in time."""
        return not self.timed_out and all(rank.returncode == 0 for rank in self.ranks)

    def report(self) -> str:
        """Return the failed ranks and the end of their output, for an assertion's message."""
        lines = ["timed out"] if self.timed_out else []
        for rank in self.ranks:
            if rank.returncode != 0:
                lines.append(f"--- rank {rank.rank}: exit code {rank.returncode}")
                lines.append(rank.output[-4000:])
        return "\n".join(lines) or "all ranks exited with code 0"


class _Rank:
    """A running rank: its process, and the thread that reads its output to the end."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        env: dict[str, str],
        show: bool,
        on_line: Callable[[int, str], None] | None,
    ) -> None:
        self.rank = rank
        self.lines: list[str] = []
        self.result: RankResult | None = None
        self.started = time.monotonic()
        self.on_line = on_line
        pipe = None if show else subprocess.PIPE
        self.process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=None if show else subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self) -> None:
        if self.process.stdout is not None:
            for line in self.process.stdout:
                self.lines.append(line)
                if self.on_line is not None:
                    self.on_line(self.rank, line.rstrip("\n"))
        # Keep the zombie for a moment, because its times are read from /proc before it is reaped.
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        cpu_seconds = _cpu_seconds(self.process.pid)
        elapsed = time.monotonic() - self.started
        code = self.process.wait()
        self.result = RankResult(self.rank, code, "".join(self.lines), elapsed, cpu_seconds)

    def signal_group(self, number: int) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


class Job:
    """P running ranks. Hosts.start makes a job; wait, stop, or the lab's exit ends it."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        envs: Sequence[dict[str, str]],
        show: Sequence[int],
        on_line: Callable[[int, str], None] | None,
    ) -> None:
        self._cpu_before = _machine_ticks()
        self._started = time.monotonic()
        self._ranks: list[_Rank] = []
        try:
            for rank, (command, env) in enumerate(zip(commands, envs, strict=True)):
                self._ranks.append(_Rank(rank, command, env, rank in show, on_line))
        except BaseException:
            self.stop()
            raise

    def pid(self, rank: int) -> int:
        """Return the process of `rank` itself; no process is between it and a signal."""
        return self._ranks[rank].process.pid

    def signal(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Sends a signal to one rank only (SIGKILL: a crash; SIGSTOP: a wedged host)."""
        if self._ranks[rank].process.returncode is None:
            os.kill(self.pid(rank), number)

    def output(self, rank: int) -> str:
        """Return what the rank has printed so far."""
        return "".join(list(self._ranks[rank].lines))

    def running(self) -> list[int]:
        """Return the ranks that have not ended yet."""
        return [rank.rank for rank in self._ranks if rank.result is None]

    def wait(self, timeout: float | None = None, *, failure_grace: float | None = 10.0) -> Outcome:
        """Waits for all ranks and returns how they ended; never raises for a rank's failure.

        timeout: seconds until the watchdog kills ranks that are still running (None: no watchdog).
        failure_grace: once a rank has failed, the others get this many seconds before they are
        killed (None: they continue, for tests of survivors).
        """
        end = None if timeout is None else time.monotonic() + timeout
        failed_at = None
        timed_out = False
        try:
            while running := self.running():
                now = time.monotonic()
                if failed_at is None and any(r.result and r.result.returncode for r in self._ranks):
                    failed_at = now
                graceless = (
                    failed_at is not None
                    and failure_grace is not None
                    and now > failed_at + failure_grace
                )
                if graceless or (end is not None and now > end):
                    timed_out = not graceless
                    break
                self._ranks[running[0]].thread.join(0.05)
        finally:
            self.stop()
        return self._outcome(timed_out)

    def stop(self) -> None:
        """Kills running ranks with their children, and waits for them. Idempotent."""
        for rank in self._ranks:
            if rank.result is None:
                rank.signal_group(signal.SIGKILL)
        for rank in self._ranks:
            rank.thread.join()

    def _outcome(self, timed_out: bool) -> Outcome:
        busy, total = (
            now - then for now, then in zip(_machine_ticks(), self._cpu_before, strict=True)
        )
        return Outcome(
            ranks=[rank.result for rank in self._ranks if rank.result is not None],
            timed_out=timed_out,
            seconds=time.monotonic() - self._started,
            machine_cpu_share=busy / max(1, total),
        )


def print_line(rank: int, line: str) -> None:
    """Print a rank's output on the terminal as it arrives; an `on_line`."""
    # Use one write, because print() makes two, and another rank's line could come in between.
    sys.stdout.write(f"[{rank}] {line}\n")
    sys.stdout.flush()


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        # After the name, which may contain spaces, field 14 is utime and 15 is stime, in ticks.
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _machine_ticks() -> tuple[int, int]:
    """Return (busy, all) ticks of all cores since boot."""
    with open("/proc/stat", encoding="utf-8") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
