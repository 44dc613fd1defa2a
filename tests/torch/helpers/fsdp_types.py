"""Sums over the replicas of a mesh."""

from __future__ import annotations

from torch import nn


def summed(model: nn.Module) -> None:
    """Gloo's reduce_scatter knows no mean."""
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)
