"""Room: tests/torch. torch's own DDP communication hooks, against the same over gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, RankSet
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from training import batch, flat, network

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
    hook = {
        "allreduce": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "power": powerSGD_hook.powerSGD_hook,
        "batched power": powerSGD_hook.batched_powerSGD_hook,
        "bf16 of power": default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    }[name]
    ddp.register_comm_hook(state, hook)


def trained(rank: int, name: str, group: dist.ProcessGroup) -> torch.nn.Module:
    model = network()
    # One bucket: PowerSGD's callbacks start collectives, which several buckets would interleave in
    # each rank's own order, with any backend.
    ddp = DistributedDataParallel(model, process_group=group, broadcast_buffers=False)
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


def check_hooks(me: Rank, size: int, names: list[str]) -> None:
    ours = dist.new_group(list(range(size)))
    gloo = dist.new_group(list(range(size)), backend="gloo")
    patch_batched_hook()
    if me.rank < size:
        start = flat(network())
        for name in names:
            mine = flat(trained(me.rank, name, ours))
            theirs = flat(trained(me.rank, name, gloo))
            assert (mine - start).abs().max() > 0.01, name
            tolerance = TOLERANCES.get(name.split(" ")[0], 1e-5)
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, msg=name)
            gathered = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(gathered, mine, group=ours)
            assert all(torch.equal(mine, each) for each in gathered), name
    dist.barrier()


def test_stock_hooks_train_as_over_gloo():
    names = ["none", "allreduce", "fp16", "bf16", "power", "batched power", "bf16 of power"]
    with RankSet(3) as ranks:
        for size in (2, 3):
            ranks.run(check_hooks, size, names)
