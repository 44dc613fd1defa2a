"""Measures what the link allows: the walk of `gtopk` over plain sockets, without merging.

Every rank exchanges one list of fixed size with its partner of each round of recursive doubling (P
a power of two), like gtopk-bench-exchange, through select() and non-blocking sockets. A byte back
acknowledges each list; `--unacknowledged` shows what happens without it. It is started on every
rank with RANK, WORLD_SIZE and MASTER_ADDR set, and hosts are numbered upwards from the master's
address (tools/bench/run does this). Rank 0 prints one line.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import select
import socket
import statistics
import time

PORT = 7000


def connect_partners(rank: int, rounds: int) -> list[socket.socket]:
    """Open one connection per round; the connection to round t's partner is at [t]."""
    master = ipaddress.ip_address(socket.gethostbyname(os.environ["MASTER_ADDR"]))
    listener = socket.create_server(("", PORT), backlog=rounds)
    by_rank: dict[int, socket.socket] = {}
    for partner in (rank ^ (1 << t) for t in range(rounds)):
        if partner > rank:
            connection, _ = listener.accept()
            by_rank[int.from_bytes(connection.recv(4), "big")] = connection
            continue
        deadline = time.monotonic() + 30
        while True:
            try:
                by_rank[partner] = socket.create_connection((str(master + partner), PORT))
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        by_rank[partner].sendall(rank.to_bytes(4, "big"))
    for connection in by_rank.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
    return [by_rank[rank ^ (1 << t)] for t in range(rounds)]


def exchange(
    connection: socket.socket, data: memoryview, buffer: memoryview, acknowledge: bool
) -> None:
    """Send a list and receive one at the same time, and then a byte each way."""
    size = len(data) - 1
    end = size + 1 if acknowledge else size
    sent = received = 0
    while sent < end or received < end:
        may_send = end if received >= size else size
        readable, writable, _ = select.select(
            [connection] if received < end else [], [connection] if sent < may_send else [], []
        )
        if writable:
            sent += connection.send(data[sent:may_send])
        if readable:
            received += connection.recv_into(buffer[received:end])


def main() -> None:
    """Measures, and prints on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=204_520, help="of one list")
    parser.add_argument("-n", "--exchanges", type=int, default=200)
    parser.add_argument("-w", "--warm-up", type=int, default=10)
    parser.add_argument("--unacknowledged", action="store_true")
    arguments = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rounds = ranks.bit_length() - 1
    if ranks != 1 << rounds:
        parser.error(f"{ranks} ranks: expected a power of two")
    partners = connect_partners(rank, rounds)
    data = memoryview(bytes(arguments.bytes + 1))
    buffer = memoryview(bytearray(arguments.bytes + 1))
    samples = []
    for i in range(arguments.warm_up + arguments.exchanges):
        start = time.perf_counter()
        for connection in partners:
            exchange(connection, data, buffer, not arguments.unacknowledged)
        if i >= arguments.warm_up:
            samples.append(1e3 * (time.perf_counter() - start))
    if rank == 0:
        how = "not acknowledged" if arguments.unacknowledged else "acknowledged"
        print(
            f"{ranks} ranks, {rounds} lists of {arguments.bytes} bytes over plain sockets, {how}: "
            f"min {min(samples):.3f} ms, "
            f"p50 {statistics.median(samples):.3f} ms, mean {statistics.mean(samples):.3f} ms"
        )
    time.sleep(0.5)  # a partner may still be reading from a connection


if __name__ == "__main__":
    main()
