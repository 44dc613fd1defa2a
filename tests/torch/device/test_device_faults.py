"""A device that fails while operations wait for it: what its rank and the others
are told, and that all of them can end. The device is a fake one (fake/device.hpp). Nothing here has
run on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gtopk
from helpers.device_values import FAKE, meet, values
from helpers.ranks import Rank, RankSet, works_on

pytestmark = pytest.mark.loopback

WHY = r"fake:0 has failed: .*CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"
TOLD = rf"of group '.*' on rank {{}}: group '.*' was aborted by rank 0 \(.*\): {WHY}"
LAUNCHING = 34  # the stream of the launcher; that of the inputs is 33


def test_on_two_ranks(two_with_device: RankSet, check: Callable) -> None:
    two_with_device.run(check, timeout=90.0)


def fail() -> None:
    """The device does, at once, whatever its streams wait for."""
    before = torch.ops.fake.set_stream(7)
    torch.ops.fake.fault()
    torch.ops.fake.set_stream(before)
    torch.ops.fake.await_standstill()


def is_told(me: Rank, work: Any) -> None:
    with pytest.raises(dist.DistBackendError, match=TOLD.format(me.rank)):
        work.get_future().wait()


# Each of these makes its tensors, and returns what calls a collective with them in a group.
Call = Callable[[Any], Any]


def _dense(me: Rank) -> Call:
    tensor = values(me).to(FAKE)
    return lambda group: dist.all_reduce(tensor, group=group, async_op=True)


def _sparse(me: Rank, d: int = 5000, **arguments: Any) -> Call:
    tensor, residual = values(me, d).to(FAKE), torch.zeros(d).to(FAKE)
    arguments = {"k": 10, "residual": residual, "async_op": True, **arguments}
    return lambda group: gtopk.sparse_all_reduce(tensor, group=group, **arguments)


def _sketch(me: Rank) -> Call:
    return _sparse(me, algorithm="sketch")


def _threshold(me: Rank) -> Call:
    return _sparse(me, select="threshold", state=torch.zeros(4, dtype=torch.float64))


def _message(me: Rank, sender: int = 0) -> Call:
    tensor, call = values(me).to(FAKE), dist.isend if me.rank == sender else dist.irecv
    return lambda group: call(tensor, 1 - me.rank, group=group)


def _blocking(me: Rank) -> Call:
    dense = _dense(me)

    def call(group: Any) -> Any:
        os.environ["GTOPK_BLOCKING_WAIT"] = "1"
        work = dense(group)
        del os.environ["GTOPK_BLOCKING_WAIT"]
        return work

    return call


CALLS = [_dense, _sparse, _sketch, _threshold, _message, _blocking]


def check_all_are_told(me: Rank, destroys: bool) -> None:
    calls, groups = [each(me) for each in CALLS], [dist.new_group() for _ in CALLS]
    inputs = torch.ones(3).to(FAKE)
    meet(me, "all groups are made")
    if me.rank == 0:
        torch.ops.fake.hold()
    works = [call(group) for call, group in zip(calls, groups, strict=True)]
    after = works[1].get_future().then(lambda future: future.value())
    if me.rank == 0:
        fail()
        with pytest.raises(dist.DistBackendError, match=TOLD.format(0)):
            works[0].wait()  # without a future
    for work in works:
        is_told(me, work)
    with pytest.raises(RuntimeError, match="has failed"):
        after.wait()
    for work, group in zip(works, groups, strict=True):
        with pytest.raises(dist.DistBackendError, match=TOLD.format(me.rank)):
            work.wait()
        with pytest.raises(dist.DistBackendError, match=TOLD.format(me.rank)):
            dist.all_reduce(torch.ones(3), group=group)
    works_on(me)  # on the CPU, in a group that had nothing on the device
    if me.rank == 0:
        with pytest.raises(RuntimeError, match="illegal memory access"):
            dist.all_reduce(inputs)
    meet(me, "nobody calls any more")
    if destroys:
        dist.destroy_process_group()


@pytest.mark.parametrize("destroys", [True, False])
def test_all_ranks_are_told_and_end(fake_library: str, destroys: bool) -> None:
    with RankSet(2, device=fake_library, destroys=False) as ranks:
        ranks.run(check_all_are_told, destroys, timeout=50.0)
        assert [code for code, _ in ranks.ends()] == [0, 0]


def check_device_fault_mid_operation_fails_it_on_both_ranks(me: Rank) -> None:
    """Rank 0's device has read the inputs, and then does nothing of what follows."""
    sketches = _sketch(me)
    sketches(None).get_future().wait()
    calls = [_dense(me), _message(me, sender=1), sketches]
    dense, message, sketch = zip(calls, [dist.new_group() for _ in calls], strict=True)
    meet(me, "kernels are loaded")
    called = torch.ops.fake.counts()["find"]
    early = [dense, message] if me.rank == 0 else []
    works = [call(group) for call, group in early]
    if me.rank == 0:
        torch.ops.fake.set_stream(LAUNCHING)
        torch.ops.fake.hold()
        torch.ops.fake.set_stream(0)
    works.append(sketch[0](sketch[1]))
    while torch.ops.fake.counts()["find"] == called:
        os.sched_yield()
    if me.rank == 0:
        torch.ops.fake.await_standstill()
        futures = [each.get_future() for each in works]
        assert not any(each.done() for each in futures)
        fail()
    meet(me, "the device of rank 0 has failed")
    if me.rank == 0:
        # Results come, and cannot be copied; or the watch is first.
        for future in futures[:2]:
            with pytest.raises(RuntimeError, match=r"illegal memory access|has failed"):
                future.wait()
        is_told(me, works[2])
    else:
        for call, group in (dense, message):
            call(group)
        is_told(me, works[0])
    meet(me, "rank 0 has been told")
    dist.destroy_process_group()


def test_device_fault_mid_operation(fake_library: str) -> None:
    with RankSet(2, device=fake_library, in_place=True, destroys=False) as ranks:
        ranks.run(check_device_fault_mid_operation_fails_it_on_both_ranks, timeout=50.0)
        assert [code for code, _ in ranks.ends()] == [0, 0]


def check_long_wait_queries_the_driver_and_calls_nothing_else(
    me: Rank,
) -> None:
    tensor = torch.ones(3).to(FAKE)
    dist.all_reduce(tensor)
    torch.ops.fake.hold()
    work = dist.all_reduce(tensor, async_op=True)
    before = torch.ops.fake.queries()
    while torch.ops.fake.queries() == before:  # the first time, its thread makes the device current
        os.sched_yield()
    counts = torch.ops.fake.counts()
    assert counts["set_current of watch"] > 0
    while torch.ops.fake.queries() == before + 1:
        os.sched_yield()
    assert torch.ops.fake.counts() == counts, "nothing else is called"
    torch.ops.fake.release()
    work.wait()
    assert tensor.cpu().tolist() == [4.0] * 3
