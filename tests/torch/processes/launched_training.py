"""A rank of a training started by a launcher that sets none of torch's
variables: it joins in each way in turn, trains, compares replicas, and meets in a group of some
ranks.

Prints one line per run, with what test_launch.py expects of every rank.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk


def replicas_after_training(steps: int = 40) -> tuple[bool, bool]:
    """Whether all ranks have the same parameters, and whether the loss went down."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    images = torch.randn(256, 16)
    labels = images[:, :4].argmax(dim=1)
    ddp = DistributedDataParallel(net)
    gtopk.attach(ddp, density=0.05)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(ddp(images[rank::ranks]), labels[rank::ranks])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    ends = torch.stack([losses[0], losses[-1]])
    dist.all_reduce(ends)
    own = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    replicas = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(replicas, own)
    return all(torch.equal(each, own) for each in replicas), bool(ends[1] < ends[0])


def sum_of_even_ranks() -> float:
    """The sum of ones over the even ranks, on those ranks."""
    evens = dist.new_group(list(range(0, dist.get_world_size(), 2)))
    one = torch.ones(1)
    if dist.get_rank() % 2 == 0:
        dist.all_reduce(one, group=evens)
    return one.item()


def live(way: str) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    alike, better = replicas_after_training()
    evens = sum_of_even_ranks()
    line = f"{way}: rank {rank} of {ranks}, alike {alike}, better {better}, evens {evens:g}\n"
    os.write(1, line.encode())  # whole lines, whatever other ranks write
    dist.destroy_process_group()


dist.init_process_group("gtopk", init_method="pmix://")
assert "RANK" not in os.environ
live("pmix://")

told = gtopk.launch_env()
assert told["LOCAL_WORLD_SIZE"] == told["WORLD_SIZE"] == os.environ["WORLD_SIZE"]
assert told["LOCAL_RANK"] == told["RANK"]
dist.init_process_group("gtopk")
live("launch_env")
