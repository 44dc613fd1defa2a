"""Sparse exchanges and training on a device, which here is a fake one
(fake/device.hpp). Nothing here has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.device_values import FAKE, fill, meet, read_later, synchronize, values
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


def test_on_two_ranks(two_with_device: RankSet, check: Callable) -> None:
    two_with_device.run(check, timeout=90.0)


def check_sparse_all_reduce_never_copies_the_whole_tensor(me: Rank) -> None:
    d, k = 50_000, 40
    expected, expected_residual = values(me, d), values(me, d) / 3
    tensor, residual = expected.to(FAKE), expected_residual.to(FAKE)
    for step in range(3):
        before = torch.ops.fake.counts()["bytes_crossed"]
        torch.ops.fake.calls()
        gtopk.sparse_all_reduce(tensor, k=k, residual=residual)
        calls = torch.ops.fake.calls()
        crossed = torch.ops.fake.counts()["bytes_crossed"] - before
        if step > 0:  # the first one also has a zero copied for the last threshold
            # A row of the table of pieces, and twice 8 bytes for torch to know who uses it.
            assert crossed == 40 + 2 * 8
            # No stream waits for what ends before it is waited for.
            seen = [each for each in calls if each != "wait_value"]
            assert " ".join(seen) == "copy select copy host_function commit copy"
        gtopk.sparse_all_reduce(expected, k=k, residual=expected_residual)
        assert torch.equal(tensor.cpu(), expected)
        assert torch.equal(residual.cpu(), expected_residual)
        expected += values(me, d) * (step + 1)
        tensor.copy_(expected.pin_memory(), non_blocking=True)


def check_other_selectors_stay_on_the_device_as_well(me: Rank) -> None:
    d = 20_000
    threshold = {"select": "threshold", "k": 200}
    for arguments in (
        {"select": "gaussian", "k": 200},
        {"select": "sampled", "k": 200},
        {"select": "block", "density": 0.01, "block": 512, "algorithm": "topk"},
        threshold,
    ):
        for with_state in (False, True):
            runs = []
            for device in ("cpu", FAKE):
                tensor, residual = values(me, d).to(device), (values(me, d) / 3).to(device)
                state = torch.full((4,), 0.5, dtype=torch.float64) if with_state else None
                torch.ops.fake.calls()
                gtopk.sparse_all_reduce(tensor, residual=residual, state=state, **arguments)
                runs.append([tensor.cpu(), residual.cpu(), state])
            assert "select" in torch.ops.fake.calls(), arguments
            assert torch.equal(runs[0][0], runs[1][0]), arguments
            assert torch.equal(runs[0][1], runs[1][1]), arguments
            if with_state:
                assert torch.equal(runs[0][2], runs[1][2]), arguments
                assert (runs[1][2][0] > 0) == (arguments is threshold)
    assert "launched_unloaded" not in torch.ops.fake.counts()


def check_threshold_passes_between_steps_without_a_host_wait(me: Rank) -> None:
    """The state is the last step's, although that has not ended when the next one is called."""
    d, arguments = 20_000, {"k": 200, "select": "threshold"}
    runs = []
    for device in ("cpu", FAKE):
        residual = (values(me, d) / 3).to(device)
        state = torch.zeros(4, dtype=torch.float64)
        tensors = [(values(me, d) * (1 + step / 50)).to(device) for step in range(5)]
        if device == FAKE:
            torch.ops.fake.hold()
        for tensor in tensors:
            work = gtopk.sparse_all_reduce(
                tensor, residual=residual, state=state, async_op=True, **arguments
            )
            work.wait()
        if device == FAKE:
            assert state.tolist() == [0.0] * 4
            torch.ops.fake.release()
        runs.append([*(each.cpu() for each in tensors), residual.cpu(), state])
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)
    assert runs[1][-1][0] > 0


def check_sparse_all_reduce_is_ordered_behind_current_stream(me: Rank) -> None:
    tensor, residual = torch.zeros(5000).to(FAKE), torch.zeros(5000).to(FAKE)
    torch.ops.fake.hold()
    fill(tensor, 1.0 + me.rank)  # once the device is released
    work = gtopk.sparse_all_reduce(tensor, k=10, residual=residual, async_op=True)
    work.wait()
    after, left = read_later(tensor), read_later(residual)
    fill(tensor, -1.0)  # behind the result
    assert not work.is_completed()
    meet(me, "no list has been sent")
    torch.ops.fake.release()
    synchronize()
    assert after.tolist() == [3.0] * 10 + [0.0] * 4990
    assert left.tolist() == [0.0] * 10 + [1.0 + me.rank] * 4990
    assert tensor.cpu().tolist() == [-1.0] * 5000


def check_group_may_mix_ranks_with_cpu_and_device_tensors(me: Rank) -> None:
    expected, expected_residual = values(me, 3000), values(me, 3000) / 7
    tensor, residual = expected.clone(), expected_residual.clone()
    if me.rank == 0:
        tensor, residual = tensor.to(FAKE), residual.to(FAKE)
    gtopk.sparse_all_reduce(tensor, k=30, residual=residual, op=dist.ReduceOp.AVG)
    gtopk.sparse_all_reduce(expected, k=30, residual=expected_residual, op=dist.ReduceOp.AVG)
    assert torch.equal(tensor.cpu(), expected)
    assert torch.equal(residual.cpu(), expected_residual)


def check_inf_or_mismatch_keeps_the_residual_and_inf_gives_nan(me: Rank) -> None:
    tensor, kept = values(me, 2000), values(me, 2000) / 7
    if me.rank == 1:
        tensor[77] = float("inf")
    residual = kept.to(FAKE)
    there = tensor.to(FAKE)
    gtopk.sparse_all_reduce(there, k=30, residual=residual)
    assert bool(there.cpu().isnan().all())
    assert torch.equal(residual.cpu(), kept)
    with pytest.raises(dist.DistBackendError, match="k=3"):
        gtopk.sparse_all_reduce(
            values(me, 2000).to(FAKE), k=30 + me.rank, residual=residual, async_op=True
        ).wait(timedelta(seconds=30))
    assert torch.equal(residual.cpu(), kept)
    right = torch.ones(3).to(FAKE)
    dist.all_reduce(right)
    assert right.cpu().tolist() == [2.0] * 3


def trained(me: Rank, device: str, start: Callable) -> list[torch.Tensor]:
    """Parameters, and the state's tensors, after some steps of DDP on that device."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4))
    ddp = DistributedDataParallel(net.to(device), bucket_cap_mb=0.001)
    kept = start(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(4):
        generator = torch.Generator().manual_seed(100 * me.rank + step)
        optimizer.zero_grad()
        ddp(torch.randn(8, 20, generator=generator).to(device)).square().mean().backward()
        optimizer.step()
    return [*(each.detach() for each in net.parameters()), *kept()]


def _plain(ddp: DistributedDataParallel) -> Callable:
    return list


def _attached(ddp: DistributedDataParallel) -> Callable:
    state = gtopk.attach(ddp, density=0.1, momentum=0.9, min_numel=8, unit=2000, clip_norm=1.0)

    def kept() -> list[torch.Tensor]:
        residuals = [state.residual(name) for name, _ in ddp.module.named_parameters()]
        return [each.clone() for each in residuals if each is not None]

    return kept


def check_ddp_trains_as_on_the_cpu_bit_for_bit(me: Rank) -> None:
    for start in (_plain, _attached):
        expected, seen = trained(me, "cpu", start), trained(me, FAKE, start)
        assert len(expected) == len(seen) >= 4
        for one, other in zip(expected, seen, strict=True):
            assert other.device.type == FAKE
            assert torch.equal(one, other.cpu()), start.__name__


def check_parameters_of_two_devices_are_an_error(me: Rank) -> None:
    there = torch.nn.Parameter(torch.ones(4, device=FAKE))
    here = torch.nn.Parameter(torch.ones(4))
    with pytest.raises(NotImplementedError, match="one device, given some on cpu and fake:0"):
        gtopk.SparseState([("a", here), ("b", there)], density=0.5)
