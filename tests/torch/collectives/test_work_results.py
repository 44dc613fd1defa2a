"""What torch asks of a Work besides its end: numbers, and its registry."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gtopk.core import _native
from gtopk.core.backend import sequence_number
from gtopk.core.groups import backend_of
from gtopk.ops.options import SparseOptions
from torch._C._distributed_c10d import WorkResult, _get_work_registry_size
from torch.distributed._functional_collectives import (
    allow_inflight_collective_as_graph_input_ctx,
)

import gtopk
from helpers.ranks import Rank, RankSet, threads, works_on

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


def check_sequence_numbers(me: Rank) -> None:
    """A callback sees its number, even if the operation ended before the call returned."""
    backend = backend_of(dist.new_group())
    assert sequence_number(backend.allreduce([torch.ones(1)], dist.AllreduceOptions())) == 1
    backend = backend_of(dist.group.WORLD)
    options = dist.AllreduceOptions()
    first = sequence_number(backend.allreduce([torch.ones(1)], options))
    for after in range(1, 100):
        assert sequence_number(backend.allreduce([torch.ones(1)], options)) == first + after
    differs = backend.allreduce([torch.ones(3 + me.rank)], options)
    assert sequence_number(differs) == first + 100
    with pytest.raises(dist.DistBackendError, match=f"#{first + 100} .*ranks differ"):
        differs.wait()
    entry = gtopk.flight_recorder()["entries"][-1]
    assert (entry["state"], entry["collective_seq_id"]) == ("failed", first + 100)
    assert sequence_number(backend.barrier(dist.BarrierOptions())) == first + 101


def check_a_barrier_ends_after_results_are_copied_back(me: Rank) -> None:
    for _ in range(100):
        transposed = torch.ones(1000, 300).t()
        work = dist.all_reduce(transposed, async_op=True)
        dist.barrier()
        assert work.is_completed()
        assert bool((transposed == me.size).all())
    # It does not wait for messages, which may be sent only after it.
    received = dist.irecv(torch.empty(30, 20).t(), 1 - me.rank)
    dist.barrier()
    dist.send(torch.ones(20, 30), 1 - me.rank)
    received.wait()


def check_a_barrier_does_not_wait_at_a_gate(me: Rank) -> None:
    """What opens the gate may come after the barrier. It waits for the rest."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    backend, options = backend_of(group), SparseOptions(k=5)
    for opens in (True, False):
        gate, transposed = _native.gate(2), torch.ones(6, 5).t()
        work = backend.sparse_all_reduce([transposed], options, torch.zeros(30), gate=gate)
        for _ in range(3):
            dist.barrier(group)
            assert not work.is_completed()
        beside = torch.ones(1000, 300).t()
        done = dist.all_reduce(beside, group=group, async_op=True)
        dist.barrier(group)
        assert done.is_completed()
        assert bool((beside == me.size).all())
        assert not work.is_completed()
        gate.arrive(opens)
        work.wait()
        assert transposed.eq(me.size).sum() == (5 if opens else 0)
        dist.barrier(group)
    dist.destroy_process_group(group)


def check_the_profiler_may_need_the_gil(me: Rank) -> None:
    """At an operation's end it brings back the caller's state, Python objects included."""
    tensor = torch.ones(64)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, hooks:
        for _ in range(3000):
            dist.all_reduce(tensor, async_op=True).get_future().wait()
    assert sum(each.name == "gtopk:all_reduce" for each in profile.events()) == 3000


def window_of(*calls: Callable[[], object], group: dist.ProcessGroup | None = None) -> dist.Work:
    group = group or dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    for call in calls:
        call()
    return group._end_coalescing(torch.device("cpu"))


def check_results_of_windows(me: Rank) -> None:
    group = dist.group.WORLD

    def good() -> None:
        group.allreduce([torch.ones(3)])

    def bad() -> None:
        group.allreduce([torch.ones(3 + me.rank)])

    for calls, result in (
        ((), WorkResult.SUCCESS),
        ((good, good), WorkResult.SUCCESS),
        ((good, bad, good), WorkResult.UNKNOWN),
    ):
        assert WorkResult(window_of(*calls).get_future_result().wait()) == result
    group = dist.new_group()
    differs = torch.ones(3 + me.rank)
    if me.rank == 0:
        works: list[dist.Work] = []
        window = window_of(
            lambda: works.append(group.allreduce([differs])),
            lambda: works.append(group.allreduce([torch.ones(3)])),
            group=group,
        )
        with pytest.raises(dist.DistBackendError, match="ranks differ"):
            works[0].wait()
        early = window.get_future_result()
        group.abort()
        for result in (early, window.get_future_result()):
            assert WorkResult(result.wait()) == WorkResult.COMM_ERROR
    else:
        with pytest.raises(dist.DistBackendError, match="ranks differ"):
            group.allreduce([differs]).wait()
    works_on(me)


def check_durations_of_windows(me: Rank) -> None:
    """From the first call to the last end."""
    group = dist.group.WORLD
    works = []

    def one() -> None:
        works.append(group.allreduce([torch.ones(3)]))
        works[-1].wait()

    assert window_of()._get_duration() == 0
    window = window_of(one, one, one)
    each = [work._get_duration() for work in works]
    assert sum(each) <= window._get_duration() * 1.001 < 60_000
    if me.rank == 0:
        me.store.wait(["durations/asked"])
    window = window_of(lambda: group.allreduce([torch.ones(3)]))
    if me.rank != 0:
        with pytest.raises(RuntimeError, match="known only once it has ended"):
            window._get_duration()
        me.store.set("durations/asked", "yes")
    window.wait()
    assert 0 < window._get_duration() < 60_000


def check_sequence_numbers_of_windows(me: Rank) -> None:
    """That of the last collective: the next one's is one more."""
    group, right, left = dist.group.WORLD, (me.rank + 1) % me.size, (me.rank - 1) % me.size
    backend = backend_of(group)

    def reduce() -> None:
        group.allreduce([torch.ones(1)])

    def message() -> None:
        group.send([torch.ones(1)], right, 0)
        group.recv([torch.ones(1)], left, 0).wait()

    before = sequence_number(backend.allreduce([torch.ones(1)], dist.AllreduceOptions()))
    window = window_of(reduce, reduce, message)
    assert sequence_number(window) == before + 2
    assert sequence_number(window_of(message)) == sequence_number(window_of()) == 0
    window.wait()
    assert sequence_number(backend.barrier(dist.BarrierOptions())) == before + 3


def switches_of_futures_threads() -> list[int]:
    """How often each has slept, for which it has been woken."""
    switches = []
    for task, name in threads().items():
        if name == "gtopk-futures":
            status = (task / "status").read_text()
            switches += map(int, re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.M))
    return switches


def check_no_futures_thread_is_woken(me: Rank) -> None:
    tensor = torch.ones(2)
    for _ in range(100):
        dist.all_reduce(tensor)
    before = switches_of_futures_threads()
    assert before
    for _ in range(1000):
        dist.all_reduce(tensor)
    after = switches_of_futures_threads()
    # Each may have been on its way to sleep at first.
    assert sum(after) <= sum(before) + len(before), (before, after)


def test_a_call_that_is_waited_for_wakes_no_third_thread():
    with RankSet(2) as ranks:
        ranks.run(check_no_futures_thread_is_woken)


def test_results_are_numbers_and_works_leave_the_registry(two):
    two.run(check_results_as_numbers)
    two.run(check_sequence_numbers)
    two.run(check_results_of_windows)
    two.run(check_durations_of_windows)
    two.run(check_sequence_numbers_of_windows)
    two.run(check_a_work_waited_for_is_no_longer_in_flight)


def test_a_barrier_follows_results(two):
    two.run(check_a_barrier_ends_after_results_are_copied_back)
    two.run(check_a_barrier_does_not_wait_at_a_gate)


def test_the_profiler_holds_up_nobody(two):
    two.run(check_the_profiler_may_need_the_gil)
