"""DTensors on a device, here a fake one: redistributed as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from helpers.device_values import FAKE
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


def test_on_two_ranks(two_with_device: RankSet, check: Callable) -> None:
    two_with_device.run(check, timeout=90.0)


def parts_of(me: Rank, device: str) -> list[torch.Tensor]:
    """What this rank has after each redistribution."""
    mesh = init_device_mesh(device, (me.size,))
    whole = torch.arange(30.0).view(6, 5).to(device)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    summands = DTensor.from_local(whole * (me.rank + 1), mesh, [Partial()], run_check=False)
    ways = [(sharded, Replicate()), (sharded, Shard(1)), (summands, Replicate())]
    ways += [(summands, Shard(0)), (summands, Shard(1))]
    return [sharded.to_local(), *(each.redistribute(mesh, [to]).to_local() for each, to in ways)]


def check_redistributions_give_what_they_give_on_the_cpu(me: Rank) -> None:
    there = parts_of(me, FAKE)
    assert {each.device.type for each in there} == {FAKE}
    for seen, expected in zip(there, parts_of(me, "cpu"), strict=True):
        assert torch.equal(seen.cpu(), expected)
