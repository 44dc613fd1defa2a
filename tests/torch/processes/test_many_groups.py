"""What many groups cost a process: threads, descriptors and memory."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import Rank, RankSet, descriptors, threads

pytestmark = pytest.mark.loopback

GROUPS = 100
# A bound for a hundred groups that have all been used. A group takes a few KB itself; the figure
# includes torch's part and what the store's client keeps.
MOST_BYTES = 6 * 2**20


def own_threads() -> list[str]:
    """The names of gtopk's threads."""
    return sorted(name for name in threads().values() if name.startswith("gtopk"))


def memory() -> int:
    """Bytes of memory that only this process uses."""
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    kilobytes = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    return 1024 * (kilobytes["Private_Dirty:"] + kilobytes["Private_Clean:"])


def used(group: dist.ProcessGroup) -> None:
    """Uses a group in both ways: recursive doubling and the ring."""
    for numel in (3, 40_000):
        tensor = torch.ones(numel)
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == group.size()


def costs_of_many(me: Rank) -> dict[str, int]:
    first = [dist.new_group(backend="gtopk") for _ in range(3)]  # creates what is created only once
    for group in (None, *first):
        used(group or dist.group.WORLD)
    before = (own_threads(), len(descriptors()), memory())
    many = [dist.new_group(backend="gtopk") for _ in range(GROUPS)]
    for group in many:
        used(group)
    after = (own_threads(), len(descriptors()), memory())
    assert before[0].count("gtopk-engine") == 1, before[0]
    assert set(after[0]) == set(before[0]), (before[0], after[0])
    assert after[0].count("gtopk-engine") == 1, after[0]
    assert len(after[0]) <= len(before[0]) + 2, (before[0], after[0])  # futures: as many as wait
    assert after[1] == before[1], (before[1], after[1])
    for group in (*many, *first):
        dist.destroy_process_group(group)
    used(dist.group.WORLD)
    return {"bytes": after[2] - before[2], "threads": len(after[0]), "descriptors": after[1]}


@pytest.fixture(scope="module")
def eight() -> Iterator[RankSet]:
    with RankSet(8) as ranks:
        yield ranks


def test_hundred_groups_add_no_descriptors_and_little_memory(eight: RankSet) -> None:
    costs = eight.run(costs_of_many)
    print(costs)
    for cost in costs:
        assert cost["bytes"] < MOST_BYTES, costs
