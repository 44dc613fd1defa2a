"""Hosts made of Linux namespaces, joined by a switch, with shaped links.

The switch is the kernel's bridge or, if links have delay or loss, a program (delayed.py). This
module uses unshare, nsenter, ip and tc, and must not know what runs on the hosts.

Each host, and the switch between them, is an unnamed set of namespaces (network, host name, IPC,
mounts) held by one `cat` that waits on a pipe from this process. Nothing is named in the machine's
own namespace, so labs of parallel processes cannot collide; when this process ends, in any way, the
pipes close, the holders exit and the kernel removes the namespaces, links and shaping with them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from netlab.delayed import Switch, SwitchCounters, program
from netlab.hosts import Counters, Hosts
from netlab.impairment import Impairment
from netlab.shape import Shape

# Ranks of a host share memory with no other host: System V shared memory is per IPC namespace, and
# POSIX shared memory lies in the host's own /dev/shm.
# The parent's /sys shows the parent's interfaces, and UCX reads /sys/class/net; /proc/sys is per
# namespace anyway. IPv6 is off unless it is the only protocol, so that only the ranks' own traffic
# is on the wire.
_HOLDER = """
set -e
echo "$1" > /proc/sys/kernel/hostname
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
if [ -e /etc/hosts ]; then mount --bind "$2" /etc/hosts; fi
if [ "$3" != ipv6 ] && [ -e /proc/sys/net/ipv6/conf/all/disable_ipv6 ]; then
  echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
  echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
fi
ip link set lo up
echo ready
exec cat > /dev/null
"""

_SUBNET = "10.77.0.0/24"
_SUBNET6 = "fd77::/64"

_FREE_PORT = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"


class LabError(RuntimeError):
    """The lab, or a step of making it, failed; the text says why and what to do."""


class _Namespace:
    """One holder process and the namespaces that live as long as it does."""

    def __init__(self, name: str, hosts_file: str, family: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [
                *(
                    "unshare",
                    "-n",
                    "-u",
                    "-i",
                    "-m",
                    "--propagation",
                    _propagation() or "private",
                    "--",
                ),
                *("sh", "-c", _HOLDER, "sh", name, hosts_file, family),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def await_ready(self) -> None:
        if self.process.stdout.readline() != "ready\n":
            raise LabError(f"namespace of {self.name}: {self.process.stderr.read().strip()}")

    def enter(self) -> list[str]:
        # --root is needed because in a chroot the namespace's root is another one.
        return ["nsenter", "-t", str(self.process.pid), "-n", "-u", "-i", "-m", "--root", "--"]

    def run(self, *command: str, script: str = "") -> str:
        done = subprocess.run(
            [*self.enter(), *command], input=script, text=True, capture_output=True, check=False
        )
        if done.returncode != 0:
            raise LabError(f"{self.name}: {' '.join(command)}: {done.stderr.strip()}\n{script}")
        return done.stdout

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


class Lab(Hosts):
    """P separate hosts; each host's egress and its switch port are shaped alike.

    hosts: 1…250. ranks_per_host: they reach one another through shared memory, and other hosts over
    their one link. in_turn: ranks are placed on hosts in turn; otherwise neighbours share a host.
    rate: "100mbit" and the like (see Shape.of), a Shape, or None for links as fast as the machine.
    congestion_control: TCP's on every host; cubic is Linux's usual default. ipv6: hosts have IPv6
    addresses instead of IPv4 ones. impairment: delay, jitter and loss of every link; None means
    none, and uses the kernel's bridge. sysctls: settings of every host, like {"net.ipv4.tcp_wmem":
    "4096 16384 4194304"}. Interfaces are called eth0, hosts host0, host1, …, and these names
    resolve. Needs root; raises LabError saying what is missing.
    """

    interface = "eth0"

    def __init__(
        self,
        hosts: int,
        rate: str | Shape | None = "100mbit",
        *,
        ranks_per_host: int = 1,
        in_turn: bool = False,
        congestion_control: str = "cubic",
        ipv6: bool = False,
        impairment: Impairment | None = None,
        sysctls: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(hosts, ranks_per_host, in_turn=in_turn)
        if hosts > 250:
            raise ValueError(f"hosts {hosts}: at most 250 share a switch")
        self.shape = Shape.of(rate) if isinstance(rate, str) else rate
        self.congestion_control = congestion_control
        self.ipv6 = ipv6
        self.impairment = impairment
        self.sysctls = dict(sysctls or {})
        self._switch: Switch | None = None
        if (missing := why_not()) is not None:
            raise LabError(missing)
        self._namespaces: list[_Namespace] = []
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        with tempfile.NamedTemporaryFile("w", prefix="netlab-hosts-") as names:
            names.write("127.0.0.1 localhost\n")
            for host in range(self.hosts):
                # The second line answers queries for the name of an IPv4 peer that reached an IPv6
                # socket; its separate name keeps `host0` an IPv4 name.
                names.write(f"{self.address(host)} host{host}\n")
                if not self.ipv6:
                    names.write(f"::ffff:{self.address(host)} host{host}.lab\n")
            names.flush()
            os.chmod(names.name, 0o644)
            for name in ("switch", *(f"host{h}" for h in range(self.hosts))):
                family = "ipv6" if self.ipv6 else "ipv4"
                self._namespaces.append(_Namespace(name, names.name, family))
            for namespace in self._namespaces:
                namespace.await_ready()
        self._connect(self._namespaces[0])
        for host in range(self.hosts):
            self._configure(host)
        if self.impairment is not None:
            self._impair(self._namespaces[0], self.impairment)

    def _connect(self, switch: _Namespace) -> None:
        mtu = self.shape.mtu if self.shape else 1500
        bridged = self.impairment is None
        lines = ["link add switch type bridge", "link set switch up"] if bridged else []
        for host in range(self.hosts):
            pid = self._host(host).process.pid
            lines.append(
                f"link add port{host} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {pid}"
            )
            lines.append(f"link set port{host} {'master switch ' if bridged else ''}up")
        switch.run("ip", "-batch", "-", script="\n".join(lines) + "\n")
        if self.shape:
            ports = "\n".join(self.shape.tc(f"port{host}") for host in range(self.hosts))
            switch.run("tc", "-batch", "-", script=ports + "\n")

    def _configure(self, host: int) -> None:
        own = self.address(host)
        namespace = self._host(host)
        # A namespace inherits the machine's congestion control and may choose only among the
        # algorithms that the machine allows, but a route may name any.
        if self.ipv6:
            # nodad avoids waiting for another host with that address.
            lines = [f"addr add {own}/64 dev eth0 nodad", "link set eth0 up"]
            route = f"route replace {_SUBNET6} dev eth0 proto kernel"
        else:
            lines = [f"addr add {own}/24 dev eth0", "link set eth0 up"]
            route = f"route replace {_SUBNET} dev eth0 proto kernel scope link src {own}"
        lines.append(f"{route} congctl {self.congestion_control}")
        namespace.run("ip", "-batch", "-", script="\n".join(lines) + "\n")
        if self.shape:
            namespace.run("tc", "-batch", "-", script=self.shape.tc("eth0") + "\n")
        for key, value in self.sysctls.items():
            path = "/proc/sys/" + key.replace(".", "/")
            namespace.run("sh", "-c", 'printf %s "$2" > "$1"', "sh", path, value)

    def _impair(self, switch: _Namespace, impairment: Impairment) -> None:
        try:
            for host in range(self.hosts):
                self._host(host).run(program(), "--plain", "eth0")
            ports = [f"port{host}" for host in range(self.hosts)]
            self._switch = Switch(switch.enter(), impairment, ports)
        except RuntimeError as error:
            raise LabError(str(error)) from error

    def _host(self, host: int) -> _Namespace:
        if not 0 <= host < self.hosts:
            raise IndexError(f"host {host}: the lab has hosts 0 to {self.hosts - 1}")
        return self._namespaces[1 + host]

    def address(self, host: int) -> str:
        return f"fd77::{host + 1:x}" if self.ipv6 else f"10.77.0.{host + 1}"

    def environment(self, rank: int, port: int) -> dict[str, str]:
        """See Hosts. UCX is limited to TCP, and shared memory if a host has several ranks."""
        transports = "tcp,self" if self.ranks_per_host == 1 else "tcp,sm,self"
        return {**super().environment(rank, port), "UCX_TLS": transports}

    def enter(self, host: int) -> list[str]:
        return self._host(host).enter()

    def holder(self, host: int) -> int:
        """Return the process in the host's namespaces that lives as long as the lab."""
        return self._host(host).process.pid

    def free_port(self, host: int) -> int:
        return int(self._host(host).run(sys.executable, "-c", _FREE_PORT))

    def counters(self) -> list[Counters]:
        fields = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
        paths = [f"/sys/class/net/eth0/statistics/{field}" for field in fields]
        return [
            Counters(*map(int, self._host(host).run("cat", *paths).split()))
            for host in range(self.hosts)
        ]

    def switch_counters(self) -> SwitchCounters | None:
        """Return the counters of the switch; None if links have no delay and no loss."""
        return None if self._switch is None else self._switch.counters()

    def qdiscs(self) -> list[dict]:
        """`tc -json qdisc show` of every host's interface, then of every switch port.

        options.rate is in bytes per second, options.burst in bytes.
        """
        show = ("tc", "-json", "qdisc", "show", "dev")
        texts = [self._host(host).run(*show, "eth0") for host in range(self.hosts)]
        texts += [self._namespaces[0].run(*show, f"port{host}") for host in range(self.hosts)]
        return [json.loads(text)[0] for text in texts]

    def close(self) -> None:
        """Kills all running processes and takes the hosts down. Idempotent."""
        super().close()
        if self._switch is not None:
            self._switch.close()
            self._switch = None
        for namespace in self._namespaces:
            namespace.close()
        self._namespaces.clear()

    def __enter__(self) -> Lab:
        return self


def why_not() -> str | None:
    """Return why no lab can be made here (one line that says what to do), or None."""
    tools = {
        "unshare": "util-linux",
        "nsenter": "util-linux",
        "setpriv": "util-linux",
        "mount": "mount",
        "ip": "iproute2",
        "tc": "iproute2",
    }
    missing = sorted({package for tool, package in tools.items() if not shutil.which(tool)})
    if missing:
        return f"the network lab needs {' and '.join(missing)}: apt-get install {' '.join(missing)}"
    if os.geteuid() != 0:
        return "the network lab makes network namespaces, which needs root: run it with sudo"
    if _propagation() is None:
        return (
            "the network lab mounts files of its own, which others would see in this chroot: make "
            "its directory a mount first, mount --bind DIR DIR && mount --make-rprivate DIR"
        )
    return None


def _propagation() -> str | None:
    """Return unshare's argument with which a namespace can keep mounts private; None if none can.

    A chroot's root is usually no mount point, and cannot be made private. It need not be private if
    the mounts around it are not shared.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        mounts = [line.split() for line in lines]
    if any(mount[4] == "/" for mount in mounts):
        return "private"
    root = os.open("/", os.O_PATH)
    try:
        with open(f"/proc/self/fdinfo/{root}", encoding="utf-8") as lines:
            number = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
    finally:
        os.close(root)
    with open("/proc/1/mountinfo", encoding="utf-8", errors="replace") as lines:
        around = [mount for mount in map(str.split, lines) if mount[0] == number]
    # Optional fields, "shared:N" among them, stand between the options and a lone hyphen.
    shared = any("shared:" in " ".join(m[6 : m.index("-", 6)]) for m in mounts + around)
    return "unchanged" if around and not shared else None
