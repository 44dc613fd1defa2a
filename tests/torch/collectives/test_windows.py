"""Coalescing windows: several operations, one Work. Batches are none."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from helpers.callbacks import wait
from helpers.collectives import usable
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

CPU = torch.device("cpu")


def world() -> dist.ProcessGroup:
    return dist.distributed_c10d._get_default_group()


def ring(me: Rank, count: int = 1) -> tuple[list[dist.P2POp], list[torch.Tensor]]:
    """Messages to the next rank and from the previous, and the tensors received into."""
    right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    buffers = [torch.empty(3) for _ in range(count)]
    calls = [
        dist.P2POp(dist.isend, torch.full((3,), float(10 * me.rank + i)), right)
        for i in range(count)
    ]
    return calls + [dist.P2POp(dist.irecv, buffer, left) for buffer in buffers], buffers


def arrived(me: Rank, buffers: list[torch.Tensor]) -> bool:
    left = (me.rank - 1) % me.size
    return all(bool((buffer == 10 * left + i).all()) for i, buffer in enumerate(buffers))


def check_a_batch_of_messages_is_a_work_for_each(me: Rank) -> None:
    for count in (1, 5):
        calls, buffers = ring(me, count)
        works = dist.batch_isend_irecv(calls)
        assert len(works) == 2 * count
        for work, buffer in zip(works[count:], buffers, strict=True):
            work.wait()
            assert work.result()[0] is buffer
        assert arrived(me, buffers)
        for work in works[:count]:
            work.wait()


def check_a_batch_that_raises_leaves_later_collectives_alone(me: Rank) -> None:
    """Were it a window, torch would take all that follows for parts of it, and run none of it."""
    calls, (buffer,) = ring(me)
    bad = dist.P2POp(dist.irecv, torch.empty(1).expand(3), calls[1].peer)
    with pytest.raises(ValueError, match="overlapping elements"):
        dist.batch_isend_irecv([calls[0], bad])
    usable(me)
    calls[1].op(buffer, calls[1].peer).wait()
    assert arrived(me, [buffer])


def check_a_batch_takes_nothing_that_another_thread_calls(me: Rank) -> None:
    tensors = [torch.ones(1) for _ in range(300)]

    def reduce_all() -> None:
        for each in tensors:
            dist.all_reduce(each)

    other = threading.Thread(target=reduce_all)
    other.start()
    for _ in range(100):
        calls, buffers = ring(me, 5)
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        assert arrived(me, buffers)
    other.join()
    assert all(each.item() == me.size for each in tensors)


def check_all_reduces_together(me: Rank) -> None:
    for device in (None, CPU):
        tensors = [torch.full((n,), float(me.rank)) for n in (1, 50, 20_000)]
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        assert all(bool((tensor == 6).all()) for tensor in tensors)


def check_gathers_and_reduce_scatters_together(me: Rank) -> None:
    for device in (None, CPU):
        wholes = [torch.empty(4 * n) for n in (1, 50)]
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            for whole in wholes:
                part = torch.full((len(whole) // 4,), float(me.rank))
                dist.all_gather_into_tensor(whole, part)
        manager.wait()
        for whole in wholes:
            assert whole.view(4, -1).mean(1).tolist() == [0, 1, 2, 3]
        parts = [torch.empty(n) for n in (1, 50)]
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            for part in parts:
                whole = torch.arange(4.0).repeat_interleave(len(part)) + me.rank
                dist.reduce_scatter_tensor(part, whole)
        manager.wait()
        assert all(bool((part == 4 * me.rank + 6).all()) for part in parts)


def check_synchronous_windows_have_ended(me: Rank) -> None:
    tensor = torch.full((7,), float(me.rank))
    with dist._coalescing_manager(device=CPU):
        dist.all_reduce(tensor)
    assert bool((tensor == 6).all())


def check_different_operations_in_one_window(me: Rank) -> None:
    group, tensor, other = world(), torch.ones(4), torch.full((2,), float(me.rank))
    buffer = torch.empty(2)
    group._start_coalescing(CPU)
    group.allreduce([tensor])
    group.broadcast(other, 2)
    group.send([torch.full((2,), float(me.rank))], (me.rank + 1) % 4, 5)
    group.recv([buffer], (me.rank - 1) % 4, 5)
    work = group._end_coalescing(CPU)
    results = work.get_future().wait()
    assert [each.tolist() for each in results] == [
        [4.0] * 4,
        [2.0] * 2,
        [float((me.rank - 1) % 4)] * 2,
    ]
    assert [each.data_ptr() for each in results] == [
        each.data_ptr() for each in (tensor, other, buffer)
    ]


def check_empty_and_nested_windows(me: Rank) -> None:
    group = world()
    group._start_coalescing(CPU)
    work = group._end_coalescing(CPU)
    assert work.is_completed()
    assert work.wait()
    assert work.get_future().wait() == []
    tensors = [torch.ones(3), torch.ones(3)]
    group._start_coalescing(CPU)
    group.allreduce([tensors[0]])
    group._start_coalescing(CPU)
    group.allreduce([tensors[1]])
    assert len(group._end_coalescing(CPU).get_future().wait()) == 2
    assert group._end_coalescing(CPU).is_completed()
    assert all(each.tolist() == [4.0] * 3 for each in tensors)


def bad_call(group: dist.ProcessGroup) -> None:
    with pytest.raises(ValueError, match="overlapping elements"):
        group.broadcast(torch.ones(1).expand(3), 0)


def waits_for(me: Rank, key: str, group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> None:
    """Ends a window of broadcasts from rank 0, which begins them when the others have looked."""
    if me.rank == 0:
        me.store.wait([f"{key}/{rank}" for rank in range(1, me.size)])
        for tensor in tensors:
            group.broadcast(tensor, 0)
    work = group._end_coalescing(CPU)
    if me.rank != 0:
        assert not work.is_completed()
        me.store.set(f"{key}/{me.rank}", "looked")
    assert work.wait(timedelta(seconds=50))
    assert work.is_completed()
    if me.rank != 0:
        value = work.get_future().wait()
        assert all(one is other for one, other in zip(value, tensors, strict=True))
    assert all(each.tolist() == [0.0] * 3 for each in tensors)


def check_a_window_goes_on_after_an_error(me: Rank) -> None:
    group = world()
    tensors = [torch.full((3,), float(me.rank)) for _ in range(2)]
    group._start_coalescing(CPU)
    if me.rank != 0:
        group.broadcast(tensors[0], 0)
    bad_call(group)
    if me.rank != 0:
        group.broadcast(tensors[1], 0)
    waits_for(me, "window/error", group, tensors)
    usable(me)


def check_an_error_of_another_thread_ends_no_window(me: Rank) -> None:
    group, tensor = world(), torch.full((3,), float(me.rank))
    group._start_coalescing(CPU)
    if me.rank != 0:
        group.broadcast(tensor, 0)
    other = threading.Thread(target=bad_call, args=(group,))
    other.start()
    other.join()
    waits_for(me, "window/thread", group, [tensor])
    usable(me)


def check_a_window_left_by_an_error_is_not_joined(me: Rank) -> None:
    """Torch never ends it. A failure in it, or after it, is none of the next window's."""
    group = world()
    group._start_coalescing(CPU)
    group.allreduce([torch.ones(3 + me.rank)])
    bad_call(group)
    with pytest.raises(dist.DistBackendError, match="ranks differ"):
        group.allreduce([torch.ones(3 + me.rank)]).wait()
    tensor = torch.ones(3)
    group._start_coalescing(CPU)
    group.allreduce([tensor])
    (value,) = group._end_coalescing(CPU).get_future().wait()
    assert value is tensor
    assert tensor.tolist() == [4.0] * 3
    assert group._end_coalescing(CPU).get_future().wait() == []  # nothing is open any more
    usable(me)


def check_an_error_of_any_operation_leaves_the_window(me: Rank) -> None:
    """The next one does not join it."""
    group, ones, strided = world(), torch.ones(3), torch.ones(1).expand(3)
    calls: dict[str, Callable[[], object]] = {
        "broadcast": lambda: group.broadcast(strided, 0),
        "allreduce": lambda: group.allreduce([strided]),
        "reduce": lambda: group.reduce(strided, me.rank),
        "allgather": lambda: group.allgather([[ones]], [ones]),
        "_allgather_base": lambda: group._allgather_base(ones, ones),
        "reduce_scatter": lambda: group.reduce_scatter([ones], [[ones]]),
        "_reduce_scatter_base": lambda: group._reduce_scatter_base(ones, ones),
        "alltoall_base": lambda: group.alltoall_base(ones, ones.double(), [], []),
        "alltoall": lambda: group.alltoall([ones], [ones]),
        "gather": lambda: group.gather([ones], ones, me.rank),
        "scatter": lambda: group.scatter(ones, [ones], me.rank),
        "send": lambda: group.send([ones, ones], me.rank, 5),
        "recv": lambda: group.recv([strided], 0, 5),
    }
    for name, call in calls.items():
        group._start_coalescing(CPU)
        group.broadcast(ones, 0)
        with pytest.raises((ValueError, RuntimeError)):
            call()
        group._start_coalescing(CPU)
        assert group._end_coalescing(CPU).get_future().wait() == [], name
    usable(me)


def check_a_window_that_is_left_keeps_few_tensors(me: Rank) -> None:
    """Torch does not end it: after a call that raised, or by an exception of Python's own."""
    group = world()
    for raises, calls, kept in ((True, 100, 10), (False, 4200, 200)):
        group._start_coalescing(CPU)
        if raises:
            bad_call(group)
        seen = []
        for _ in range(calls):
            tensor = torch.ones(3)
            seen.append(weakref.ref(tensor))
            group.broadcast(tensor, 0).wait()
            del tensor
        alive = sum(each() is not None for each in seen)
        assert alive < kept, (raises, alive)
        assert len(group._end_coalescing(CPU).get_future().wait()) <= alive


def check_a_large_window_has_all_results(me: Rank) -> None:
    group = world()
    tensors = [torch.full((2,), float(me.rank + i)) for i in range(4200)]
    group._start_coalescing(CPU)
    works = [group.broadcast(tensor, 0) for tensor in tensors[:4000]]
    for work in works:
        work.wait()
    del works
    for tensor in tensors[4000:]:
        group.broadcast(tensor, 0)
    work = group._end_coalescing(CPU)
    work.wait()
    for result in (work.result(), work.get_future().wait()):
        assert all(one is other for one, other in zip(result, tensors, strict=True))
    assert [each[0].item() for each in tensors] == list(range(4200))


def called_back(me: Rank, key: str, *, message_last: bool) -> list[weakref.ref[torch.Tensor]]:
    """Of a window whose future has a callback, on all ranks but 0 before any of it has ended."""
    group = world()
    tensors, buffer = [torch.full((3,), float(me.rank)) for _ in range(3)], torch.empty(2)
    group._start_coalescing(CPU)
    if me.rank == 0:
        me.store.wait([f"{key}/{rank}" for rank in range(1, me.size)])
    for tensor in tensors:
        work = group.broadcast(tensor, 0)
        if me.rank == 0:
            work.wait()
    if message_last:
        group.send([torch.ones(2)], (me.rank + 1) % me.size, 5)
        group.recv([buffer], (me.rank - 1) % me.size, 5)
    future = group._end_coalescing(CPU).get_future()
    returned = threading.Event()
    future.add_done_callback(lambda _: returned.set())
    if me.rank != 0:
        me.store.set(f"{key}/{me.rank}", "attached")
    wait(returned)
    assert all(tensor.tolist() == [0.0] * 3 for tensor in tensors)
    return [weakref.ref(tensor) for tensor in tensors]


def check_windows_whose_callbacks_have_returned_keep_nothing(me: Rank) -> None:
    for message_last in (False, True):
        seen = []
        for window in range(20):
            key = f"window/kept/{message_last}/{window}"
            seen += called_back(me, key, message_last=message_last)
        usable(me)  # after the last callback has returned
        alive = sum(each() is not None for each in seen)
        assert alive <= 6, (message_last, alive)


def check_one_that_fails_fails_the_work_and_no_other(me: Rank) -> None:
    group = world()
    good, also_good = torch.ones(3), torch.ones(3)
    group._start_coalescing(CPU)
    group.allreduce([good])
    group.allreduce([torch.ones(3 + me.rank)])
    group.allreduce([also_good])
    work = group._end_coalescing(CPU)
    with pytest.raises(dist.DistBackendError, match="ranks differ"):
        work.wait()
    assert good.tolist() == also_good.tolist() == [4.0] * 3
    with pytest.raises(RuntimeError, match="ranks differ"):
        work.get_future().wait()
    usable(me)


def check_a_wait_with_a_time_out_ends(me: Rank) -> None:
    group, tensor = world(), torch.ones(3)
    if me.rank != 0:
        me.store.wait(["window/waited"])
    group._start_coalescing(CPU)
    group.allreduce([tensor])
    work = group._end_coalescing(CPU)
    if me.rank == 0:
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait(timedelta(milliseconds=200))
        me.store.set("window/waited", "yes")
    work.wait()
    assert tensor.tolist() == [4.0] * 3
    usable(me)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
