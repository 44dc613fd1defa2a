"""A network that takes a device's memory: nothing is copied to the host.

The device is the fake one, whose memory is the host's and open to all here, so that UCX can read it
as it would a GPU's. Nothing here has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from helpers.device_values import FAKE, fill, meet, read_later, synchronize, values
from helpers.ranks import Rank, RankSet, run_script

pytestmark = pytest.mark.loopback

N = 20_000  # long messages: all parts of an all_gather are more than 64 KiB, even of bfloat16


def test_on_two_ranks(two_in_place: RankSet, check: Callable) -> None:
    two_in_place.run(check, timeout=90.0)


def _made(me: Rank, n: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return values(me, n, dtype)


# Each of these: a call, and its results; of those that only move bytes.


def _broadcast(me: Rank, to: Callable) -> list[torch.Tensor]:
    sent = to(_made(me))
    dist.broadcast(sent, 1)
    return [sent]


def _all_gather(me: Rank, to: Callable) -> list[torch.Tensor]:
    listed = [to(torch.zeros(N)) for _ in range(me.size)]
    dist.all_gather(listed, to(_made(me)))
    return listed


def _all_gather_into(me: Rank, to: Callable) -> list[torch.Tensor]:
    whole = to(torch.zeros(N * me.size, dtype=torch.bfloat16))
    dist.all_gather_into_tensor(whole, to(_made(me, dtype=torch.bfloat16)))
    return [whole]


def _all_gather_inside(me: Rank, to: Callable) -> list[torch.Tensor]:
    inside = to(_made(me, N * me.size))  # the input is a part of the output, as in FSDP
    dist.all_gather_into_tensor(inside, inside[N * me.rank : N * (me.rank + 1)])
    return [inside]


def _gather(me: Rank, to: Callable) -> list[torch.Tensor]:
    gathered = [to(torch.zeros(N)) for _ in range(me.size)] if me.rank == 1 else []
    dist.gather(to(_made(me)), gathered or None, dst=1)
    return gathered


def _scatter(me: Rank, to: Callable) -> list[torch.Tensor]:
    parts = [to(_made(me) + i) for i in range(me.size)] if me.rank == 0 else None
    mine = to(torch.zeros(N))
    dist.scatter(mine, parts, src=0)
    return [mine]


def _all_to_all(me: Rank, to: Callable) -> list[torch.Tensor]:
    buffers = [to(torch.zeros(N)) for _ in range(me.size)]
    dist.all_to_all(buffers, [to(_made(me)), to(_made(me) * 2)])
    return buffers


def _all_to_all_single(me: Rank, to: Callable) -> list[torch.Tensor]:
    # rank 0 sends N and 2 N rows and gets N of each, rank 1 gets 2 N of each
    single = to(torch.zeros(2 * N * (1 + me.rank), 2))
    sent = to(_made(me, 6 * N).view(3 * N, 2))
    dist.all_to_all_single(single, sent, [N * (1 + me.rank)] * 2, [N, 2 * N])
    return [single]


def _messages(me: Rank, to: Callable) -> list[torch.Tensor]:
    other = 1 - me.rank
    received, any_one = to(torch.zeros(N)), to(torch.zeros(N))
    sent = [dist.isend(to(_made(me)), other, tag=3), dist.isend(to(_made(me) + 1), other, tag=4)]
    dist.recv(received, other, tag=3)
    assert dist.recv(any_one, tag=4) == other
    for each in sent:
        each.wait()
    return [received, any_one]


MOVING = [
    _broadcast,
    _all_gather,
    _all_gather_into,
    _all_gather_inside,
    _gather,
    _scatter,
    _all_to_all,
    _all_to_all_single,
    _messages,
]


def _crossed() -> int:
    return torch.ops.fake.counts().get("bytes_crossed", 0)


def check_results_are_those_of_the_cpu_and_nothing_crosses(me: Rank) -> None:
    for call in MOVING:
        expected = call(me, lambda tensor: tensor)
        at_first = _crossed()
        copied = 0

        def to(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal copied
            copied += tensor.nbytes
            return tensor.to(FAKE)

        seen = call(me, to)
        assert _crossed() - at_first == copied, call.__name__
        for one, other in zip(expected, seen, strict=True):
            assert torch.equal(one, other.cpu()), call.__name__


def check_device_memory_on_one_rank_alone_gives_cpu_results(me: Rank) -> None:
    for there in range(me.size):
        for call in MOVING:
            expected = call(me, lambda tensor: tensor)
            device = FAKE if me.rank == there else "cpu"
            seen = call(me, lambda tensor, device=device: tensor.to(device))
            for one, other in zip(expected, seen, strict=True):
                assert torch.equal(one, other.cpu()), call.__name__


def check_what_is_short_or_strided_or_reduced_is_staged(me: Rank) -> None:
    before = _crossed()
    short = values(me, 12).to(FAKE)
    dist.broadcast(short, 0)
    assert _crossed() > before + short.nbytes
    strided = _made(me).view(200, 100).to(FAKE).t()
    before = _crossed()
    dist.broadcast(strided, 0)
    synchronize()
    assert _crossed() >= before + strided.nbytes
    expected = values(Rank(0, me.size, me.store, me.port), N).view(200, 100).t()
    assert torch.equal(strided.cpu(), expected)
    reduced = torch.full((N,), 1.0 + me.rank).to(FAKE)
    dist.all_reduce(reduced)
    assert reduced.cpu().tolist() == [3.0] * N


def check_memory_is_read_and_written_in_the_order_of_the_streams(me: Rank) -> None:
    other = 1 - me.rank
    sent, received = torch.zeros(N).to(FAKE), torch.full((N,), -1.0).to(FAKE)
    torch.ops.fake.hold()
    before = read_later(received)  # is not to see what comes in
    fill(sent, 5.0 + me.rank)
    works = [dist.isend(sent, other, tag=9), dist.irecv(received, other, tag=9)]
    for work in works:
        work.wait()
    after = read_later(received)
    fill(sent, 99.0)  # behind the send
    assert not any(work.is_completed() for work in works)
    meet(me, "nothing has been handed to the network")
    torch.ops.fake.release()
    synchronize()
    assert before.tolist() == [-1.0] * N
    assert after.tolist() == [5.0 + other] * N


def check_host_receive_does_not_overtake_a_device_receive(me: Rank) -> None:
    if me.rank == 0:
        first, second = torch.empty(N).to(FAKE), torch.zeros(N)
        torch.ops.fake.hold()
        fill(first, -1.0)  # the receive waits for what is written here
        works = [dist.irecv(first, 1, tag=3), dist.irecv(second, 1, tag=3)]
        meet(me, "both receives have been called")
        torch.ops.fake.release()
        for work in works:
            work.wait()
        assert (first.cpu().unique().tolist(), second.unique().tolist()) == ([1.0], [2.0])
    else:
        meet(me, "both receives have been called")
        for value in (1.0, 2.0):
            dist.send(torch.full((N,), value), 0, tag=3)
    dist.barrier()


def check_tensors_live_until_the_network_has_done_its_part(me: Rank) -> None:
    other = 1 - me.rank
    for _ in range(10):
        sent = torch.full((N,), 3.0 + me.rank).to(FAKE)
        received = torch.empty(N, device=FAKE)
        work = dist.irecv(received, other, tag=8)
        dist.isend(sent, other, tag=8)
        del sent
        fill(torch.empty(N, device=FAKE), 99.0)  # overwrites it if it was freed
        work.wait()
        assert received.cpu().tolist() == [3.0 + other] * N


def check_broadcast_never_synchronises_and_sets_the_device_once(me: Rank) -> None:
    tensor = torch.full((N,), 1.0 + me.rank).to(FAKE)
    dist.broadcast(tensor, 0)
    synchronize()
    before = torch.ops.fake.counts()
    for _ in range(10):
        dist.broadcast(tensor, 0)
    after = torch.ops.fake.counts()
    made = {name: after[name] - before.get(name, 0) for name in after}
    assert made.pop("wait_value", 0) <= 10  # none for what ends before it is waited for
    assert {name: count for name, count in made.items() if count} == {"host_function": 10}
    assert after["set_current"] == 1
    assert tensor.cpu().tolist() == [1.0] * N


def check_errors_are_those_of_staged_tensors(me: Rank) -> None:
    wrong = torch.ones(N + me.rank).to(FAKE)
    with pytest.raises(dist.DistBackendError, match="bytes="):
        dist.broadcast(wrong, 0, async_op=True).get_future().wait()
    dist.barrier()
    with pytest.raises(ValueError, match="to itself"):
        dist.all_to_all_single(
            torch.empty(6 * N).to(FAKE),
            torch.empty(6 * N).to(FAKE),
            [2 * N, 4 * N],
            [3 * N, 3 * N],
        )
    dist.barrier()


SCRIPT = """
import os
import torch.distributed as dist
import gtopk

os.environ["GTOPK_DEVICE_POINTERS"] = "perhaps"
dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
"""


def test_the_variable_is_checked() -> None:
    done = run_script(SCRIPT)
    assert done.returncode != 0
    assert "GTOPK_DEVICE_POINTERS is 'perhaps': expected auto, 0, 1 or host" in done.stderr
