"""The interface of a set of hosts, whatever they are made of, and the plain implementation.

This module knows the environment in which a rank of torch.distributed starts, and must not know
namespaces.
"""

from __future__ import annotations

import abc
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from netlab.job import Job, Outcome

Command = Sequence[str] | Callable[[int], Sequence[str]]


@dataclass(frozen=True)
class Counters:
    """The traffic of a host's interface since its creation, including link headers and ARP."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.tx_bytes - other.tx_bytes,
            self.rx_bytes - other.rx_bytes,
            self.tx_packets - other.tx_packets,
            self.rx_packets - other.rx_packets,
        )


class Hosts(abc.ABC):
    """Hosts, numbered from 0, that each run ranks_per_host ranks of a command. Rank r runs on host
    r // ranks_per_host or, if ranks are placed in turn, on host r % hosts."""

    interface: str

    def __init__(self, hosts: int, ranks_per_host: int = 1, *, in_turn: bool = False) -> None:
        if hosts < 1:
            raise ValueError(f"hosts {hosts}: expected at least 1")
        if ranks_per_host < 1:
            raise ValueError(f"ranks_per_host {ranks_per_host}: expected at least 1")
        self.hosts = hosts
        self.ranks_per_host = ranks_per_host
        self.in_turn = in_turn
        self._jobs: list[Job] = []

    @property
    def ranks(self) -> int:
        """The number of ranks of a command."""
        return self.hosts * self.ranks_per_host

    def host_of(self, rank: int) -> int:
        """The host on which a rank runs."""
        return rank % self.hosts if self.in_turn else rank // self.ranks_per_host

    def local_rank(self, rank: int) -> int:
        """The rank's position among the ranks of its host."""
        return rank // self.hosts if self.in_turn else rank % self.ranks_per_host

    @abc.abstractmethod
    def address(self, host: int) -> str:
        """Return the IP address at which other hosts reach this one."""

    @abc.abstractmethod
    def enter(self, host: int) -> list[str]:
        """Return the argv prefix that runs a command on `host`, in the same process."""

    @abc.abstractmethod
    def free_port(self, host: int) -> int:
        """Return a TCP port on `host` on which nothing listens now."""

    def environment(self, rank: int, port: int) -> dict[str, str]:
        """Return the variables that `rank` gets in addition; host 0 serves the store."""
        return {
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(self.local_rank(rank)),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_host),
            "GLOO_SOCKET_IFNAME": self.interface,
            "UCX_NET_DEVICES": self.interface,
        }

    def start(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str | None = None,
        show: Sequence[int] = (),
        on_line: Callable[[int, str], None] | None = None,
    ) -> Job:
        """Starts `command` as every rank and returns at once.

        command: an argv, or a function that returns one for a rank. env: applied last, so it
        overrides what the lab sets; None removes a variable. show: ranks whose output goes straight
        to the terminal (progress bars) and is not collected. on_line(rank, line): called from
        reader threads for collected lines. Call this from a thread that outlives the job: the ranks
        die with the thread that started them.
        """
        port = self.free_port(0)
        commands, envs = [], []
        for rank in range(self.ranks):
            argv = command(rank) if callable(command) else command
            # Ranks end with this process, so that not even SIGKILL leaves them behind.
            tether = ["setpriv", "--pdeathsig", "KILL", "env", "-C", cwd or os.getcwd()]
            commands.append([*self.enter(self.host_of(rank)), *tether, *map(str, argv)])
            chosen = {**os.environ, **self.environment(rank, port), **(env or {})}
            envs.append({key: value for key, value in chosen.items() if value is not None})
        job = Job(commands, envs, show, on_line)
        self._jobs.append(job)
        return job

    def run(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        failure_grace: float | None = 10.0,
        env: Mapping[str, str | None] | None = None,
        cwd: str | None = None,
        show: Sequence[int] = (),
        on_line: Callable[[int, str], None] | None = None,
    ) -> Outcome:
        """start and Job.wait in one call."""
        job = self.start(command, env=env, cwd=cwd, show=show, on_line=on_line)
        return job.wait(timeout, failure_grace=failure_grace)

    def counters(self) -> list[Counters] | None:
        """Return every host's current interface counters; None if hosts share one interface."""
        return None

    def close(self) -> None:
        """Kills all processes that are still running. Idempotent."""
        for job in self._jobs:
            job.stop()
        self._jobs.clear()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Loopback(Hosts):
    """P ranks on this host, without root or shaping. TCP uses the loopback interface."""

    interface = "lo"
    shape = None

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def enter(self, host: int) -> list[str]:
        return []

    def free_port(self, host: int) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def environment(self, rank: int, port: int) -> dict[str, str]:
        """See Hosts; adds the local ranks of one host. UCX may use its shared memory."""
        local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self.hosts)}
        return {**super().environment(rank, port), **local}
