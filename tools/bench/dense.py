"""Benchmark (c): dense all-reduce of gtopk paired with gloo, in the same processes, turn by turn.

Runs on every rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; `tools/bench/run dense`
starts it in a network lab or on loopback. Rank 0 prints one row per backend and the ratio pair by
pair.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def cpu_seconds() -> float:
    """Return the CPU seconds, user and system, that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(tensor: torch.Tensor, group: dist.ProcessGroup) -> tuple[float, float]:
    """Return wall and CPU seconds of one all-reduce; wall is the slowest rank's."""
    dist.barrier(group=group)
    start, cpu = time.perf_counter(), cpu_seconds()
    dist.all_reduce(tensor, group=group)
    wall = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    cpu = cpu_seconds() - cpu
    dist.all_reduce(wall, op=dist.ReduceOp.MAX, group=group)
    return wall.item(), cpu


def main() -> None:
    """Measure in pairs and report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    groups = {name: dist.new_group(backend=name) for name in ("gtopk", "gloo")}
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(arguments.elements)
    wall = {name: [] for name in groups}
    cpu = {name: [] for name in groups}
    wrong = 0
    for pair in range(arguments.pairs + 1):
        order = list(groups) if pair % 2 else list(reversed(groups))
        for name in order:
            tensor.fill_(rank + 1)
            seconds, used = measure(tensor, groups[name])
            wrong += int((tensor != ranks * (ranks + 1) / 2).sum())
            if pair > 0:  # the first pair connects and warms up
                wall[name].append(seconds)
                cpu[name].append(used)
    ratios = [a / b for a, b in zip(wall["gtopk"], wall["gloo"], strict=True)]
    if rank == 0:
        print(f"# dense all-reduce, {ranks} ranks, {arguments.elements} float32")
        print(f"{'backend':>8} {'min(ms)':>9} {'p50(ms)':>9} {'max(ms)':>9} {'cpu(ms)':>9}")
        for name, seconds in wall.items():
            print(
                f"{name:>8} {min(seconds) * 1e3:9.1f} {statistics.median(seconds) * 1e3:9.1f} "
                f"{max(seconds) * 1e3:9.1f} {statistics.median(cpu[name]) * 1e3:9.1f}"
            )
        print(
            f"gtopk/gloo pair by pair: min {min(ratios):.3f} "
            f"median {statistics.median(ratios):.3f} max {max(ratios):.3f}; wrong elements {wrong}"
        )
        if arguments.json:
            record = {"ranks": ranks, "elements": arguments.elements, "wall": wall, "cpu": cpu}
            arguments.json.write_text(
                json.dumps(record | {"ratios": ratios, "wrong": wrong}, indent=2)
            )
    dist.destroy_process_group()
    raise SystemExit(wrong != 0)


if __name__ == "__main__":
    main()
