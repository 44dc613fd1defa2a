"""Benchmark: calls through torch.

It times the whole sparse all-reduce: select, exchange and write back. Several algorithms and wires
take turns if --algorithm is given more than once, and with --sockets so does the same walk of raw
lists over plain sockets. With --small, it times all_reduce of 8 bytes in five runs paired with
gloo, and shows where each microsecond goes.

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
import wire

import gtopk


class Small:
    """Timed calls of all_reduce of 8 bytes."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Use this group, gtopk's or another's."""
        self.group = group
        self.tensor = torch.zeros(2)
        self.whole: list[float] = []
        self.operator: list[float] = []

    def run(self, calls: int, *, future: bool = False) -> None:
        """Adds this many calls, and waits for each by its Work or by the Work's future."""
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
        for _ in range(10):  # so that a disturbance affects both
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


class Sparse:
    """One way to do the whole sparse all-reduce: select, exchange and write back."""

    def __init__(self, way: str, gradient: torch.Tensor, k: int) -> None:
        """Prepare one way. way: the names of an algorithm and a wire, separated by a colon."""
        self.name = way
        self.algorithm, self.wire = way.split(":")
        self.gradient = gradient
        self.tensor = torch.empty_like(gradient)
        self.residual = torch.zeros_like(gradient)
        self.k = k

    def prepare(self) -> None:
        """Makes the tensor of the next call."""
        self.tensor.copy_(self.gradient)

    def run(self) -> None:
        """Makes one call."""
        gtopk.sparse_all_reduce(
            self.tensor,
            k=self.k,
            residual=self.residual,
            algorithm=self.algorithm,
            wire=self.wire,
        )


class Sockets:
    """The same walk of raw lists over plain sockets, without selecting and merging (wire.py)."""

    name = "plain sockets, raw"

    def __init__(self, k: int) -> None:
        """Prepare lists of k pairs of 8 bytes."""
        ranks = dist.get_world_size()
        rounds = ranks.bit_length() - 1
        if ranks != 1 << rounds:
            raise SystemExit(f"call: --sockets with {ranks} ranks: expected a power of two")
        self.partners = wire.connect_partners(dist.get_rank(), rounds)
        self.data = memoryview(bytes(8 * k + 1))
        self.buffer = memoryview(bytearray(8 * k + 1))

    def prepare(self) -> None:
        """Does nothing."""

    def run(self) -> None:
        """Exchanges a list with the partner of each round."""
        for connection in self.partners:
            wire.exchange(connection, self.data, self.buffer, acknowledge=True)


def measure_sparse(arguments: argparse.Namespace) -> None:
    """Prints the times of each way; a call's time is the slowest rank's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1 + rank)
    gradient = torch.randn(arguments.elements, generator=generator)
    names = [way if ":" in way else f"{way}:lossless" for way in arguments.algorithm or ["gtopk"]]
    ways: list[Sparse | Sockets] = [Sparse(name, gradient, arguments.k) for name in names]
    if arguments.sockets:
        ways.append(Sockets(arguments.k))
    warm_up, calls = 5, arguments.calls or 50  # the first calls connect
    # For each call and way, this has the seconds, and the processor time of the whole process.
    taken = torch.zeros(2, calls, len(ways), dtype=torch.float64)
    for call in range(-warm_up, calls):
        for column, way in enumerate(ways):
            way.prepare()
            dist.barrier()
            time.sleep(arguments.gap)
            cpu, start = time.process_time(), time.perf_counter()
            way.run()
            if call >= 0:
                taken[0, call, column] = time.perf_counter() - start
                taken[1, call, column] = time.process_time() - cpu
    cpu_seconds = taken[1].clone()
    dist.all_reduce(taken[0], op=dist.ReduceOp.MAX)
    dist.all_reduce(cpu_seconds)
    if rank != 0:
        return
    milliseconds = taken[0] * 1e3
    print(
        f"# sparse_all_reduce, {ranks} ranks, d {arguments.elements}, k {arguments.k}, {calls} ",
        end="",
    )
    print(f"calls each in turn, {arguments.gap * 1e3:g} ms before each; the slowest rank's time")
    print(f"# cpu: the mean of a rank; load {os.getloadavg()[0]:.1f}")
    over = ", over the last" if arguments.sockets else ""
    print(f"{'min(ms)':>9} {'p50(ms)':>9} {'max(ms)':>9} {'cpu(ms)':>9}  way{over}")
    for column, way in enumerate(ways):
        column_of = milliseconds[:, column]
        cpu_of = cpu_seconds[:, column].mean().item() / ranks * 1e3
        row = (column_of.min(), column_of.median(), column_of.max(), cpu_of)
        line = " ".join(f"{float(value):9.2f}" for value in row) + f"  {way.name}"
        if arguments.sockets:
            ratios = milliseconds[:, column] / milliseconds[:, -1]
            line += f", {ratios.median():.2f}"
        print(line)


def main() -> None:
    """Measures call by call and reports on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=500_000)
    parser.add_argument("-k", type=int, default=25_557)
    parser.add_argument(
        "--algorithm",
        action="append",
        help="gtopk, or with a wire gtopk:bf16 (default lossless); repeat it to compare",
    )
    parser.add_argument("--sockets", action="store_true", help="compare with plain sockets")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds before each call")
    parser.add_argument("-n", "--calls", type=int, help="50, of --small 2,000 a run")
    parser.add_argument("--small", action="store_true", help="all_reduce of 8 bytes, beside gloo")
    parser.add_argument("--runs", type=int, default=5, help="paired runs of --small")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    if arguments.small:
        measure_small(arguments.calls or 2000, arguments.runs)
    else:
        measure_sparse(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
