"""Measures a lab before its times count: is this link what it claims to be?

This module uses TCP sockets and the clock, and must not use torch. Server and client run as two
ranks of the lab (`netlab probe` starts them); all times are the client's and are half of a round
trip.

A badly shaped lab fails because a token bucket refills while ranks compute: a message after a pause
passes freely up to the burst, but back-to-back messages do not. A lab whose gapped and back-to-back
times differ makes sparse traffic look faster than its wire.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from dataclasses import asdict, dataclass

from netlab.hosts import Hosts
from netlab.shape import Shape

SIZES = (100, 1_000, 3_000, 10_000, 20_000, 50_000, 100_000, 300_000, 1_000_000)
GAP_SECONDS = 0.05
AGREEMENT = 0.10


@dataclass(frozen=True)
class Point:
    """One message size: medians in seconds one way. back_to_back: message after message, the
    marginal time of a stream plus the latency; gapped: alone, 50 ms after the last one; wire: the
    time at the link's rate (None without a rate)."""

    size: int
    back_to_back: float
    gapped: float
    wire: float | None


@dataclass(frozen=True)
class Calibration:
    """Points, ping-pong times by size (s, one way), and the result of fit."""

    points: list[Point]
    alpha: float
    beta: float
    pingpong: dict[int, float]

    def disagreements(self, allowance: int) -> list[str]:
        """Return the sizes whose gapped and back-to-back times differ by more than 10 %.

        allowance: bytes that may pass freely, which is the bucket calibrated for the rate (never
        the bucket in use, or a larger one would excuse itself). One latency is allowed in addition,
        because the smallest messages are all latency, which varies with sleeping cores.
        """
        slack = allowance * self.beta + self.points[0].gapped
        return [
            f"{p.size} B: gapped {p.gapped * 1e3:.3f} ms, "
            f"back to back {p.back_to_back * 1e3:.3f} ms"
            for p in self.points
            if abs(p.gapped - p.back_to_back) > AGREEMENT * p.back_to_back + slack
        ]

    def exact_from(self) -> int | None:
        """Return the size from which both agree within 10 % without allowance; None if never."""
        exact = None
        for p in reversed(self.points):
            if abs(p.gapped - p.back_to_back) > AGREEMENT * p.back_to_back:
                break
            exact = p.size
        return exact

    def table(self) -> str:
        """Return aligned rows, with times in ms."""
        rows = [f"{'size(B)':>9} {'wire':>9} {'back2back':>9} {'gapped':>9} {'gap/b2b':>8}"]
        for p in self.points:
            wire = "-" if p.wire is None else f"{p.wire * 1e3:.3f}"
            rows.append(
                f"{p.size:>9} {wire:>9} {p.back_to_back * 1e3:>9.3f} "
                f"{p.gapped * 1e3:>9.3f} {p.gapped / p.back_to_back:>8.3f}"
            )
        return "\n".join(rows)


def calibrate(hosts: Hosts, sizes: tuple[int, ...] = SIZES, repeats: int = 9) -> Calibration:
    """Runs the probe between host 0 and host 1 of a lab of exactly two hosts.

    Raises RuntimeError with the ranks' output when the probe itself fails.
    """
    if hosts.hosts != 2:
        raise ValueError(f"calibrate: expected a lab of 2 hosts, got {hosts.hosts}")
    command = [sys.executable, os.path.abspath(__file__), json.dumps([sizes, repeats])]
    path = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    outcome = hosts.run(command, timeout=300, env={"PYTHONPATH": path})
    if not outcome.ok:
        raise RuntimeError(f"the probe failed\n{outcome.report()}")
    raw = json.loads(outcome.ranks[1].output)
    pingpong = {int(size): seconds for size, seconds in raw["pingpong"].items()}
    alpha, beta = fit(pingpong)
    shape: Shape | None = hosts.shape
    points = [
        Point(
            size,
            back_to_back=pingpong[sizes[0]] + raw["stream"][str(size)],
            gapped=raw["gapped"][str(size)],
            wire=shape.wire_seconds(size) if shape else None,
        )
        for size in sizes
    ]
    return Calibration(points, alpha, beta, pingpong)


def fit(times: dict[int, float]) -> tuple[float, float]:
    """Return alpha (s) and beta (s/byte) of t = alpha + beta·size from ping-pong times by size.

    beta is the slope over the sizes above 64 KiB (least squares, each point weighted by 1/t²),
    where no bucket hides the wire; alpha is the time of the smallest message, less its own bytes.
    The bucket would bend a single straight line, because middle sizes pass partly free.
    """
    large = {size: seconds for size, seconds in times.items() if size > 1 << 16}
    weights = {size: 1 / seconds**2 for size, seconds in large.items()}
    total = sum(weights.values())
    mean_size = sum(w * size for size, w in weights.items()) / total
    mean_time = sum(w * large[size] for size, w in weights.items()) / total
    spread = sum(w * (size - mean_size) ** 2 for size, w in weights.items())
    slope = sum(w * (s - mean_size) * (large[s] - mean_time) for s, w in weights.items())
    beta = slope / spread
    smallest = min(times)
    return max(0.0, times[smallest] - beta * smallest), beta


def as_json(calibration: Calibration) -> dict:
    """Return the calibration as plain data, for a record of results."""
    return asdict(calibration)


def _receive(link: socket.socket, size: int, buffer: memoryview) -> None:
    got = 0
    while got < size:
        count = link.recv_into(buffer[: min(size - got, len(buffer))])
        if count == 0:
            raise ConnectionError("the peer of the probe went away")
        got += count


def _serve(link: socket.socket, sizes: list[int], repeats: int) -> None:
    buffer = memoryview(bytearray(1 << 20))
    data = bytes(max(sizes))
    for size in sizes:
        for _ in range(2 * repeats + 2):
            _receive(link, size, buffer)
            link.sendall(data[:size])
        for _ in range(2):
            _receive(link, size * _stream_length(size), buffer)
            link.sendall(b"!")


def _stream_length(size: int) -> int:
    return max(4, min(200, 2_000_000 // size))


def _measure(link: socket.socket, sizes: list[int], repeats: int) -> dict:
    buffer = memoryview(bytearray(1 << 20))
    data = bytes(max(sizes))
    result: dict[str, dict[int, float]] = {"pingpong": {}, "gapped": {}, "stream": {}}

    def one_way(size: int) -> float:
        start = time.perf_counter()
        link.sendall(data[:size])
        _receive(link, size, buffer)
        return (time.perf_counter() - start) / 2

    for size in sizes:
        warm = [one_way(size) for _ in range(2)]
        del warm
        result["pingpong"][size] = statistics.median(one_way(size) for _ in range(repeats))
        gapped = []
        for _ in range(repeats):
            time.sleep(GAP_SECONDS)
            gapped.append(one_way(size))
        result["gapped"][size] = statistics.median(gapped)
        count = _stream_length(size)
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            for _ in range(count):
                link.sendall(data[:size])
            _receive(link, 1, buffer)
            seconds.append(time.perf_counter() - start)
        # The reply costs one latency; the rest is the time of the stream itself.
        latency = result["pingpong"][sizes[0]]
        result["stream"][size] = (min(seconds) - latency) / count
    return result


def _main() -> None:
    sizes, repeats = json.loads(sys.argv[1])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if os.environ["RANK"] == "0":
        with socket.create_server(address) as server:
            link, _ = server.accept()
    else:
        link = connect(address)
    with link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if os.environ["RANK"] == "0":
            _serve(link, sizes, repeats)
        else:
            print(json.dumps(_measure(link, sizes, repeats)))


def connect(address: tuple[str, int]) -> socket.socket:
    """Connect to rank 0, which may still be starting: retries for at most 30 s until it listens."""
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(address, timeout=30)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise


if __name__ == "__main__":
    _main()
