"""Models for gtopk.DistributedOptimizer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import gtopk
from helpers.training import gloo


def total(state: gtopk.SparseState) -> dict[str, torch.Tensor]:
    sums = {name: each.double() for name, each in state.state_dict()["residuals"].items()}
    for each in sums.values():
        dist.all_reduce(each, group=gloo())
    return sums


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleDict({name: nn.Linear(40, 40) for name in "abc"})

    def forward(self, x: torch.Tensor, names: str) -> torch.Tensor:
        return sum(self.layers[name](x).square().sum() for name in names)
