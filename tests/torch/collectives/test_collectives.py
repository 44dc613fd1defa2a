"""Everything torch.distributed offers and this backend has, against gloo."""

from __future__ import annotations

import contextlib
import functools
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gtopk.core.groups import backend_of
from torch.distributed import ReduceOp

from helpers.collectives import FLOATS, INTEGERS, drawn, usable
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
NOT_GLOOS = {torch.int16: torch.int32, **dict.fromkeys(UNSIGNED, torch.int64)}
# Both sides of the switch from recursive doubling to the ring, and sizes P does not divide.
SIZES = (0, 1, 7, 4097, 100_003)


@functools.cache
def gloo() -> dist.ProcessGroup:
    """A gloo group beside the default one, created once per rank."""
    return dist.new_group(backend="gloo")


def all_reduced(rank: int, dtype: torch.dtype, op: ReduceOp, numel: int) -> None:
    mine = drawn(rank, numel, dtype)
    theirs = mine.to(NOT_GLOOS.get(dtype, dtype), copy=True)
    dist.all_reduce(mine, op)
    dist.all_reduce(theirs, op, group=gloo())
    theirs = theirs.to(dtype)
    if dtype.is_floating_point:
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=4 * tolerance)
    else:
        assert torch.equal(mine, theirs), (dtype, op, numel)


def check_all_reduce_of_floats(me: Rank) -> None:
    for dtype in FLOATS:
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
            for numel in SIZES:
                all_reduced(me.rank, dtype, op, numel)


def check_all_reduce_of_integers(me: Rank) -> None:
    for dtype in (*INTEGERS, *UNSIGNED):
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
            for numel in SIZES:
                all_reduced(me.rank, dtype, op, numel)


def check_all_reduce_of_complex_numbers(me: Rank) -> None:
    """Through torch.distributed, which sees pairs of floats, and directly through the backend."""
    group = dist.distributed_c10d._get_default_group()
    for dtype in COMPLEX:
        tolerance = 8 * torch.finfo(dtype).eps
        close = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
        for numel in SIZES:
            each = torch.stack([drawn(rank, numel, dtype) for rank in range(me.size)])
            for op, expected in (
                (ReduceOp.SUM, each.sum(0)),
                (ReduceOp.AVG, each.mean(0)),
                (ReduceOp.PRODUCT, each.prod(0)),
            ):
                direct = drawn(me.rank, numel, dtype)
                group.allreduce([direct], op).wait()
                close(direct, expected)
                if op == ReduceOp.PRODUCT:  # refused by torch.distributed itself
                    continue
                viewed = drawn(me.rank, numel, dtype)
                dist.all_reduce(viewed, op)
                close(viewed, expected)


def check_average(me: Rank) -> None:
    for dtype in FLOATS:
        mine = drawn(me.rank, 1000, dtype)
        dist.all_reduce(mine, ReduceOp.AVG)
        wide = [drawn(rank, 1000, dtype).double() for rank in range(me.size)]
        expected = (sum(wide) / me.size).to(dtype)
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)


def check_sums_of_what_was_multiplied(me: Rank) -> None:
    """PREMUL_SUM: a different factor on each rank, a number or a tensor."""
    factors = [1.0 / (rank + 1.5) for rank in range(me.size)]
    for dtype in (*FLOATS, *COMPLEX):
        tolerance = 8 * torch.finfo(dtype).eps
        for numel in SIZES:
            wide = [
                factors[r] * drawn(r, numel, dtype).to(torch.complex128) for r in range(me.size)
            ]
            expected = torch.stack(wide).sum(0)
            expected = (expected if dtype.is_complex else expected.real).to(dtype)
            for factor in (
                factors[me.rank],
                torch.tensor(factors[me.rank : me.rank + 1], dtype=torch.float64),
            ):
                mine = drawn(me.rank, numel, dtype)
                dist.all_reduce(mine, dist._make_nccl_premul_sum(factor))
                torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)


def check_bitwise_and_bool(me: Rank) -> None:
    for op, fold in ((ReduceOp.BAND, "and"), (ReduceOp.BOR, "or"), (ReduceOp.BXOR, "xor")):
        mine = drawn(me.rank, 100, torch.int64)
        dist.all_reduce(mine, op)
        each = [drawn(rank, 100, torch.int64) for rank in range(me.size)]
        expected = functools.reduce(getattr(torch, f"bitwise_{fold}"), each)
        assert torch.equal(mine, expected), op
    flags = drawn(me.rank, 100, torch.bool)
    dist.all_reduce(flags)
    assert torch.equal(flags, torch.stack([drawn(r, 100, torch.bool) for r in range(4)]).any(0))


def check_ranks_get_the_same_bits(me: Rank) -> None:
    for numel in SIZES:
        mine = drawn(me.rank, numel, torch.float32)
        dist.all_reduce(mine)
        first = mine.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, mine)


def check_strided_tensors(me: Rank) -> None:
    matrix = drawn(me.rank, 35, torch.float32).view(5, 7)
    expected = matrix.clone()
    dist.all_reduce(expected)
    strided = torch.full((5, 14), -1.0)
    strided[:, ::2] = matrix
    dist.all_reduce(strided[:, ::2])
    assert torch.equal(strided[:, ::2], expected)
    assert bool((strided[:, 1::2] == -1).all())
    transposed = matrix.clone().t()
    dist.broadcast(transposed, 2)
    assert torch.equal(transposed, drawn(2, 35, torch.float32).view(5, 7).t())
    scalar = torch.tensor(float(me.rank))
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(me.size))


def check_broadcast(me: Rank) -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.complex64):
        for root in range(me.size):
            for numel in (0, 1, 1000, 300_000):
                full = drawn(root, numel, torch.float32).to(dtype)
                mine = full.clone() if me.rank == root else torch.zeros(numel, dtype=dtype)
                dist.broadcast(mine, root)
                assert torch.equal(mine, full), (dtype, root, numel)


def check_all_gather(me: Rank) -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        for numel in (0, 1, 1000, 50_000):
            mine = drawn(me.rank, numel, dtype)
            listed = [torch.empty_like(mine) for _ in range(me.size)]
            dist.all_gather(listed, mine)
            flat = torch.empty(me.size * numel, dtype=dtype)
            dist.all_gather_into_tensor(flat, mine)
            expected = [drawn(rank, numel, dtype) for rank in range(me.size)]
            assert all(map(torch.equal, listed, expected)), (dtype, numel)
            assert torch.equal(flat, torch.cat(expected)), (dtype, numel)


def check_send_and_receive(me: Rank) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        for numel in (0, 1, 200_000):
            full = drawn(7, numel, dtype)
            if me.rank == 0:
                dist.send(full, 3)
            elif me.rank == 3:
                got = torch.empty(numel, dtype=dtype)
                assert dist.recv(got, 0) == 0
                assert torch.equal(got, full), (dtype, numel)


def check_tags_and_order(me: Rank) -> None:
    after, before = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    sent = [torch.full((3,), 10.0 * me.rank + i) for i in range(4)]
    got = [torch.zeros(3) for _ in range(4)]
    # Received in another order than sent: matched by tag, and in order for one tag.
    receives = [dist.irecv(got[i], before, tag=tag) for i, tag in ((2, -7), (0, 5), (1, 5), (3, 0))]
    sends = [dist.isend(sent[i], after, tag=tag) for i, tag in ((0, 5), (1, 5), (2, -7), (3, 0))]
    for work in (*receives, *sends):
        work.wait()
    for i in range(4):
        assert bool((got[i] == 10.0 * before + i).all()), i


def check_receives_from_any_source(me: Rank) -> None:
    for numel in (0, 3, 200_000):
        if me.rank != 2:
            dist.send(torch.full((numel,), float(me.rank)), 2, tag=numel)
            continue
        seen = []
        for _ in range(3):
            tensor = torch.empty(numel)
            seen.append(dist.recv(tensor, tag=numel))
            assert bool((tensor == seen[-1]).all())
        assert sorted(seen) == [0, 1, 3]
    # Both at once, and from this rank to itself.
    tensors = [torch.zeros(4) for _ in range(4)]
    works = [dist.irecv(tensor, tag=1) for tensor in tensors]
    sends = [dist.isend(torch.full((4,), float(me.rank)), to, tag=1) for to in range(4)]
    for work in (*works, *sends):
        work.wait()
    sources = [work._source_rank() for work in works]
    assert sorted(sources) == [0, 1, 2, 3]
    assert [tensor[0].item() for tensor in tensors] == sources
    named = torch.zeros(4)
    work = dist.irecv(named, (me.rank + 1) % 4)
    dist.send(named, (me.rank - 1) % 4)
    work.wait()
    assert work._source_rank() == (me.rank + 1) % 4


def check_messages_to_the_own_rank(me: Rank) -> None:
    for numel in (0, 3, 200_000):
        sent, got = torch.full((numel,), 1.0 + me.rank), torch.zeros(numel)
        works = [dist.isend(sent, me.rank), dist.irecv(got, me.rank)]
        for work in works:
            work.wait()
        assert torch.equal(got, sent)


def check_objects(me: Rank) -> None:
    given = [{"a": [1, 2]}, "text", None, torch.arange(5)] if me.rank == 1 else [None] * 4
    dist.broadcast_object_list(given, src=1)
    assert given[0] == {"a": [1, 2]}
    assert given[1] == "text"
    assert torch.equal(given[3], torch.arange(5))
    gathered = [None] * me.size
    dist.all_gather_object(gathered, {"rank": me.rank, "pad": "x" * 100 * me.rank})
    assert [each["rank"] for each in gathered] == list(range(me.size))
    assert [len(each["pad"]) for each in gathered] == [100 * r for r in range(me.size)]


def check_groups_that_overlap(me: Rank) -> None:
    members = [[0, 1, 2], [1, 2, 3], [3, 0], [2], [0, 1, 2, 3]]
    groups = [dist.new_group(ranks) for ranks in members]
    for ranks, group in zip(members, groups, strict=True):
        if me.rank not in ranks:
            continue
        assert dist.get_world_size(group) == len(ranks)
        tensor = torch.full((10,), float(me.rank + 1))
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == sum(rank + 1 for rank in ranks)
    # All at once, in another order on each rank: groups have their own sequence numbers.
    order = list(zip(members, groups, strict=True))
    order = [each for each in order[me.rank :] + order[: me.rank] if me.rank in each[0]]
    tensors = [torch.full((10,), float(me.rank + 1)) for _ in order]
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for tensor, (_, group) in zip(tensors, order, strict=True)
    ]
    for work, tensor, (ranks, _) in zip(works, tensors, order, strict=True):
        work.wait()
        assert tensor[0].item() == sum(rank + 1 for rank in ranks)
    for ranks, group in zip(members, groups, strict=True):
        if me.rank in ranks:
            dist.destroy_process_group(group)
    dist.barrier()


def check_forty_groups(me: Rank) -> None:
    groups = [dist.new_group([0, 1, 2, 3]) for _ in range(40)]
    works = []
    for i, group in enumerate(groups):
        tensor = torch.full((5,), float(i))
        works.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, i))
    for work, tensor, i in works:
        work.wait()
        assert tensor[0].item() == 4 * i
    for group in groups:
        dist.destroy_process_group(group)


def check_works_and_futures(me: Rank) -> None:
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() is not False
    assert work.is_completed()
    (result,) = work.get_future().wait()
    assert result.data_ptr() == tensor.data_ptr()
    # A callback's value, and a collective that a callback starts.
    chained = torch.ones(10)
    first = dist.all_reduce(chained, async_op=True).get_future()
    second = first.then(lambda done: dist.all_reduce(done.value()[0], async_op=True))
    second.wait().wait()
    assert chained[0].item() == me.size**2
    # Dropped without wait: it still completes, before later operations.
    for _ in range(20):
        dist.all_reduce(torch.ones(5000), async_op=True)
    dist.barrier()
    works = [dist.all_reduce(torch.full((64,), float(i)), async_op=True) for i in range(100)]
    for i, work in enumerate(works):
        work.wait()
        assert work.result()[0][0].item() == 4.0 * i
    # A callback that raises affects only its own future.
    failing = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda _: 1 / 0)
    with pytest.raises(RuntimeError, match="division by zero"):
        failing.wait()


def check_works_from_several_threads(me: Rank) -> None:
    import threading

    groups = [dist.new_group([0, 1, 2, 3]) for _ in range(4)]
    wrong: list[object] = []

    def reduce_on(group: dist.ProcessGroup, value: int) -> None:
        for i in range(50):
            tensor = torch.full((100,), float(value + i))
            dist.all_reduce(tensor, group=group)
            if tensor[0].item() != 4 * (value + i):
                wrong.append((value, i, tensor[0].item()))

    threads = [threading.Thread(target=reduce_on, args=(g, i)) for i, g in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def check_what_is_not_there_names_itself(me: Rank) -> None:
    with pytest.raises(NotImplementedError, match="broadcast of a Sparse"):
        backend_of(None).broadcast([torch.ones(4).to_sparse()], dist.BroadcastOptions())
    usable(me)


def check_a_timeout_may_be_longer_than_clocks_count(me: Rank) -> None:
    long = timedelta(days=999_999)
    group = dist.new_group(timeout=long)
    usable(me, group)
    backend_of(group).set_timeout(long)
    usable(me, group)
    tensor = torch.ones(3)
    if me.rank == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        me.store.set("waits/long", "yes")
        work.wait(long)
        assert tensor.tolist() == [float(me.size)] * 3
    else:
        me.store.wait(["waits/long"])
        dist.all_reduce(tensor, group=group)


def check_a_group_needs_distinct_ranks(me: Rank) -> None:
    # Newer versions of torch say so themselves, on all ranks.
    if me.rank < 2:
        with pytest.raises(ValueError, match=r"(distinct|duplicate) .*\[0, 1, 1\]"):
            dist.new_group([0, 1, 1])
    else:
        with contextlib.suppress(ValueError):
            dist.new_group([0, 1, 1])
    usable(me, dist.new_group())


def check_bad_calls(me: Rank) -> None:
    with pytest.raises(ValueError, match="BAND"):
        dist.all_reduce(torch.ones(4), ReduceOp.BAND)
    direct = dist.distributed_c10d._get_default_group().allreduce
    for op in (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        with pytest.raises(ValueError, match=rf"{op.name} does not exist for complex64"):
            direct([torch.ones(4, dtype=torch.cfloat)], op)
    with pytest.raises(ValueError, match="PREMUL_SUM does not exist for int64"):
        dist.all_reduce(torch.ones(4, dtype=torch.int64), dist._make_nccl_premul_sum(2.0))
    with pytest.raises(ValueError, match="must be one real number; given c10::complex"):
        dist.all_reduce(torch.ones(4), dist._make_nccl_premul_sum(torch.ones(1).cfloat()))
    with pytest.raises(ValueError, match="no reduction of dtype Float8_e5m2"):
        direct([torch.ones(4).to(torch.float8_e5m2)])
    with pytest.raises(ValueError, match="only a receive has a source rank"):
        dist.all_reduce(torch.ones(4), async_op=True)._source_rank()
    with pytest.raises(ValueError, match=r"output \d to match the input"):
        dist.all_gather([torch.empty(5) for _ in range(me.size)], torch.ones(4))
    usable(me)


def check_ranks_that_differ(me: Rank) -> None:
    odd = me.rank == 2
    calls = {
        "d": lambda: dist.all_reduce(torch.ones(5 if odd else 4)),
        "dtype": lambda: dist.all_reduce(torch.ones(4, dtype=torch.float64 if odd else None)),
        "op": lambda: dist.all_reduce(torch.ones(4), ReduceOp.MAX if odd else ReduceOp.SUM),
        "large d": lambda: dist.all_reduce(torch.ones(200_001 if odd else 200_000)),
        "collective": lambda: dist.broadcast(torch.ones(4), 0) if odd else dist.barrier(),
        "root": lambda: dist.broadcast(torch.ones(4), 1 if odd else 0),
    }
    both = {
        "d": ("d=4", "d=5"),
        "dtype": ("float32", "float64"),
        "op": ("SUM", "MAX"),
        "large d": ("d=200000", "d=200001"),
        "collective": ("barrier", "broadcast"),
        "root": ("root=0", "root=1"),
    }
    for name, call in calls.items():
        with pytest.raises(dist.DistBackendError) as caught:
            call()
        for value in both[name]:
            assert value in str(caught.value), (name, value, str(caught.value))
        usable(me)


def check_a_receive_that_nobody_serves(me: Rank) -> None:
    group = dist.new_group([0, 1, 2, 3])
    if me.rank == 0:
        backend_of(group).set_timeout(timedelta(seconds=1))
        with pytest.raises(dist.DistBackendError, match=r"(?i)recv.*1"):
            dist.recv(torch.ones(4), 1, group=group)
        with pytest.raises(dist.DistBackendError, match="no rank has sent a matching message"):
            dist.recv(torch.ones(4), group=group)
    dist.barrier()
    usable(me)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
