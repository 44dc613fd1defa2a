"""Complex parameters under ``gtopk.attach`` and ``DistributedOptimizer``: averaged exactly."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


class Rotates(nn.Module):
    """Large complex weights among real ones; some gradients are lazy conjugates."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(24, 40)
        self.turn = nn.Linear(40, 40, dtype=torch.complex64)
        self.other = nn.Parameter(torch.randn(40, 40, dtype=torch.complex64) / 8)
        self.last = nn.Linear(40, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.turn(self.first(x).tanh().to(torch.complex64))
        return self.last((y @ self.other.conj()).real)


def batch(me: Rank, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + me.rank)
    return torch.randn(8, 24, generator=generator)


def mean_gradients(me: Rank, model: nn.Module, step: int) -> dict[str, torch.Tensor]:
    """Of the complex parameters, from all ranks' batches, without gtopk's exchange."""
    named = {n: each for n, each in model.named_parameters() if each.is_complex()}
    loss = model(batch(me, step)).square().mean()
    found = {}
    for (name, _), each in zip(
        named.items(), torch.autograd.grad(loss, list(named.values())), strict=True
    ):
        pairs = torch.view_as_real(each.resolve_conj()).contiguous()
        dist.all_reduce(pairs)
        found[name] = torch.view_as_complex(pairs / me.size)
    return found


class Hooked:
    """Trains it under DDP."""

    def __init__(self, *, options=None, **arguments) -> None:
        self.model = Rotates()
        options = {"bucket_cap_mb": 0.01} if options is None else options
        self.forward = DistributedDataParallel(self.model, **options)
        self.state = gtopk.attach(self.forward, **arguments)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)


class Plain:
    """Trains it without DDP."""

    def __init__(self, **arguments) -> None:
        self.model = self.forward = Rotates()
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.optimizer = gtopk.DistributedOptimizer(sgd, self.model, **arguments)
        self.state = self.optimizer.sparse_state


def check_complex_gradients_are_the_mean_of_all_ranks(me: Rank) -> None:
    unused = functools.partial(Hooked, options={"find_unused_parameters": True})
    views = functools.partial(Hooked, options={"gradient_as_bucket_view": True})
    for kind in (Hooked, unused, views, Plain):
        training = kind(density=0.02)
        for step in range(3):
            expected = mean_gradients(me, training.model, step)
            training.optimizer.zero_grad()
            training.forward(batch(me, step)).square().mean().backward()
            for name, each in training.model.named_parameters():
                if each.is_complex():
                    torch.testing.assert_close(each.grad.resolve_conj(), expected[name])
                    assert training.state.residual(name) is None
            training.optimizer.step()
        assert training.state.residual("first.weight") is None  # of less than min_numel
        assert training.state.residual("last.weight").any()
        assert training.state.step == 3


def check_momentum_and_a_norm_are_those_of_pairs(me: Rank) -> None:
    for kind in (Hooked, Plain):
        training = kind(density=0.02, momentum=0.5)
        sums: dict[str, torch.Tensor] = {}
        for step in range(3):
            for name, each in mean_gradients(me, training.model, step).items():
                sums[name] = each + 0.5 * sums.get(name, 0)
            training.optimizer.zero_grad()
            training.forward(batch(me, step)).square().mean().backward()
            for name, each in sums.items():
                grad = dict(training.model.named_parameters())[name].grad
                torch.testing.assert_close(grad.resolve_conj(), each)
            training.optimizer.step()
        assert training.state.momentum("turn.weight").shape == (40, 40, 2)
        again = kind(density=0.02, momentum=0.5)
        again.state.load_state_dict(training.state.state_dict())
        mine, saved = again.state.momentum("turn.weight"), training.state.momentum("turn.weight")
        assert torch.equal(mine, saved)
    training = Plain(density=1.0, clip_norm=1e-3)
    training.forward(batch(me, 0)).square().mean().backward()
    training.optimizer.synchronize()
    norm = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(each.grad) for each in training.model.parameters()])
    )
    assert 0 < norm <= 1.01e-3


def check_fsdp_hook_refuses_them(me: Rank) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(nn.Linear(8, 8, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"parameter '0\.weight' must be one of .*complex64"):
        gtopk.fsdp_hook(fully_shard(model, mesh=mesh["shard"]), mesh["replicate"])
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
