"""Collectives on a device that come after callbacks of earlier collectives' futures."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from helpers.callbacks import reduced, wait
from helpers.device_values import FAKE
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


def check_what_a_callback_calls_comes_before_a_later_collective(me: Rank) -> None:
    """Rank 0's callback has begun, and calls only when a collective on the device waits for it."""
    tensor = torch.full((3,), 1.0 + me.rank).to(FAKE)
    if me.rank == 1:
        me.store.wait(["callback/attached"])
        reduced(1).wait()
        reduced(2).wait()
        dist.all_reduce(tensor)
    else:
        begun, waits = threading.Event(), threading.Event()

        def callback(_: object) -> None:
            begun.set()
            wait(waits)
            reduced(2)

        reduced(1).get_future().add_done_callback(callback)
        me.store.set("callback/attached", "yes")
        wait(begun)
        threading.Timer(0.2, waits.set).start()
        dist.all_reduce(tensor)
        assert waits.is_set()
    assert tensor.cpu().tolist() == [3.0] * 3


def check_a_callback_that_does_not_return_is_the_reason_given(me: Rank) -> None:
    """The group works afterwards."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    tensor = torch.full((3,), 1.0 + me.rank).to(FAKE)
    if me.rank == 1:
        me.store.wait(["reason/attached"])
        reduced(1, group).wait()
        me.store.wait(["reason/given"])
    else:
        begun, given = threading.Event(), threading.Event()

        def callback(_: object) -> None:
            begun.set()
            wait(given)

        reduced(1, group).get_future().add_done_callback(callback)
        me.store.set("reason/attached", "yes")
        wait(begun)
        with pytest.raises(dist.DistBackendError, match="callbacks of an earlier collective's fut"):
            dist.all_reduce(tensor, group=group)
        given.set()
        me.store.set("reason/given", "yes")
    dist.all_reduce(tensor, group=group)
    assert tensor.cpu().tolist() == [3.0] * 3


def test_on_two_ranks(two_with_device: RankSet, check) -> None:
    two_with_device.run(check)
