"""Messages of tensors on a device, which here is a fake one (fake/device.hpp):
when a stream waits for one. Nothing here has run on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from helpers.device_values import FAKE, meet, read_later, synchronize
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

N = 3000


def test_on_two_ranks(two_with_device: RankSet, check: Callable) -> None:
    two_with_device.run(check, timeout=90.0)


def exchange(
    me: Rank, count: int, *, holds: bool = False
) -> tuple[list[torch.Tensor], list[dist.Work]]:
    """Receives come first on both ranks. holds: the device does, so that nothing ends."""
    received = [torch.zeros(N).to(FAKE) for _ in range(count)]
    sent = [torch.full((N,), 10.0 * me.rank + i).to(FAKE) for i in range(count)]
    dist.all_reduce(torch.ones(1).to(FAKE))  # a device's first use tries whether streams wait
    synchronize()
    torch.ops.fake.calls()
    if holds:
        torch.ops.fake.hold()
    works = [dist.irecv(each, 1 - me.rank) for each in received]
    works += [dist.isend(each, 1 - me.rank) for each in sent]
    return received, works


def came(me: Rank, received: list[torch.Tensor]) -> bool:
    first = 10.0 * (1 - me.rank)
    return all(bool((each.cpu() == first + i).all()) for i, each in enumerate(received))


def check_no_stream_waits_for_a_message_before_somebody_does(me: Rank) -> None:
    """Else what is to be read for the sends could be behind it, in the same hardware queue."""
    for count in (1, 12):
        received, works = exchange(me, count, holds=True)
        assert "wait_value" not in torch.ops.fake.calls()
        for work in works:
            work.wait()  # does not block
        assert torch.ops.fake.calls().count("wait_value") == 2 * count
        after = [read_later(each) for each in received]
        assert not any(work.is_completed() for work in works)
        meet(me, f"{count} messages are waited for")
        torch.ops.fake.release()
        synchronize()
        assert came(me, after)
        for work in works:
            work.wait()  # again


def check_messages_that_nobody_waits_for_arrive(me: Rank) -> None:
    received, works = exchange(me, 3)
    while not all(work.is_completed() for work in works):
        pass
    assert "wait_value" not in torch.ops.fake.calls()
    assert came(me, received)


def check_threads_that_wait_for_the_same_message_all_have_it(me: Rank) -> None:
    for _ in range(20):
        received, works = exchange(me, 1)
        seen: list[bool] = []

        def wait(received=received, works=works, seen=seen) -> None:
            works[0].wait()
            seen.append(came(me, received))

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for each in threads:
            each.start()
        future = works[0].get_future()
        assert came(me, future.wait())
        for each in threads:
            each.join()
        assert seen == [True] * 4
        works[1].wait()
