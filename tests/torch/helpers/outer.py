"""A small real training with gtopk.OuterOptimizer."""

from __future__ import annotations

import torch
from torch import nn

import gtopk
from helpers.training import batch, network

STEPS, INNER = 8, 3  # rounds after steps 3 and 6


def inner_of(model: nn.Module, fused: bool = False) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)


def inner_step(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, rank: int, step: int
) -> torch.Tensor:
    x, labels = batch(rank, step)
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    return loss.detach()


class Outer:
    """A replica; step() is one inner step, perhaps with an exchange."""

    def __init__(
        self, rank: int, model: nn.Module | None = None, fused: bool = False, **arguments
    ) -> None:
        self.rank, self.at = rank, 0
        self.model = network() if model is None else model
        if arguments["preset"] != "demo":
            arguments = {"inner_steps": INNER, **arguments}
        self.optimizer = gtopk.OuterOptimizer(inner_of(self.model, fused), self.model, **arguments)

    def step(self) -> torch.Tensor:
        loss = inner_step(self.model, self.optimizer, self.rank, self.at)
        self.at += 1
        return loss

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def shared(self) -> torch.Tensor:
        return torch.cat([x.flatten() for x in self.optimizer.shared_parameters().values()])
