"""A mesh with another backend inside a host and gtopk between hosts, as with
NCCL: here gloo is in its place.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import gtopk
from helpers.fsdp import summed
from helpers.parallel import batch, loss_of, network, trained_alone, whole
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

NAMES = ("replicate", "shard")


def mesh_of_two_backends() -> DeviceMesh:
    override = {"replicate": "gtopk", "shard": "gloo"}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES, backend_override=override)
    assert [dist.get_backend(mesh[name].get_group()) for name in NAMES] == ["gtopk", "gloo"]
    return mesh


def sharded(mesh: DeviceMesh) -> nn.Sequential:
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    summed(model)
    return model


def trained(me: Rank, model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, batch(me.rank, step)).backward()
        optimizer.step()


def check_dense_training(me: Rank) -> None:
    """Shards are reduced by one backend, replicas by the other."""
    model = sharded(mesh_of_two_backends())
    trained(me, model)
    expected = trained_alone(me.size).state_dict()
    for name, value in whole(model).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def check_sparse_exchange_between_replicas(me: Rank) -> None:
    expected = trained_alone(me.size).state_dict()
    for density in (1.0, 0.05):
        mesh = mesh_of_two_backends()
        model = sharded(mesh["shard"])
        state = gtopk.fsdp_hook(model, mesh["replicate"], density=density, min_numel=30)
        trained(me, model)
        assert state.step == 3
        mine = torch.cat([each.to_local().detach().flatten() for each in model.parameters()])
        both = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(both, mine, group=mesh["replicate"].get_group())
        assert torch.equal(*both), "replicas are bitwise equal"
        values = whole(model)
        close = [
            torch.allclose(value, expected[name], rtol=1e-5, atol=1e-6)
            for name, value in values.items()
        ]
        assert all(close) if density == 1 else not all(close), "0.05 leaves some to residuals"


def in_a_world_of_gloo(me: Rank) -> None:
    """gtopk only where it is named."""
    dist.destroy_process_group()
    store = dist.PrefixStore("gloo", me.store)
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.size)
    check_dense_training(me)
    check_sparse_exchange_between_replicas(me)


def test_in_a_world_of_gtopk(four: RankSet) -> None:
    four.run(check_dense_training)
    four.run(check_sparse_exchange_between_replicas)


def test_in_a_world_of_gloo() -> None:
    with RankSet(4) as ranks:
        ranks.run(in_a_world_of_gloo)
