"""Ctrl-C, and other signals whose handlers are Python's, while a rank waits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import gtopk
from helpers.ranks import Rank, RankSet, run_script, works_on

pytestmark = pytest.mark.loopback
LONG = timedelta(seconds=60)
SOON = 45.0  # seconds: on a busy machine, and before anything that waits times out


def blocked(wait: Callable) -> None:
    """The frame in which a rank waits."""
    wait()


def is_blocked(thread: int) -> bool:
    frame = sys._current_frames()[thread]
    while frame and frame.f_code is not blocked.__code__:
        frame = frame.f_back
    return frame is not None


def under_way() -> bool:
    """Whether an operation of this process has begun, and not ended."""
    entries = gtopk.flight_recorder()["entries"]
    return any(each["state"] in ("scheduled", "started") for each in entries)


@contextmanager
def signalled(number: int, handler: Callable, times: int = 1):
    """This process gets the signal when its main thread waits, as often as `times`."""
    seen, main = [], threading.main_thread().ident
    sent = threading.Semaphore()

    def handles(*arguments) -> None:
        seen.append(time.monotonic())
        sent.release()
        handler(*arguments)

    def send() -> None:
        while not (is_blocked(main) and under_way()) and not over.is_set():
            os.sched_yield()
        for _ in range(times):
            sent.acquire()
            began.append(time.monotonic())
            os.kill(os.getpid(), number)

    began: list[float] = []
    over = threading.Event()
    before = signal.signal(number, handles)
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        yield
        sender.join()
        assert len(seen) == times
        assert all(ran - sent_at < SOON for ran, sent_at in zip(seen, began, strict=True))
    finally:
        over.set()
        signal.signal(number, before)


def interrupted():
    return signalled(signal.SIGINT, signal.default_int_handler)


def all_reduce_later() -> Callable:
    return dist.all_reduce(torch.ones(4), async_op=True).wait


def window() -> Callable:
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(5))
    return manager.wait


def functional_all_reduce() -> Callable:
    result = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    return lambda: functional.wait_tensor(result)


WAYS: dict[str, Callable[[], Callable]] = {
    "barrier": lambda: dist.barrier,
    "monitored barrier": lambda: lambda: dist.group.WORLD.monitored_barrier(LONG),
    "all_reduce": lambda: lambda: dist.all_reduce(torch.ones(4)),
    "all_reduce later": all_reduce_later,
    "wait with a time": lambda: (lambda wait: lambda: wait(LONG))(all_reduce_later()),
    "window": window,
    "functional": functional_all_reduce,
    "sparse_all_reduce": lambda: lambda: gtopk.sparse_all_reduce(torch.ones(10), k=10),
}


def check_control_c_ends_a_wait(me: Rank, way: str) -> None:
    """The operation goes on: the other rank, which comes only then, meets it."""
    if me.rank == 0:
        wait = WAYS[way]()
        with interrupted(), pytest.raises(KeyboardInterrupt):
            blocked(wait)
        me.store.set(f"{way}: interrupted", "")
    else:
        me.store.wait([f"{way}: interrupted"], LONG)
        WAYS[way]()()
    works_on(me)


def check_other_handlers_run_in_a_wait(me: Rank) -> None:
    """The other rank comes when two signals were handled."""
    if me.rank == 0:
        handled: list[int] = []

        def count(*_: object) -> None:
            handled.append(1)
            if len(handled) == 2:
                me.store.set("handled twice", "")

        with signalled(signal.SIGALRM, count, times=2):
            blocked(dist.barrier)
    else:
        me.store.wait(["handled twice"], LONG)
        dist.barrier()
    works_on(me)


def check_a_wait_in_another_thread_is_untouched(me: Rank) -> None:
    if me.rank == 0:
        work = dist.barrier(async_op=True)
        ended = threading.Event()
        threading.Thread(target=lambda: work.wait() and ended.set()).start()

        def wait() -> None:
            # In turns: a lock of Python's does not see a signal that comes just before it blocks.
            while not ended.wait(0.1):
                pass

        with interrupted(), pytest.raises(KeyboardInterrupt):
            blocked(wait)
        assert not ended.is_set()
        me.store.set("side thread", "")
        assert ended.wait(LONG.total_seconds())
    else:
        me.store.wait(["side thread"], LONG)
        dist.barrier()


def check_an_interrupted_rank_leaves(me: Rank) -> None:
    """With the operation under way."""
    if me.rank == 0:
        with interrupted(), pytest.raises(KeyboardInterrupt):
            blocked(dist.barrier)


@pytest.fixture(scope="module")
def two():
    with RankSet(2) as ranks:
        yield ranks


@pytest.mark.parametrize("way", WAYS)
def test_control_c_ends_a_wait_and_not_the_group(two: RankSet, way: str):
    two.run(check_control_c_ends_a_wait, way)


def test_other_handlers_run_in_a_wait(two: RankSet):
    two.run(check_other_handlers_run_in_a_wait)


def test_a_wait_in_another_thread_is_untouched(two: RankSet):
    two.run(check_a_wait_in_another_thread_is_untouched)


def test_an_interrupted_rank_leaves():
    with RankSet(2, destroys=False) as ranks:
        ranks.run(check_an_interrupted_rank_leaves)
        began = time.monotonic()
        assert [code for code, _ in ranks.ends()] == [0, 0]
        assert time.monotonic() - began < SOON


def test_control_c_ends_the_wait_for_ranks_that_do_not_join():
    done = run_script(
        """
import os, signal, threading
import torch.distributed as dist

signal.signal(signal.SIGINT, signal.default_int_handler)
store = dist.HashStore()

def interrupt():
    while store.num_keys() == 0:
        pass
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    dist.init_process_group("gtopk", store=store, rank=0, world_size=2)
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
