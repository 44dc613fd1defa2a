"""torch's own DDP communication hooks, against the same over gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from helpers.ranks import Rank, RankSet
from helpers.training import batch, flat, network

pytestmark = pytest.mark.loopback

STEPS = 5
# Bounds for hooks that round gradients to half types: results depend on the order of summation.
TOLERANCES = {"fp16": 2e-3, "bf16": 2e-2}


def registered(name: str, ddp: DistributedDataParallel, group: dist.ProcessGroup) -> None:
    if name == "none":
        return
    state: Any = group
    if "power" in name:
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
    hook: Any = {
        "allreduce": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "power": powerSGD_hook.powerSGD_hook,
        "batched power": powerSGD_hook.batched_powerSGD_hook,
        "bf16 of power": default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    }[name]
    if "power" in name and dist.get_backend(group) == "gloo":
        hook = one_by_one(hook)
    ddp.register_comm_hook(state, hook)


def one_by_one(hook: Any) -> Any:
    """Over gloo PowerSGD's callbacks call collectives in each rank's own order, unless each bucket
    waits for the one before."""

    def waiting(state, bucket):  # DDP compares annotations with types, and these would be strings
        result = hook(state, bucket)
        result.wait()
        return result

    return waiting


def trained(
    rank: int, name: str, group: dist.ProcessGroup, bucket_cap_mb: float
) -> torch.nn.Module:
    model = network()
    ddp = DistributedDataParallel(
        model, process_group=group, broadcast_buffers=False, bucket_cap_mb=bucket_cap_mb
    )
    registered(name, ddp, group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(STEPS):
        x, labels = batch(rank, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), labels).backward()
        optimizer.step()
    return model


def patch_batched_hook() -> None:
    """Batched PowerSGD passes one matrix to a function that only accepts batches."""
    of_batches = powerSGD_hook._orthogonalize

    def orthogonalize(matrices: torch.Tensor, epsilon: float = 0) -> None:
        of_batches(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)

    powerSGD_hook._orthogonalize = orthogonalize


def check_alike(model: torch.Tensor, group: dist.ProcessGroup, name: str) -> None:
    gathered = [torch.empty_like(model) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, model, group=group)
    assert all(torch.equal(model, each) for each in gathered), name


def check_hooks(me: Rank, size: int, names: list[str], bucket_cap_mb: float) -> None:
    ours = dist.new_group(list(range(size)))
    gloo = dist.new_group(list(range(size)), backend="gloo")
    patch_batched_hook()
    if me.rank < size:
        start = flat(network())
        for name in names:
            mine = flat(trained(me.rank, name, ours, bucket_cap_mb))
            theirs = flat(trained(me.rank, name, gloo, bucket_cap_mb))
            assert (mine - start).abs().max() > 0.01, name
            tolerance = TOLERANCES.get(name.split(" ")[0], 1e-5)
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, msg=name)
            check_alike(mine, ours, name)
    dist.barrier()


@pytest.mark.parametrize("bucket_cap_mb", [25, 0.004], ids=["one bucket", "many buckets"])
def test_stock_hooks_train_as_over_gloo(bucket_cap_mb: float):
    names = ["none", "allreduce", "fp16", "bf16", "power", "batched power", "bf16 of power"]
    with RankSet(3) as ranks:
        for size in (2, 3):
            ranks.run(check_hooks, size, names, bucket_cap_mb)


def check_power_sgd(me: Rank, width: int, steps: int, batched: bool) -> None:
    """Its state keeps an entry for each of DDP's buckets, and compresses from the third step on."""
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(12)
    ]
    model = torch.nn.Sequential(*layers)
    ddp = DistributedDataParallel(model, bucket_cap_mb=width * width * 4 / 2**20)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=2
    )
    patch_batched_hook()
    powers = (powerSGD_hook.powerSGD_hook, powerSGD_hook.batched_powerSGD_hook)
    ddp.register_comm_hook(state, powers[batched])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + me.rank)
        x = torch.randn(16, width, generator=generator)
        optimizer.zero_grad()
        loss = (ddp(x) - 0.5).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(state.p_memory_dict) >= 12
    assert state.compression_stats()[0] > 2
    assert losses[-1] < 0.5 * losses[0], losses
    check_alike(flat(model), dist.group.WORLD, "PowerSGD")


@pytest.mark.parametrize("batched", [False, True], ids=["by layers", "batched"])
def test_power_sgd_trains_in_many_buckets(batched: bool):
    with RankSet(4) as ranks:
        ranks.run(check_power_sgd, 64, 20, batched)
