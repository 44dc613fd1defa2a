"""Many messages before their receives: what they hold in memory, and until when.

Without a bound each flood would take several times what is allowed here.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import Rank, RankSet, run_script

pytestmark = pytest.mark.loopback

WINDOW = 8  # MiB
MESSAGES = {"short": (20_000, 4096), "long": (1_000, 200_000)}  # 78 MiB and 191 MiB
BESIDES = 16  # MiB: the headers of what is held, and what the allocator keeps
PER_WORK = 5000  # bytes at the sender


@pytest.fixture(scope="module", params=["tcp,self", "posix,self"])
def flooded(request: pytest.FixtureRequest) -> Iterator[RankSet]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("UCX_TLS", request.param)
        patched.setenv("GTOPK_SEND_WINDOW", f"{WINDOW}M")
        with RankSet(2) as ranks:
            yield ranks


@pytest.fixture(scope="module")
def eight() -> Iterator[RankSet]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GTOPK_SEND_WINDOW", "1M")
        with RankSet(8) as ranks:
            yield ranks


def resident() -> float:
    """MiB that this process holds, after its allocators have given back what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def flood(me: Rank, number: int, size: int) -> dict:
    """All ranks but the first send to it; it receives when all have called. MiB held before that,
    and after it.
    """
    tensor = torch.full((size,), me.rank, dtype=torch.uint8)
    dist.barrier()
    before = resident()
    works = [dist.isend(tensor, 0) for _ in range(number if me.rank else 0)]
    dist.barrier()  # what is sent ahead arrives before it
    most = resident() - before
    dist.barrier()
    if me.rank == 0:
        for _ in range(number):
            for rank in range(1, me.size):
                dist.recv(tensor, rank)
                assert tensor[-1] == rank
    for work in works:
        work.wait()
    del works
    dist.barrier()
    return {"most": most, "after": resident() - before}


def expect_bounded(outcomes: list[dict], number: int, window: int) -> None:
    receiver, senders = outcomes[0], outcomes[1:]
    # UCX keeps a short message in two pages.
    assert receiver["most"] < 2 * window * len(senders) + BESIDES, outcomes
    for sender in senders:
        assert sender["most"] < number * PER_WORK / 2**20 + BESIDES, outcomes


@pytest.mark.parametrize("name", list(MESSAGES))
def test_messages_beyond_the_window_wait_at_their_sender(flooded: RankSet, name: str) -> None:
    number, size = MESSAGES[name]
    expect_bounded(flooded.run(flood, number, size), number, WINDOW)
    # A second flood uses what UCX's pools and the allocator have kept of the first.
    again = flooded.run(flood, number, size)
    expect_bounded(again, number, WINDOW)
    assert all(each["after"] < BESIDES for each in again), again


def test_seven_ranks_that_flood_one_have_a_window_each(eight: RankSet) -> None:
    number = 1500
    expect_bounded(eight.run(flood, number, 4096), number, 1)


def cross(me: Rank, number: int, size: int) -> None:
    """Both send more than their windows before they receive, and begin with the last."""
    other = 1 - me.rank
    sent = [torch.full((size,), tag % 251, dtype=torch.uint8) for tag in range(number)]
    works = [dist.isend(tensor, other, tag=tag) for tag, tensor in enumerate(sent)]
    dist.barrier()
    for tag in reversed(range(number)):
        received = torch.empty(size, dtype=torch.uint8)
        dist.recv(received, other, tag=tag)
        assert torch.equal(received, sent[tag])
    for work in works:
        work.wait()


@pytest.mark.parametrize("size", [4096, 200_000])
def test_two_ranks_flood_each_other_and_receive_in_any_order(flooded: RankSet, size: int) -> None:
    flooded.run(cross, 3 * WINDOW * 2**20 // size, size)


def test_a_window_that_is_no_number_of_bytes_is_an_error() -> None:
    source = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gtopk', store=dist.HashStore(), rank=0, world_size=1)\n"
    )
    ended = run_script(source, GTOPK_SEND_WINDOW="8 MB")
    assert ended.returncode != 0
    assert "GTOPK_SEND_WINDOW is '8 MB': expected a number of bytes" in ended.stderr
