"""Benchmark of a long link: dense all-reduce and gTop-k over 1, 2, … connections, gloo, sockets.

It makes a lab with delay and loss (as root), and runs every subject on it in separate processes:

    .venv/bin/python tools/bench/wide.py --connections 1,2,4,8 --turns 2

`gtopk:4` is GTOPK_CONNECTIONS=4. `gloo:4` is Gloo with four connections to each rank, for four
all-reduces at once, each of a quarter of the tensor. `plain:4` is four plain connections between
two hosts; any free connection takes the next 128 KiB, and both hosts send the tensor's bytes at
once, as in an all-reduce of two ranks. After a slash comes a variable or, if its name has dots, a
setting of the hosts' kernel: `gtopk:4/UCX_TCP_SNDBUF=4M/net.ipv4.tcp_slow_start_after_idle=0`.
`@bbr` at the end chooses TCP's congestion control. It prints for each subject the slowest rank's
time, and for dense the share of the link that it used. Compare ratios within one run, because the
machine may be busy.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import netlab  # noqa: E402
from netlab.probe import connect  # noqa: E402

CHUNK = 1 << 17


def dense_bytes(ranks: int, size: int) -> float:
    """Return the bytes that each rank sends and receives in an all-reduce that sends the least."""
    return 2 * size * (ranks - 1) / ranks


def exchange(links: list[socket.socket], size: int) -> None:
    """Sends and receives `size` bytes over any free connection."""
    data, buffer = memoryview(bytes(CHUNK)), memoryview(bytearray(1 << 20))
    to_send, to_receive = size, size
    reading = list(links)
    while to_send or to_receive:
        readable, writable, _ = select.select(
            reading if to_receive else [], links if to_send else [], []
        )
        for link in readable:
            if to_receive == 0:
                break
            count = link.recv_into(buffer[: min(len(buffer), to_receive)])
            if count == 0:  # the other side has all its bytes, but this side does not
                reading.remove(link)
            to_receive -= count
        for link in writable:
            to_send -= link.send(data[: min(CHUNK, to_send)])


def plain(connections: int, size: int, calls: int) -> dict[str, list[float]]:
    """Run both ends of plain connections; the first exchange is not counted."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if os.environ["RANK"] == "0":
        with socket.create_server(address, backlog=128) as server:
            links = [server.accept()[0] for _ in range(connections)]
    else:
        links = [connect(address) for _ in range(connections)]
    for link in links:
        link.setblocking(False)
    seconds = []
    for _ in range(1 + calls):
        start = time.perf_counter()
        exchange(links, size)
        seconds.append(time.perf_counter() - start)
    return {"dense": seconds[1:], "sparse": []}


def collective(
    backend: str, parts: int, elements: int, density: float, calls: int
) -> dict[str, list[float]]:
    """Run an all-reduce in `parts`, and with gtopk a sparse one; the first call is not counted."""
    import torch
    import torch.distributed as dist

    import gtopk

    torch.set_num_threads(1)
    dist.init_process_group(backend)
    tensor = torch.ones(elements)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    gradient = torch.randn(elements, generator=generator)
    residual = torch.zeros(elements)

    def dense() -> None:
        works = [dist.all_reduce(part, async_op=True) for part in tensor.chunk(parts)]
        for work in works:
            work.wait()

    def sparse() -> None:
        gtopk.sparse_all_reduce(
            gradient.clone(), k=int(elements * density), residual=residual, algorithm="gtopk"
        )

    taken: dict[str, list[float]] = {"dense": [], "sparse": []}
    for name, call in (("dense", dense), ("sparse", sparse)):
        if name == "sparse" and backend != "gtopk":
            continue
        for _ in range(1 + calls):
            dist.barrier()
            start = time.perf_counter()
            call()
            seconds = torch.tensor([time.perf_counter() - start])
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            taken[name].append(seconds.item())
    dist.destroy_process_group()
    return {name: seconds[1:] for name, seconds in taken.items()}


def rank_main(arguments: argparse.Namespace) -> None:
    """Run one rank of one subject; print its times as JSON."""
    if arguments.worker.startswith("plain"):
        connections = int(arguments.worker.partition(":")[2])
        taken = plain(connections, 4 * arguments.elements, arguments.calls)
    else:
        backend, _, count = arguments.worker.partition(":")
        parts = int(count or 1) if backend == "gloo" else 1
        taken = collective(backend, parts, arguments.elements, arguments.density, arguments.calls)
    print(json.dumps(taken))


def split(subject: str) -> tuple[str, dict[str, str], dict[str, str], str | None]:
    """Split `gtopk:4/A=B/a.b=c@bbr`: subject, variables, kernel settings, congestion control."""
    subject, _, control = subject.partition("@")
    what, *settings = subject.split("/")
    pairs = [setting.split("=", 1) for setting in settings]
    sysctls = {key: value for key, value in pairs if "." in key}
    variables = {key: value for key, value in pairs if "." not in key}
    if what.startswith("gtopk:"):
        variables["GTOPK_CONNECTIONS"] = what.partition(":")[2]
    return what, variables, sysctls, control or None


def run(subject: str, arguments: argparse.Namespace, turn: int) -> dict:
    """Runs a subject in its own lab, with the turn's seed."""
    what, variables, sysctls, control = split(subject)
    link = netlab.Impairment.of(
        arguments.delay, arguments.jitter, arguments.loss, seed=arguments.seed + turn
    )
    shape = netlab.Shape.of(arguments.rate, mtu=arguments.mtu)
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", what]
    command += ["--elements", str(arguments.elements), "--density", str(arguments.density)]
    command += ["--calls", str(arguments.calls)]
    with netlab.Lab(
        2 if what.startswith("plain") else arguments.hosts,
        shape,
        congestion_control=control or "cubic",
        impairment=link,
        sysctls=sysctls,
    ) as lab:
        if what.startswith("gloo:"):
            interfaces = [lab.interface] * int(what.partition(":")[2])
            variables["GLOO_SOCKET_IFNAME"] = ",".join(interfaces)
        outcome = lab.run(command, timeout=arguments.timeout, env=variables)
        counters = lab.switch_counters()
    if not outcome.ok:
        raise SystemExit(f"{subject} failed\n{outcome.report()}")
    row = json.loads(outcome.ranks[0].output.splitlines()[-1])
    ranks = len(outcome.ranks)
    wire = shape.wire_bytes(round(dense_bytes(ranks, 4 * arguments.elements)))
    best = wire * 8 / shape.bits_per_second
    row |= {"subject": subject, "turn": turn, "busy": outcome.machine_cpu_share}
    row |= {"share": best / statistics.median(row["dense"]), "lost": counters.lost}
    row |= {"cpu": max(rank.cpu_seconds for rank in outcome.ranks), "switch": counters.cpu_seconds}
    return row


def show(row: dict) -> None:
    """Print one line of the table."""
    dense, sparse = row["dense"], row["sparse"]
    few = f"{statistics.median(sparse) * 1e3:10.0f}" if sparse else f"{'-':>10}"
    print(
        f"{row['turn']:>4} {statistics.median(dense) * 1e3:10.0f} {row['share']:7.2f} {few} "
        f"{row['lost']:>6} {row['cpu']:6.1f} {row['switch']:6.1f} {row['busy']:5.0%}  "
        f"{row['subject']}",
        flush=True,
    )


def main() -> int:
    """Measures every subject in turn and prints one row each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--delay", default="25ms", help="one way")
    parser.add_argument("--jitter", default="0ms")
    parser.add_argument("--loss", default="0.01%")
    parser.add_argument("--connections", default="1,2,4,8", help='of gtopk; none: ""')
    parser.add_argument("--subjects", default="gloo,plain:1,plain:8", help="others, by comma")
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--calls", type=int, default=3, help="of each kind, after one")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        rank_main(arguments)
        return 0
    subjects = [f"gtopk:{n}" for n in arguments.connections.split(",") if n]
    subjects += [subject for subject in arguments.subjects.split(",") if subject]
    print(f"# {arguments.hosts} hosts at {arguments.rate}, MTU {arguments.mtu}, delay ", end="")
    print(f"{arguments.delay} each way, loss {arguments.loss} each way, {arguments.calls} calls")
    print("# dense: median of a call; share: of the link; cpu: seconds of a rank, and the switch")
    print("turn  dense(ms)   share sparse(ms)   lost    cpu switch  busy")
    for turn in range(arguments.turns):
        for subject in subjects if turn % 2 == 0 else reversed(subjects):
            show(run(subject, arguments, turn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
