"""Benchmark: calls as torch makes them.

The whole sparse all-reduce: select, exchange and write back; several algorithms take turns if
--algorithm is given more than once. With --small, all_reduce of 8 bytes: five runs paired with
gloo, and where each microsecond goes.

Runs on every rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; `tools/bench/run call`
starts it in a network lab or on loopback. Rank 0 prints the rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

import gtopk


class Small:
    """Calls of all_reduce of 8 bytes, timed."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """group: gtopk's or another's."""
        self.group = group
        self.tensor = torch.zeros(2)
        self.whole: list[float] = []
        self.operator: list[float] = []

    def run(self, calls: int, *, future: bool = False) -> None:
        """Adds this many calls, waited for by their Work or by its future."""
        for _ in range(calls):
            start = time.perf_counter()
            work = dist.all_reduce(self.tensor, group=self.group, async_op=True)
            called = time.perf_counter()
            if future:
                work.get_future().wait()
            else:
                work.wait()
            self.whole.append(time.perf_counter() - start)
            self.operator.append(called - start)

    def median(self) -> float:
        """Returns the median of all calls so far, in microseconds."""
        return statistics.median(self.whole) * 1e6


def means(group: dist.ProcessGroup, calls: int, *, future: bool) -> dict[str, float]:
    """Returns the mean microseconds of each part of a call; they add up to the whole."""
    small = Small(group)
    before = gtopk.stats(group)
    small.run(calls, future=future)
    after = gtopk.stats(group)
    parts = {"operator call": statistics.mean(small.operator) * 1e6}
    for name, metric in (("queue", "queue_seconds"), ("run", "run_seconds")):
        parts[name] = (after[metric] - before[metric]) / calls * 1e6
    whole = statistics.mean(small.whole) * 1e6
    parts["wake-up"] = whole - sum(parts.values())
    parts["whole"] = whole
    return parts


def measure_small(calls: int, runs: int) -> None:
    """Prints the paired runs and the table of parts."""
    ours = dist.group.WORLD
    assert ours is not None
    gloo = dist.new_group(backend="gloo")
    first = dist.get_rank() == 0
    for group in (ours, gloo):
        Small(group).run(50)
    if first:
        print(f"# all_reduce of 8 bytes, {dist.get_world_size()} ranks, {calls} calls a run, p50")
        print(f"{'gtopk(us)':>9} {'gloo(us)':>9} {'ratio':>6} {'load':>6}")
    for _ in range(runs):
        pair = Small(ours), Small(gloo)
        for _ in range(10):  # a disturbance hits both
            for small in pair:
                small.run(calls // 10)
        if first:
            mine, others = (small.median() for small in pair)
            print(f"{mine:9.1f} {others:9.1f} {mine / others:6.2f} {os.getloadavg()[0]:6.1f}")
    by_work = means(ours, calls, future=False)
    by_future = means(ours, calls, future=True)
    if first:
        print("# mean of each part in us. run: from the coroutine's start to its end, messages and")
        print("# the other rank included; wake-up: whatever else is left of the whole")
        print(f"{'part':>14} {'wait()':>8} {'future':>8}")
        for part in ("operator call", "queue", "run", "wake-up", "whole"):
            print(f"{part:>14} {by_work[part]:8.1f} {by_future[part]:8.1f}")


def main() -> None:
    """Measures call by call and reports on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=500_000)
    parser.add_argument("-k", type=int, default=25_557)
    parser.add_argument("--algorithm", action="append", help="gtopk; repeat it to compare")
    parser.add_argument("-n", "--calls", type=int, help="50, of --small 2,000 a run")
    parser.add_argument("--small", action="store_true", help="all_reduce of 8 bytes, beside gloo")
    parser.add_argument("--runs", type=int, default=5, help="paired runs of --small")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    if arguments.small:
        measure_small(arguments.calls or 2000, arguments.runs)
    else:
        algorithms = arguments.algorithm or ["gtopk"]
        measure_sparse(arguments.elements, arguments.k, arguments.calls or 50, algorithms)
    dist.destroy_process_group()


def measure_sparse(elements: int, k: int, calls: int, algorithms: list[str]) -> None:
    """Prints the times of the sparse all-reduce."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1 + rank)
    gradient = torch.randn(elements, generator=generator)
    residuals = {each: torch.zeros(elements) for each in algorithms}
    seconds: dict[str, list[float]] = {each: [] for each in algorithms}
    for call in range(calls + 5):
        for algorithm in algorithms:
            tensor = gradient.clone()
            dist.barrier()
            start = time.perf_counter()
            gtopk.sparse_all_reduce(tensor, k=k, residual=residuals[algorithm], algorithm=algorithm)
            if call >= 5:  # the first connect
                seconds[algorithm].append(time.perf_counter() - start)
    if rank == 0:
        print(f"# sparse_all_reduce, {ranks} ranks, d {elements}, k {k}, {calls} calls each")
        print(f"{'min(ms)':>9} {'p50(ms)':>9} {'max(ms)':>9}  algorithm")
        for algorithm, taken in seconds.items():
            row = (min(taken), statistics.median(taken), max(taken))
            print(" ".join(f"{value * 1e3:9.2f}" for value in row), f" {algorithm}")


if __name__ == "__main__":
    main()
