"""Futures of collectives, and what their callbacks see."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist

from helpers.ranks import Rank

WATCHDOG = 60


def reduced(size: int, group: dist.ProcessGroup | None = None) -> dist.Work:
    """An all-reduce of so many ones: ranks that call those of other sizes at once differ."""
    return dist.all_reduce(torch.ones(size), group=group, async_op=True)


def wait(event: threading.Event) -> None:
    """Wakes often: a callback that slept would be taken for one that waits for what comes later."""
    for _ in range(100 * WATCHDOG):
        if event.wait(0.01):
            return
    raise AssertionError("the watchdog")


def is_last(
    me: Rank,
    name: str,
    expected: list[int],
    group: dist.ProcessGroup | None = None,
    *,
    held: Sequence[int] = (),
) -> bool:
    if me.rank < me.size - 1:
        return False

    def others_have_attached(to: str) -> None:
        me.store.wait([f"attached/{to}/{rank}" for rank in range(me.size - 1)])

    others_have_attached(name)
    for size in expected:
        if size in held:
            others_have_attached(f"{name}-{size}")
        assert reduced(size, group).get_future().wait()[0].sum().item() == size * me.size
    return True


def attached(me: Rank, name: str) -> None:
    me.store.set(f"attached/{name}/{me.rank}", "yes")
