"""Benchmark: the whole sparse all-reduce as torch calls it: select, exchange and write back.

Runs on every rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; `tools/bench/run call`
starts it in a network lab or on loopback. Rank 0 prints one row.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist

import gtopk


def main() -> None:
    """Measure call after call and report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=500_000)
    parser.add_argument("-k", type=int, default=25_557)
    parser.add_argument("-n", "--calls", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gtopk")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1 + rank)
    gradient = torch.randn(arguments.elements, generator=generator)
    residual = torch.zeros(arguments.elements)
    seconds = []
    for call in range(arguments.calls + 5):
        tensor = gradient.clone()
        dist.barrier()
        start = time.perf_counter()
        gtopk.sparse_all_reduce(tensor, k=arguments.k, residual=residual)
        if call >= 5:  # the first connect
            seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(f"# sparse_all_reduce, {ranks} ranks, d {arguments.elements}, k {arguments.k}")
        print(f"{'min(ms)':>9} {'p50(ms)':>9} {'max(ms)':>9}")
        row = (min(seconds), statistics.median(seconds), max(seconds))
        print(" ".join(f"{value * 1e3:9.2f}" for value in row))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
