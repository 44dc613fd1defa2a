"""What torch offers a backend beyond collectives, by version where it differs:
splitting groups, hooks, changing timeouts, and groups whose ranks change.
"""

from __future__ import annotations

import json
import re
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from torch._C._distributed_c10d import GatherOptions

from helpers.ranks import Rank, RankSet, engines, works_on

pytestmark = pytest.mark.loopback

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
CPU = torch.device("cpu")
SOON, LONG = timedelta(milliseconds=300), timedelta(seconds=30)


def world() -> dist.ProcessGroup:
    return dist.distributed_c10d._get_default_group()


def own_client(me: Rank) -> dist.Store:
    """Of the store. While one client waits for a key, nobody else gets an answer through it, such
    as a group that is to meet.
    """
    return dist.TCPStore("127.0.0.1", me.port, is_master=False, use_libuv=True)


def counts(group: dist.ProcessGroup) -> int:
    """The number of ranks that take part in an all-reduce."""
    tensor = torch.ones(5)
    group.allreduce([tensor]).wait()
    return int(tensor[0].item())


# --- splitting groups


def check_a_split_has_its_ranks_in_their_order(me: Rank) -> None:
    for ranks in ([3, 1], [0, 2, 1], [2], [0, 1, 2, 3]):
        name = f"split {ranks}"
        part = world().split_group(ranks, timeout=LONG, group_name=name)
        assert (part is not None) == (me.rank in ranks)
        if part is None:
            continue
        order = ranks if part.rank() == ranks.index(me.rank) else sorted(ranks)  # torch up to 2.14
        assert (part.rank(), part.size()) == (order.index(me.rank), len(ranks))
        assert counts(part) == len(ranks)
        tensor = torch.tensor([me.rank])
        part.broadcast(tensor, 0).wait()
        assert tensor.item() == order[0]
        assert backend_of(part).statistics()["operations"] == 2  # it is a gtopk group
    works_on(me)


def check_split_group_of_torch_itself(me: Rank) -> None:
    if VERSION < (2, 15):  # earlier versions ask for an accelerator
        with pytest.raises((RuntimeError, ValueError, AssertionError)):
            dist.split_group(split_ranks=[[0, 1], [2, 3]])
        return
    part = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    assert dist.get_process_group_ranks(part) == ([0, 1] if me.rank < 2 else [2, 3])
    tensor = torch.tensor([float(me.rank)])
    dist.all_reduce(tensor, group=part)
    assert tensor.item() == (1.0 if me.rank < 2 else 5.0)
    some = dist.split_group(split_ranks=[[0, 3]])
    assert (some is dist.GroupMember.NON_GROUP_MEMBER) == (me.rank in (1, 2))
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    for dimension, expected in (
        ("outer", 2 * (me.rank % 2) + 2),
        ("inner", 4 * (me.rank // 2) + 1),
    ):
        tensor = torch.tensor([float(me.rank)])
        dist.all_reduce(tensor, group=mesh.get_group(dimension))
        assert tensor.item() == expected
    for group in (part, some):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def check_a_split_leaves_the_name_of_its_parent(me: Rank) -> None:
    """Torch writes the split's name into the options that it gets from the parent."""
    parent = dist.new_group()
    part = parent.split_group([0, 1, 2, 3], timeout=LONG, group_name="one part")
    assert counts(part) == counts(parent) == me.size
    backend_of(parent).shutdown()
    with pytest.raises(dist.DistBackendError, match="has been destroyed") as caught:
        parent.allreduce([torch.ones(2)]).wait()
    assert "one part" not in str(caught.value)


def check_a_split_with_wrong_ranks(me: Rank) -> None:
    for ranks in ([0, 0, 1, 2, 3], [0, 1, 2, 3, 4]):
        with pytest.raises((ValueError, RuntimeError)):
            world().split_group(ranks, timeout=LONG, group_name="wrong")
    works_on(me)


# --- timeouts


def impatient() -> dist.ProcessGroup:
    """A group with a short timeout for operations, but not for its meeting."""
    group = dist.new_group()
    group.set_timeout(SOON)
    return group


def outlasts(me: Rank, group: dist.ProcessGroup, key: str) -> None:
    """Rank 0's operation lasts longer than SOON, while the others do not call."""
    if me.rank == 0:
        work = group.allreduce([torch.ones(2)])
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait(3 * SOON)
        me.store.set(key, "")
        work.wait()
    else:
        own_client(me).wait([key], LONG)
        group.allreduce([torch.ones(2)]).wait()


def check_the_default_time_out_is_changed(me: Rank) -> None:
    for number, change in enumerate(
        (
            lambda group: group.set_timeout(LONG),
            lambda group: backend_of(group)._set_default_timeout(LONG),
        )
    ):
        group = impatient()
        change(group)
        outlasts(me, group, f"changed {number}")


def check_a_time_out_is_extended_until_an_operation_has_ended(me: Rank) -> None:
    if VERSION < (2, 14):
        assert not hasattr(world(), "_add_ephemeral_timeout")
        return
    group = impatient()
    for _ in range(2):
        group._add_ephemeral_timeout(LONG)
    outlasts(me, group, "extended")
    if me.rank == 0:
        with pytest.raises(dist.DistBackendError) as caught:
            group.allreduce([torch.ones(2)]).wait()
        (seconds,) = re.findall(r"timed out after ([\d.]+) s", str(caught.value))
        assert SOON.total_seconds() <= float(seconds) < LONG.total_seconds()
        me.store.set("and no more", "")
    else:
        own_client(me).wait(["and no more"], LONG)


# --- hooks


def check_the_hook_of_every_work_that_ends(me: Rank) -> None:
    group, told = dist.new_group(), []
    group._register_on_completion_hook(told.append)
    for _ in range(100):  # some end on the engine's thread, some where they are copied back
        dist.all_reduce(torch.ones(3), group=group)
        dist.all_reduce(torch.ones(3, 4).t(), group=group)
    group._wait_for_pending_works()
    assert [each.seq for each in told] == list(range(1, 201))
    assert all(each.active_duration.total_seconds() > 0 for each in told)
    dist.destroy_process_group(group)


def check_durations(me: Rank) -> None:
    group = dist.new_group()
    group._enable_collectives_timing()
    work = group.allreduce([torch.ones(3)])
    work.wait()
    assert 0 < work._get_duration() < 60_000


def check_abort_hooks(me: Rank) -> None:
    if VERSION < (2, 15):
        assert not hasattr(world(), "supports_abort_hooks")
        return
    for failure in ("abort", "time-out"):
        group, told = dist.new_group() if failure == "abort" else impatient(), []
        assert group.supports_abort_hooks
        group.register_abort_hook(7, lambda told=told: told.append(threading.get_ident()))
        group.register_abort_hook(8, lambda told=told: told.append(None))
        group.unregister_abort_hook(8)
        work = group.allreduce([torch.ones(2)]) if me.rank != 3 else None
        if me.rank == 0 and failure == "abort":
            group.abort()
        if work is not None:
            with pytest.raises(dist.DistBackendError):
                work.wait()
            assert told
            assert None not in told


def check_abort_hooks_run_for_a_receive_after_a_barrier_timeout(me: Rank) -> None:
    """Rank 0's barrier times out. Rank 1 waits for a message."""
    if VERSION < (2, 15):
        return
    group, ran = dist.new_group(), []
    group.register_abort_hook(1, lambda: ran.append(me.rank))
    if me.rank == 0:
        group.set_timeout(SOON)
        with pytest.raises(dist.DistBackendError, match="timed out"):
            group.barrier().wait()
    if me.rank == 1:
        with pytest.raises(dist.DistBackendError, match="barrier #1 timed out"):
            group.recv([torch.empty(2)], 2, 0).wait()
    assert me.rank > 1 or ran == [me.rank]


def check_no_abort_hook_runs_for_a_message_that_timed_out(me: Rank) -> None:
    if VERSION < (2, 15):
        return
    group, ran = dist.new_group(), []
    group.register_abort_hook(1, lambda: ran.append(me.rank))
    if me.rank == 1:
        group.set_timeout(SOON)
        with pytest.raises(dist.DistBackendError, match="timed out"):
            group.recv([torch.empty(2)], 2, 0).wait()
        group.set_timeout(LONG)
    assert counts(group) == 4
    assert not ran


def check_the_flight_recorder_of_torch_sees_the_end(me: Rank) -> None:
    if VERSION < (2, 15):
        return
    group = dist.new_group(group_desc="recorded")
    for _ in range(3):
        dist.all_reduce(torch.ones(3), group=group)
    dump = torch._C._distributed_c10d._dump_fr_trace_json(True, False, "gtopk")
    entries = [each for each in json.loads(dump)["entries"] if "recorded" in each["process_group"]]
    assert [each["state"] for each in entries] == ["completed"] * 3
    assert all(each["duration_ms"] > 0 for each in entries)


# --- other names


def check_single_names(me: Rank) -> None:
    if VERSION < (2, 14):
        return
    mine = torch.full((2,), float(me.rank))
    whole = torch.empty(8)
    dist.all_gather_single(whole, mine)
    assert whole.view(4, 2).mean(1).tolist() == [0, 1, 2, 3]
    part = torch.empty(2)
    dist.reduce_scatter_single(part, whole)
    assert part.tolist() == [4.0 * me.rank] * 2
    gathered = torch.empty(8) if me.rank == 2 else torch.empty(0)
    world().gather_single(gathered, mine, gather_options(2)).wait()
    if me.rank == 2:
        assert gathered.tolist() == whole.tolist()
    with pytest.raises(ValueError, match="gather_single needs a contiguous output of 4 x 2"):
        world().gather_single(torch.empty(7), mine, gather_options(me.rank))
    works_on(me)


def gather_options(root: int) -> GatherOptions:
    options = GatherOptions()
    options.rootRank = root
    return options


def check_get_error(me: Rank) -> None:
    group = dist.new_group()
    if VERSION >= (2, 15):
        assert group._get_backend(CPU).get_error().name == "SUCCESS"
    assert backend_of(group).get_error().name == "SUCCESS"
    dist.barrier()  # from here on this rank may get another rank's abort
    group.abort()
    assert backend_of(group).get_error().name == "COMM_ERROR"


def check_who_asks_for_the_error_leaves_the_hooks_to_abort(me: Rank) -> None:
    if VERSION < (2, 15):
        return
    group = dist.new_group()
    ran: list[int] = []
    group.register_abort_hook(1, lambda: ran.append(me.rank))
    dist.barrier()
    if me.rank == 0:
        group.abort()
        assert ran == [0]
    while backend_of(group).get_error().name == "SUCCESS":
        pass  # nothing is in flight here: the others' engines tell
    assert backend_of(group).get_error().name == "COMM_ERROR"
    group.abort()
    assert ran == [me.rank]
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


# --- groups whose ranks change


def changes_ranks(me: Rank) -> None:
    if VERSION < (2, 14):
        return
    dist.init_process_group(
        "gtopk",
        store=dist.PrefixStore("changes", me.store),
        rank=me.rank,
        world_size=me.size,
        timeout=LONG,
        enable_reconfigure=True,
    )
    group = world()
    assert group.supports_reconfigure
    with pytest.raises(dist.DistBackendError, match="call reconfigure"):
        counts(group)
    me.store.set(f"handle/{me.rank}", group.get_reconfigure_handle())
    handles = [me.store.get(f"handle/{rank}").decode() for rank in range(me.size)]
    assert len(set(handles)) == me.size

    store = own_client(me)

    def again(uuid: int, some: list[str] | set[str]) -> None:
        dist.distributed_c10d._reconfigure(uuid, some).wait()

    def all_have(done: str) -> None:
        """A rank that is reconfigured aborts what others have not ended yet."""
        store.set(f"{done}/{me.rank}", "")
        store.wait([f"{done}/{rank}" for rank in range(me.size)])

    again(1, handles)
    assert (group.rank(), group.size(), counts(group)) == (me.rank, 3, 3)
    all_have("counted three")
    engine = engines()
    if me.rank < 2:  # rank 2 is lost
        again(2, [handles[1], handles[0]])
        assert (group.rank(), group.size(), counts(group)) == (1 - me.rank, 2, 2)
        with pytest.raises(RuntimeError, match="new uuid; 2 was already used"):
            again(2, handles[:2])
        with pytest.raises(ValueError, match="none of them this rank's"):
            again(3, handles[2:])
        assert counts(group) == 2
    all_have("counted two")
    assert engines() == engine  # though the group was this process's only one
    failed = "no ranks, as its last reconfigure failed.*new uuid"
    if me.rank == 1:  # nobody else comes
        with pytest.raises(dist.DistBackendError):
            dist.distributed_c10d._reconfigure(9, handles, timeout=SOON).wait()
        with pytest.raises(dist.DistBackendError, match=failed):
            counts(group)
        assert backend_of(group).get_error().name == "COMM_ERROR"
    all_have("met nobody")
    again(4, set(handles))  # and comes back
    ranks = sorted(range(3), key=lambda rank: handles[rank])
    assert (group.rank(), group.size(), counts(group)) == (ranks.index(me.rank), 3, 3)
    assert backend_of(group).get_error().name == "SUCCESS"
    dist.destroy_process_group()


@pytest.mark.skipif(VERSION < (2, 14), reason="reconfigure is of torch 2.14")
def test_a_group_is_reconfigured(three_apart: RankSet) -> None:
    three_apart.run(changes_ranks)
