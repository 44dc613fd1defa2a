"""The network lab's delay, jitter and loss are what was asked for.

Most need root (network namespaces). Times are asserted from below only: no frame may come before
its time, however busy the machine is.
"""

from __future__ import annotations

import math
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from netlab import Impairment, Lab, LabError
from netlab import delayed as delayed_module
from netlab.delayed import SwitchCounters
from netlab.distance import measure
from netlab.impairment import cubic_bytes_per_second, reno_bytes_per_second

from helpers.lab import CONNECT, WATCHDOG, has_ended, python
from helpers.paths import TOOLS

# --- what is asked for, without any network


def test_impairment_parses_units_and_prints_the_round_trip():
    link = Impairment.of("25ms", "500us", "0.01%", seed=7)
    assert (link.delay, link.jitter, link.loss, link.seed) == (0.025, 0.0005, 0.0001, 7)
    assert str(link) == (
        "25 ms each way (round trip 50 ms), jitter 0.5 ms each way, loss 0.01 % each way, seed 7"
    )
    assert Impairment.of("0.1s").delay == 0.1
    assert str(Impairment.of("1ms", forget="30s")) == (
        "1 ms each way (round trip 2 ms), loss 0 % each way, "
        "connections forgotten after 30 s of silence, seed 1"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("25",), "25ms"),
        (("25ms", "2"), "25ms"),
        (("25ms", "2ms", "0.1"), "0.01%"),
        (("25ms", "2ms", "100%"), "below 100"),
        (("5ms", "10ms"), "jitter <= delay"),
        (("11s",), "<= 10"),
    ],
)
def test_what_cannot_be_read_or_done_names_what_can(arguments, said):
    with pytest.raises(ValueError, match=said):
        Impairment.of(*arguments)


def test_a_stream_in_the_textbook():
    # 1.22·1448 B / (50 ms·√p); CUBIC's window is the larger one only on longer or cleaner links.
    assert reno_bytes_per_second(1500, 0.05, 1e-4) == pytest.approx(3_533_120)
    assert cubic_bytes_per_second(1500, 0.05, 1e-4) == reno_bytes_per_second(1500, 0.05, 1e-4)
    assert cubic_bytes_per_second(1500, 0.05, 1e-6) == pytest.approx(
        1.054 * 50_000**0.75 * 1448 / 0.05
    )
    assert math.isinf(cubic_bytes_per_second(1500, 0.05, 0))


def test_a_switch_that_cannot_be_compiled_says_why(monkeypatch, tmp_path):
    (tmp_path / "switch").mkdir()
    (tmp_path / "switch" / "main.cpp").write_text("#error no such thing\n")
    monkeypatch.setattr(delayed_module, "_ROOT", tmp_path)
    monkeypatch.setattr(delayed_module, "_SOURCES", tmp_path / "switch")
    with pytest.raises(RuntimeError, match=r"does not compile:[\s\S]*no such thing"):
        delayed_module.program.__wrapped__()
    assert not list((tmp_path / "build" / "netlab").iterdir())


def test_switch_is_compiled_once_per_version_of_its_source(monkeypatch, tmp_path):
    source = tmp_path / "switch" / "main.cpp"
    source.parent.mkdir()
    monkeypatch.setattr(delayed_module, "_ROOT", tmp_path)
    monkeypatch.setattr(delayed_module, "_SOURCES", source.parent)
    made = []
    for code in (0, 0, 3):
        source.write_text(f"int main() {{ return {code}; }}\n")
        path = delayed_module.program.__wrapped__()
        made.append((path, os.stat(path).st_ino))
        assert subprocess.run([path], check=False).returncode == code
    assert made[0] == made[1]
    assert made[0][0] != made[2][0]


# --- hosts

# Rank 1 sends datagrams, rank 0 counts those that came; TCP says when to start and how many came.
DATAGRAMS = f"""{CONNECT}
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if rank == 0:
    datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    datagrams.bind(address)
    with socket.create_server(address) as server:
        link = server.accept()[0]
    link.recv(1)
    # What was sent before this byte of TCP is here, or lost: the switch keeps the order.
    datagrams.setblocking(False)
    came = 0
    try:
        while datagrams.recv(2048):
            came += 1
    except BlockingIOError:
        print(came)
else:
    link = connect()
    for _ in range(COUNT):
        datagrams.sendto(bytes(100), address)
    link.sendall(b"!")
    link.recv(1)
"""


@pytest.mark.network
def test_no_round_trip_is_shorter_than_twice_delay_minus_jitter():
    with Lab(2, "100mbit", impairment=Impairment.of("20ms", "5ms")) as lab:
        distance = measure(lab, seconds=0.5)
    assert len(distance.rtts) == 100
    assert min(distance.rtts) >= 2 * 0.015
    assert distance.bytes_per_second > 0
    counters = distance.counters
    assert counters.cpu_seconds > 0
    assert (counters.lost, counters.missed, counters.oversized, counters.forgotten) == (0, 0, 0, 0)


@pytest.mark.network
def test_the_counter_of_losses_is_what_did_not_arrive():
    count = 1000
    with Lab(2, None, impairment=Impairment.of("1ms", loss="5%", seed=3)) as lab:
        script = DATAGRAMS.replace("COUNT", str(count))
        outcome = lab.run(python(script), timeout=WATCHDOG)
        hosts, switch = lab.counters(), lab.switch_counters()
    assert outcome.ok, outcome.report()
    came = int(outcome.ranks[0].output)
    assert 0 < count - came <= switch.lost
    # Every frame that a host sent has arrived, or is counted as lost: no other fate.
    sent, received = sum(h.tx_packets for h in hosts), sum(h.rx_packets for h in hosts)
    assert switch.received == sent
    assert switch.forwarded == received
    assert switch.lost == sent - received
    assert (switch.overflowed, switch.refused, switch.missed, switch.oversized) == (0, 0, 0, 0)


@pytest.mark.network
@pytest.mark.parametrize("ipv6", [False, True])
def test_bytes_cross_a_lossy_switch_of_three_hosts_unharmed(ipv6):
    script = """
import hashlib, os, socket
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
family = socket.AF_INET6 if ":" in os.environ["MASTER_ADDR"] else socket.AF_INET
data = hashlib.shake_256(b"seed").digest(1_000_000)
if rank == 0:
    with socket.create_server((os.environ["MASTER_ADDR"], port), family=family) as server:
        for _ in range(2):
            with server.accept()[0] as link:
                got = b""
                while part := link.recv(1 << 16):
                    got += part
                assert got == data
else:
    while True:
        try:
            link = socket.create_connection((os.environ["MASTER_ADDR"], port))
            break
        except ConnectionRefusedError:
            pass
    link.sendall(data)
"""
    link = Impairment.of("2ms", "1ms", "0.5%")
    with Lab(3, "100mbit", impairment=link, ipv6=ipv6) as lab:
        outcome = lab.run(python(script), timeout=WATCHDOG)
        switch = lab.switch_counters()
        qdiscs = lab.qdiscs()
    assert outcome.ok, outcome.report()
    assert switch.lost > 0
    assert switch.oversized == 0
    assert [qdisc["kind"] for qdisc in qdiscs] == ["tbf"] * 6


# Rank 1 is silent for longer than the switch remembers; TCP's keepalives may speak for it. A second
# connection, which the switch cannot have forgotten, ends rank 0.
SILENT = f"""{CONNECT}
import select
if rank == 0:
    with socket.create_server(address) as server:
        link = server.accept()[0]
        while not select.select([server, link], [], [])[0].count(server):
            link.sendall(link.recv(1))
        server.accept()
else:
    link = connect()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, HOLD)
    link.sendall(b"!")
    assert link.recv(1) == b"!"
    assert not select.select([link], [], [], 1.9)[0]
    link.sendall(b"!")
    print("answer" if select.select([link], [], [], 1)[0] else "silence")
    connect()
"""


@pytest.mark.network
@pytest.mark.parametrize("keepalive", [False, True])
def test_switch_forgets_silent_connection_without_keepalives(keepalive):
    with Lab(2, None, impairment=Impairment.of(forget="1.5s")) as lab:
        script = SILENT.replace("HOLD", str(int(keepalive)))
        outcome = lab.run(python(script), timeout=WATCHDOG)
        switch = lab.switch_counters()
    assert outcome.ok, outcome.report()
    assert outcome.ranks[1].output == ("answer\n" if keepalive else "silence\n")
    assert (switch.forgotten == 0) == keepalive


@pytest.mark.network
def test_sysctl_is_set_on_every_host_but_not_on_the_machine():
    path = pathlib.Path("/proc/sys/net/ipv4/tcp_rmem")
    before = path.read_text()
    with Lab(2, None, sysctls={"net.ipv4.tcp_rmem": "4096 131072 1234567"}) as lab:
        outcome = lab.run(["cat", str(path)], timeout=WATCHDOG)
    assert [rank.output.split()[2] for rank in outcome.ranks] == ["1234567"] * 2
    assert path.read_text() == before


@pytest.mark.network
def test_a_switch_that_has_ended_is_reported():
    with Lab(2, None, impairment=Impairment()) as lab:
        lab._switch.process.kill()
        lab._switch.process.wait()
        with pytest.raises(RuntimeError, match="the switch has ended"):
            lab.switch_counters()


@pytest.mark.network
def test_a_switch_that_cannot_start_is_a_lab_error(monkeypatch):
    monkeypatch.setattr(delayed_module, "program", lambda: "/bin/false")
    with pytest.raises(LabError, match="the switch did not start"):
        Lab(1, None, impairment=Impairment())


def children_of(pid: int) -> list[int]:
    return [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.network
def test_the_switch_ends_with_its_lab():
    lab = Lab(2, None, impairment=Impairment.of("5ms"))
    pid = lab._switch.process.pid
    lab.close()
    assert has_ended(pid, 0)


@pytest.mark.network
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_switch_ends_with_its_lab_whatever_ends_it(number):
    ranks = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    options = ["--hosts", "2", "--delay", "5ms", "--loss", "1%"]
    command = [sys.executable, f"{TOOLS}/netlab", "run", *options, "--", *python(ranks)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as netlab:
        try:
            for _ in range(2):
                netlab.stdout.readline()
            children = children_of(netlab.pid)
            names = [pathlib.Path(f"/proc/{pid}/comm").read_text().strip() for pid in children]
            assert any(name.startswith("netlab-switch") for name in names), names
            netlab.send_signal(number)
            assert all(has_ended(pid, WATCHDOG) for pid in children)
        finally:
            netlab.kill()


def test_counters_say_in_words_what_happened_to_frames():
    counters = SwitchCounters(11, 6, 2, 0, 1, 1, 1, 0, 2e-5, 1e-3, 0.5)
    assert str(counters) == (
        "switch: 11 frames in, 6 out, 2 lost as asked; dropped: 1 by full ports, 0 as too many "
        "waited, 1 of forgotten connections, 1 by mistake; late 20 us on average, 1.0 ms at most; "
        "cpu 0.50 s"
    )
