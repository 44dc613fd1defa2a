"""Benchmark: small point-to-point messages, paired with gloo.

In a batch, rank 0 calls `isend` for every message, rank 1 calls `irecv`, and then both wait for
all. A ping-pong sends one message at a time, back and forth; half of the time is reported.

Runs on ranks 0 and 1 with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; `tools/bench/run
messages --hosts 2 --rate none` starts it. Rank 0 prints the rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

import gtopk  # noqa: F401  (registers the backend)


def batch(group: dist.ProcessGroup, messages: list[torch.Tensor]) -> float:
    """Returns the seconds per message, from the first call to the last message's end."""
    rank = dist.get_rank()
    dist.barrier()
    start = time.perf_counter()
    call = dist.isend if rank == 0 else dist.irecv
    works = [call(message, 1 - rank, group=group) for message in messages]
    for work in works:
        assert work is not None
        work.wait()
    dist.barrier()
    return (time.perf_counter() - start) / len(messages)


def ping_pong(group: dist.ProcessGroup, messages: list[torch.Tensor]) -> float:
    """Returns half the seconds of a message and its answer."""
    rank = dist.get_rank()
    dist.barrier()
    start = time.perf_counter()
    for message in messages:
        if rank == 0:
            dist.send(message, 1, group=group)
            dist.recv(message, 1, group=group)
        else:
            dist.recv(message, 0, group=group)
            dist.send(message, 0, group=group)
    return (time.perf_counter() - start) / len(messages) / 2


def main() -> None:
    """Measures pair by pair and reports on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="8,8192", help="bytes of a message, divisible by 4")
    parser.add_argument("-n", "--messages", type=int, default=1000, help="in a batch")
    parser.add_argument("--pairs", type=int, default=21)
    arguments = parser.parse_args()
    dist.init_process_group("gtopk")
    if dist.get_world_size() != 2:
        raise SystemExit(f"messages: {dist.get_world_size()} ranks: expected 2")
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    assert ours is not None
    assert isinstance(gloo, dist.ProcessGroup)
    if dist.get_rank() == 0:
        print(f"# {arguments.messages} messages each, {arguments.pairs} pairs")
        print("  bytes  way        gtopk(us)  gloo(us)  ratio  range          load")
    for size in map(int, arguments.sizes.split(",")):
        messages = [torch.zeros(size // 4) for _ in range(arguments.messages)]
        for name, way in (("batch", batch), ("ping-pong", ping_pong)):
            for group in (ours, gloo):
                way(group, messages)  # this connects
            pairs = [(way(ours, messages), way(gloo, messages)) for _ in range(arguments.pairs)]
            if dist.get_rank() == 0:
                mine, others = (statistics.median(column) for column in zip(*pairs, strict=True))
                ratios = sorted(one / other for one, other in pairs)
                print(
                    f"{size:7}  {name:9} {mine * 1e6:10.1f} {others * 1e6:9.1f} ",
                    f"{statistics.median(ratios):6.2f}  {ratios[0]:.2f} to {ratios[-1]:.2f} ",
                    f"{os.getloadavg()[0]:7.1f}",
                    sep="",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
