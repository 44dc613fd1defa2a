"""A model that is trained in parallel, and the same trained alone."""

from __future__ import annotations

import torch
from torch import nn


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(24, 36), nn.ReLU(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 5)
    )


def batch(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 24, generator=generator)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def trained_alone(
    ranks: int, steps: int = 3, optimizer=torch.optim.SGD, lr: float = 0.1
) -> nn.Sequential:
    """The model trained on the mean of all ranks' losses."""
    model = network()
    made = optimizer(model.parameters(), lr=lr)
    for step in range(steps):
        made.zero_grad()
        for rank in range(ranks):
            (loss_of(model, batch(rank, step)) / ranks).backward()
        made.step()
    return model


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.full_tensor() for name, each in model.state_dict().items()}
