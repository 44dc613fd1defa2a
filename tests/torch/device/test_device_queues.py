"""Streams of a device that share hardware queues, and a driver or settings with
which no stream can wait for a message. The device is a fake one (fake/device.hpp).
"""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

import gtopk
from helpers.device_values import FAKE, meet, values
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


def check_what_the_caller_computes_does_not_wait_for_the_peer(me: Rank) -> None:
    """Neither before it is called nor while twelve operations are in flight."""
    tensors = [torch.full((50,), 1.0 + me.rank).to(FAKE) for _ in range(12)]
    sparse, residual = values(me).to(FAKE), torch.zeros_like(values(me)).to(FAKE)
    if me.rank == 1:
        meet(me, "rank 0 has computed")
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    works.append(gtopk.sparse_all_reduce(sparse, k=5, residual=residual, async_op=True))
    if me.rank == 0:
        product = torch.full((50,), 3.0).to(FAKE) * 2
        assert product.cpu().tolist() == [6.0] * 50
        meet(me, "rank 0 has computed")
    for work in works:
        work.wait()
    assert all(each.cpu().tolist() == [3.0] * 50 for each in tensors)


@pytest.mark.parametrize("queues", ["1", "8"])
def test_operations_in_flight_hold_up_nothing(fake_library: str, queues, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_DEVICE_QUEUES", queues)
    with RankSet(2, device=fake_library) as ranks:
        ranks.run(check_what_the_caller_computes_does_not_wait_for_the_peer, timeout=50.0)


def check_two_threads_with_a_group_each_hold_up_nobody(me: Rank) -> None:
    groups = [dist.new_group() for _ in range(2)]
    seen: dict[int, list[float]] = {}

    def run(number: int) -> None:
        tensor = torch.full((50,), 1.0 + number).to(FAKE)
        for _ in range(5):
            dist.all_reduce(tensor, group=groups[number])
        seen[number] = tensor.cpu().tolist()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for each in threads if me.rank == 0 else reversed(threads):
        each.start()
    for each in threads:
        each.join()
    assert seen == {number: [(1.0 + number) * 32] * 50 for number in range(2)}


def check_no_stream_waits(me: Rank) -> None:
    dist.all_reduce(torch.ones(3).to(FAKE))  # the driver has been asked
    before = torch.ops.fake.counts().get("wait_value", 0)
    tensor = torch.full((50,), 1.0 + me.rank).to(FAKE)
    torch.ops.fake.hold()
    work = dist.all_reduce(tensor, async_op=True)
    threading.Timer(0.1, torch.ops.fake.release).start()
    work.wait()  # blocks the host
    assert torch.ops.fake.counts().get("wait_value", 0) == before
    assert tensor.cpu().tolist() == [3.0] * 50


@pytest.mark.parametrize(
    "variable", ["CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "FAKE_DEVICE_FAILS"]
)
def test_where_streams_cannot_wait_the_host_does(fake_library: str, variable, monkeypatch) -> None:
    """The last: of a driver that refuses when it is first asked."""
    refuses = variable == "FAKE_DEVICE_FAILS"
    monkeypatch.setenv(variable, "wait_value" if refuses else "1")
    if not refuses:
        monkeypatch.setenv("FAKE_DEVICE_QUEUES", "1")
    with RankSet(2, device=fake_library) as ranks:
        ranks.run(check_no_stream_waits, timeout=50.0)
        ranks.run(check_two_threads_with_a_group_each_hold_up_nobody, timeout=50.0)
