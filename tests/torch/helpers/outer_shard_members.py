"""A replica of two ranks, sharded by FSDP2, over a ReplicaGroup for each shard; and what it must
have by the rule in numpy, bit for bit.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

import gtopk
from helpers.outer import inner_of
from helpers.outer_reference import PRESETS, Replicas
from helpers.outer_shards import INNER, Outer, Part, local, loss_of, network, sharded
from helpers.ranks import Rank
from helpers.training import equal

SHARDS = 2


def inside_of(me: Rank, name: str) -> DeviceMesh:
    """The ranks of this replica, which join their default group if they have none. name: new."""
    replica, shard = divmod(me.rank, SHARDS)
    if not dist.is_initialized():
        dist.init_process_group(
            "gtopk",
            store=dist.PrefixStore(f"{name} inside {replica}", me.store),
            rank=shard,
            world_size=SHARDS,
            timeout=timedelta(seconds=60),
        )
    return DeviceMesh("cpu", torch.arange(SHARDS))


class ShardMember(Outer):
    """Rank `shard` of a replica, which is a job of its own; it has a group with those ranks of the
    other replicas.
    """

    def __init__(self, me: Rank, name: str, model: nn.Module | None = None, **arguments) -> None:
        """name: new each time."""
        self.me, self.name, self.arguments = me, name, arguments
        self.replica, self.shard = divmod(me.rank, SHARDS)
        inside = inside_of(me, name)
        self.members = gtopk.ReplicaGroup(timedelta(seconds=30))
        if not isinstance(model, FSDPModule):
            model = sharded(network(self.replica) if model is None else model, inside)
        super().__init__(me, model, self.members, **arguments)

    def configure(self, name: str, *replicas: int) -> None:
        address = f"127.0.0.1:{self.me.port}/{self.name} {name} {self.shard}"
        self.members.configure(address, "", replicas.index(self.replica), len(replicas))

    def join(self) -> None:
        """The first step(), without a batch."""
        self.optimizer.step()

    def begin(self, name: str, *replicas: int) -> None:
        """Meet, and train for a round."""
        self.configure(name, *replicas)
        self.join()
        self.steps(INNER)

    def leave(self) -> None:
        """As a process that ends."""
        self.members.shutdown()
        dist.destroy_process_group()


class Reference:
    """All replicas one after the other, whole; and what is shared of each shard."""

    def __init__(self, size: int, preset: str, **overrides) -> None:
        self.models = [network() for _ in range(size)]
        self.rule = dataclasses.replace(PRESETS[preset], **overrides)
        self.shards = [
            Replicas([Part(model, shard) for model in self.models], self.rule, INNER)
            for shard in range(SHARDS)
        ]
        self.inners = [inner_of(model) for model in self.models]
        self.at = [0] * size

    def steps(self, count: int, *replicas: int) -> None:
        for replica in replicas:
            for _ in range(count):
                self.models[replica].zero_grad()
                for shard in range(SHARDS):
                    rank = SHARDS * replica + shard
                    (loss_of(self.models[replica], rank, self.at[replica]) / SHARDS).backward()
                self.inners[replica].step()
                self.at[replica] += 1

    def round(self, *members: int, joining: tuple[int, ...] = ()) -> None:
        for each in self.shards:
            each.meet(members, joining)

    def sums(self, *members: int) -> list[dict]:
        """What an exchange of theirs delivers, by shard."""
        for each in self.shards:
            each.members, each.joining = [*members], set()
        return [each.sums_of(0) for each in self.shards]

    def use(self, sums: list[dict]) -> None:
        for each, its in zip(self.shards, sums, strict=True):
            each.use(0, its)

    def check(self, outer: ShardMember) -> None:
        of = self.shards[outer.shard]
        names = [name for name, each in outer.model.named_parameters() if len(local(each))]
        own = dict(outer.model.named_parameters())
        mine = Part(self.models[outer.replica], outer.shard)
        wanted = [each.detach() for _, each in mine.named_parameters()]
        assert equal([local(own[name]) for name in names], wanted), "model"
        saved = outer.optimizer.state_dict()["gtopk"]
        kinds = {"parameters": of.shared}
        if self.rule.momentum:
            kinds["velocity"] = of.tensors(of.velocity)
        if self.rule.error_decay:
            kinds["error"] = of.tensors(of.errors[outer.replica])
        for kind, arrays in kinds.items():
            wanted = [torch.from_numpy(each) for each in arrays]
            assert equal([saved[kind][name] for name in names], wanted), kind
