"""Collectives on parts, on all four ranks and on three of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from helpers.collectives import FLOATS, INTEGERS, drawn, usable
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

functional = torch.ops._c10d_functional

# Elements per part. All-reduce of 4 parts: by the tree up to 16 KiB each, then by the ring.
SIZES = (0, 1, 7, 50_003)


def name() -> str:
    """The name by which functional collectives know the group of all ranks."""
    return dist.group.WORLD.group_name


def groups(me: Rank) -> Iterator[tuple[dist.ProcessGroup, int]]:
    """The group and its size: all ranks, with their own numbers, then the first three."""
    yield dist.group.WORLD, 4
    three = dist.new_group([0, 1, 2])
    if me.rank < 3:
        yield three, 3
        dist.destroy_process_group(three)


def reduced(parts: list[torch.Tensor], op: ReduceOp, dtype: torch.dtype) -> torch.Tensor:
    """The reduction over dimension 0, in a wide type."""
    wide = torch.stack(parts).to(torch.float64 if dtype.is_floating_point else torch.int64)
    if op == ReduceOp.AVG:
        return wide.mean(0) if dtype.is_floating_point else wide.sum(0) // len(parts)
    if op == ReduceOp.MAX:
        return wide.amax(0)
    return wide.sum(0)


def close(mine: torch.Tensor, expected: torch.Tensor) -> None:
    expected = expected.to(mine.dtype).view_as(mine)
    if mine.dtype.is_floating_point:
        tolerance = 8 * torch.finfo(mine.dtype).eps
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=4 * tolerance)
    else:
        assert torch.equal(mine, expected)


def check_reduce_scatter(me: Rank) -> None:
    for group, size in groups(me):
        for dtype in (*FLOATS, *INTEGERS):
            for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX):
                for numel in SIZES if dtype in (torch.float32, torch.bfloat16) else SIZES[:3]:
                    inputs = [drawn(rank, size * numel, dtype) for rank in range(size)]
                    parts = [
                        list(whole.split(numel) if numel else [whole] * size) for whole in inputs
                    ]
                    expected = reduced([each[me.rank] for each in parts], op, dtype)
                    flat = torch.empty(numel, dtype=dtype)
                    dist.reduce_scatter_tensor(flat, inputs[me.rank], op, group=group)
                    close(flat, expected)
                    listed = torch.empty(numel, dtype=dtype)
                    dist.reduce_scatter(listed, parts[me.rank], op, group=group)
                    assert torch.equal(listed, flat)
                    assert torch.equal(inputs[me.rank], drawn(me.rank, size * numel, dtype))


def check_reduce_scatter_of_uneven_parts(me: Rank) -> None:
    for group, size in groups(me):
        for unit in (1, 20_000):
            sizes = [unit * part for part in range(size)]
            inputs = [drawn(rank, sum(sizes), torch.float32) for rank in range(size)]
            output = torch.empty(sizes[me.rank])
            dist.reduce_scatter(output, list(inputs[me.rank].split(sizes)), group=group)
            close(output, sum(whole.split(sizes)[me.rank] for whole in inputs))


def check_reduce_scatter_is_a_part_of_all_reduce(me: Rank) -> None:
    for numel in (4, 400_000):
        whole = drawn(me.rank, numel, torch.float32)
        part = torch.empty(numel // 4)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_reduce(whole)
        assert torch.equal(part, whole.chunk(4)[me.rank])


def check_reduce_scatter_of_strided_and_shaped_tensors(me: Rank) -> None:
    columns = torch.full((6, 5), float(me.rank)).t()[:4]  # (4, 6), not contiguous
    output = torch.zeros(6, 2)[:, 0]
    dist.reduce_scatter_tensor(output, columns)
    assert output.tolist() == [6.0] * 6
    scalar = torch.tensor(0.0)
    dist.reduce_scatter(scalar, [torch.tensor(float(part)) for part in range(4)])
    assert scalar.item() == 4.0 * me.rank
    in_place = torch.arange(8.0)
    dist.reduce_scatter_tensor(in_place[2 * me.rank : 2 * me.rank + 2], in_place)
    assert in_place[2 * me.rank].item() == 8.0 * me.rank


def check_reduce_scatter_of_several_tensors_in_one_work(me: Rank) -> None:
    shapes = [(3,), (0,), (2, 5), (1000, 7)]
    inputs = [torch.full((4 * shape[0], *shape[1:]), 1.0 + me.rank) for shape in shapes]
    outputs = [torch.empty(shape) for shape in shapes]
    dist.group.WORLD.reduce_scatter_tensor_coalesced(outputs, inputs).wait()
    for output in outputs:
        assert bool((output == 10.0).all()), output
    # As called by DTensor.
    for op, value in (("sum", 10.0), ("avg", 2.5)):
        for given in (inputs[2:], inputs[:1]):
            for output in functional.reduce_scatter_tensor_coalesced(given, op, 4, name()):
                assert bool((functional.wait_tensor(output) == value).all()), (op, output)


def check_all_gather_of_uneven_parts(me: Rank) -> None:
    for group, size in groups(me):
        for dtype in (torch.float32, torch.uint8, torch.complex64):
            parts = [drawn(rank, 100 * rank + rank % 2, torch.float32) for rank in range(size)]
            parts = [part.to(dtype) for part in parts]
            outputs = [torch.empty_like(part) for part in parts]
            dist.all_gather(outputs, parts[me.rank], group=group)
            assert all(map(torch.equal, outputs, parts))


def check_all_reduce_of_several_tensors_in_one_work(me: Rank) -> None:
    for group, size in groups(me):
        for op, scale in ((ReduceOp.SUM, size), (ReduceOp.AVG, 1.0), (ReduceOp.MAX, 1.0)):
            shapes = [(), (3,), (0, 2), (5, 4), (30_000,)]
            tensors = [torch.full(shape, 1.5 + i) for i, shape in enumerate(shapes)]
            tensors.append(torch.full((4, 6), 7.0).t())
            expected = [scale * tensor for tensor in tensors]
            work = group.allreduce_coalesced(tensors, options_of(op))
            work.wait()
            assert all(map(torch.equal, tensors, expected))
            assert [each.data_ptr() for each in work.result()] == [t.data_ptr() for t in tensors]
    ones = [torch.ones(3), torch.ones(2, 2)]
    for output in functional.all_reduce_coalesced(ones, "sum", name()):
        assert bool((functional.wait_tensor(output) == 4.0).all())


def options_of(op: ReduceOp) -> dist.AllreduceCoalescedOptions:
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = op
    return options


def check_all_gather_of_several_tensors_in_one_work(me: Rank) -> None:
    for group, size in groups(me):
        # Types that cannot lie behind one another without a gap.
        dtypes = (torch.uint8, torch.float64, torch.bool, torch.complex64, torch.float16)
        shapes = ((3,), (2, 3), (), (0, 4), (5,))

        def given(rank: int, dtypes: tuple = dtypes, shapes: tuple = shapes) -> list[torch.Tensor]:
            pairs = zip(shapes, dtypes, strict=True)
            return [torch.full(shape, rank + 1, dtype=dtype) for shape, dtype in pairs]

        listed = [[torch.zeros_like(each) for each in given(0)] for _ in range(size)]
        group.allgather_coalesced(listed, given(me.rank)).wait()
        for rank in range(size):
            assert all(map(torch.equal, listed[rank], given(rank))), rank
        # Concatenated, one not contiguous.
        inputs = [torch.full((2, 3), me.rank + 1.0), torch.full((1,), me.rank, dtype=torch.int8)]
        outputs = [torch.zeros(2 * size, 6)[:, ::2], torch.zeros(size, dtype=torch.int8)]
        group.allgather_into_tensor_coalesced(outputs, inputs).wait()
        assert outputs[0][:, 1].tolist() == [1.0 + row // 2 for row in range(2 * size)]
        assert outputs[1].tolist() == list(range(size))
        # Nothing at all, in types of one byte and of several.
        empty = [torch.empty(0), torch.empty(0, 4, dtype=torch.float64), torch.empty(0).bool()]
        group.allgather_coalesced([empty] * size, empty).wait()
        group.allgather_into_tensor_coalesced(empty, empty).wait()
    for sizes in ((2, 3), (2,), (0,), (0, 0)):
        tensors = [torch.full((each,), float(me.rank)) for each in sizes]
        gathered = functional.all_gather_into_tensor_coalesced(tensors, 4, name())
        for output, each in zip(gathered, sizes, strict=True):
            expected = torch.arange(4.0).repeat_interleave(each)
            assert torch.equal(functional.wait_tensor(output), expected)


def check_all_to_all_of_equal_parts(me: Rank) -> None:
    for group, size in groups(me):
        for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.complex64):
            for numel in (0, 1, 5000):
                inputs = [
                    drawn(rank, size * numel, torch.float32).to(dtype) for rank in range(size)
                ]
                parts = [each.view(size, numel) for each in inputs]
                expected = torch.stack([part[me.rank] for part in parts])
                flat = torch.empty(size * numel, dtype=dtype)
                dist.all_to_all_single(flat, inputs[me.rank], group=group)
                assert torch.equal(flat, expected.view(-1)), (dtype, numel)
                listed = [torch.empty(numel, dtype=dtype) for _ in range(size)]
                dist.all_to_all(listed, list(parts[me.rank]), group=group)
                assert torch.equal(torch.stack(listed), expected), (dtype, numel)


def check_all_to_all_of_uneven_parts(me: Rank) -> None:
    for group, size in groups(me):
        for unit in (0, 1, 3000):
            # Rows from one rank to another, some with none.
            rows = [[unit * ((2 * a + b) % 3) for b in range(size)] for a in range(size)]
            sent = [
                [torch.full((n, 2), 10.0 * a + b) for b, n in enumerate(rows[a])]
                for a in range(size)
            ]
            expected = [sent[a][me.rank] for a in range(size)]
            lengths = [len(part) for part in expected]
            single = torch.empty(sum(lengths), 2)
            dist.all_to_all_single(
                single, torch.cat(sent[me.rank]), lengths, rows[me.rank], group=group
            )
            assert torch.equal(single, torch.cat(expected))
            listed = [torch.empty_like(part) for part in expected]
            dist.all_to_all(listed, sent[me.rank], group=group)
            assert all(map(torch.equal, listed, expected))
            strided = torch.zeros(sum(lengths), 4)[:, 1::2]
            turned = torch.cat(sent[me.rank]).t().contiguous().t()
            dist.all_to_all_single(strided, turned, lengths, rows[me.rank], group=group)
            assert torch.equal(strided, torch.cat(expected))


def check_reduce(me: Rank) -> None:
    for group, size in groups(me):
        for dtype in (torch.float32, torch.bfloat16, torch.int16):
            for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX):
                for numel in (0, 1, 1000, 100_003):
                    root = numel % size
                    inputs = [drawn(rank, numel, dtype) for rank in range(size)]
                    mine = inputs[me.rank].clone()
                    dist.reduce(mine, root, op, group=group)
                    if me.rank == root:
                        close(mine, reduced(inputs, op, dtype))
                    else:
                        assert torch.equal(mine, inputs[me.rank])
    scalar, strided = torch.tensor(2.0), torch.zeros(3, 4).t()
    strided += me.rank
    dist.reduce(scalar, 2)
    dist.reduce(strided, 3)
    assert scalar.item() == (8.0 if me.rank == 2 else 2.0)
    assert bool((strided == (6.0 if me.rank == 3 else me.rank)).all())


def check_a_factor_of_each_ranks_own(me: Rank) -> None:
    """PREMUL_SUM, below and above the ring's sizes: 1/1 + 2/2 + 3/3 + 4/4 times one vector."""
    op = dist._make_nccl_premul_sum(1 / (me.rank + 1))
    for numel in (3, 50_000):
        every = torch.arange(4 * numel).remainder(100).float()
        mine = every * (me.rank + 1)
        given = mine.clone()
        part = every[me.rank * numel : (me.rank + 1) * numel]
        output = torch.empty(numel)
        dist.reduce_scatter_tensor(output, mine, op)
        torch.testing.assert_close(output, 4 * part)
        dist.reduce_scatter(output.zero_(), list(mine.split(numel)), op)
        torch.testing.assert_close(output, 4 * part)
        group = dist.distributed_c10d._get_default_group()
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = op
        two = [mine[:1].clone(), mine[1:].clone()]
        group.allreduce_coalesced(two, options).wait()
        torch.testing.assert_close(torch.cat(two), 4 * every)
        assert torch.equal(mine, given)
        dist.reduce(mine, 2, op)
        torch.testing.assert_close(mine, 4 * every if me.rank == 2 else given)


def check_gather_and_scatter(me: Rank) -> None:
    for group, size in groups(me):
        for root in range(size):
            for numel in (0, 1, 50_000):
                for uneven in (False, True):
                    parts = [
                        torch.full((numel + (rank if uneven else 0),), 1 + rank, dtype=torch.int32)
                        for rank in range(size)
                    ]
                    buffers = (
                        [torch.zeros_like(part) for part in parts] if me.rank == root else None
                    )
                    dist.gather(parts[me.rank], buffers, root, group=group)
                    assert buffers is None or all(map(torch.equal, buffers, parts))
                    got = torch.zeros_like(parts[me.rank])
                    dist.scatter(got, parts if me.rank == root else None, root, group=group)
                    assert torch.equal(got, parts[me.rank])
    columns = torch.zeros(5, 8)
    buffers = [columns[:, 2 * rank] for rank in range(4)] if me.rank == 1 else None
    dist.gather(torch.full((5, 2), float(me.rank))[:, 0], buffers, 1)
    if me.rank == 1:
        assert columns[:, ::2].tolist() == [[0.0, 1.0, 2.0, 3.0]] * 5
        assert not columns[:, 1::2].any()


def check_objects_of_one_rank(me: Rank) -> None:
    gathered = [None] * 4 if me.rank == 3 else None
    dist.gather_object({"rank": me.rank, "pad": "x" * me.rank}, gathered, dst=3)
    assert gathered is None or [each["rank"] for each in gathered] == [0, 1, 2, 3]
    got = [None]
    dist.scatter_object_list(got, ["a", {"b": 2}, None, [3]] if me.rank == 0 else None, src=0)
    assert got == [["a", {"b": 2}, None, [3]][me.rank]]


def check_a_group_of_one(me: Rank) -> None:
    alone = [dist.new_group([rank]) for rank in range(4)][me.rank]
    three = torch.arange(3.0)
    outputs = [torch.zeros(3) for _ in range(7)]
    dist.reduce_scatter_tensor(outputs[0], three, ReduceOp.AVG, group=alone)
    dist.reduce_scatter(outputs[1], [three], group=alone)
    dist.all_to_all_single(outputs[2], three, group=alone)
    dist.all_to_all([outputs[3]], [three], group=alone)
    dist.gather(three, [outputs[4]], me.rank, group=alone)
    dist.scatter(outputs[5], [three], me.rank, group=alone)
    outputs[6].copy_(three)
    dist.reduce(outputs[6], me.rank, ReduceOp.AVG, group=alone)
    assert all(torch.equal(output, three) for output in outputs)
    dist.destroy_process_group(alone)


def check_profiler_titles(me: Rank) -> None:
    one, four = torch.ones(1), torch.ones(4)
    parts, lists = list(torch.ones(4).split(1)), [[torch.ones(1)] for _ in range(4)]
    calls = {
        "reduce_scatter": lambda: dist.reduce_scatter(one, parts),
        "_reduce_scatter_base": lambda: dist.reduce_scatter_tensor(one, four),
        "reduce": lambda: dist.reduce(one, 0),
        "gather": lambda: dist.gather(one, parts if me.rank == 0 else None),
        "scatter": lambda: dist.scatter(one, parts if me.rank == 0 else None),
        "all_to_all": lambda: dist.all_to_all_single(torch.ones(4), four),
        "all_reduce": lambda: dist.group.WORLD.allreduce_coalesced([one]).wait(),
        "all_gather": lambda: dist.group.WORLD.allgather_coalesced(lists, [one]).wait(),
    }
    for title, call in calls.items():
        with torch.autograd.profiler.profile(record_shapes=True) as profile:
            call()
        events = [each for each in profile.function_events if each.name == f"gtopk:{title}"]
        assert len(events) == 1, (title, [each.name for each in profile.function_events])
        assert events[0].is_async


def check_parts_that_do_not_fit(me: Rank) -> None:
    world = dist.distributed_c10d._get_default_group()
    four = [torch.ones(3) for _ in range(4)]
    wrong = {
        "one per rank, given 3": lambda: dist.reduce_scatter(torch.ones(3), four[:3]),
        "an output like input": lambda: dist.reduce_scatter(torch.ones(2), four),
        r"one dtype|different dtypes": lambda: dist.reduce_scatter(
            torch.ones(3, dtype=torch.float64), four
        ),
        "4 x 2 elements of float": lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(7)),
        "rank 0 to itself|rank 1 to itself|rank 2 to itself|rank 3 to itself": lambda: (
            dist.all_to_all([torch.ones(2) for _ in range(4)], four)
        ),
        "one per rank, given 2": lambda: dist.all_to_all(four[:2], four[:2]),
        "BAND": lambda: dist.reduce_scatter(torch.ones(3), four, ReduceOp.BAND),
        "as many outputs as inputs, given 2 and 1": lambda: world.allgather_coalesced(
            [four[:2]] * 4, four[:1]
        ),
        "output 0 of rank 1 to match input 0": lambda: world.allgather_coalesced(
            [[torch.ones(2 if rank == 1 else 3)] for rank in range(4)], four[:1]
        ),
    }
    for words, call in wrong.items():
        with pytest.raises(ValueError, match=words):
            call()
    usable(me)


def check_splits_that_do_not_fit(me: Rank) -> None:
    six, four = torch.ones(6), torch.ones(4)
    wrong = {
        "input does not divide equally across group size": lambda: dist.all_to_all_single(
            four, six, [1] * 4
        ),
        "output does not divide equally across group size": lambda: dist.all_to_all_single(
            six, four, None, [1] * 4
        ),
        "add up to 4 rows": lambda: dist.all_to_all_single(four, four, [1] * 4, [2] * 4),
        "needs 4 output splits": lambda: dist.all_to_all_single(four, four, [4], [1] * 4),
        "input split of -1": lambda: dist.all_to_all_single(four, four, [1] * 4, [-1, 3, 1, 1]),
    }
    for words, call in wrong.items():
        with pytest.raises(RuntimeError, match=words) as caught:
            call()
        assert not isinstance(caught.value, ValueError)
    usable(me)


def parts_on_root(me: Rank) -> list[torch.Tensor] | None:
    return [torch.ones(1) for _ in range(4)] if me.rank == 0 else None


def check_ranks_with_other_parts(me: Rank) -> None:
    odd = me.rank == 1
    calls = {
        ("d=3", "d=5"): lambda: dist.reduce_scatter_tensor(
            torch.ones(5 if odd else 3), torch.ones(20 if odd else 12)
        ),
        ("d=[", "d=2"): lambda: dist.reduce_scatter(
            torch.ones(2), [torch.ones(3 if odd and part == 3 else 2) for part in range(4)]
        ),
        ("bytes=4,", "bytes=[4, 8, 4, 4]"): lambda: dist.all_gather(
            [torch.ones(2 if odd and part == 1 else 1) for part in range(4)],
            torch.ones(2 if odd else 1),
        ),
        ("sizes=2)", "sizes=[3, 1])"): lambda: dist.group.WORLD.allreduce_coalesced(
            [torch.ones(3), torch.ones(1)] if odd else [torch.ones(2), torch.ones(2)]
        ).wait(),
        ("sends 8 bytes", "expects 4 from it"): lambda: dist.gather(
            torch.ones(2 if odd else 1),
            parts_on_root(me),
        ),
        ("sends 4 bytes to rank 1", "expects 8 from it"): lambda: dist.scatter(
            torch.ones(2 if odd else 1),
            parts_on_root(me),
        ),
        ("bytes to rank", "from it"): lambda: dist.all_to_all_single(
            torch.ones(8 if odd else 4), torch.ones(8 if odd else 4)
        ),
        ("root=0", "root=2"): lambda: dist.reduce(torch.ones(3), 2 if odd else 0),
        ("gather(", "scatter("): lambda: (
            dist.scatter(torch.ones(1), None, 0)
            if odd
            else dist.gather(torch.ones(1), parts_on_root(me), 0)
        ),
        ("op=SUM", "op=MAX"): lambda: dist.reduce_scatter_tensor(
            torch.ones(1), torch.ones(4), ReduceOp.MAX if odd else ReduceOp.SUM
        ),
    }
    for both, call in calls.items():
        with pytest.raises(dist.DistBackendError) as caught:
            call()
        for value in both:
            assert value in str(caught.value), (value, str(caught.value))
        usable(me)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
