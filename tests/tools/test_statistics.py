"""gtopk.stats: of all groups of a process, whoever made them, and of one."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.ranks import Rank, RankSet, run_script

pytestmark = pytest.mark.loopback

SUMS = ("operations", "messages_sent", "messages_received", "bytes_sent", "bytes_received")


def exchange(group: dist.ProcessGroup, times: int = 1) -> None:
    for _ in range(times):
        dist.all_reduce(torch.ones(1000), group=group)


def since(before: dict) -> list[int]:
    now = gtopk.stats()
    return [now[name] - before[name] for name in SUMS]


def of(*groups: dist.ProcessGroup) -> list[int]:
    every = [gtopk.stats(each) for each in groups]
    return [sum(each[name] for each in every) for name in SUMS]


def check_all_groups_are_added_up(me: Rank) -> None:
    before = gtopk.stats()
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][me.rank // 2]
    every = dist.new_group(list(range(me.size)))
    exchange(pair, 2)
    exchange(every, 3)
    assert of(pair)[0] >= 2
    assert since(before) == of(pair, every)
    assert gtopk.stats()["most_in_flight"] >= gtopk.stats(every)["most_in_flight"] >= 1
    dist.barrier()


def check_a_group_that_has_ended_still_counts(me: Rank) -> None:
    before = gtopk.stats()
    group = dist.new_group(list(range(me.size)))
    exchange(group, 5)
    made = of(group)
    assert made[SUMS.index("bytes_sent")] > 0
    dist.destroy_process_group(group)
    assert since(before) == made
    with pytest.raises(Exception, match=r"destroyed|Invalid process group|not registered"):
        gtopk.stats(group)
    dist.barrier()


def check_groups_outside_of_torchs_registry_count(me: Rank) -> None:
    before = gtopk.stats()
    store = dist.PrefixStore("alone", me.store)
    backend = gtopk.create_backend(store, me.rank, me.size, timedelta(seconds=60), name="alone")
    backend.allreduce([torch.ones(1000)]).wait()
    assert since(before) == [backend.statistics()[name] for name in SUMS]
    replicas = gtopk.ReplicaGroup()
    for quorum in range(2):  # the ranks of the first one leave
        middle = since(before)
        replicas.configure(f"127.0.0.1:{me.port}/replicas/{quorum}", "", me.rank, me.size)
        replicas.allreduce([torch.ones(1000)]).wait()
        added = [now - then for now, then in zip(since(before), middle, strict=True)]
        assert added == of(replicas), quorum
    replicas.shutdown()
    backend.shutdown()
    dist.barrier()


def trains_over_a_group_beside_the_default_one(me: Rank) -> None:
    """As frameworks do that make a group of their own: DDP reduces over it."""
    store = dist.PrefixStore("beside", me.store)
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.size)
    with pytest.raises(RuntimeError, match="this process has not been in a gtopk group"):
        gtopk.stats()
    group = dist.new_group(list(range(me.size)), backend="gtopk")
    ddp = DistributedDataParallel(nn.Linear(64, 64), process_group=group)
    gtopk.attach(ddp, density=0.05)
    before = gtopk.stats()["bytes_sent"]
    ddp(torch.ones(2, 64)).sum().backward()
    # Two values and their indices at the least; a mean of the biases.
    assert gtopk.stats()["bytes_sent"] - before > 64 * 4
    assert gtopk.stats()["bytes_sent"] == gtopk.stats(group)["bytes_sent"]
    assert gtopk.stats()["plan"] is gtopk.stats()["diagnosis"] is None
    dist.destroy_process_group()
    left = gtopk.stats()
    assert left["bytes_sent"] > before
    assert left["transport"] == ""


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


def test_gtopk_group_beside_a_gloo_default_group_is_counted(two_apart: RankSet) -> None:
    two_apart.run(trains_over_a_group_beside_the_default_one)


def test_stats_raise_without_a_group_and_start_anew_after_fork() -> None:
    script = """
import os, torch, torch.distributed as dist, gtopk
def refused():
    try:
        gtopk.stats()
    except RuntimeError as error:
        return "has not been in a gtopk group" in str(error)
assert refused()
def count():
    dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    made = gtopk.stats(dist.group.WORLD)["operations"]
    dist.destroy_process_group()
    return made
made = count()
assert gtopk.stats()["operations"] == made > 0
child = os.fork()
if child == 0:
    assert refused()
    assert count() == gtopk.stats()["operations"]
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert gtopk.stats()["operations"] == made
print("counted")
"""
    done = run_script(script)
    assert done.stdout == "counted\n", done.stdout + done.stderr
