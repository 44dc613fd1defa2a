"""How a task is trained: its optimizer, how the learning rate moves, and clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import LambdaLR

WARMUP = 0.1  # of all steps, in which the rate rises


@dataclass(frozen=True)
class Recipe:
    """An optimizer and what belongs to it."""

    make: Callable[[Iterable[torch.nn.Parameter], float, bool], torch.optim.Optimizer]
    """Of parameters, a learning rate, and whether the optimizer has momentum."""
    factor: Callable[[int, int], float]
    """Of the rate, at a step (from 0) of so many."""
    clip: float | None = None
    """The largest norm of the gradient."""

    def optimizer(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float,
        steps: int,
        *,
        momentum: bool = True,
    ) -> tuple[torch.optim.Optimizer, LambdaLR]:
        """The optimizer and its schedule. momentum: False where the exchange has it (DGC)."""
        optimizer = self.make(parameters, lr, momentum)
        return optimizer, LambdaLR(optimizer, lambda step: self.factor(step, steps))

    def clip_(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Clips .grad, if the recipe does."""
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self.clip)


def _sgd(
    parameters: Iterable[torch.nn.Parameter], lr: float, momentum: bool
) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9 if momentum else 0.0)


def _adamw(
    parameters: Iterable[torch.nn.Parameter], lr: float, momentum: bool
) -> torch.optim.Optimizer:
    """Weight decay for matrices alone, as usual for transformers."""
    listed = list(parameters)
    groups = [
        {"params": [each for each in listed if each.dim() >= 2], "weight_decay": 0.1},
        {"params": [each for each in listed if each.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9 if momentum else 0.0, 0.95))


def _linear(step: int, steps: int) -> float:
    """Rises for a tenth of the steps, then falls to a tenth."""
    return min((step + 1) / max(1, round(WARMUP * steps)), 1 - 0.9 * step / steps)


def _cosine(step: int, steps: int) -> float:
    """Rises for a tenth of the steps, then falls to a tenth along a cosine."""
    warmup = max(1, round(WARMUP * steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup))


SGD = Recipe(_sgd, _linear)
ADAMW = Recipe(_adamw, _cosine, clip=1.0)
