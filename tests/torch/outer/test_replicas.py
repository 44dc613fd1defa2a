"""Replicas that leave, are lost, and join again, without a restart."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import AllgatherOptions, BroadcastOptions

import gtopk
from helpers.ranks import Rank, RankSet, engines

pytestmark = pytest.mark.loopback

LONG = timedelta(seconds=30)


def address(me: Rank, quorum: str) -> str:
    return f"127.0.0.1:{me.port}/{quorum}"


def summed(group: gtopk.ReplicaGroup, value: float) -> list[float]:
    tensor = torch.full((3,), value)
    group.allreduce([tensor]).wait()
    return tensor.tolist()


def waits_for(me: Rank, key: str) -> None:
    me.store.wait([key], LONG)


def check_a_replica_leaves_and_comes_back(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    assert (group.timeout, group.name()) == (LONG, "gtopk")
    for call in (group.barrier, group.configured, group.rank):
        with pytest.raises(dist.DistBackendError, match="no ranks"):
            call()
    group.configure(address(me, "leaves/1"), f"replica {me.rank}", me.rank, 3, quorum_id=1)
    assert (group.rank(), group.size()) == (me.rank, 3)
    assert summed(group, 1.0 + me.rank) == [6.0] * 3
    if me.rank == 2:
        group.shutdown()
        assert group.errored() is None
    else:
        with pytest.raises(dist.DistBackendError, match=r"rank 2 \(host"):
            summed(group, 1.0)
        assert isinstance(group.errored(), dist.DistBackendError)
        group.configure(address(me, "leaves/2"), f"replica {me.rank}", me.rank, 2)
        assert group.errored() is None
        assert summed(group, 1.0) == [2.0] * 3
    group.configure(address(me, "leaves/3"), f"replica {me.rank}", me.rank, 3)
    assert summed(group, 1.0) == [3.0] * 3
    group.shutdown()


def check_a_process_keeps_its_engine_while_its_ranks_change(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    group.configure(address(me, "engine/1"), "", me.rank, 3)
    summed(group, 1.0)
    before = engines()
    assert len(before) == 1
    if me.rank < 2:  # rank 2 stays where it is
        group.configure(address(me, "engine/2"), "", me.rank, 2)
        assert summed(group, 1.0) == [2.0] * 3
    group.configure(address(me, "engine/3"), "", me.rank, 3)
    assert engines() == before
    assert summed(group, 1.0) == [3.0] * 3
    group.shutdown()
    assert engines() == set()


def check_ranks_may_be_others_after_it(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    for quorum in range(3):
        rank = (me.rank + quorum) % 3
        group.configure(address(me, f"turns/{quorum}"), "", rank, 3)
        tensor = torch.tensor([float(me.rank)])
        group.broadcast([tensor], BroadcastOptions()).wait()
        assert tensor.item() == (-quorum) % 3
    group.shutdown()


def check_replicas_meet_by_their_handles(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    assert group.supports_reconfigure
    handles = all_handles(me, group)
    assert len(set(handles)) == 3
    for uuid, ranks in enumerate(([0, 1, 2], [2, 0], [1, 2, 0])):
        if me.rank in ranks:
            some = [handles[rank] for rank in ranks]
            assert group.reconfigure(SimpleNamespace(uuid=uuid, handles=some, timeout=LONG)).wait()
            assert (group.rank(), group.size()) == (ranks.index(me.rank), len(ranks))
            assert summed(group, 1.0 + me.rank) == [1.0 * sum(ranks) + len(ranks)] * 3
        me.store.set(f"handles/{uuid}/{me.rank}", "")
        waits_for(me, f"handles/{uuid}/{(me.rank + 1) % 3}")
        waits_for(me, f"handles/{uuid}/{(me.rank + 2) % 3}")
    group.reconfigure(SimpleNamespace(uuid=7, handles=set(handles), timeout=None))
    assert group.rank() == sorted(handles).index(handles[me.rank])
    assert summed(group, 1.0) == [3.0] * 3
    for wrong in (handles[me.rank - 1 : me.rank], [handles[me.rank]] * 2):
        with pytest.raises(ValueError, match="distinct handles, one of them this replica's"):
            group.reconfigure(SimpleNamespace(uuid=8, handles=wrong, timeout=None))
    assert summed(group, 1.0) == [3.0] * 3
    group.shutdown()


def all_handles(me: Rank, group: gtopk.ReplicaGroup) -> list[str]:
    me.store.set(f"handle of replica {me.rank}", group.get_reconfigure_handle())
    return [me.store.get(f"handle of replica {rank}").decode() for rank in range(3)]


def check_abort_from_another_thread_frees_everyone(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    group.configure(address(me, "aborts"), "", me.rank, 3)
    if me.rank == 0:
        waits_for(me, "abort")
        work = group.recv([torch.ones(3)], 1, 7)  # which nobody sends
        aborting = threading.Thread(target=group.abort)
        aborting.start()
        with pytest.raises(dist.DistBackendError, match="abort"):
            work.wait()
        aborting.join()
    else:
        work = group.allreduce([torch.ones(3)])
        if me.rank == 1:
            me.store.set("abort", "")
        with pytest.raises(dist.DistBackendError, match=r"aborted by rank 0 \(host"):
            work.wait()
    assert group.errored() is not None
    group.configure(address(me, "after the abort"), "", me.rank, 3)
    assert summed(group, 2.0) == [6.0] * 3
    group.shutdown()


def check_torchs_functions_take_it(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    group.configure(address(me, "functions"), "", me.rank, 3)
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [3.0] * 2
    buffers = [[torch.empty(1) for _ in range(3)]]
    group.allgather(buffers, [torch.tensor([float(me.rank)])], AllgatherOptions()).wait()
    assert [buffer.item() for buffer in buffers[0]] == [0.0, 1.0, 2.0]
    tensor = torch.tensor([me.rank])
    group.broadcast_one(tensor, 2).wait()
    assert tensor.item() == 2
    right, left = (me.rank + 1) % 3, (me.rank - 1) % 3
    sent = group.send([torch.tensor([me.rank])], right, 7)
    buffer = torch.tensor([-1])
    group.recv([buffer], left, 7).wait()
    sent.wait()
    assert buffer.item() == left
    group.set_timeout(timedelta(seconds=20))
    group.barrier().wait()
    group.shutdown()


def check_an_optimizer_among_replicas_that_come_and_go(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    tensor = torch.arange(10.0)
    with pytest.raises(dist.DistBackendError, match="no ranks"):
        gtopk.sparse_all_reduce(tensor, k=2, group=group)
    group.configure(address(me, "optimizer/1"), "", me.rank, 3)
    gtopk.sparse_all_reduce(tensor, k=2, group=group)
    assert tensor.tolist() == [0.0] * 8 + [24.0, 27.0]
    torch.manual_seed(me.rank)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 30))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = gtopk.DistributedOptimizer(sgd, model, density=0.05, group=group)
    state = optimizer.sparse_state

    def steps(begin: int, end: int) -> None:
        for step in range(begin, end):
            generator = torch.Generator().manual_seed(100 * step + me.rank)
            optimizer.zero_grad()
            model(torch.randn(8, 20, generator=generator)).square().mean().backward()
            optimizer.step()

    def alike() -> bool:
        mine = nn.utils.parameters_to_vector(model.parameters()).detach()
        parts = [torch.empty_like(mine) for _ in range(group.size())]
        dist.all_gather(parts, mine, group=group)
        return all(torch.equal(each, mine) for each in parts)

    steps(0, 3)
    assert alike()
    assert state.place() == {"rank": me.rank, "ranks": 3}
    with pytest.raises(NotImplementedError, match="save and load each rank's state_dict"):
        gtopk.save(state, "nowhere")
    if me.rank == 2:
        group.shutdown()
    else:
        with pytest.raises(dist.DistBackendError, match="rank 2"):
            steps(3, 4)
        group.configure(address(me, "optimizer/2"), "", me.rank, 2)
        steps(3, 6)
        assert (state.step, state.place()["ranks"]) == (6, 2)
        assert state.residual("0.weight").any()
        assert alike()
    group.configure(address(me, "optimizer/3"), "", me.rank, 3)
    with pytest.raises(ValueError, match=r"step is [36] here and [36] on rank [02]"):
        steps(6, 7)
    state.step = 6
    for each in model.parameters():  # the third has missed what the others did
        dist.broadcast(each.detach(), group=group, group_src=0)
    steps(6, 9)
    assert alike()
    group.shutdown()


def check_bad_calls(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    for wrong in ("nowhere", "host/prefix", ":17/prefix"):
        with pytest.raises(ValueError, match="host:port/prefix"):
            group.configure(wrong, "", 0, 1)
    with pytest.raises(ValueError, match=r"rank must be in \[0, 3\) in a group of 3, given 3"):
        group.configure(address(me, "bad"), "", 3, 3)
    group.abort()
    group.shutdown()


def check_an_abort_while_a_group_is_configured_ends_the_meeting(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    met = group._met

    def met_and_aborted(*arguments: object) -> object:
        backend = met(*arguments)
        group.abort()
        return backend

    with (
        mock.patch.object(group, "_met", met_and_aborted),
        pytest.raises(dist.DistBackendError, match=r"abort\(\) was called while the group was be"),
    ):
        group.configure(address(me, "aborted/1"), f"replica {me.rank}", me.rank, 3)
    with pytest.raises(dist.DistBackendError, match="no ranks"):
        group.rank()
    group.configure(address(me, "aborted/2"), f"replica {me.rank}", me.rank, 3)
    assert summed(group, 1.0) == [3.0] * 3
    group.shutdown()


def test_on_three_ranks_without_a_group(three_apart: RankSet, check) -> None:
    three_apart.run(check)


def check_a_replica_that_was_given_up_on_comes_back(me: Rank) -> None:
    group = gtopk.ReplicaGroup(LONG)
    group.configure(address(me, "given up/1"), "", me.rank, 3)
    assert summed(group, 1.0) == [3.0] * 3
    me.store.set(f"pid/{me.rank}", str(os.getpid()))
    victim = int(me.store.get("pid/1"))
    group.set_timeout(timedelta(seconds=2))
    work = group.allreduce([torch.ones(16 << 20)])
    if me.rank == 1:  # it is stopped in the middle of this one, and never calls the second
        me.store.set("in the middle", "")
        with contextlib.suppress(dist.DistBackendError):
            work.wait()
    else:
        second = group.allreduce([torch.ones(3)])
        waits_for(me, "in the middle")
        if me.rank == 0:
            os.kill(victim, signal.SIGSTOP)
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            second.wait()
        group.set_timeout(LONG)
        group.configure(address(me, "given up/2"), "", me.rank // 2, 2)
        assert summed(group, 1.0) == [2.0] * 3
        if me.rank == 0:
            os.kill(victim, signal.SIGCONT)
    group.set_timeout(LONG)
    group.configure(address(me, "given up/3"), "", me.rank, 3)
    assert summed(group, 1.0) == [3.0] * 3
    one_engine_is_left()
    group.shutdown()


def one_engine_is_left() -> None:
    """Whichever thread releases the engine of before last, such as that of callbacks, ends it."""
    deadline = time.monotonic() + LONG.total_seconds()
    while len(engines()) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(engines()) == 1


def check_a_replica_that_is_given_up_on_while_it_meets(me: Rank) -> None:
    """Its engine is sound when the meeting begins, and spent when the new group needs one."""
    group = gtopk.ReplicaGroup(LONG)
    group.configure(address(me, "meets/1"), "", me.rank, 2)
    assert summed(group, 1.0) == [2.0] * 3
    if me.rank == 1:
        me.store.set("victim", str(os.getpid()))
        made = group._met
        group.allreduce([torch.ones(16 << 20)])

        def stopped(*arguments: object) -> object:
            group._met = made  # only this time
            alone = made(*arguments)
            os.kill(os.getpid(), signal.SIGSTOP)
            # Until a new group no longer uses the engine, which has lost the other replica.
            before, seen = engines(), engines()
            deadline = time.monotonic() + LONG.total_seconds()
            while seen == before:
                assert time.monotonic() < deadline
                probe = made(dist.HashStore(), 0, 1, "probe", LONG)
                seen = engines()
                probe.shutdown()
                time.sleep(0.01)
            return alone

        group._met = stopped
    else:
        victim = int(me.store.get("victim"))
        state = pathlib.Path(f"/proc/{victim}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "T":  # it has stopped
            time.sleep(0.01)
        group.set_timeout(timedelta(seconds=2))
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            group.allreduce([torch.ones(16 << 20)]).wait()
        group.set_timeout(LONG)
        os.kill(victim, signal.SIGCONT)
    group.configure(address(me, "meets/2"), "", me.rank, 2)
    assert summed(group, 1.0) == [2.0] * 3
    one_engine_is_left()
    group.shutdown()


def test_a_replica_that_is_stopped_while_it_meets() -> None:
    with RankSet(2, joins=False) as ranks:
        ranks.run(check_a_replica_that_is_given_up_on_while_it_meets, timeout=100)


@pytest.mark.parametrize(
    "networks", ["tcp,self", pytest.param("posix,sysv,self", marks=pytest.mark.long)]
)
def test_a_stopped_replica(networks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", networks)
    with RankSet(3, joins=False) as ranks:
        ranks.run(check_a_replica_that_was_given_up_on_comes_back, timeout=100)
