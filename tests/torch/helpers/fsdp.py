"""A small real training under FSDP2."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gtopk
from helpers.parallel import loss_of, network
from helpers.ranks import Rank


class Training:
    """A model whose layers are sharded, each a unit, and a last unit with the rest."""

    def __init__(
        self,
        me: Rank,
        *,
        model: nn.Module | None = None,
        dense=False,
        policy=None,
        lr=0.1,
        shape=(2, 2),
        **arguments,
    ):
        """shape: replicas and shards of each; there may be more ranks."""
        self.rank, self.at = me.rank, 0
        ranks = torch.arange(shape[0] * shape[1]).view(shape)
        self.mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("replicate", "shard"))
        self.model = model or network()
        options = {"mesh": self.mesh if dense else self.mesh["shard"]}
        options["mp_policy"] = policy or MixedPrecisionPolicy()
        for layer in list(self.model.children())[2:-1]:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, **options)
        fully_shard(self.model, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.replicas = self.mesh["replicate"].get_group()
        if arguments.get("accumulate") == "update":
            arguments["optimizer"] = self.optimizer
        if not dense:
            self.state = gtopk.fsdp_hook(
                self.model, self.mesh["replicate"], **{"min_numel": 30, **arguments}
            )

    def loss(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * self.at + self.rank)
        return loss_of(self.model, torch.randn(8, 24, generator=generator))

    def backward(self) -> float:
        loss = self.loss()
        loss.backward()
        self.at += 1
        return loss.item()

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.backward()
        self.optimizer.step()
        return loss

    def shards(self) -> list[torch.Tensor]:
        return [each.to_local().detach().clone() for each in self.model.parameters()]

    def replicas_are_bitwise_equal(self) -> bool:
        mine = torch.cat([each.flatten() for each in self.shards()])
        parts = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(parts, mine, group=self.replicas)
        return torch.equal(*parts)


def summed(model: nn.Module) -> None:
    """Gloo's reduce_scatter knows no mean."""
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)
