"""What a set of hosts can do, whatever they are made of, and the plain one.

Knows the environment in which a rank of torch.distributed starts; must not know namespaces.
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
    """What a host's interface has carried since its creation, link headers and ARP included."""

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
    """Hosts, numbered from 0, that each run ranks_per_host ranks of a command: rank r on host
    r // ranks_per_host, or, dealt out in turn, on host r % hosts."""

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
        """The number of ranks that a command runs as."""
        return self.hosts * self.ranks_per_host

    def host_of(self, rank: int) -> int:
        """The host on which a rank runs."""
        return rank % self.hosts if self.in_turn else rank // self.ranks_per_host

    def local_rank(self, rank: int) -> int:
        """The rank's position among the ranks of its host."""
        return rank // self.hosts if self.in_turn else rank % self.ranks_per_host

    @abc.abstractmethod
    def address(self, host: int) -> str:
        """The IP address at which the other hosts reach this one."""

    @abc.abstractmethod
    def enter(self, host: int) -> list[str]:
        """The argv prefix that runs a command on `host`, in the same process."""

    @abc.abstractmethod
    def free_port(self, host: int) -> int:
        """A TCP port on `host` on which nothing listens now."""

    def environment(self, rank: int, port: int) -> dict[str, str]:
        """What rank `rank` gets on top of the caller's environment; host 0 serves the store."""
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
            # The ranks' lives are tied to ours, so that not even SIGKILL leaves them behind.
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
        """Every host's interface counters now; None if hosts share one interface."""
        return None

    def close(self) -> None:
        """Kills what is still running. Idempotent."""
        for job in self._jobs:
            job.stop()
        self._jobs.clear()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Loopback(Hosts):
    """P ranks on this host: needs no root, shapes nothing. TCP takes the loopback interface."""

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
        """As in the base class, plus the local ranks of one host; UCX may use its shared memory."""
        local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self.hosts)}
        return {**super().environment(rank, port), **local}
