"""Callbacks of futures that call collectives: one order on every rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from torch.futures import Future

from helpers.callbacks import attached, is_last, reduced, wait
from helpers.ranks import Rank, RankSet, works_on

pytestmark = pytest.mark.loopback


# --- one order
#
# The last rank calls, one by one, what is expected of all. It begins when the others say that they
# have attached their callbacks: no future of theirs is complete by then, unless they wait for it.
# A collective in `held` waits for that, too: torch runs a callback of a complete future at once.


def check_callback_collectives_precede_calls_after_attaching(me: Rank) -> None:
    """On rank 0 the callback runs first, on the others the thread that has attached it goes on."""
    if is_last(me, "before", [1, 2, 3, 4]):
        works_on(me)
        return
    called, go_on = threading.Event(), threading.Event()

    def callback(_: object) -> float:
        wait(go_on)
        inner = reduced(2)
        called.set()
        inner.wait()
        return reduced(3).get_future().wait()[0].sum().item()

    result = reduced(1).get_future().then(callback)
    attached(me, "before")
    if me.rank == 0:
        go_on.set()
        wait(called)
        later = reduced(4)
    else:
        later = reduced(4)
        go_on.set()
    later.wait()
    assert result.wait() == 3 * me.size
    works_on(me)


def check_a_callback_attached_late_comes_where_it_was_attached(me: Rank) -> None:
    """Rank 0 attaches to futures that are complete: torch runs the callbacks on its thread."""
    if is_last(me, "late", [1, 2, 3, 4]):
        works_on(me)
        return
    work = reduced(1)
    future = work.get_future()
    if me.rank == 0:
        attached(me, "late")
        work.wait()
    result = future.then(lambda _: reduced(2).get_future().wait()[0].sum().item())
    attached(me, "late")
    if me.rank == 0:
        result.wait()
    result = result.then(lambda done: done.value() + reduced(3).get_future().wait()[0].sum().item())
    later = reduced(4)
    later.wait()
    assert result.wait() == 5 * me.size
    works_on(me)


def check_callbacks_run_one_after_the_other(me: Rank) -> None:
    """Also where a Work ends on another thread, which copies its result back."""
    if is_last(me, "one by one", [1, 6000] * 10 + list(range(1, 21))):
        works_on(me)
        return
    seen: list[tuple[str, int]] = []

    def callback(number: int) -> Callable[[object], None]:
        def call(_: object) -> None:
            seen.append(("begin", number))
            reduced(number + 1).wait()
            seen.append(("end", number))

        return call

    works = []
    for _ in range(10):
        works += [reduced(1), dist.all_reduce(torch.ones(300, 20).t(), async_op=True)]
    results = [work.get_future().then(callback(i)) for i, work in enumerate(works)]
    attached(me, "one by one")
    for each in results:
        each.wait()
    assert seen == [(what, i) for i in range(20) for what in ("begin", "end")]
    works_on(me)


def check_a_window_has_the_place_of_its_collectives(me: Rank) -> None:
    if is_last(me, "window", [1, 2, 3, 4]):
        works_on(me)
        return
    group = dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    reduced(1)
    reduced(2)
    window = group._end_coalescing(torch.device("cpu"))
    go_on = threading.Event()
    result = window.get_future().then(lambda _: wait(go_on) or reduced(3).wait())
    attached(me, "window")
    later = reduced(4)
    go_on.set()
    later.wait()
    result.wait()
    works_on(me)


def check_what_a_callback_attaches_comes_first(me: Rank) -> None:
    """Before what the callback calls after it, and before what follows the callback."""
    if is_last(me, "nested", [1, 13, 12, 11, 21, 22, 23, 2, 3]):
        works_on(me)
        return

    def deeper(depth: int) -> Callable[[object], float]:
        def call(_: object) -> float:
            if depth == 0:
                return 0.0
            below = reduced(10 + depth).get_future().then(deeper(depth - 1))
            after = reduced(20 + depth).get_future()
            return below.wait() + after.wait()[0].sum().item()

        return call

    result = reduced(1).get_future().then(deeper(3))
    attached(me, "nested")
    for size in (2, 3):
        reduced(size).wait()
    assert result.wait() == (21 + 22 + 23) * me.size
    works_on(me)


def check_collective_of_a_returned_callback_keeps_its_place(me: Rank) -> None:
    """Its future gets a callback only then."""
    if is_last(me, "called", [1]):
        assert is_last(me, "returned", [2, 3, 4, 5])
        works_on(me)
        return
    called: list[Future] = []
    result = reduced(1).get_future().then(lambda _: called.append(reduced(2).get_future()))
    attached(me, "called")
    result.wait()
    attached(me, "inner")  # takes so long that the first collective has left the order by then
    me.store.wait([f"attached/inner/{rank}" for rank in range(me.size - 1)])
    inner = called[0].then(lambda _: reduced(3).get_future().wait()[0].sum().item())
    later = reduced(4).get_future().then(lambda _: reduced(5).get_future().wait()[0].sum().item())
    attached(me, "returned")
    assert inner.wait() == 3 * me.size
    assert later.wait() == 5 * me.size
    works_on(me)


def check_late_callback_collectives_precede_later_callbacks(me: Rank) -> None:
    """A collective that was called earlier, and ends later, gets one after it."""
    for case in ("futures as needed", "futures first"):
        if is_last(me, case, [1, 2]):
            assert is_last(me, f"{case}, attached", [3, 4, 5, 6, 7])
            continue
        go_on = threading.Event()
        works = [reduced(size) for size in (1, 2, 3)]
        futures = [work.get_future() for work in works] if case == "futures first" else []

        def attach(
            i: int, callback: Callable[[object], Any], works=works, futures=futures
        ) -> Future:
            return (futures[i] if futures else works[i].get_future()).then(callback)

        attach(0, lambda _, go_on=go_on: wait(go_on) or reduced(4))
        attached(me, case)
        works[1].wait()
        attach(1, lambda _: reduced(5))  # torch runs it here, and the first has not returned
        last = attach(2, lambda _: reduced(6).get_future().wait()[0].sum().item())
        attached(me, f"{case}, attached")
        go_on.set()
        reduced(7).wait()
        assert last.wait() == 6 * me.size
    works_on(me)


def test_collectives_of_callbacks_have_one_order():
    with RankSet(3) as ranks:
        ranks.run(check_callback_collectives_precede_calls_after_attaching)
        ranks.run(check_a_callback_attached_late_comes_where_it_was_attached)
        ranks.run(check_callbacks_run_one_after_the_other)
        ranks.run(check_a_window_has_the_place_of_its_collectives)
        ranks.run(check_what_a_callback_attaches_comes_first)
        ranks.run(check_collective_of_a_returned_callback_keeps_its_place)
        ranks.run(check_late_callback_collectives_precede_later_callbacks)
        ranks.run(check_what_is_deferred_is_pending)


def check_what_is_deferred_is_pending(me: Rank) -> None:
    if is_last(me, "pending", [1]):
        me.store.wait([f"attached/waits/{rank}" for rank in range(me.size - 1)])
        me.store.set("goes on", "yes")
        reduced(2).wait()
        works_on(me)
        return
    go_on = threading.Event()
    first = reduced(1)
    result = first.get_future().then(lambda _: wait(go_on))
    attached(me, "pending")
    first.wait()
    deferred = reduced(2)
    attached(me, "waits")
    release = threading.Thread(target=lambda: me.store.wait(["goes on"]) or go_on.set())
    release.start()
    dist.group.WORLD._wait_for_pending_works()
    assert deferred.is_completed()
    release.join()
    result.wait()
    works_on(me)


# --- what a callback may wait for


def check_a_callback_may_wait_for_a_later_work(me: Rank) -> None:
    for wanted in ("work", "future"):
        if is_last(me, wanted, [1, 2, 3]):
            works_on(me)
            continue
        works: list[dist.Work] = []
        there = threading.Event()

        def callback(_: object, works=works, there=there, wanted=wanted) -> float:
            wait(there)
            if wanted == "work":
                works[1].wait()
            return works[1].get_future().wait()[0].sum().item()

        result = reduced(1).get_future().then(callback)
        attached(me, wanted)
        works += [reduced(2), reduced(3)]
        there.set()
        assert result.wait() == 3 * me.size
        works_on(me)


def check_a_callback_may_wait_for_a_later_future(me: Rank) -> None:
    """Whose own callbacks call collectives: these come before what the waiting one calls next."""
    if is_last(me, "later future", [1, 2, 3, 4, 5, 6]):
        works_on(me)
        return
    later: list[Future] = []
    there = threading.Event()

    def callback(_: object) -> float:
        wait(there)
        seen = later[0].wait()[0].sum().item() + later[1].wait()
        return seen + reduced(5).get_future().wait()[0].sum().item()

    result = reduced(1).get_future().then(callback)
    attached(me, "later future")
    later.append(reduced(2).get_future())
    third = reduced(3).get_future()
    later.append(third.then(lambda _: reduced(4).get_future().wait()[0].sum().item()))
    there.set()
    assert result.wait() == (2 + 4 + 5) * me.size
    reduced(6).wait()
    works_on(me)


def check_messages_hold_up_nothing(me: Rank) -> None:
    """A message's callbacks have no place in the order: it may never come."""
    peer = me.size - 1 - me.rank
    received = dist.irecv(torch.empty(1), peer).get_future().then(lambda _: 7)
    for size in range(1, 5):
        done = reduced(size).get_future().then(lambda _: reduced(9).get_future().wait()[0][0])
        assert done.wait() == me.size
    assert not received.done()
    dist.barrier()
    dist.send(torch.ones(1), peer)
    assert received.wait() == 7


def check_groups_do_not_hold_up_one_another(me: Rank) -> None:
    other = dist.new_group()
    if not is_last(me, "groups", [1]):
        release = threading.Event()
        result = reduced(1).get_future().then(lambda _: wait(release))
        attached(me, "groups")
    for size in range(1, 5):
        done = reduced(size, other).get_future()
        assert done.then(lambda each: each.value()[0][0].item()).wait() == me.size
    if me.rank < me.size - 1:
        release.set()
        result.wait()
    # Callbacks of one group may call collectives of another.
    crossed = reduced(1).get_future().then(lambda _: reduced(2, other).get_future().wait()[0].sum())
    reduced(3).wait()
    assert crossed.wait() == 2 * me.size
    dist.destroy_process_group(other)


def test_callbacks_may_wait_for_what_comes_later(two):
    two.run(check_a_callback_may_wait_for_a_later_work)
    two.run(check_a_callback_may_wait_for_a_later_future)
    two.run(check_messages_hold_up_nothing)
    two.run(check_groups_do_not_hold_up_one_another)


# --- failures


def told(future: Future) -> str:
    with pytest.raises(RuntimeError) as raised:
        future.wait()
    return str(raised.value)


def check_an_abort_ends_what_is_deferred(me: Rank) -> None:
    group = dist.new_group()
    release = threading.Event()
    if not is_last(me, "abort", [1], group):
        first = (
            reduced(1, group).get_future().then(lambda _: wait(release) or reduced(9, group).wait())
        )
        attached(me, "abort")
        deferred = [reduced(2, group), reduced(3, group)]
        later = [each.get_future().then(lambda done: done.value()) for each in deferred]
    dist.barrier()
    group.abort()
    if me.rank < me.size - 1:
        for work, future in zip(deferred, later, strict=True):
            with pytest.raises(dist.DistBackendError, match="abort"):
                work.wait()
            assert "abort" in told(future)
        release.set()
        assert "abort" in told(first)
    works_on(me)


def check_a_destroyed_group_runs_its_callbacks(me: Rank) -> None:
    group = dist.new_group()
    release = threading.Event()
    if not is_last(me, "destroy", [1], group):
        first = reduced(1, group).get_future().then(lambda _: wait(release))
        attached(me, "destroy")
        deferred = reduced(2, group)
        future = deferred.get_future().then(lambda done: done.value())
    dist.barrier()
    dist.destroy_process_group(group)
    if me.rank < me.size - 1:
        assert "destroyed" in told(future)
        with pytest.raises(dist.DistBackendError, match="has been destroyed"):
            deferred.wait()
        release.set()
        first.wait()
    works_on(me)


def check_callback_that_never_returns_fails_group_at_timeout(me: Rank) -> None:
    """It computes, so it is not taken for one that waits."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    over = threading.Event()

    def callback(_: object) -> None:
        while not over.is_set():
            pass

    if not is_last(me, "timeout", [1], group):
        first = reduced(1, group).get_future().then(callback)
        attached(me, "timeout")
        try:
            with pytest.raises(dist.DistBackendError, match=r"did not start within 2000 ms"):
                reduced(2, group).wait()
            assert backend_of(group).get_error().name in ("TIMEOUT", "COMM_ERROR")
        finally:
            over.set()
        first.wait()
    works_on(me)


def check_a_failed_collective_still_runs_all_callbacks(me: Rank) -> None:
    """Ranks differ in the first: the group goes on, and so does the order."""
    seen: list[Any] = []

    def callback(done: Future) -> None:
        with pytest.raises(dist.DistBackendError, match="ranks differ"):
            done.value()
        seen.append(reduced(3).get_future().wait()[0].sum().item())

    futures = [reduced(10 + me.rank).get_future().then(callback) for _ in range(3)]
    reduced(4).wait()
    for each in futures:
        each.wait()
    assert seen == [3 * me.size] * 3
    works_on(me)


def test_failures_run_callbacks_and_end_what_is_deferred(two):
    two.run(check_a_failed_collective_still_runs_all_callbacks)
    two.run(check_an_abort_ends_what_is_deferred)
    two.run(check_a_destroyed_group_runs_its_callbacks)
    two.run(check_callback_that_never_returns_fails_group_at_timeout)
