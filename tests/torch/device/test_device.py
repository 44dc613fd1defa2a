"""Tensors on a device, which here is a fake one (fake/device.hpp).

Reading its memory without a copy crashes, and its streams run at random times. Nothing here has run
on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import gtopk
from helpers.device_values import FAKE, fill, meet, read_later, synchronize, values
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

SIZE = 2


def test_on_two_ranks(two_with_device: RankSet, check: Callable) -> None:
    two_with_device.run(check, timeout=90.0)


def _all_reduce(me: Rank, to: Callable) -> list[torch.Tensor]:
    done = []
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        tensor = to(values(me, dtype=dtype))
        dist.all_reduce(tensor)
        done.append(tensor)
    strided = to(values(me)).view(3, 4).t()
    dist.all_reduce(strided, op=dist.ReduceOp.MAX)
    return [*done, strided]


def _rooted(me: Rank, to: Callable) -> list[torch.Tensor]:
    sent, reduced = to(values(me)), to(values(me))
    dist.broadcast(sent, 1)
    dist.reduce(reduced, 0)
    gathered = [to(torch.zeros(12)) for _ in range(me.size)] if me.rank == 1 else []
    dist.gather(to(values(me)), gathered or None, dst=1)
    parts = [to(values(me) + i) for i in range(me.size)] if me.rank == 0 else None
    mine = to(torch.zeros(12))
    dist.scatter(mine, parts, src=0)
    return [sent, mine, *gathered, *([reduced] if me.rank == 0 else [])]


def _gathered(me: Rank, to: Callable) -> list[torch.Tensor]:
    listed = [to(torch.zeros(12)) for _ in range(me.size)]
    dist.all_gather(listed, to(values(me)))
    whole = to(torch.zeros(12 * me.size))
    dist.all_gather_into_tensor(whole, to(values(me)))
    inside = to(values(me, 24))  # the input is a part of the output, as in FSDP
    dist.all_gather_into_tensor(inside, inside[12 * me.rank : 12 * (me.rank + 1)])
    return [*listed, whole, inside]


def _scattered(me: Rank, to: Callable) -> list[torch.Tensor]:
    part, listed = to(torch.zeros(6)), to(torch.zeros(6))
    dist.reduce_scatter_tensor(part, to(values(me)))
    dist.reduce_scatter(listed, [to(values(me, 6)), to(values(me, 6) + 1)])
    single = to(torch.zeros(4 + me.rank * 4))
    dist.all_to_all_single(
        single, to(values(me, 6)), [2 + 2 * me.rank] * 2 if me.rank else [2, 2], [2, 4]
    )
    buffers = [to(torch.zeros(3)) for _ in range(me.size)]
    dist.all_to_all(buffers, [to(values(me, 3)), to(values(me, 3) * 2)])
    return [part, listed, single, *buffers]


def _coalesced(me: Rank, to: Callable) -> list[torch.Tensor]:
    reduced = [to(values(me, 5)), to(values(me, 8))]
    dist.all_reduce_coalesced(reduced)
    with dist._coalescing_manager():
        buffers = [to(torch.zeros(10)), to(torch.zeros(6))]
        for buffer, n in zip(buffers, (5, 3), strict=True):
            dist.all_gather_into_tensor(buffer, to(values(me, n)))
    with dist._coalescing_manager():
        parts = [to(torch.zeros(5)), to(torch.zeros(3))]
        for part, n in zip(parts, (10, 6), strict=True):
            dist.reduce_scatter_tensor(part, to(values(me, n)))
    return [*reduced, *buffers, *parts]


def _messages(me: Rank, to: Callable) -> list[torch.Tensor]:
    other = 1 - me.rank
    sent = dist.isend(to(values(me)), other, tag=3)
    received, any_one = to(torch.zeros(12)), to(torch.zeros(3))
    dist.recv(received, other, tag=3)
    sent.wait()
    sent = dist.isend(to(values(me, 3)), other, tag=4)
    assert dist.recv(any_one, tag=4) == other
    sent.wait()
    return [received, any_one]


def _sparse(me: Rank, to: Callable) -> list[torch.Tensor]:
    done = []
    for dtype in (torch.float32, torch.bfloat16):
        for algorithm in ("gtopk", "topk", "dense", "rs-ag"):
            tensor, residual = to(values(me, 200, dtype)), to(values(me, 200) / 7)
            gtopk.sparse_all_reduce(tensor, k=9, residual=residual, algorithm=algorithm)
            done += [tensor, residual]
    pieces, residual = [to(values(me, 30)), to(values(me, 50))], to(torch.zeros(80))
    gtopk.sparse_all_reduce(pieces, density=0.1, residual=residual, wire="bf16")
    strided = to(values(me, 200)).view(20, 10).t()  # is staged
    gtopk.sparse_all_reduce(strided, k=9)
    return [*done, *pieces, residual, strided]


CALLS = [
    _all_reduce,
    _rooted,
    _gathered,
    _scattered,
    _coalesced,
    _messages,
    _sparse,
]


def check_results_are_those_of_the_cpu_bit_for_bit(me: Rank) -> None:
    for call in CALLS:
        expected = call(me, lambda tensor: tensor)
        seen = call(me, lambda tensor: tensor.to(FAKE))
        assert all(each.device.type == FAKE for each in seen)
        for one, other in zip(expected, seen, strict=True):
            assert torch.equal(one, other.cpu()), call.__name__


def check_work_and_wait_are_stream_ordered_and_do_not_block_host(
    me: Rank,
) -> None:
    tensor = torch.zeros(1000).to(FAKE)
    torch.ops.fake.hold()
    fill(tensor, 1.0 + me.rank)  # runs once the device is released
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    after = read_later(tensor)
    fill(tensor, -1.0)  # after the result
    assert not work.is_completed()
    meet(me, "nothing has been sent")
    torch.ops.fake.release()
    synchronize()
    assert after.tolist() == [3.0] * 1000
    while not work.is_completed():  # the device may have its result before the Work is told
        os.sched_yield()
    assert tensor.cpu().tolist() == [-1.0] * 1000


def check_wait_does_not_wait_for_other_ranks(me: Rank) -> None:
    tensor = torch.full((10,), 1.0 + me.rank).to(FAKE)
    if me.rank == 1:
        me.store.wait(["rank 0 has waited"], timedelta(seconds=60))
    works = []
    for _ in range(3):
        works.append(dist.all_reduce(tensor, async_op=True))
        works[-1].wait()
    after = read_later(tensor)
    if me.rank == 0:
        assert not works[0].is_completed()
        me.store.set("rank 0 has waited", "yes")
    synchronize()
    assert after.tolist() == [12.0] * 10


def check_tensors_live_until_the_device_is_done_with_them(me: Rank) -> None:
    other = 1 - me.rank
    torch.ops.fake.hold()
    tensor = torch.empty(5000, device=FAKE)
    fill(tensor, 5.0 + me.rank)
    dist.isend(tensor, other, tag=8)
    del tensor
    fill(torch.empty(5000, device=FAKE), 99.0)  # overwrites it if it was freed
    received = torch.empty(5000, device=FAKE)
    work = dist.irecv(received, other, tag=8)
    torch.ops.fake.release()
    work.wait()
    assert received.cpu().tolist() == [5.0 + other] * 5000
    # Nobody keeps the reduced tensors, and nobody waits for them.
    for _ in range(20):
        dist.all_reduce(torch.ones(3000).to(FAKE), async_op=True)
    last = torch.ones(3000).to(FAKE)
    dist.all_reduce(last)
    assert last.cpu().tolist() == [2.0] * 3000


def check_futures_carry_the_device(me: Rank) -> None:
    tensor = torch.empty(100, device=FAKE)
    torch.ops.fake.hold()
    fill(tensor, 2.0)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert not future.done()
    torch.ops.fake.release()
    before = torch.ops.fake.set_stream(7)
    assert doubled.wait().cpu().tolist() == [8.0] * 100
    assert future.wait()[0].cpu().tolist() == [4.0] * 100
    torch.ops.fake.set_stream(before)
    # for several operations at once
    with dist._coalescing_manager(device=torch.device(FAKE), async_ops=True) as window:
        dist.all_reduce(tensor)
    window.wait()
    assert tensor.cpu().tolist() == [8.0] * 100
    # the operations of one in which a call raises, of which some have ended by then
    group = dist.group.WORLD
    group._start_coalescing(torch.device(FAKE))
    tensors = [torch.ones(100, device=FAKE) for _ in range(20)]
    for each in tensors:
        group.allreduce([each]).wait()
        with pytest.raises(ValueError, match="overlapping elements"):
            group.broadcast(torch.ones(1, device=FAKE).expand(3), 0)
    work = group._end_coalescing(torch.device(FAKE))
    results = work.get_future().wait()
    assert all(one is other for one, other in zip(results, tensors, strict=True))
    assert all(each.cpu().tolist() == [2.0] * 100 for each in results)


def check_streams_and_groups_overlap(me: Rank) -> None:
    groups = [dist.new_group(backend="cpu:gtopk,fake:gtopk") for _ in range(3)]
    tensors = [torch.empty(400, device=FAKE) for _ in groups]
    results = []
    for i, (group, tensor) in enumerate(zip(groups, tensors, strict=True)):
        before = torch.ops.fake.set_stream(20 + i)
        fill(tensor, float(i))
        work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait()
        results.append(read_later(tensor))
        synchronize()
        torch.ops.fake.set_stream(before)
    for i, result in enumerate(results):
        assert result.tolist() == [2.0 * i] * 400
    for group in groups:
        dist.destroy_process_group(group)


def check_nothing_is_synchronised(me: Rank) -> None:
    tensor, residual = torch.ones(500).to(FAKE), torch.zeros(500).to(FAKE)
    gtopk.sparse_all_reduce(tensor, k=5, residual=residual)  # a zero copied, once
    before = torch.ops.fake.counts()
    for _ in range(10):
        dist.all_reduce(tensor, async_op=True).wait()
        gtopk.sparse_all_reduce(tensor, k=5, residual=residual)
        dist.broadcast(tensor, 0)
    made = {
        name: count - before.get(name, 0)
        for name, count in torch.ops.fake.counts().items()
        if count != before.get(name, 0) and name not in ("bytes_crossed", "pinned_bytes")
    }
    copies = 10 * (2 + 3 + (2 if me.rank == 0 else 1))
    launched = {"select": 10, "commit": 10}
    assert made.pop("wait_value", 0) <= 30  # none for what ends before it is waited for
    assert made == {"copy": copies, "host_function": 30} | launched
    synchronize()


def check_receives_may_end_in_any_order(me: Rank) -> None:
    buffers = [torch.empty(10, device=FAKE) for _ in range(6)]
    if me.rank == 0:
        works = [dist.irecv(buffer, 1, tag=tag) for tag, buffer in enumerate(buffers)]
        for tag in reversed(range(6)):
            works[tag].wait()
            assert buffers[tag].cpu().tolist() == [float(tag)] * 10
            dist.send(buffers[tag], 1, tag=100)  # only now is the next one sent
    else:
        for tag in reversed(range(6)):
            dist.send(torch.full((10,), float(tag)).to(FAKE), 0, tag=tag)
            dist.recv(buffers[tag], 0, tag=100)
    dist.barrier()


def check_host_message_does_not_overtake_a_device_message(me: Rank) -> None:
    if me.rank == 0:
        tensor = torch.empty(10, device=FAKE)
        torch.ops.fake.hold()
        fill(tensor, 1.0)
        works = [dist.isend(tensor, 1, tag=2), dist.isend(torch.full((10,), 2.0), 1, tag=2)]
        torch.ops.fake.release()
        for work in works:
            work.wait()
    else:
        first, second = torch.zeros(10), torch.zeros(10)
        dist.recv(first, 0, tag=2)
        dist.recv(second, 0, tag=2)
        assert (first[0].item(), second[0].item()) == (1.0, 2.0)
    dist.barrier()


def check_unawaited_error_is_raised_by_the_next_wait(me: Rank) -> None:
    wrong = torch.ones(10 + me.rank).to(FAKE)
    torch.ops.fake.hold()
    work = dist.all_reduce(wrong.clone(), async_op=True)
    work.wait()  # returns: the operation cannot have failed yet
    torch.ops.fake.release()
    late = dist.all_reduce(torch.ones(3).to(FAKE), async_op=True)
    dist.barrier()  # it starts when both have ended
    with pytest.raises(dist.DistBackendError, match=r"d=1[01].*d=1[01]"):
        late.wait()
    late.wait()
    with pytest.raises(dist.DistBackendError, match=r"d=1[01].*d=1[01]"):
        work.wait()
    with pytest.raises(dist.DistBackendError, match="d=1"):
        dist.all_reduce(wrong, async_op=True).get_future().wait()
    with pytest.raises(dist.DistBackendError, match="d=1"):
        dist.all_reduce(wrong, async_op=True).wait(timedelta(seconds=30))
    right = torch.ones(3).to(FAKE)
    dist.all_reduce(right)
    assert right.cpu().tolist() == [2.0] * 3


def check_a_blocking_wait_raises_what_went_wrong(me: Rank) -> None:

    os.environ["GTOPK_BLOCKING_WAIT"] = "1"
    try:
        with pytest.raises(dist.DistBackendError, match="d=1"):
            dist.all_reduce(torch.ones(10 + me.rank).to(FAKE))
        for call in CALLS:
            expected = call(me, lambda tensor: tensor)
            seen = call(me, lambda tensor: tensor.to(FAKE))
            for one, other in zip(expected, seen, strict=True):
                assert torch.equal(one, other.cpu()), call.__name__
        os.environ["GTOPK_BLOCKING_WAIT"] = "yes"
        with pytest.raises(ValueError, match="GTOPK_BLOCKING_WAIT must be 0 or 1, given 'yes'"):
            dist.all_reduce(torch.ones(3).to(FAKE))
    finally:
        del os.environ["GTOPK_BLOCKING_WAIT"]


def check_bad_arguments_are_errors_here_and_the_group_works_on(me: Rank) -> None:
    there, here = torch.ones(4).to(FAKE), torch.ones(4)
    with pytest.raises(ValueError, match="takes tensors of one device, given some on"):
        dist.all_to_all([there, here], [here, there])
    with pytest.raises(ValueError, match="residual must be on fake:0 like the tensor"):
        gtopk.sparse_all_reduce(there, k=1, residual=here)
    with pytest.raises(ValueError, match="must be on one device"):
        gtopk.sparse_all_reduce([there, here], k=1)
    state = torch.zeros(4, dtype=torch.float64).to(FAKE)
    with pytest.raises(NotImplementedError, match="state must be on the CPU, given one on fake:0"):
        gtopk.sparse_all_reduce(there, k=1, select="threshold", state=state)
    gathered = [torch.zeros(4).to(FAKE) for _ in range(me.size)]
    pair = [torch.ones(4).to(FAKE), torch.ones(4).to(FAKE)]
    taken = torch.ops.fake.counts()["pinned_bytes"]
    torch.ops.fake.capture(True)
    calls = (
        dist.all_reduce,
        lambda tensor: dist.irecv(tensor, 1 - me.rank),
        lambda tensor: dist.all_gather(gathered, tensor),
        lambda tensor: dist.all_reduce_coalesced(pair),
        lambda tensor: gtopk.sparse_all_reduce(tensor, k=1),
        lambda tensor: gtopk.sparse_all_reduce(tensor, k=1, algorithm="dense"),
    )
    try:
        for call in calls:
            with pytest.raises(NotImplementedError, match="captured into a CUDA graph"):
                call(there)
        assert torch.ops.fake.counts()["pinned_bytes"] == taken, "memory that nobody can use"
    finally:
        torch.ops.fake.capture(False)
    work = there.clone()
    dist.all_reduce(work)
    assert work.cpu().tolist() == [2.0] * 4
