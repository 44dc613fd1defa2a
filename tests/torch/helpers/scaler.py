"""Steps with a gradient scaler."""

from __future__ import annotations

import torch

import gtopk
from helpers.training import Training


def scaler(scale: float = 2.0**10, interval: int = 3) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)


def scaled_step(training: Training, scaler: torch.amp.GradScaler) -> None:
    training.optimizer.zero_grad()
    scaler.scale(training.loss()).backward()
    scaler.step(training.optimizer)
    scaler.update()
    training.at += 1


def residuals(state: gtopk.SparseState) -> dict[str, torch.Tensor]:
    return state.state_dict()["residuals"]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
