"""Sparse all-reduces in which no rank selects, of tensors on a device, which
here is a fake one (fake/device.hpp). Nothing here has run on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gtopk.core.backend import sequence_number
from gtopk.core.groups import backend_of

import gtopk
from helpers.device_values import FAKE, fill, meet, read_later, synchronize, values
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

ALGORITHMS = ("random-k", "dense", "true-topk", "sketch")


def test_on_two_ranks(two_with_device: RankSet, check: Callable) -> None:
    two_with_device.run(check, timeout=90.0)


def _steps(me: Rank, device: str, d: int, **arguments: Any) -> list[torch.Tensor]:
    """Tensor and residual after each of three steps; every second tensor is in pieces.

    In a group of their own: what is drawn follows from the number of a call in its group.
    """
    group = dist.new_group()
    dtype = arguments.pop("dtype", torch.float32)
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    residual = (values(me, d).to(kept) / 3).to(device)
    seen = []
    for step in range(3):
        tensor = (values(me, d) * (step + 1)).to(dtype).to(device)
        pieces = [tensor[: d // 3].clone(), tensor[d // 3 :].clone()] if step % 2 else [tensor]
        gtopk.sparse_all_reduce(pieces, residual=residual, group=group, **arguments)
        seen += [torch.cat([each.cpu() for each in pieces]), residual.cpu().clone()]
    dist.destroy_process_group(group)
    return seen


def check_dense_on_a_coded_wire_is_staged(me: Rank) -> None:
    for arguments in (
        {"wire": "int8"},
        {"wire": "4bit", "dtype": torch.bfloat16},
        {"wire": "ternary"},
    ):
        expected = _steps(me, "cpu", 9000, algorithm="dense", **arguments)
        before = torch.ops.fake.counts()
        seen = _steps(me, FAKE, 9000, algorithm="dense", **arguments)
        assert all(torch.equal(*pair) for pair in zip(expected, seen, strict=True)), arguments
        after = torch.ops.fake.counts()
        assert after.get("accumulate", 0) == before.get("accumulate", 0)


def check_results_are_those_of_the_cpu(me: Rank) -> None:
    for algorithm in ALGORITHMS:
        for more in (
            {"dtype": torch.float32},
            {"dtype": torch.float64, "op": dist.ReduceOp.AVG},
            {"dtype": torch.bfloat16},
            {"dtype": torch.float16, "op": dist.ReduceOp.AVG, "put_back": "merged"},
        ):
            arguments = {"algorithm": algorithm, "k": 70, **more}
            before = torch.ops.fake.counts()
            seen = _steps(me, FAKE, 9000, **arguments)
            after = torch.ops.fake.counts()
            made = {name: after[name] - before.get(name, 0) for name in after}
            assert made.get("commit", 0) + made.get("commit_whole", 0) == 3, arguments
            expected = _steps(me, "cpu", 9000, **arguments)
            for one, other in zip(expected, seen, strict=True):
                assert torch.equal(one, other), arguments
    assert "launched_unloaded" not in torch.ops.fake.counts()


def check_what_crosses_is_as_long_as_what_is_summed(me: Rank) -> None:
    d, k = 50_000, 40
    for algorithm, expected in (
        ("dense", "copy accumulate copy host_function commit_whole copy"),
        ("true-topk", "copy accumulate copy host_function commit copy"),
        # What is behind the operation's number in its group.
        ("random-k", "copy gather copy host_function commit copy"),
        ("sketch", "copy sketch copy host_function find gather host_function commit copy"),
        # A commit for each choice: one of them does nothing.
        ("auto", "copy select copy host_function commit commit_whole copy"),
    ):
        tensor, residual = values(me, d).to(FAKE), (values(me, d) / 3).to(FAKE)
        if algorithm == "auto":
            residual = None  # of which the last key could be copied
        before = torch.ops.fake.counts()["bytes_crossed"]
        torch.ops.fake.calls()
        gtopk.sparse_all_reduce(tensor, k=k, residual=residual, algorithm=algorithm)
        # No stream waits for what ends before it is waited for.
        calls = " ".join(each for each in torch.ops.fake.calls() if each != "wait_value")
        assert calls == expected, (algorithm, calls)
        # A row of the table of pieces, and 8 bytes for torch to know who uses pinned memory.
        crossed = torch.ops.fake.counts()["bytes_crossed"] - before
        assert crossed == 40 + 8 * (expected.count("copy") - 1), (algorithm, crossed)


def check_autos_choice_is_made_while_the_operation_runs(me: Rank) -> None:
    group = dist.new_group()  # where nothing has been measured
    for d, k in ((9000, 20), (9000, 4500), (200_000, 20)):
        results = []
        for device in ("cpu", FAKE):
            tensor, residual = values(me, d).to(device), (values(me, d) / 3).to(device)
            before = torch.ops.fake.counts()
            gtopk.sparse_all_reduce(tensor, k=k, residual=residual, algorithm="auto", group=group)
            after = torch.ops.fake.counts()
            results.append([tensor.cpu(), residual.cpu()])
        plan = gtopk.stats(group)["plan"]
        for kernel in ("commit", "commit_whole"):
            assert after[kernel] - before.get(kernel, 0) == 1, plan["algorithm"]
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other), (d, k, plan["algorithm"])
    dist.destroy_process_group(group)


def check_they_are_ordered_behind_the_current_stream(me: Rank) -> None:
    for algorithm in ALGORITHMS:
        tensor, residual = torch.zeros(500).to(FAKE), torch.zeros(500).to(FAKE)
        torch.ops.fake.hold()
        fill(tensor, 1.0 + me.rank)  # once the device is released
        work = gtopk.sparse_all_reduce(
            tensor, k=500, residual=residual, algorithm=algorithm, async_op=True
        )
        work.wait()
        after, left = read_later(tensor), read_later(residual)
        assert not work.is_completed()
        meet(me, f"nothing of {algorithm} has been sent")
        torch.ops.fake.release()
        synchronize()
        assert after.tolist() == [3.0] * 500, algorithm
        assert left.tolist() == [0.0] * 500, algorithm


def check_no_wait_holds_up_the_host(me: Rank) -> None:
    """But for a sketch, which asks the device for more in its middle."""
    for algorithm in (each for each in ALGORITHMS if each != "sketch"):
        expected = _steps(me, "cpu", 9000, algorithm=algorithm, k=70)[:2]
        group = dist.new_group()
        residual, tensor = (values(me, 9000) / 3).to(FAKE), values(me, 9000).to(FAKE)
        if me.rank == 0:
            gtopk.sparse_all_reduce(
                tensor, k=70, residual=residual, algorithm=algorithm, group=group
            )
            after, left = read_later(tensor), read_later(residual)
        meet(me, f"rank 0 goes on after {algorithm}")
        if me.rank == 1:
            gtopk.sparse_all_reduce(
                tensor, k=70, residual=residual, algorithm=algorithm, group=group
            )
            after, left = read_later(tensor), read_later(residual)
        synchronize()
        assert torch.equal(after, expected[0]), algorithm
        assert torch.equal(left, expected[1]), algorithm
        dist.destroy_process_group(group)


def check_a_blocking_wait_gives_the_same(me: Rank) -> None:
    os.environ["GTOPK_BLOCKING_WAIT"] = "1"
    try:
        for algorithm in ALGORITHMS:
            seen = _steps(me, FAKE, 9000, algorithm=algorithm, k=70)
            expected = _steps(me, "cpu", 9000, algorithm=algorithm, k=70)
            for one, other in zip(expected, seen, strict=True):
                assert torch.equal(one, other), algorithm
    finally:
        del os.environ["GTOPK_BLOCKING_WAIT"]


def check_auto_takes_memory_for_one_sum_when_it_is_called(me: Rank) -> None:
    """Not while its stream waits, when a driver that takes memory may wait for that stream."""
    d = 1_000_000
    tensor, residual = values(me, d).to(FAKE), torch.zeros(d).to(FAKE)
    synchronize()
    torch.ops.fake.hold()
    before = torch.ops.fake.counts()["pinned_bytes"]
    work = gtopk.sparse_all_reduce(tensor, k=20, residual=residual, algorithm="auto", async_op=True)
    taken = torch.ops.fake.counts()["pinned_bytes"] - before
    torch.ops.fake.release()
    work.wait()
    synchronize()
    assert 4 * d <= taken < 5 * d
    assert torch.ops.fake.counts()["pinned_bytes"] - before == taken


def check_inf_or_mismatch_keeps_the_residual_and_inf_gives_nan(me: Rank) -> None:
    for algorithm in ALGORITHMS:
        tensor, kept = values(me, 2000), values(me, 2000) / 7
        if me.rank == 1:
            tensor[77] = float("inf")
        residual, there = kept.to(FAKE), tensor.to(FAKE)
        gtopk.sparse_all_reduce(there, k=30, residual=residual, algorithm=algorithm)
        assert bool(there.cpu().isnan().all()), algorithm
        assert torch.equal(residual.cpu(), kept), algorithm
        with pytest.raises(dist.DistBackendError, match=r"k=3|AVG"):
            gtopk.sparse_all_reduce(
                values(me, 2000).to(FAKE),
                k=30 + me.rank,
                residual=residual,
                algorithm=algorithm,
                op=[dist.ReduceOp.SUM, dist.ReduceOp.AVG][me.rank],
                async_op=True,
            ).wait(timedelta(seconds=30))
        assert torch.equal(residual.cpu(), kept), algorithm


def check_group_may_mix_ranks_with_cpu_and_device_tensors(me: Rank) -> None:
    for algorithm in ALGORITHMS:
        expected = _steps(me, "cpu", 3000, algorithm=algorithm, k=30)
        seen = _steps(me, FAKE if me.rank == 0 else "cpu", 3000, algorithm=algorithm, k=30)
        for one, other in zip(expected, seen, strict=True):
            assert torch.equal(one, other), algorithm


def check_a_call_aborted_early_fails_and_keeps_its_residual(me: Rank) -> None:
    """A commit that waits on the device then writes NaN; `sketch` has none yet."""
    aside = dist.new_group()
    for algorithm in (*ALGORITHMS, "gtopk"):
        group = dist.new_group()
        tensor, kept = values(me, 5000), values(me, 5000) / 3
        there, residual, other = tensor.to(FAKE), kept.to(FAKE), torch.ones(5000).to(FAKE)
        synchronize()
        torch.ops.fake.set_stream(2)
        torch.ops.fake.hold()
        work = dist.all_reduce(other, async_op=True)  # its copy holds up the input stream
        torch.ops.fake.set_stream(0)
        failed = gtopk.sparse_all_reduce(
            there, k=50, residual=residual, algorithm=algorithm, group=group, async_op=True
        )
        awaited = algorithm != "sketch"  # a wait for one blocks the host
        if awaited:
            failed.wait()  # the commit waits, on the device, for the operation's end
        meet(me, f"{algorithm} is waited for")
        group.abort()
        dist.all_reduce(torch.ones(1), group=aside)  # the engine has done what the abort left to it
        torch.ops.fake.await_standstill()
        torch.ops.fake.release()
        work.wait(timedelta(seconds=30))
        with pytest.raises(dist.DistBackendError, match="abort"):
            failed.wait()
        synchronize()
        assert bool(there.cpu().isnan().all()) == awaited, algorithm
        assert torch.equal(residual.cpu(), kept), algorithm


def check_a_call_that_fails_once_it_is_taken_counts(me: Rank) -> None:
    """The core has counted it: numbers stay those of the core."""
    group = dist.new_group()
    backend = backend_of(group)
    there, residual = values(me, 5000).to(FAKE), torch.zeros(5000).to(FAKE)
    torch.ops.fake.let_fail("gather", 0)
    with pytest.raises(RuntimeError, match="cannot gather"):
        gtopk.sparse_all_reduce(there, k=50, residual=residual, algorithm="random-k", group=group)
    options = dist.AllreduceOptions()
    assert sequence_number(backend.allreduce([torch.ones(1)], options)) == 2


def check_sketch_is_not_held_up_by_the_result_of_another_call(me: Rank) -> None:
    """Receives wait on all result streams; what answers them is sent after the sketch."""
    expected = _steps(me, "cpu", 9000, algorithm="sketch", k=70)[:2]
    group = dist.new_group()
    residual, tensor = (values(me, 9000) / 3).to(FAKE), values(me, 9000).to(FAKE)
    messages = [torch.full((10,), float(i)).to(FAKE) for i in range(8)]
    if me.rank == 0:
        works = [dist.irecv(each, 1, tag=i) for i, each in enumerate(messages)]
    work = gtopk.sparse_all_reduce(
        tensor, k=70, residual=residual, algorithm="sketch", group=group, async_op=True
    )
    work.wait(timedelta(seconds=20))
    if me.rank == 1:
        works = [dist.isend(each, 0, tag=i) for i, each in enumerate(messages)]
    for each in works:
        each.wait()
    assert torch.equal(tensor.cpu(), expected[0])
    assert torch.equal(residual.cpu(), expected[1])
    dist.destroy_process_group(group)


def check_sketch_search_enqueue_failure_fails_on_every_rank(me: Rank) -> None:
    for failing, more in (("find", 0), ("gather", 0), ("host_function", 1)):
        group = dist.new_group()
        residual, tensor = torch.zeros(9000).to(FAKE), values(me, 9000).to(FAKE)
        synchronize()

        def call(group: Any = group, tensor: Any = tensor, residual: Any = residual) -> Any:
            return gtopk.sparse_all_reduce(
                tensor, k=70, residual=residual, algorithm="sketch", group=group, async_op=True
            )

        if me.rank == 0:
            torch.ops.fake.let_fail(failing, more)
            with pytest.raises(dist.DistBackendError, match="cannot"):
                call().wait(timedelta(seconds=20))
        else:
            with pytest.raises(dist.DistBackendError, match="rank 0"):
                call().wait(timedelta(seconds=20))
        meet(me, f"{failing} has failed")
        synchronize()
