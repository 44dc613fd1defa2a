"""A replica of an OuterOptimizer over a ReplicaGroup, and what it must have by
the rule in numpy, bit for bit.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import gtopk
from helpers.outer import INNER, Outer, inner_of, inner_step
from helpers.outer_reference import PRESETS, Replicas
from helpers.ranks import Rank
from helpers.training import flat, network

LONG = timedelta(seconds=60)
State = dict[str, dict[str, np.ndarray]]


class Member(Outer):
    """A replica of a group that it configures; every step is one of `plan`'s inner steps."""

    def __init__(self, me: Rank, model: nn.Module | None = None, **arguments) -> None:
        self.me, self.arguments = me, arguments
        self.group = gtopk.ReplicaGroup(LONG)
        super().__init__(me.rank, model, group=self.group, **arguments)

    def configure(self, name: str, *ranks: int) -> None:
        """Meet these replicas under a name that was not used before."""
        address = f"127.0.0.1:{self.me.port}/{name}"
        self.group.configure(address, "", ranks.index(self.me.rank), len(ranks))

    def join(self) -> None:
        """The first step(), without a batch."""
        self.optimizer.step()

    def step(self) -> torch.Tensor:
        """A step that raises has trained as well."""
        self.at += 1
        return inner_step(self.model, self.optimizer, self.rank, self.at - 1)

    def is_like_the_others(self) -> bool:
        mine = flat(self.model)
        found = [torch.empty_like(mine) for _ in range(self.group.size())]
        dist.all_gather(found, mine, group=self.group)
        return all(torch.equal(each, mine) for each in found)

    def again(self) -> Member:
        """The same replica in what could be another process."""
        self.group.shutdown()
        found = Member(self.me, network(7), **self.arguments)
        found.model.load_state_dict(self.model.state_dict())
        found.optimizer.load_state_dict(self.optimizer.state_dict())
        found.at = self.at
        return found

    def state(self) -> State:
        """What the reference has as well."""
        saved = self.optimizer.state_dict()["gtopk"]
        kinds = ("parameters", "velocity", "error")
        return {
            "model": {name: each.detach().numpy() for name, each in self.model.named_parameters()},
            **{kind: {name: each.numpy() for name, each in saved[kind].items()} for kind in kinds},
        }


class Reference:
    """All replicas one after the other, with explicit members of each exchange."""

    def __init__(self, size: int, preset: str, **overrides) -> None:
        self.models = [network() for _ in range(size)]
        rule = dataclasses.replace(PRESETS[preset], **overrides)
        self.replicas = Replicas(self.models, rule, INNER)
        self.inners = [None if rule.gradients else inner_of(model) for model in self.models]
        self.at = [0] * size

    def steps(self, count: int, *ranks: int) -> None:
        for rank in ranks:
            for _ in range(count):
                inner_step(self.models[rank], self.inners[rank], rank, self.at[rank])
                self.at[rank] += 1

    def round(self, *members: int, joining: tuple[int, ...] = (), fragment: int = 0) -> None:
        self.replicas.meet(members, joining, fragment)

    def sums(self, *members: int) -> dict:
        """What an exchange of theirs delivers."""
        self.replicas.members = [*members]
        return self.replicas.sums_of(0)

    def check(self, rank: int, state: State) -> None:
        names = [*state["model"]]
        of, rule = self.replicas, self.replicas.rule
        wanted = {"model": [each.detach().numpy() for each in self.models[rank].parameters()]}
        wanted["parameters"] = of.shared
        wanted["velocity"] = of.tensors(of.velocity) if rule.momentum else []
        wanted["error"] = of.tensors(of.errors[rank]) if rule.error_decay else []
        for kind, tensors in wanted.items():
            assert len(state[kind]) == len(tensors), kind
            for name, other in zip(names, tensors, strict=bool(tensors)):
                assert np.array_equal(state[kind][name], other), (rank, kind, name)
