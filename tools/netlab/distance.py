"""Measures a long link: round trips, and plain TCP beside the textbook's prediction.

This module uses sockets and the clock, and must not use torch. Two ranks of the lab run it (`netlab
probe` with --delay or --loss starts them): rank 1 sends, rank 0 answers and counts.
"""

from __future__ import annotations

import json
import os
import select
import socket
import statistics
import sys
import time
from dataclasses import dataclass

from netlab.delayed import SwitchCounters
from netlab.impairment import cubic_bytes_per_second, reno_bytes_per_second
from netlab.lab import Lab

ECHOES = 100


@dataclass(frozen=True)
class Distance:
    """rtts: seconds of single datagrams. bytes_per_second: all streams together, after the first
    quarter of the time. textbook: the rate that one stream should reach; None if no formula is
    known. congestion_control and streams: the setting that was measured. counters: the switch's
    counters of the whole run. machine_cpu_share: as in Outcome."""

    rtts: list[float]
    bytes_per_second: float
    textbook: float | None
    congestion_control: str
    streams: int
    counters: SwitchCounters | None
    machine_cpu_share: float

    def __str__(self) -> str:
        rtts = sorted(self.rtts)
        textbook = "-" if self.textbook is None else f"{self.textbook * 8e-6:.1f}"
        return (
            f"round trip: min {rtts[0] * 1e3:.2f}, median {statistics.median(rtts) * 1e3:.2f}, "
            f"max {rtts[-1] * 1e3:.2f} ms ({len(rtts)} of {ECHOES} answered)\n"
            f"TCP {self.congestion_control}, {self.streams} streams: "
            f"{self.bytes_per_second * 8e-6:.1f} Mbit/s; textbook for them: {textbook}; "
            f"cores busy {self.machine_cpu_share:.0%}"
        )


def measure(lab: Lab, seconds: float, streams: int = 1) -> Distance:
    """Run both measurements between host 0 and host 1. Raises RuntimeError with the ranks' output
    if that fails."""
    if lab.hosts != 2:
        raise ValueError(f"measure: expected a lab of 2 hosts, got {lab.hosts}")
    command = [sys.executable, os.path.abspath(__file__), str(seconds), str(streams)]
    path = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    outcome = lab.run(command, timeout=60 + 4 * seconds, env={"PYTHONPATH": path})
    if not outcome.ok:
        raise RuntimeError(f"the probe failed\n{outcome.report()}")
    return Distance(
        rtts=json.loads(outcome.ranks[1].output),
        bytes_per_second=float(outcome.ranks[0].output),
        textbook=_textbook(lab, streams),
        congestion_control=lab.congestion_control,
        streams=streams,
        counters=lab.switch_counters(),
        machine_cpu_share=outcome.machine_cpu_share,
    )


def _textbook(lab: Lab, streams: int) -> float | None:
    formulas = {"reno": reno_bytes_per_second, "cubic": cubic_bytes_per_second}
    formula = formulas.get(lab.congestion_control)
    if formula is None or lab.impairment is None or not lab.impairment.delay:
        return None
    mtu = lab.shape.mtu if lab.shape else 1500
    lost = streams * formula(mtu, 2 * lab.impairment.delay, lab.impairment.loss)
    if lab.shape is None:
        return lost
    # This is the payload of full segments.
    wire = lab.shape.bits_per_second / 8 * (mtu - 52) / lab.shape.wire_bytes(mtu - 52)
    return min(lost, wire)


def _echo(datagrams: socket.socket) -> None:
    while True:
        data, sender = datagrams.recvfrom(64)
        if data == b"end":
            return
        datagrams.sendto(data, sender)


def _round_trips(address: tuple[str, int]) -> list[float]:
    """Measure ECHOES datagrams one after the other; a lost one is skipped after a second."""
    rtts = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(address)
        for number in range(ECHOES + 1):
            data = str(number).encode()
            start = time.perf_counter()
            datagrams.send(data)
            while select.select([datagrams], [], [], 1)[0]:
                if datagrams.recv(64) == data:
                    rtts.append(time.perf_counter() - start)
                    break
        # Send several, because one may be lost.
        for _ in range(20):
            datagrams.send(b"end")
    return rtts[1:]  # the first one may have waited for ARP


def _count(server: socket.socket, seconds: float, streams: int) -> float:
    links = [server.accept()[0] for _ in range(streams)]
    buffer = memoryview(bytearray(1 << 20))
    start = time.monotonic()
    begin, end = start + seconds / 4, start + seconds
    got, first, last = 0, begin, begin
    while (now := time.monotonic()) < end:
        for link in select.select(links, [], [], 1)[0]:
            count = link.recv_into(buffer)
            if now >= begin:
                got += count
                last = now
    for link in links:
        link.close()
    return got / max(1e-9, last - first)


def _send(address: tuple[str, int], streams: int) -> None:
    links = [socket.create_connection(address) for _ in range(streams)]
    data = bytes(1 << 18)
    for link in links:
        link.setblocking(False)
    while links:
        for link in select.select([], links, [])[1]:
            try:
                link.send(data)
            except ConnectionError:
                links.remove(link)


def _main() -> None:
    seconds, streams = float(sys.argv[1]), int(sys.argv[2])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if os.environ["RANK"] == "0":
        with (
            socket.create_server(address, backlog=128) as server,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        ):
            datagrams.bind(address)
            server.accept()[0].close()  # now rank 1 knows that both are open
            _echo(datagrams)
            print(_count(server, seconds, streams))
        return
    from netlab.probe import connect

    with connect(address) as ready:
        ready.recv(1)
    print(json.dumps(_round_trips(address)))
    _send(address, streams)


if __name__ == "__main__":
    _main()
