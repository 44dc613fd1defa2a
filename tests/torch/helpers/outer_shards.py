"""A small real training with gtopk.OuterOptimizer over FSDP2."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import gtopk
from helpers.outer import inner_of
from helpers.ranks import Rank
from helpers.training import batch

INNER = 3


class Scale(nn.Module):
    """One number, of which the second shard has nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def network(seed: int = 0) -> nn.Sequential:
    """With shards of different sizes."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(24, 64),
        nn.Tanh(),
        nn.Linear(64, 37),
        nn.LayerNorm(37),
        nn.Linear(37, 20),
        Scale(),
    )


@functools.cache
def mesh() -> DeviceMesh:
    ranks = torch.arange(4).view(2, 2)
    return DeviceMesh("cpu", ranks, mesh_dim_names=("replicate", "shard"))


def sharded(model: nn.Module, over: DeviceMesh | None = None, **options) -> nn.Module:
    over = mesh()["shard"] if over is None else over
    for each in model.children():
        if isinstance(each, nn.Linear):
            fully_shard(each, mesh=over)
    return fully_shard(model, mesh=over, **options)


def local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.detach().to_local() if isinstance(parameter, DTensor) else parameter.detach()


def own_parts(model: nn.Module) -> list[torch.Tensor]:
    return [local(each).clone() for each in model.parameters()]


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x, labels = batch(rank, step)
    return nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)), labels)


class Outer:
    """This rank of a replica; step() is one inner step, perhaps with an exchange."""

    def __init__(self, me: Rank, model: nn.Module | None = None, group=None, **arguments) -> None:
        self.rank, self.at = me.rank, 0
        self.model = sharded(network()) if model is None else model
        if arguments["preset"] != "demo":
            arguments = {"inner_steps": INNER, **arguments}
        group = group or mesh()["replicate"].get_group()
        self.optimizer = gtopk.OuterOptimizer(
            inner_of(self.model), self.model, group=group, **arguments
        )

    def backward(self) -> None:
        self.optimizer.zero_grad()
        loss_of(self.model, self.rank, self.at).backward()
        self.at += 1

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.backward()
            self.optimizer.step()

    def shared(self) -> list[torch.Tensor]:
        return [local(each) for each in self.optimizer.shared_parameters().values()]

    def saved(self, kind: str) -> list[torch.Tensor]:
        return list(self.optimizer.state_dict()["gtopk"][kind].values())


class Part:
    """A shard of a whole model, for the reference: views of its parameters; None: all of it."""

    def __init__(self, model: nn.Module, shard: int | None) -> None:
        self._model, self._shard = model, shard
        self._views = {
            name: each.detach() if shard is None else each.detach().chunk(2)[shard]
            for name, each in model.named_parameters()
            if shard is None or shard < len(each.chunk(2))
        }

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._views.items())

    def parameters(self) -> list[torch.Tensor]:
        for name, each in self._model.named_parameters():
            if each.grad is not None and name in self._views:
                whole = self._shard is None
                self._views[name].grad = each.grad if whole else each.grad.chunk(2)[self._shard]
        return list(self._views.values())


class Turn(nn.Module):
    """Complex numbers, which FSDP takes only in a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self) -> torch.Tensor:
        return (self.by * self.by.conj()).real.sum()


class Odd(nn.Module):
    """With a parameter that FSDP leaves whole, a complex one, a frozen one, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(24, 40)
        self.norm = nn.BatchNorm1d(40)
        self.turn = Turn()
        self.whole = nn.Parameter(torch.ones(40))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x) * self.whole) * self.turn() + self.frozen.sum()
