"""Room: tests/torch. What torch asks of a Work besides its end: numbers, and its registry."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, works_on
from torch._C._distributed_c10d import WorkResult, _get_work_registry_size
from torch.distributed._functional_collectives import (
    allow_inflight_collective_as_graph_input_ctx,
)

pytestmark = pytest.mark.loopback


def check_results_as_numbers(me: Rank) -> None:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert WorkResult(work.get_future_result().wait()) == WorkResult.SUCCESS
    assert work.is_completed()
    work = dist.all_reduce(torch.ones(3 + me.rank), async_op=True)
    assert WorkResult(work.get_future_result().wait()) == WorkResult.UNKNOWN  # the group goes on
    group = dist.new_group()
    if me.rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        early = work.get_future_result()
        group.abort()
        for result in (early, work.get_future_result()):
            assert WorkResult(result.wait()) == WorkResult.COMM_ERROR
    works_on(me)


def check_a_work_waited_for_is_no_longer_in_flight(me: Rank) -> None:
    with allow_inflight_collective_as_graph_input_ctx():
        world = dist.group.WORLD
        for call in (world.allreduce, world.allreduce_coalesced):
            work = call([torch.ones(1)])
            assert _get_work_registry_size() == 1, call
            work.wait()
            assert _get_work_registry_size() == 0, call
        with dist._coalescing_manager(async_ops=True) as window:
            dist.all_reduce(torch.ones(1))
        assert _get_work_registry_size() == 1
        window.wait()
        assert _get_work_registry_size() == 0
        work = dist.all_reduce(torch.ones(3 + me.rank), async_op=True)
        with pytest.raises(dist.DistBackendError, match="ranks differ"):
            work.wait()
        assert _get_work_registry_size() == 0
    works_on(me)


def test_results_are_numbers_and_works_leave_the_registry(two):
    two.run(check_results_as_numbers)
    two.run(check_a_work_waited_for_is_no_longer_in_flight)
