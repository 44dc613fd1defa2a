"""Works and futures: which wait for which, what ends when, and errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from torch.distributed import ReduceOp
from torch.futures import Future

import gtopk
from helpers.ranks import Rank, RankSet, run_script, works_on

pytestmark = pytest.mark.loopback

ALONE = """
import torch, torch.distributed as dist
dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
"""


def started() -> dist.Work:
    return dist.all_reduce(torch.ones(3), async_op=True)


def later(callback: Callable[[Future], Any]) -> Future:
    """The result of a callback run by the backend: its operation ends after it was attached.

    A callback attached to a complete future runs at once, on the caller's thread.
    """
    backend, me = backend_of(dist.group.WORLD), dist.get_rank()
    future = backend.recv([torch.empty(1)], me, 0).get_future().then(callback)
    backend.send([torch.ones(1)], me, 0)
    return future


# --- callbacks that wait


def check_nested_waits(me: Rank, depth: int) -> None:
    """Every callback waits for another operation and its callback, which does the same."""

    def deeper(left: int) -> int:
        return 1 + later(lambda _: deeper(left - 1)).wait() if left else 0

    assert deeper(depth) == depth
    works_on(me)


def check_callback_that_blocks(me: Rank) -> None:
    """While one callback waits, later ones complete: copies, futures and their callbacks."""
    release = Future()
    blocked = later(lambda _: release.wait())
    for _ in range(50):
        strided = dist.all_reduce(torch.ones(3, 4)[:, ::2], async_op=True).get_future()
        assert strided.then(lambda done: done.value()[0].sum().item()).wait() == 6 * me.size
        assert later(lambda _: 5).wait() == 5
    assert not blocked.done()
    release.set_result(7)
    assert blocked.wait() == 7


def check_callback_that_waits_for_its_own_work(me: Rank) -> None:
    backend = backend_of(dist.group.WORLD)
    for _ in range(100):
        work = backend.recv([torch.empty(1)], me.rank, 0)
        waited = work.get_future().then(lambda _, work=work: work.wait() and work.is_completed())
        backend.send([torch.ones(1)], me.rank, 0)
        assert waited.wait()


def check_callbacks_start_in_order(me: Rank) -> None:
    """Each waits for the previous one; if one started only when another ended, all would hang."""
    seen: list[int] = []
    futures: list[Future] = []
    for number in range(20):

        def callback(_: object, number: int = number) -> None:
            if number:
                futures[number - 1].wait()
            seen.append(number)

        futures.append(later(callback))
    futures[-1].wait()
    assert seen == list(range(20))


def test_callbacks_may_wait(two):
    two.run(check_nested_waits, 20)
    two.run(check_callback_that_blocks)
    two.run(check_callback_that_waits_for_its_own_work)
    two.run(check_callbacks_start_in_order)


def check_destroy_in_a_callback(me: Rank) -> None:
    for incarnation in range(3):
        dist.init_process_group(
            "gtopk",
            store=dist.PrefixStore(f"destroyed{incarnation}", me.store),
            rank=me.rank,
            world_size=me.size,
        )
        kept = [started() for _ in range(3)]
        later(lambda _: dist.destroy_process_group()).wait()
        kept[-1].wait()
        assert not dist.is_initialized()


def test_a_callback_may_destroy_the_group():
    with RankSet(2, joins=False) as ranks:
        ranks.run(check_destroy_in_a_callback)
        assert ranks.ends() == [(0, "")] * 2


WAITS_FOR_EVER = f"""
{ALONE}
never, entered = torch.futures.Future(), torch.futures.Future()
def wait(_):
    entered.set_result(None)
    never.wait()
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
kept = backend.recv([torch.empty(1)], 0, 0).get_future().then(wait)
backend.send([torch.ones(1)], 0, 0)
entered.wait()
"""


def test_the_process_exits_though_a_callback_waits_for_ever():
    scripts = [WAITS_FOR_EVER, f"{WAITS_FOR_EVER}\ndist.destroy_process_group()"]
    with ThreadPoolExecutor() as pool:
        for done in pool.map(partial(run_script, timeout=60), scripts):
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
            assert "a future's callback is still running 3 s after" in done.stderr


# --- a Work and its future


def check_value_after_wait(me: Rank, rounds: int) -> None:
    tensor = torch.ones(1)
    for number in range(rounds):
        work = dist.all_reduce(tensor, ReduceOp.MAX, async_op=True)
        if number % 2:
            work.get_future()  # requested before the end, or after it
        if number % 3:
            work.wait()
        else:
            while not work.is_completed():
                os.sched_yield()
        assert work.get_future().value()[0] is tensor
        assert work.get_future().done()


def check_errors_of_works(me: Rank) -> None:
    for early in (False, True):
        work = dist.all_reduce(torch.ones(3 + me.rank), async_op=True)
        if early:
            work.get_future()
        with pytest.raises(dist.DistBackendError, match="ranks differ"):
            work.wait()
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(dist.DistBackendError, match="ranks differ"):
            work.get_future().value()
    works_on(me)


def check_wait_keeps_its_bound(me: Rank) -> None:
    work = None
    if me.rank == 0:
        work = started()
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait(timedelta(milliseconds=1))
        assert not work.is_completed()
        me.store.set("bound/kept", "yes")
    else:
        me.store.wait(["bound/kept"])
        work = started()
    assert work.wait(timedelta(seconds=60))


def test_a_works_end_and_its_futures_value_are_one(two):
    two.run(check_value_after_wait, 10_000)
    two.run(check_errors_of_works)
    two.run(check_wait_keeps_its_bound)


# --- autograd and inference mode


def gathered_gradient(me: Rank, group: dist.ProcessGroup, outputs: str) -> list[float]:
    """The gradient of the sum of all outputs times the input; the own output must carry none."""
    mine = torch.full((3,), 1.0 + me.rank, requires_grad=True)
    whole = torch.zeros(3 * me.size)
    if outputs == "flat":
        dist.all_gather_into_tensor(whole, mine, group=group)
        buffer = list(whole.chunk(me.size))
    else:
        if outputs == "of a graph":
            whole = torch.zeros(3 * me.size, requires_grad=True) * 1.0
        buffer = list(whole.chunk(me.size))
        if outputs == "apart":
            buffer = [each.clone() for each in buffer]
        dist.all_gather(buffer, mine, group=group)
    assert [each[0].item() for each in buffer] == [1.0 + rank for rank in range(me.size)]
    sum((each * mine).sum() for each in buffer).backward()
    return mine.grad.tolist()


def check_no_graph_is_recorded(me: Rank) -> None:
    gloo = dist.new_group(backend="gloo")
    expected = [float(sum(range(1, me.size + 1)))] * 3
    for outputs in ("apart", "chunks", "of a graph", "flat"):
        assert gathered_gradient(me, dist.group.WORLD, outputs) == expected, outputs
        if outputs in ("apart", "chunks"):  # gloo raises for the others
            assert gathered_gradient(me, gloo, outputs) == expected, outputs
    for strided in (False, True):
        leaf = torch.ones(4, 2, requires_grad=True)
        tensor = leaf.t() if strided else leaf
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        assert leaf.tolist() == [[float(me.size)] * 2] * 4
        assert leaf.is_leaf
        product = leaf * 2
        saved = product._version
        dist.all_reduce(product)
        assert product._version == saved
        product.sum().backward()
        assert leaf.grad.tolist() == [[2.0] * 2] * 4
        leaf.grad = None
    dist.destroy_process_group(gloo)


def check_inference_mode(me: Rank) -> None:
    with torch.inference_mode():
        made_there = torch.ones(3, 4)
    made_here = torch.ones(3, 4)

    def collectives(tensor: torch.Tensor) -> None:
        for view in (tensor, tensor[:, ::2], tensor.t()):
            view.fill_(1.0) if torch.is_inference_mode_enabled() or not tensor.is_inference() else 0
            before = view.clone()
            dist.all_reduce(view)
            assert torch.equal(view, before * me.size)
            dist.broadcast(view, 1)
            dist.all_gather(
                [view] + [torch.empty_like(view) for _ in range(me.size - 1)], view
            ) if (me.rank == 0) else dist.all_gather(
                [torch.empty_like(view) for _ in range(me.size)], view
            )
            gtopk.sparse_all_reduce(view, density=1.0, residual=torch.zeros_like(view))
            dist.all_reduce(view, ReduceOp.MAX)

    for tensor in (made_there, made_here):
        collectives(tensor)
        with torch.inference_mode():
            collectives(tensor)


def check_overlapping_outputs(me: Rank) -> None:
    overlapping = [torch.ones(1).expand(4), torch.arange(6.0).unfold(0, 3, 1)]
    peer = (me.rank + 1) % me.size
    for tensor in overlapping:
        buffer = [torch.empty(tensor.shape) for _ in range(me.size)]
        for call in (
            lambda tensor=tensor: dist.all_reduce(tensor),
            lambda tensor=tensor: dist.broadcast(tensor, 0),
            lambda tensor=tensor, buffer=buffer: dist.all_gather([tensor, *buffer[1:]], buffer[0]),
            lambda tensor=tensor: dist.recv(tensor, peer),
            lambda tensor=tensor: gtopk.sparse_all_reduce(tensor, k=1),
            lambda tensor=tensor, buffer=buffer: gtopk.sparse_all_reduce(
                buffer[0], k=1, residual=tensor
            ),
        ):
            with pytest.raises(ValueError, match="overlapping elements"):
                call()
        # Read-only, so they are allowed.
        dist.all_gather(buffer, tensor)
        assert all(torch.equal(each, tensor) for each in buffer)
    # Not overlapping, but neither dense nor sorted by stride.
    for tensor in (torch.ones(6, 6)[::2, ::3].t(), torch.ones(1, 3).expand(1, 3), torch.ones(0)):
        dist.all_reduce(tensor)
    works_on(me)


def check_lazy_views(me: Rank) -> None:
    """Conjugated and negated views have other values than their memory."""
    value = torch.tensor([1 + 2j, 3 - 1j])
    conjugated = value.conj().resolve_conj()
    backend = backend_of(dist.group.WORLD)  # torch.distributed passes on copies of some
    view = value.clone().conj() if me.rank == 0 else torch.zeros(2, dtype=value.dtype)
    backend.broadcast([view], dist.BroadcastOptions()).wait()
    assert torch.equal(view.resolve_conj(), conjugated)
    buffer = [torch.zeros(2, dtype=value.dtype) for _ in range(me.size)]
    backend.allgather([buffer], [value.conj()], dist.distributed_c10d.AllgatherOptions()).wait()
    assert all(torch.equal(each, conjugated) for each in buffer)
    flat = torch.zeros(2 * me.size, dtype=value.dtype)
    backend._allgather_base(flat, value.conj(), dist.distributed_c10d.AllgatherOptions()).wait()
    assert torch.equal(flat, conjugated.repeat(me.size))
    negated = value.clone().conj().imag
    backend.allreduce([negated], dist.AllreduceOptions()).wait()
    assert negated.tolist() == [-2.0 * me.size, 1.0 * me.size]


def test_nothing_is_recorded_and_inference_tensors_work(two):
    two.run(check_no_graph_is_recorded)
    two.run(check_inference_mode)
    two.run(check_overlapping_outputs)
    two.run(check_lazy_views)


# --- differences between ranks, and their errors


def check_dtypes_must_agree(me: Rank) -> None:
    pairs = [
        (torch.float32, torch.int32, "float32", "int32"),
        (torch.bfloat16, torch.float16, "bfloat16", "float16"),
        (torch.uint16, torch.float16, "uint16", "float16"),
        (torch.float8_e4m3fn, torch.float8_e5m2, "Float8_e4m3fn", "Float8_e5m2"),
    ]
    for one, other, first, second in pairs:
        mine = one if me.rank == 1 else other
        tensor = torch.zeros(4).to(mine)
        buffer = [torch.zeros(4).to(mine) for _ in range(me.size)]
        flat = torch.zeros(4 * me.size).to(mine)
        for call in (
            lambda tensor=tensor: dist.broadcast(tensor, 0),
            lambda tensor=tensor, buffer=buffer: dist.all_gather(buffer, tensor),
            lambda tensor=tensor, flat=flat: dist.all_gather_into_tensor(flat, tensor),
        ):
            with pytest.raises(dist.DistBackendError, match="ranks differ") as raised:
                call()
            for name in (first, second):
                assert f"dtype={name}" in str(raised.value)
    assert error_of(dist.group.WORLD) == "SUCCESS"
    for dtype in (torch.complex128, torch.float8_e5m2, torch.uint16):
        tensor = torch.full((4,), 1.0 + me.rank).to(dtype)
        dist.broadcast(tensor, 1)
        assert tensor.to(torch.complex128).tolist() == [2.0] * 4
    works_on(me)


def test_broadcast_and_all_gather_name_both_sides_dtypes(two):
    two.run(check_dtypes_must_agree)


def error_of(group: dist.ProcessGroup) -> str:
    return backend_of(group).get_error().name


def check_get_error(me: Rank) -> None:
    slow, aborted = dist.new_group(), dist.new_group()
    short, long = timedelta(milliseconds=300), timedelta(seconds=60)
    if me.rank == 0:
        backend_of(slow).set_timeout(short)
        with pytest.raises(dist.DistBackendError, match="timed out"):
            dist.irecv(torch.ones(1), 1, group=slow).wait()  # only this fails: the group works
        assert error_of(slow) == "SUCCESS"
        backend_of(slow).set_timeout(long)
    dist.barrier()
    dist.barrier(slow)
    if me.rank == 0:
        backend_of(slow).set_timeout(short)
        with pytest.raises(dist.DistBackendError, match="timed out"):
            dist.all_reduce(torch.ones(1), group=slow)
    dist.barrier()
    # Ranks with nothing in flight know it, too, and remember it.
    assert error_of(slow) == "TIMEOUT"
    if me.rank == 1:
        backend_of(aborted).abort()
    with pytest.raises(dist.DistBackendError, match="abort"):
        dist.barrier(aborted)
    assert error_of(aborted) == "COMM_ERROR"
    assert error_of(slow) == "TIMEOUT"
    assert error_of(dist.group.WORLD) == "SUCCESS"
    works_on(me)


def test_get_error_says_what_ended_the_group(two):
    two.run(check_get_error)


def check_statistics_while_others_leave(me: Rank) -> None:
    """statistics() and abort() use the group while another thread destroys it."""
    for number in range(20):
        group = dist.new_group([me.rank], use_local_synchronization=True, group_desc=str(number))
        backend = backend_of(group)
        begin = threading.Barrier(3)
        over = threading.Event()

        def read(backend=backend, begin=begin, over=over) -> None:
            begin.wait()
            while not over.is_set():
                try:
                    backend.statistics()
                except dist.DistBackendError:  # the group has been destroyed
                    return

        def abort(backend=backend, begin=begin) -> None:
            begin.wait()
            backend.abort()

        threads = [threading.Thread(target=each) for each in (read, abort)]
        for thread in threads:
            thread.start()
        begin.wait()
        dist.destroy_process_group(group)
        over.set()
        for thread in threads:
            thread.join()
    works_on(me)


def test_statistics_and_abort_while_another_thread_leaves(two):
    two.run(check_statistics_while_others_leave)
