"""Benchmark (p): dense collectives of all sizes, paired with gloo in the same processes.

Runs on every rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; `tools/bench/run
collectives` starts it in a network lab or on loopback. gloo runs twice: with its defaults, and with
four connections to each peer. With --against ways, gtopk itself runs instead, with GTOPK_DENSE=tree
and GTOPK_DENSE=direct. Rank 0 prints a row for each collective and size: the medians, and the ratio
of gtopk's time to the faster other's, pair by pair.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
# After this many collectives, a group measures the cost of messages (docs/algorithms.md).
MEASURED_FROM = 64
BAR, CEILING, SMALL_BAR, SMALL = 1.05, 1.15, 0.4, 16 << 10


def interface() -> str:
    """Return the name of the interface that leads to the master."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))
        address = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, 0x8915, name.encode().ljust(40, b"\0"))  # SIOCGIFADDR
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise RuntimeError(f"no interface has the address {address}")


def groups(against: str) -> dict[str, dist.ProcessGroup]:
    """Return the groups to compare, each over all ranks; gtopk is the first."""
    found = {"gtopk": dist.new_group(backend="gtopk")}
    if against == "gloo":
        found["gloo"] = dist.new_group(backend="gloo")
        os.environ["GLOO_SOCKET_IFNAME"] = ",".join([interface()] * 4)
        found["gloo x 4"] = dist.new_group(backend="gloo")
    else:
        for way in ("tree", "direct"):
            os.environ["GTOPK_DENSE"] = way
            found[way] = dist.new_group(backend="gtopk")
        del os.environ["GTOPK_DENSE"]
    for _ in range(MEASURED_FROM):
        dist.barrier(group=found["gtopk"])
    return found


def call(collective: str, size: int, group: dist.ProcessGroup) -> Callable[[], object]:
    """Return one call. size: bytes of the larger of a rank's two tensors, in float32."""
    ranks = dist.get_world_size()
    part = max(1, size // 4 // ranks)
    whole = torch.ones(part * ranks)
    if collective == "all_reduce":
        whole.zero_()  # repeated sums stay zero
        return lambda: dist.all_reduce(whole, group=group)
    if collective == "broadcast":
        return lambda: dist.broadcast(whole, 0, group=group)
    if collective == "all_gather":
        mine = torch.ones(part)
        return lambda: dist.all_gather_into_tensor(whole, mine, group=group)
    if collective == "reduce_scatter":
        mine = torch.empty(part)
        return lambda: dist.reduce_scatter_tensor(mine, whole, group=group)
    other = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(other, whole, group=group)


def cpu_seconds() -> float:
    """Return the CPU seconds, user and system, that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cell(
    collective: str, size: int, over: dict[str, dist.ProcessGroup], pairs: int
) -> dict[str, object]:
    """Return one collective's times at one size: the slowest rank's seconds per call, by turn."""
    calls = {name: call(collective, size, group) for name, group in over.items()}
    several = max(1, min(100, (256 << 10) // size))
    wall: dict[str, list[float]] = {name: [] for name in over}
    cpu: dict[str, list[float]] = {name: [] for name in over}
    for pair in range(pairs + 1):
        names = list(over) if pair % 2 else list(reversed(over))
        for name in names:
            dist.barrier(group=over[name])
            start, used = time.perf_counter(), cpu_seconds()
            for _ in range(several):
                calls[name]()
            seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64) / several
            used = (cpu_seconds() - used) / several
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            if pair > 0:  # the first pair connects and warms up
                wall[name].append(seconds.item())
                cpu[name].append(used)
    best = min((name for name in over if name != "gtopk"), key=lambda n: statistics.median(wall[n]))
    ratios = [a / b for a, b in zip(wall["gtopk"], wall[best], strict=True)]
    return {
        "collective": collective,
        "bytes": size,
        "best other": best,
        "wall": wall,
        "cpu": cpu,
        "ratio": statistics.median(ratios),
        "range": (min(ratios), max(ratios)),
    }


def verdict(cells: list[dict[str, object]], one_host: bool) -> Iterator[str]:
    """Say how many cells are within the limits."""
    kept = sum(each["ratio"] <= BAR for each in cells)
    worst = [f"{c['collective']} {c['bytes']}" for c in cells if c["ratio"] > CEILING]
    yield f"{kept} of {len(cells)} cells at or below {BAR}; above {CEILING}: {worst or 'none'}"
    small = [each for each in cells if each["bytes"] < SMALL]
    if one_host and small:
        kept = sum(each["ratio"] < SMALL_BAR for each in small)
        yield f"{kept} of {len(small)} cells under {SMALL} bytes below {SMALL_BAR}"


def main() -> None:
    """Measure every cell and report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--sizes", default="8,1024,8192,65536,524288,4194304,33554432")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--against", choices=("gloo", "ways"), default="gloo")
    parser.add_argument("--one-host", action="store_true", help="hold the bar of small sizes too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    over, rank = groups(arguments.against), dist.get_rank()
    cells = []
    if rank == 0:
        print(f"# {dist.get_world_size()} ranks, {arguments.pairs} pairs; p50 of a call in us")
        print(
            f"{'collective':>14} {'bytes':>10} {' '.join(f'{name:>10}' for name in over)} "
            f"{'ratio':>6} {'range':>13} {'cpu us':>9} {'other cpu':>9}"
        )
    for collective in arguments.collectives.split(","):
        for size in map(int, arguments.sizes.split(",")):
            each = cell(collective, size, over, arguments.pairs)
            cells.append(each)
            if rank == 0:
                p50 = {name: statistics.median(times) * 1e6 for name, times in each["wall"].items()}
                cpu = {name: statistics.median(used) * 1e6 for name, used in each["cpu"].items()}
                low, high = each["range"]
                print(
                    f"{collective:>14} {size:>10} "
                    f"{' '.join(f'{p50[name]:10.1f}' for name in over)} "
                    f"{each['ratio']:6.2f} {low:6.2f} {high:6.2f} "
                    f"{cpu['gtopk']:9.1f} {cpu[each['best other']]:9.1f}",
                    flush=True,
                )
    if rank == 0:
        for line in verdict(cells, arguments.one_host):
            print(line)
        if arguments.json:
            arguments.json.write_text(
                json.dumps(
                    {
                        "program": "gtopk-bench-collectives",
                        "against": arguments.against,
                        "ranks": dist.get_world_size(),
                        "rows": cells,
                    },
                    indent=2,
                )
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
