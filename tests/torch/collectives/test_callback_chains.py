"""Callbacks of futures, each of which calls the next collective."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from helpers.callbacks import attached, is_last, reduced, wait
from helpers.ranks import Rank, RankSet, works_on

pytestmark = pytest.mark.loopback

LINKS = 2_000
MOST = 8  # of a chain's collectives, that are kept at a time


def check_a_chain_keeps_nothing_of_links_that_have_returned(me: Rank) -> None:
    """Nor does what is called after it was begun start before its end."""
    if me.rank != 0:
        # Ends each collective only when rank 0 has attached the callback: torch would run it at
        # once, within the one before.
        links = 0
        while me.store.get(f"link/{links}") == b"next":
            reduced(1).wait()
            links += 1
        reduced(7).wait()
        return
    alive: set[int] = set()
    most = 0
    over = threading.Event()

    def link(number: int) -> None:
        nonlocal most
        most = max(most, len(alive))
        if number == LINKS or most > MOST:
            me.store.set(f"link/{number}", "stop")
            over.set()
            return
        tensor = torch.ones(1)
        alive.add(number)
        weakref.finalize(tensor, alive.discard, number)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        future.add_done_callback(lambda _: link(number + 1))
        me.store.set(f"link/{number}", "next")

    link(0)
    later = reduced(7)
    later.wait()
    assert over.is_set()
    assert most <= MOST, "a link is kept although its callback has returned"


def check_calls_after_attaching_the_next_link_run_deepest_first(me: Rank) -> None:
    """As if each link ran when it was attached: the deepest calls first."""
    if is_last(me, "reverse", [1, 11, 12, 13, 23, 22, 21, 2]):
        works_on(me)
        return

    def link(depth: int) -> Callable[[object], None]:
        def call(_: object) -> None:
            future = reduced(10 + depth).get_future()
            if depth < 3:
                future.add_done_callback(link(depth + 1))
            reduced(20 + depth)

        return call

    reduced(1).get_future().add_done_callback(link(1))
    attached(me, "reverse")
    reduced(2).wait()
    works_on(me)


def check_a_link_waits_for_what_an_earlier_one_has_called(me: Rank) -> None:
    """Which then comes before what links between the two have called."""
    if is_last(me, "earlier", [1, 11, 12, 13, 21, 22, 2], held=[11, 12]):
        works_on(me)
        return
    works: dict[int, dist.Work] = {}
    called = {size: threading.Event() for size in (21, 22)}

    def call(size: int) -> None:
        works[size] = reduced(size)
        called[size].set()

    def first(_: object) -> None:
        reduced(11).get_future().add_done_callback(second)
        attached(me, "earlier-11")
        call(21)

    def second(_: object) -> None:
        reduced(12).get_future().add_done_callback(third)
        attached(me, "earlier-12")
        call(22)

    def third(_: object) -> None:
        for event in called.values():
            wait(event)
        reduced(13).wait()  # takes so long that the links before have left the order
        works[21].wait()

    reduced(1).get_future().add_done_callback(first)
    attached(me, "earlier")
    reduced(2).wait()
    works_on(me)


def check_collective_awaited_by_a_link_overtakes_earlier_links(me: Rank) -> None:
    """Whether these have returned, as on rank 0, or have not even called it."""
    if is_last(me, "passes", [1, 11, 12, 2, 21], held=[11]):
        works_on(me)
        return
    later: list[dist.Work] = []
    there, passed = threading.Event(), threading.Event()

    def first(_: object) -> None:
        reduced(11).get_future().add_done_callback(second)
        attached(me, "passes-11")
        if me.rank != 0:
            wait(passed)
        reduced(21)

    def second(_: object) -> None:
        wait(there)
        while me.rank == 0 and not result.done():
            wait(there)
        reduced(12).wait()  # takes so long that the first link has left the order
        later[0].wait()
        passed.set()

    result = reduced(1).get_future().then(first)
    attached(me, "passes")
    later.append(reduced(2))
    there.set()
    result.wait()
    later[0].wait()
    works_on(me)


def test_a_chain_of_callbacks_is_as_deep_as_one_link(two):
    two.run(check_a_chain_keeps_nothing_of_links_that_have_returned)


def test_what_links_of_a_chain_call_has_one_order():
    with RankSet(3) as ranks:
        ranks.run(check_calls_after_attaching_the_next_link_run_deepest_first)
        ranks.run(check_a_link_waits_for_what_an_earlier_one_has_called)
        ranks.run(check_collective_awaited_by_a_link_overtakes_earlier_links)
