"""A small real training under DDP, for the tests of the hook."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk


@functools.cache
def gloo() -> dist.ProcessGroup:
    """All ranks, with the backend that results are compared with."""
    return dist.new_group(backend="gloo")


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def network(seed: int = 0) -> nn.Sequential:
    """11 parameters: five weights of more than 1024 elements, six small ones."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(24, 64),
        nn.Tanh(),
        nn.Linear(64, 48),
        nn.LayerNorm(48),
        nn.Tanh(),
        nn.Linear(48, 40, bias=False),
        nn.Tanh(),
        nn.Linear(40, 48),
        nn.Tanh(),
        nn.Linear(48, 40),
    )


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of a learnable task, different on every rank and step."""
    generator = torch.Generator().manual_seed(100_000 * (rank + 1) + step)
    x = torch.randn(16, 24, generator=generator)
    return x, (x[:, :10].argmax(1) + x[:, 10].gt(0) * 10)


def share(algorithm: str, density: float) -> dict[str, float]:
    """The argument, which "dense" does not take."""
    return {} if algorithm.startswith("dense") else {"density": density}


class Steps:
    """What has a loss() and an optimizer."""

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


class Training(Steps):
    """A model, its DDP and its optimizer; step() is one step of plain SGD with momentum."""

    def __init__(
        self,
        rank: int,
        *,
        model: nn.Module | None = None,
        group=None,
        bucket_mb: float = 0.008,
        **options,
    ) -> None:
        """options: DDP's."""
        self.rank = rank
        self.model = model or network()
        # Buckets are much smaller than DDP's default: several per step.
        self.ddp = DistributedDataParallel(
            self.model,
            process_group=group,
            bucket_cap_mb=bucket_mb,
            broadcast_buffers=False,
            **options,
        )
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.05, momentum=0.9)
        self.at = 0

    def hooked(self, **arguments) -> gtopk.SparseState:
        state = gtopk.SparseState(self.model.named_parameters(), **arguments)
        self.ddp.register_comm_hook(state, gtopk.sparse_hook)
        return state

    def loss(self) -> torch.Tensor:
        x, labels = batch(self.rank, self.at)
        return nn.functional.cross_entropy(self.ddp(x), labels)

    def step(self) -> float:
        loss = super().step()
        self.at += 1
        return loss


class Plain(Steps):
    """The same without DDP."""

    def __init__(self, rank: int, *, seed: int = 0, model: nn.Module | None = None, **arguments):
        self.rank, self.at = rank, 0
        self.model = model or network(seed)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.optimizer = gtopk.DistributedOptimizer(optimizer, self.model, **arguments)
        self.state = self.optimizer.sparse_state

    def loss(self) -> torch.Tensor:
        x, labels = batch(self.rank, self.at)
        self.at += 1
        return nn.functional.cross_entropy(self.model(x), labels)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def replicas_are_bitwise_equal(model: nn.Module) -> bool:
    mine = flat(model).view(torch.int32)
    first = mine.clone()
    dist.broadcast(first, 0)
    agree = torch.tensor(int(torch.equal(mine, first)))
    dist.all_reduce(agree)
    return agree.item() == dist.get_world_size()
