"""What PyTorch builds on a backend: FSDP, DTensor, tensor parallel, ZeRO, DCP.

Each gives what the same model gives on one rank with all ranks' data.
"""

from __future__ import annotations

import copy
import pathlib
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.parallel import batch, loss_of, network, trained_alone, whole
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


def train(me: Rank, model: nn.Module, optimizer, steps: int = 3) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(me.rank, step)).backward()
        optimizer.step()


def close(seen: dict[str, torch.Tensor], model: nn.Module) -> None:
    expected = model.state_dict()
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(seen[name], value, rtol=1e-5, atol=1e-6)


def sharded(mesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def check_fsdp2(me: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    expected = trained_alone(me.size)
    for mesh in (
        init_device_mesh("cpu", (4,)),
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")),
    ):
        model = sharded(mesh)
        train(me, model, torch.optim.SGD(model.parameters(), lr=0.1))
        close(whole(model), expected)


def check_fsdp2_with_a_divide_factor(me: Rank) -> None:
    """FSDP passes it to reduce_scatter as PREMUL_SUM."""
    from torch.distributed.device_mesh import init_device_mesh

    model = sharded(init_device_mesh("cpu", (4,)))
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(2.0)
    train(me, model, torch.optim.SGD(model.parameters(), lr=0.1))
    close(whole(model), trained_alone(me.size, lr=0.2))


def check_fsdp1(me: Rank) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    train(me, model, torch.optim.SGD(model.parameters(), lr=0.1))
    with FullyShardedDataParallel.summon_full_params(model):
        seen = {
            name.replace("_fsdp_wrapped_module.", ""): each.clone()
            for name, each in model.named_parameters()
        }
    close(seen, trained_alone(me.size))


def check_dtensor(me: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    full = torch.arange(90.0).reshape(9, 10)
    for placement in (Shard(0), Shard(1), Replicate()):
        given = distribute_tensor(full, mesh, [placement])
        for other in (Shard(0), Shard(1), Replicate()):
            assert torch.equal(given.redistribute(mesh, [other]).full_tensor(), full)
    partial = DTensor.from_local(full * (me.rank + 1), mesh, [Partial()])
    assert torch.equal(partial.redistribute(mesh, [Shard(1)]).full_tensor(), full * 10)
    product = distribute_tensor(full, mesh, [Shard(1)]) @ distribute_tensor(
        full.t(), mesh, [Shard(0)]
    )
    torch.testing.assert_close(product.full_tensor(), full @ full.t())


def check_tensor_parallel(me: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    alone = network()
    model = parallelize_module(
        copy.deepcopy(alone),
        init_device_mesh("cpu", (4,)),
        {"0": ColwiseParallel(), "2": RowwiseParallel()},
    )
    x = batch(0, 0)  # the same on all ranks
    torch.testing.assert_close(model(x), alone(x))
    loss_of(model, x).backward()
    loss_of(alone, x).backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        grad = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
        torch.testing.assert_close(grad, expected.grad)


def check_zero(me: Rank) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = network()
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1
    )
    train(me, DistributedDataParallel(model), optimizer)
    close(model.state_dict(), trained_alone(me.size, optimizer=torch.optim.Adam))
    optimizer.consolidate_state_dict(to=0)
    assert me.rank != 0 or len(optimizer.state_dict()["state"]) == 6


def check_a_checkpoint_of_all_ranks(me: Rank) -> None:
    """Saved by four ranks, loaded by them with different shards."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh

    made = tempfile.TemporaryDirectory() if me.rank == 0 else None
    folder = [made.name if made else None]
    dist.broadcast_object_list(folder)
    path = pathlib.Path(folder[0]) / "saved"
    model = sharded(init_device_mesh("cpu", (4,)))
    train(me, model, torch.optim.SGD(model.parameters(), lr=0.1))
    dcp.save(model.state_dict(), checkpoint_id=path)
    other = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    state = other.state_dict()
    dcp.load(state, checkpoint_id=path)
    other.load_state_dict(state)
    close(whole(other), trained_alone(me.size))
    dist.barrier()
    if made:
        made.cleanup()


def check_checkpoints_in_the_background(me: Rank) -> None:
    """They have a group of their own: collectives of other threads go on meanwhile."""
    import torch.distributed.checkpoint as dcp

    made = tempfile.TemporaryDirectory() if me.rank == 0 else None
    folder = [made.name if made else None]
    dist.broadcast_object_list(folder)
    own = dist.new_group()
    saved = torch.full((100,), float(me.rank))
    for number in range(3):
        path = pathlib.Path(folder[0]) / str(number)
        written = dcp.async_save({str(me.rank): saved}, checkpoint_id=path, process_group=own)
        for _ in range(20):
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [4.0] * 3
        written.result()
        loaded = {str(me.rank): torch.empty(100)}
        dcp.load(loaded, checkpoint_id=path, process_group=own)
        assert torch.equal(loaded[str(me.rank)], saved)
    dist.barrier()
    if made:
        made.cleanup()


def check_uneven_inputs(me: Rank) -> None:
    """Under join() a rank that has run out of data shadows the others' collectives."""
    model = network()
    ddp = DistributedDataParallel(model)
    steps = 0
    with ddp.join(divide_by_initial_world_size=True):
        for step in range(me.rank + 1):
            loss_of(ddp, batch(me.rank, step)).backward()
            steps += 1
    assert steps == me.rank + 1
    weights = [torch.empty_like(model[0].weight) for _ in range(me.size)]
    dist.all_gather(weights, model[0].weight.detach())
    assert all(torch.equal(each, weights[0]) for each in weights)


def check_differentiable_collectives(me: Rank) -> None:
    import torch.distributed.nn.functional as functional

    x = torch.full((4,), me.rank + 1.0, requires_grad=True)
    functional.all_reduce(x * x).sum().backward()
    assert torch.equal(x.grad, 4 * 2 * x.detach())
    x.grad = None
    output = torch.empty(4)
    functional.all_to_all_single(output, x * 2).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 2.0))


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
