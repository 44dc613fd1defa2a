"""Trains as P ranks would, in one process: same nets, batches, sums and selections.

A run of `dense` on a coded wire, of PowerSGD or of what no backend has yet is as quick as any. Real
ranks: train.py, whose runs this repeats (tests/torch/examples/test_convergence.py compares them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from exchanges import dense_bytes, dense_sum
from recipes import WARMUP
from simulated import Method
from tasks import Task
from torch import nn

MIN_NUMEL = 256  # as in methods.py: smaller parameters travel densely


class Layout:
    """Parameters as gtopk's units order them: from the last to the first, large ones apart."""

    def __init__(self, model: nn.Module, dense: Sequence[str]) -> None:
        """dense: names of parameters that count as small."""
        named = list(model.named_parameters())[::-1]
        self.large = [p for name, p in named if p.numel() >= MIN_NUMEL and name not in dense]
        self.small = [p for name, p in named if p.numel() < MIN_NUMEL or name in dense]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All, the large ones first."""
        return self.large + self.small

    @property
    def numel(self) -> int:
        """Elements of the large ones."""
        return sum(p.numel() for p in self.large)


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """One vector."""
    return torch.cat([each.detach().flatten() for each in tensors])


def cut(vector: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The reverse of flat()."""
    parts = vector.split([each.numel() for each in like])
    return [part.view_as(each) for part, each in zip(parts, like, strict=True)]


def _stacked(p: torch.Tensor, ranks: int) -> torch.Tensor:
    copies = p.repeat(ranks, *(1 for _ in p.shape[1:]))
    return copies.view(ranks, *p.shape) if p.dim() >= 2 else copies


class Training:
    """P ranks' training, step by step."""

    def __init__(self, tasks: Sequence[Task], method: Method, lr: float, steps: int) -> None:
        """tasks: one for each rank; the first one's model is everybody's."""
        self.tasks = tasks
        self.method = method
        self.model = tasks[0].model
        self.ranks = len(tasks)
        self.layout = Layout(self.model, method.dense)
        self.exchange = method.make()
        self.exchange.start(self.ranks, [p.shape for p in self.layout.large])
        self.warmup = round(WARMUP * steps) if self.exchange.warms_up else 0
        # Where ranks step on their own, a parameter of all ranks is one tensor: (P, *shape) of a
        # matrix, (P n,) of a vector, so that a recipe tells the two apart.
        self.own = [
            nn.Parameter(_stacked(p.detach(), self.ranks))
            for p in (self.layout.parameters if method.after else ())
        ]
        stepped = self.own if method.after else self.model.parameters()
        self.optimizer, self.schedule = tasks[0].recipe.optimizer(
            stepped, lr, steps, momentum=not method.own_momentum
        )
        self.at = 0
        self.sent = 0.0

    def step(self) -> float:
        """One step of all ranks; returns their mean loss."""
        losses, gradients = zip(*(self._gradient(task) for task in self.tasks), strict=True)
        if self.method.after:
            self._step_alone(gradients)
        else:
            mean = self._mean(torch.stack(gradients))
            for p, gradient in zip(
                self.layout.parameters, cut(mean, self.layout.parameters), strict=True
            ):
                p.grad = gradient
            self.tasks[0].recipe.clip_(self.model.parameters())
            self.optimizer.step()
        self.schedule.step()
        self.at += 1
        return sum(losses) / self.ranks

    def _gradient(self, task: Task) -> tuple[float, torch.Tensor]:
        inputs, targets = task.batch()
        self.model.zero_grad()
        loss = task.loss(self.model(inputs), targets)
        loss.backward()
        return loss.item(), flat(p.grad for p in self.layout.parameters if p.grad is not None)

    def _mean(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean of rows (P, all elements); counts bytes."""
        large, small = rows[:, : self.layout.numel], rows[:, self.layout.numel :]
        rate = self.schedule.get_last_lr()[0]
        exchange = self.exchange.dense if self.at < self.warmup else self.exchange.mean
        parts = [exchange(large, rate), dense_sum(small) / self.ranks]
        self.sent += self.exchange.bytes + dense_bytes(self.ranks, 4 * small.shape[1])
        return torch.cat(parts)

    def _step_alone(self, gradients: Sequence[torch.Tensor]) -> None:
        """Every rank steps from the shared parameters; the mean of the updates is applied."""
        clip = self.tasks[0].recipe.clip
        rows = torch.stack(gradients)
        if clip is not None:
            rows = rows * (clip / (rows.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1)
        shared = self.layout.parameters
        sizes = [p.numel() for p in shared]
        for own, part in zip(self.own, rows.split(sizes, dim=1), strict=True):
            own.grad = part.reshape(own.shape)
        self.optimizer.step()
        with torch.no_grad():
            moved = [
                (p - own.view(-1, *p.shape)).flatten(1)
                for p, own in zip(shared, self.own, strict=True)
            ]
            mean = self._mean(torch.cat(moved, dim=1))
            for p, own, part in zip(shared, self.own, cut(mean, shared), strict=True):
                p -= part
                own.view(-1, *p.shape).copy_(p)


def train(run: dict[str, Any], tasks: Sequence[Task], method: Method, points: int = 8) -> dict:
    """Does one run; returns its record, as train.py writes it. run: what defines it."""
    task, steps = tasks[0], run["steps"]
    training = Training(tasks, method, run["lr"] or task.lr, steps)
    measured = []
    for step in range(1, steps + 1):
        loss = training.step()
        if step % max(1, steps // points) == 0 or step == steps:
            measured.append(
                {
                    "step": step,
                    "loss": loss,
                    "bytes": training.sent,
                    "score": task.score(task.model),
                }
            )
    parameters = sum(p.numel() for p in task.model.parameters())
    return {
        **run,
        "unit": task.unit,
        "lower": task.lower,
        "simulated": True,
        "parameters": parameters,
        **task.about,
        "points": measured,
    }
