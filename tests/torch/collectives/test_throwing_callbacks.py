"""Callbacks of futures that throw in C++: the group and its order go on.

What Python raises in a callback, torch catches; what a callback in C++ throws, it does not, and
callbacks that were attached to the same future after that one are lost, over any backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.futures import Future

from helpers.callbacks import attached, is_last, reduced, wait
from helpers.ranks import Rank

pytestmark = pytest.mark.loopback

CPU = torch.device("cpu")
TIMEOUT = timedelta(seconds=5)  # an order that does not go on ends the group


def throws(future: Future) -> None:
    """Attaches a callback of torch's that throws, as its own future is complete by then."""
    future.then(lambda _: None).set_result(None)


def is_complete(future: Future) -> None:
    """Makes our own completion of it throw."""
    future.set_result([])


def throws_among_others(future: Future) -> None:
    future.then(lambda _: None)
    throws(future)
    future.then(lambda _: None)


# By name, what is done to the future of a collective that has not ended.
CASES: dict[str, Callable[[Future], None]] = {
    "throws": throws,
    "throws among others": throws_among_others,
    "is complete": is_complete,
}


def check_a_callback_that_throws(me: Rank, case: str) -> None:
    group = dist.new_group(timeout=TIMEOUT)
    sizes = [1, 2, 3, 4, 5, 6]
    if not is_last(me, case, sizes, group):
        work = reduced(1, group)
        future = work.get_future()
        told: list[int] = []
        future.add_done_callback(lambda _: told.append(1))
        CASES[case](future)
        attached(me, case)
        work.wait()
        for size in sizes[1:-1]:
            reduced(size, group).wait()
        last = reduced(6, group).get_future().then(lambda done: done.value()[0].sum().item())
        assert last.wait() == 6 * me.size
        assert told == [1]
    dist.destroy_process_group(group)


def check_a_nested_callback_that_throws(me: Rank, case: str) -> None:
    """It is of a collective that another callback has called, and so is what comes next."""
    group = dist.new_group(timeout=TIMEOUT)
    if is_last(me, f"outer {case}", [1], group):
        assert is_last(me, f"inner {case}", [2, 3, 4], group)
    else:

        def callback(_: object) -> None:
            CASES[case](reduced(2, group).get_future())
            attached(me, f"inner {case}")
            reduced(3, group)

        reduced(1, group).get_future().add_done_callback(callback)
        attached(me, f"outer {case}")
        reduced(4, group).wait()
    dist.destroy_process_group(group)


def check_a_message_that_throws_is_not_in_flight(me: Rank) -> None:
    """Or the callback that has posted it would never count as one that waits."""
    group = dist.new_group()
    if is_last(me, "message", [1], group):
        me.store.wait(["attached/receives/0"])
        dist.send(torch.ones(1), 0, group)
        reduced(2, group).wait()
    else:
        there = threading.Event()
        later: list[Future] = []

        def callback(_: object) -> int:
            dist.irecv(torch.empty(1), me.size - 1, group).get_future().set_result([])
            attached(me, "receives")
            wait(there)
            return later[0].wait()

        result = reduced(1, group).get_future().then(callback)
        attached(me, "message")
        later.append(reduced(2, group).get_future().then(lambda _: 5))
        there.set()
        assert result.wait() == 5
    dist.destroy_process_group(group)


def check_a_window_that_throws_holds_nothing_up(me: Rank) -> None:
    """A message ends it. What waits for its callback then starts, although what another callback
    has called is in flight, and may end only after that.
    """
    group, last = dist.new_group(timeout=TIMEOUT), me.size - 1
    if is_last(me, "window", [1], group):
        me.store.wait(["attached/waits/0"])
        dist.send(torch.ones(1), 0, group)
        reduced(2, group).wait()
        dist.send(torch.ones(1), 0, group)
    else:
        group._start_coalescing(CPU)
        part = group.allreduce([torch.ones(1)])
        group.recv([torch.empty(1)], last, 0)
        window = group._end_coalescing(CPU)
        called: list[dist.Work | None] = []
        there = threading.Event()

        def callback(_: object) -> None:
            called.append(dist.irecv(torch.empty(1), last, group))
            there.set()

        part.get_future().add_done_callback(callback)
        throws(window.get_future())
        attached(me, "window")
        wait(there)
        second = reduced(2, group)
        attached(me, "waits")
        second.wait()
        called[0].wait()
    dist.destroy_process_group(group)


@pytest.mark.parametrize("case", CASES)
def test_a_group_goes_on_after_a_callback_that_throws(two, case):
    two.run(check_a_callback_that_throws, case)
    two.run(check_a_nested_callback_that_throws, case)


def test_a_message_whose_completion_throws_has_ended(two):
    two.run(check_a_message_that_throws_is_not_in_flight)


def test_a_window_whose_completion_throws_has_ended(two):
    two.run(check_a_window_that_throws_holds_nothing_up)
