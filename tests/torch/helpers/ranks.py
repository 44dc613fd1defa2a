"""Ranks as processes that outlive one check, and Python programs.

RankSet(P) starts P processes, each of which joins a default group of backend gtopk over a store in
this process. run(check, *arguments) calls the function on every rank and returns the answers. A
rank that is not done in time prints its stack and is killed, by its own process id.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import importlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

from helpers.nursery import Nursery, Program
from helpers.paths import TORCH

NURSERY = Nursery()
WATCHDOG = 300.0
DESCRIPTOR = 3  # a rank's end of what connects it with us
GROUP_TIMEOUT = timedelta(seconds=60)
# A rank's program: it imports checks from where this process has them.
SERVE = """
import os, sys
sys.path[1:1] = sys.argv[1].split(os.pathsep)
from helpers.ranks import serve
serve(*map(int, sys.argv[2:]))
"""
PF_EXITING = 4  # the kernel's flag of a thread that ends


class RankError(AssertionError):
    """A check failed on a rank, or did not end."""


@dataclasses.dataclass
class Rank:
    """What a check gets: its rank, and the store through which it may meet the others."""

    rank: int
    size: int
    store: Any
    port: int


def threads() -> dict[pathlib.Path, str]:
    """This process's threads: their folders in /proc, and names.

    Not those that are ending: the kernel lists a thread a little longer than a join takes.
    """
    found = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has gone meanwhile
            flags = int((task / "stat").read_text().rpartition(")")[2].split()[6])
            if not flags & PF_EXITING:
                found[task] = (task / "comm").read_text().strip()
    return found


def engines() -> set[str]:
    """This process's engine threads, by their kernel's id."""
    return {task.name for task, name in threads().items() if name == "gtopk-engine"}


def descriptors() -> list[str]:
    """What this process's descriptors are of. Not of /proc, which the engine reads now and then."""
    found = []
    for each in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            found.append(os.readlink(each))
    return [each for each in found if not each.startswith("/proc/")]


def free_port() -> int:
    """A port that nothing uses, and that the kernel gives to no other socket before we do."""
    handed_out = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    below = range(10_000, int(handed_out[0]))
    for port in random.sample(below, min(len(below), 1000)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port is free in {below}")


def environment() -> dict[str, str]:
    """A rank's environment: one thread each, as all share two cores."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}


class RankSet:
    """P processes; a context manager."""

    def __init__(
        self,
        size: int,
        *,
        joins: bool = True,
        destroys: bool = True,
        device: str = "",
        in_place: bool = False,
    ) -> None:
        """device: the fake device's library (fake/__init__.py); the group then serves it.

        in_place: the network takes the device's memory as it is.
        """
        self.size = size
        self._options = (joins, destroys)
        self._device = device
        self._in_place = in_place
        self._processes: list[Program] = []
        self._connections: list[Connection] = []
        self._logs: list[Any] = []
        self._start()

    def _start(self) -> None:
        import torch.distributed as dist

        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True
        )
        self._broken = False
        folders = os.pathsep.join(each for each in sys.path if each.startswith(str(TORCH.parent)))
        for rank in range(self.size):
            ours, theirs = socket.socketpair()
            log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
            numbers = [rank, self.size, self.store.port, DESCRIPTOR, *self._options]
            process = NURSERY.start(
                ["-c", SERVE, folders, *(str(int(each)) for each in numbers)],
                env=environment() | self._libraries(),
                cwd=str(TORCH),
                streams={1: log.fileno(), 2: log.fileno(), DESCRIPTOR: theirs.fileno()},
            )
            theirs.close()
            self._processes.append(process)
            self._connections.append(Connection(ours.detach()))
            self._logs.append(log)

    def _libraries(self) -> dict[str, str]:
        """The fake device's, in the place of CUDA's driver and of the kernels for GPUs."""
        if not self._device:
            return {}
        named = {"GTOPK_CUDA_DRIVER": self._device, "GTOPK_CUDA_KERNELS": self._device}
        named["GTOPK_CUDA_SELF_TEST"] = "0"  # its calls would be counted, too
        if self._in_place:
            named |= {"GTOPK_DEVICE_POINTERS": "host", "FAKE_DEVICE_OPEN": "1"}
        return named

    def pid(self, rank: int) -> int:
        return self._processes[rank].pid

    def run(
        self,
        check: Callable[..., Any],
        *arguments: Any,
        timeout: float = WATCHDOG,
        killed: int | None = None,
    ) -> list:
        """Calls check(rank, *arguments) on every rank; RankError has every rank's traceback.

        killed: the rank that must be killed by SIGKILL meanwhile; its answer is None.
        """
        if self._broken:  # by an earlier check
            self.close()
            self._start()
        job = (check.__module__, check.__qualname__, arguments)
        for connection in self._connections:
            connection.send(job)
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + timeout
        while len(answers) < self.size:
            waiting = {self._connections[r]: r for r in range(self.size) if r not in answers}
            # The others may wait for a rank that failed, but not for long.
            if any(not good for good, _ in answers.values()):
                deadline = min(deadline, time.monotonic() + 10)
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = waiting[connection]
                try:
                    answers[rank] = connection.recv()
                    if rank == killed:
                        answers[rank] = (False, f"was not killed, and answers {answers[rank]}")
                except (EOFError, ConnectionError):
                    self._broken = True
                    code = self._processes[rank].wait()
                    text = f"ended with code {code}\n{self._log(rank)}"
                    dies = rank == killed and code == -signal.SIGKILL
                    answers[rank] = (True, None) if dies else (False, text)
        missing = [rank for rank in range(self.size) if rank not in answers]
        for rank in missing:
            answers[rank] = (False, f"not done after {timeout:g} s\n{self._stacks(rank)}")
        if missing:
            self._broken = True
        failures = [
            f"--- rank {r}: {what}" for r, (good, what) in sorted(answers.items()) if not good
        ]
        if failures:
            raise RankError("\n".join(failures))
        return [answers[rank][1] for rank in range(self.size)]

    def ends(self) -> list[tuple[int, str]]:
        """Lets every rank end; returns exit codes and output."""
        for connection in self._connections:
            connection.close()
        return [
            (process.wait(WATCHDOG), self._log(rank))
            for rank, process in enumerate(self._processes)
        ]

    def close(self) -> None:
        """Ends the processes that are still running, by id."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(0 if self._broken else 20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()
        self._processes, self._connections, self._logs = [], [], []

    def __enter__(self) -> RankSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stacks(self, rank: int) -> str:
        process = self._processes[rank]
        process.send_signal(signal.SIGUSR1)
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return self._log(rank)

    def _log(self, rank: int) -> str:
        log = self._logs[rank]
        log.seek(0)
        return log.read()[-6000:]


def run_script(
    source: str, *, timeout: float = WATCHDOG, **env: str
) -> subprocess.CompletedProcess:
    """Runs a Python program in a process of its own."""
    words = ["-c", source]
    wanted = {**environment(), **env}
    if not NURSERY.serves(wanted):
        return subprocess.run(
            [sys.executable, *words],
            env=wanted,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        streams = {1: out.fileno(), 2: err.fileno()}
        program = NURSERY.start(words, env=wanted, cwd=os.getcwd(), streams=streams)
        try:
            code = program.wait(timeout)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def works_on(me: Rank) -> None:
    """The group serves the next call, however the last one ended."""
    import torch

    import gtopk

    tensor = torch.full((10,), float(me.rank))
    gtopk.sparse_all_reduce(tensor, k=10)
    assert bool((tensor == me.size * (me.size - 1) / 2).all())


def serve(rank: int, size: int, port: int, descriptor: int, *options: int) -> None:
    """The body of a rank: join, run checks until the other end closes, leave."""
    joins, destroys = options
    faulthandler.register(signal.SIGUSR1)
    connection = Connection(descriptor)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    served = "gtopk"
    if "GTOPK_CUDA_DRIVER" in os.environ:
        import fake

        fake.use()
        served = "cpu:gtopk,fake:gtopk"
    store = dist.TCPStore("127.0.0.1", port, is_master=False, use_libuv=True)
    me = Rank(rank, size, store, port)
    if joins:
        dist.init_process_group(
            served,
            store=dist.PrefixStore("default", store),
            rank=rank,
            world_size=size,
            timeout=GROUP_TIMEOUT,
        )
    while True:
        try:
            module, name, arguments = connection.recv()
        except EOFError:
            break
        try:
            answer = (True, getattr(importlib.import_module(module), name)(me, *arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        connection.send(answer)
    if destroys and dist.is_initialized():
        dist.destroy_process_group()
