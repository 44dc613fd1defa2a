"""Room: tests/torch. Lists of a sparse all-reduce that stay on the device, where the network takes
its memory. The device is the fake one, as in test_device_pointers.py. Nothing here has run on a
GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from device_values import FAKE, fill, meet, read_later, synchronize, values
from ranks import Rank, RankSet

import gtopk

pytestmark = pytest.mark.loopback

D = 160_000
K = 2500  # 20,064 bytes in a list
RAW = {"k": K, "wire": "raw"}


def test_on_two_ranks(two_in_place: RankSet, check: Callable) -> None:
    two_in_place.run(check, timeout=90.0)


def _counts() -> dict[str, int]:
    return dict(torch.ops.fake.counts())


def _steps(me: Rank, device: str, steps: int, **arguments: Any) -> list[torch.Tensor]:
    """Tensor and residual after each of some steps."""
    dtype = arguments.pop("dtype", torch.float32)
    d = arguments.pop("d", D)
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    residual = (values(me, d).to(kept) / 3).to(device)
    seen = []
    for step in range(steps):
        tensor = (values(me, d) * (step + 1)).to(dtype).to(device)
        gtopk.sparse_all_reduce(tensor, residual=residual, **arguments)
        seen += [tensor.cpu(), residual.cpu().clone()]
    return seen


def check_results_are_those_of_the_cpu(me: Rank) -> None:
    exact: dict[str, Any] = RAW
    for arguments in (
        exact,
        {**exact, "algorithm": "gtopk-tree", "put_back": "merged"},
        {**exact, "dtype": torch.bfloat16, "op": dist.ReduceOp.AVG},
        {**exact, "dtype": torch.float16},
        {**exact, "dtype": torch.float64, "algorithm": "gtopk-tree"},
        {**exact, "select": "gaussian", "put_back": "merged"},
        {**exact, "select": "sampled"},
        {**exact, "algorithm": "topk"},
        {**exact, "algorithm": "topk", "put_back": "merged", "dtype": torch.float64},
        {**exact, "wire": "lossless", "put_back": "merged"},
        {**exact, "wire": "lossless", "algorithm": "topk", "dtype": torch.float64},
        {**exact, "wire": "bf16", "algorithm": "gtopk-tree"},
        {**exact, "wire": "fp16", "dtype": torch.float64, "put_back": "merged"},
        {**exact, "wire": "int8", "select": "gaussian"},
        {**exact, "wire": "int8", "algorithm": "topk", "dtype": torch.bfloat16},
        {**exact, "wire": "2bit", "algorithm": "topk", "put_back": "merged"},
        {**exact, "wire": "sign", "algorithm": "topk"},
    ):
        expected = _steps(me, "cpu", 2, **arguments)
        before = _counts()
        seen = _steps(me, FAKE, 2, **arguments)
        after = _counts()
        for one, other in zip(expected, seen, strict=True):
            assert torch.equal(one, other), arguments
        for name in ("merge", "inspect", "commit_lists"):
            merges = arguments.get("algorithm") != "gtopk-tree" or name != "merge" or me.rank == 0
            done = after.get(name, 0) - before.get(name, 0)
            assert done == (2 if merges else 0), (name, arguments)
    assert "launched_unloaded" not in torch.ops.fake.counts()


def check_ranks_may_have_their_lists_in_different_places(me: Rank) -> None:
    for there in range(me.size):
        for algorithm in ("gtopk", "gtopk-tree"):
            for wire in ("raw", "lossless", "int8"):
                arguments: dict[str, Any] = {"algorithm": algorithm, "k": K, "wire": wire}
                expected = _steps(me, "cpu", 2, **arguments)
                device = FAKE if me.rank == there else "cpu"
                seen = _steps(me, device, 2, **arguments)
                for one, other in zip(expected, seen, strict=True):
                    assert torch.equal(one, other), (there, arguments)


def check_only_headers_and_reports_leave_the_device(me: Rank) -> None:
    tensor, residual = values(me, D).to(FAKE), (values(me, D) / 3).to(FAKE)
    gtopk.sparse_all_reduce(tensor, residual=residual, **RAW)
    synchronize()
    torch.ops.fake.calls()
    before, sent = _counts(), gtopk.stats()
    torch.ops.fake.hold()
    work = gtopk.sparse_all_reduce(tensor, residual=residual, async_op=True, **RAW)
    # No stream waits: merges could be behind that in a queue of the hardware.
    assert " ".join(torch.ops.fake.calls()) == "copy select copy host_function"
    meet(me, "nothing has been sent")
    torch.ops.fake.release()
    work.wait()
    calls = torch.ops.fake.calls()
    # By the launcher's thread, and by one that completes futures: the engine's calls no driver.
    assert " ".join(calls) == "merge host_function inspect host_function commit_lists copy"
    after, told = _counts(), gtopk.stats()
    changed = {name: after[name] - before.get(name, 0) for name in after}
    assert not any("synchronize" in name for name, count in changed.items() if count), changed
    # A row of the table of pieces, and twice 8 bytes for torch to know who uses it.
    assert changed["bytes_crossed"] == 40 + 2 * 8
    # Header, values and indices, and the acknowledgement of the other's list.
    assert told["messages_sent"] - sent["messages_sent"] == 3 + 1
    assert told["bytes_sent"] - sent["bytes_sent"] == 64 + 8 * K


def check_coded_lists_are_made_and_read_there(me: Rank) -> None:
    arguments: dict[str, Any] = {"k": K, "wire": "lossless"}
    before = gtopk.stats()
    gtopk.sparse_all_reduce(values(me, D), residual=None, **arguments)
    on_cpu = gtopk.stats()["bytes_sent"] - before["bytes_sent"]
    tensor = values(me, D).to(FAKE)
    synchronize()
    torch.ops.fake.calls()
    counted, before = _counts(), gtopk.stats()
    gtopk.sparse_all_reduce(tensor, residual=None, **arguments)
    calls = " ".join(torch.ops.fake.calls())
    node = "decode merge close host_function inspect host_function commit_lists copy"
    assert calls == f"copy select copy host_function close host_function {node}"
    told, after = gtopk.stats(), _counts()
    assert told["bytes_sent"] - before["bytes_sent"] == on_cpu
    assert told["messages_sent"] - before["messages_sent"] == 2  # the header, and the rest
    assert after["bytes_crossed"] - counted["bytes_crossed"] == 40 + 2 * 8


def check_pinned_memory_is_that_of_few_lists_and_taken_again(me: Rank) -> None:
    tensor = values(me, D).to(FAKE)
    taken = []
    for _ in range(4):
        before = _counts()["pinned_bytes"]
        gtopk.sparse_all_reduce(tensor, residual=None, **RAW)
        taken.append(_counts()["pinned_bytes"] - before)
    # For two ranks: the other's list, the result, and the reports.
    assert taken[1:] == [taken[1]] * 3
    assert taken[1] < 3 * (64 + 8 * K) + 8192


def check_it_is_ordered_behind_the_current_stream(me: Rank) -> None:
    tensor, residual = torch.zeros(D).to(FAKE), torch.zeros(D).to(FAKE)
    torch.ops.fake.hold()
    fill(tensor, 1.0 + me.rank)  # once the device is released
    work = gtopk.sparse_all_reduce(tensor, residual=residual, async_op=True, **RAW)
    assert not work.is_completed()
    meet(me, "no list has been sent")
    torch.ops.fake.release()
    work.wait()
    torch.ops.fake.hold()
    after, left = read_later(tensor), read_later(residual)
    fill(tensor, -1.0)  # behind the result
    torch.ops.fake.release()
    synchronize()
    assert torch.equal(after, torch.tensor([3.0] * K + [0.0] * (D - K)))
    assert torch.equal(left, torch.tensor([0.0] * K + [1.0 + me.rank] * (D - K)))
    assert bool((tensor.cpu() == -1.0).all())


def check_results_of_other_calls_are_not_waited_for_meanwhile(me: Rank) -> None:
    small, there = torch.ones(3).to(FAKE), values(me, D).to(FAKE)
    torch.ops.fake.hold()
    torch.ops.fake.calls()
    first = gtopk.sparse_all_reduce(there, async_op=True, **RAW)
    second = dist.all_reduce(small, async_op=True)
    assert "wait_value" not in torch.ops.fake.calls()
    torch.ops.fake.release()
    first.wait()
    second.wait()
    third = dist.all_reduce(small, async_op=True)
    assert "wait_value" in torch.ops.fake.calls()
    third.wait()
    assert small.cpu().tolist() == [4.0] * 3


def check_many_at_once_and_nothing_kept_alive_but_by_them(me: Rank) -> None:
    expected = [values(me, D) * (i + 1) for i in range(6)]
    works = []
    for each in expected:
        there = each.to(FAKE)
        works.append((there, gtopk.sparse_all_reduce(there, async_op=True, **RAW)))
        fill(torch.empty(D, device=FAKE), 99.0)  # overwrites what was freed
    for (there, work), each in zip(works, expected, strict=True):
        work.wait()
        gtopk.sparse_all_reduce(each, **RAW)
        assert torch.equal(there.cpu(), each)


def check_short_lists_and_other_algorithms_go_through_the_host(me: Rank) -> None:
    before = _counts().get("merge", 0)
    for arguments in (
        {"k": 1000, "wire": "raw"},  # 8,064 bytes
        {"k": 1000, "wire": "lossless"},  # at most 5,592
        {"k": K, "wire": "raw", "algorithm": "rs-ag"},
        {"k": 10 * K, "wire": "raw"},  # would take more memory than the residual
        {"density": 0.05, "wire": "raw", "select": "block", "block": 512},
    ):
        for one, other in zip(
            _steps(me, "cpu", 1, **arguments), _steps(me, FAKE, 1, **arguments), strict=True
        ):
            assert torch.equal(one, other), arguments
    assert _counts().get("merge", 0) == before


def check_a_step_that_does_not_happen_leaves_nan_and_the_residual(me: Rank) -> None:
    tensor, kept = values(me, D), values(me, D) / 7
    if me.rank == 1:
        tensor[77] = float("inf")
    residual, there = kept.to(FAKE), tensor.to(FAKE)
    gtopk.sparse_all_reduce(there, residual=residual, **RAW)
    assert bool(there.cpu().isnan().all())
    assert torch.equal(residual.cpu(), kept)
    # Each rank's is finite, and their sum is not in float16.
    large = torch.full((D,), 60_000.0, dtype=torch.float16).to(FAKE)
    gtopk.sparse_all_reduce(large, residual=residual, **RAW)
    assert bool(large.cpu().isnan().all())
    assert torch.equal(residual.cpu(), kept)


def check_errors_are_those_of_the_cpu_and_the_group_works_on(me: Rank) -> None:
    residual = (values(me, D) / 7).to(FAKE)
    kept = residual.cpu()
    with pytest.raises(dist.DistBackendError, match=f"k={K}"):
        gtopk.sparse_all_reduce(
            values(me, D).to(FAKE), residual=residual, k=K + me.rank, wire="raw", async_op=True
        ).wait(timedelta(seconds=30))
    assert torch.equal(residual.cpu(), kept)
    right = torch.ones(3).to(FAKE)
    dist.all_reduce(right)
    assert right.cpu().tolist() == [2.0] * 3


def check_a_state_trains_as_on_the_cpu(me: Rank) -> None:
    for wire in ("raw", None):
        _trains_as_on_the_cpu(me, wire)


def _trains_as_on_the_cpu(me: Rank, wire: str | None) -> None:
    runs = []
    for device in ("cpu", FAKE):
        torch.manual_seed(1)
        net = torch.nn.Linear(400, 400).to(device)
        ddp = torch.nn.parallel.DistributedDataParallel(net)
        gtopk.attach(ddp, density=0.02, wire=wire, momentum=0.9, min_numel=8)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        before = _counts().get("merge", 0)
        for step in range(3):
            generator = torch.Generator().manual_seed(100 * me.rank + step)
            optimizer.zero_grad()
            ddp(torch.randn(8, 400, generator=generator).to(device)).square().mean().backward()
            optimizer.step()
        runs.append([each.detach().cpu() for each in net.parameters()])
        merges = _counts().get("merge", 0) - before
        assert (merges >= 3) == (device == FAKE), merges
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)
