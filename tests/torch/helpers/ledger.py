"""Whether gradient mass is lost: what went in, what came out and what remains."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.training import gloo


class Ledger:
    """Registers the hook and checks, for each backward, that sum of acc = delivered + residuals.

    Delivered is .grad afterwards, times the number of ranks; nothing if .grad is None.
    """

    def __init__(self, ddp: DistributedDataParallel, state: gtopk.SparseState) -> None:
        self.state = state
        self.parameters = {
            name: parameter
            for name, parameter in ddp.module.named_parameters()
            if state.residual(name) is not None
        }
        self.arrived: dict[str, torch.Tensor] = {}
        self.buffers: list[torch.Tensor] = []
        names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}

        def listening(state, bucket):
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                self.arrived[names[id(parameter)]] = gradient.clone()
            self.buffers.append(bucket.buffer())
            return gtopk.sparse_hook(state, bucket)

        ddp.register_comm_hook(state, listening)

    def open(self) -> None:
        self.arrived.clear()
        self.buffers.clear()
        self.before = {name: self.state.residual(name).clone() for name in self.parameters}

    def check(self, *, delivered: bool = True) -> None:
        """delivered: whether .grad holds results; otherwise nothing counts as delivered."""
        acc, end = [], []
        for name, parameter in self.parameters.items():
            gradient = self.arrived.get(name, torch.zeros(()))
            acc.append((gradient.double() + self.before[name].double()).flatten())
            left = self.state.residual(name).double().clone()
            if delivered and parameter.grad is not None:
                left += parameter.grad.double()
            end.append(left.flatten())
        sums = torch.stack([torch.cat(acc), torch.cat(end)])
        dist.all_reduce(sums, group=gloo())
        torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=1e-6)
