"""Momentum correction, simulated for all ranks with the sequential reference."""

from __future__ import annotations

import torch
from torch import nn

from helpers import reference

D, SMALL, K = 500, 10, 10


class Linear(nn.Module):
    """The gradients of its sum are its inputs."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.small = nn.Parameter(torch.zeros(SMALL, dtype=dtype))
        self.large = nn.Parameter(torch.zeros(D, dtype=dtype))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return self.large @ gradient[:D] + self.small @ gradient[D:]


def gradient(rank: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(D + SMALL, generator=generator).to(dtype)


class Simulation:
    """All ranks' momenta and residuals, step by step, computed with the sequential reference."""

    def __init__(self, ranks: int, dtype: torch.dtype, nesterov: bool) -> None:
        wide = reference.accumulation(dtype)
        self.momenta = [torch.zeros(D + SMALL, dtype=wide) for _ in range(ranks)]
        self.residuals = [torch.zeros(D, dtype=wide) for _ in range(ranks)]
        self.nesterov = nesterov

    def step(
        self, gradients: list[torch.Tensor], algorithm: str, put_back: str, k: int = K
    ) -> torch.Tensor:
        given = []
        for i, g in enumerate(gradients):
            self.momenta[i] = u = torch.add(g, self.momenta[i], alpha=0.9)
            given.append(torch.add(g, u, alpha=0.9) if self.nesterov else u)
        large = [c[:D].to(g.dtype) for c, g in zip(given, gradients, strict=True)]
        outcome = reference.sparse_all_reduce(
            large, self.residuals, k, algorithm, put_back, average=True
        )
        for u, c, residual in zip(self.momenta, large, self.residuals, strict=True):
            if algorithm == "dense":
                continue
            acc = (c.to(residual.dtype) + residual).abs()
            sent = torch.zeros(D, dtype=torch.bool)
            sent[acc.argsort(descending=True, stable=True)[:k]] = True
            u[:D][sent & (outcome.tensor != 0) if put_back == "own" else sent] = 0
        self.residuals = outcome.residuals
        small = torch.stack([c[D:] for c in given]).mean(0)
        return torch.cat([outcome.tensor, small.to(outcome.tensor.dtype)])
