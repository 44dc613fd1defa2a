"""``gtopk.fsdp_hook`` with a loss scale, clipping, and parameters that got no
gradient: each shard beside a DDP over its replicas, of flat parameters that get the same gradients.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import gtopk
from helpers.fsdp import Training
from helpers.fsdp_parts import NORM, Beside, Branches, cases, grad_scaler
from helpers.parallel import batch, loss_of, network
from helpers.ranks import Rank, RankSet
from helpers.training import equal

pytestmark = pytest.mark.loopback


def check_every_shard_is_as_under_ddp(me: Rank) -> None:
    for name, beside in cases(me, network):
        for _ in range(3):
            beside.training.optimizer.zero_grad()
            beside.backward(beside.training.loss())
            beside.check()
            beside.step()
            beside.training.at += 1
        assert beside.training.replicas_are_bitwise_equal(), name
        assert any(each.any() for each in beside.state.state_dict()["residuals"].values()), name


# Of the first replica, and of the second.
USED = [("abc", "abc"), ("ab", "c"), ("b", "abc"), ("a", "a"), ("cb", "ba")]


def check_what_got_no_gradient_counts_as_zeros(me: Rank) -> None:
    """On its replica; the result is in its .grad all the same, and added to what is there."""
    for kept in (False, True):
        for name, beside in cases(me, Branches)[:: 2 if kept else 1]:
            for used in USED:
                before = None
                if kept and beside.state.step:
                    before = {
                        n: p.grad.to_local().flatten().clone()
                        for n, p in beside.training.model.named_parameters()
                    }
                else:
                    beside.training.optimizer.zero_grad()
                x = batch(me.rank, beside.state.step)
                beside.backward(beside.training.model(x, used[me.rank // 2]))
                assert len(beside.arrived) == 2 * len(used[me.rank // 2])
                beside.check(before)
                if not kept:
                    beside.step()
            assert beside.training.replicas_are_bitwise_equal(), name


def check_backwards_without_a_sum_add_up(me: Rank) -> None:
    """FSDP's no_sync(): an odd number of them, each through another layer."""
    beside = Beside(me, model=Branches(), scaler=grad_scaler())
    model = beside.training.model
    for _ in range(2):
        beside.training.optimizer.zero_grad()
        for micro, used in enumerate("abc"):
            model.set_requires_gradient_sync(micro == 2)
            loss = model(batch(me.rank, micro), used)
            if micro < 2:
                beside.scaler.scale(loss).backward()
        beside.backward(loss)
        assert len(beside.arrived) == 6
        beside.check()
        beside.step()


def check_the_norm_is_that_of_a_replica(me: Rank) -> None:
    """All of it is sent: the mean of the replicas' gradients, each clipped at c / sqrt(2)."""
    training = Training(me, density=1.0, clip_norm=NORM)
    alone = network()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        of_replicas = []
        for replica in range(2):
            alone.zero_grad()
            for rank in (2 * replica, 2 * replica + 1):
                generator = torch.Generator().manual_seed(100 * step + rank)
                (loss_of(alone, torch.randn(8, 24, generator=generator)) / 2).backward()
            norm = nn.utils.clip_grad_norm_(alone.parameters(), NORM / math.sqrt(2))
            assert norm > NORM / math.sqrt(2)
            of_replicas.append([each.grad.clone() for each in alone.parameters()])
        for each, one, other in zip(alone.parameters(), *of_replicas, strict=True):
            each.grad = (one + other) / 2
        optimizer.step()
        training.step()
        for name, value in training.model.state_dict().items():
            expected = alone.state_dict()[name]
            torch.testing.assert_close(value.full_tensor(), expected, rtol=1e-4, atol=1e-5)


def everything(training: Training) -> list[torch.Tensor]:
    saved = training.state.state_dict()
    return [*training.shards(), *saved["residuals"].values(), *saved["momenta"].values()]


def check_one_shard_that_is_not_finite_stops_all(me: Rank) -> None:
    """One row of the first layer, which the first shard holds, on one replica."""
    scales = grad_scaler(2.0**10)
    training = Training(me, density=0.1, momentum=0.9, scaler=scales)
    for poisoned in (False, True, False, True):
        training.optimizer.zero_grad()
        before, scale = everything(training), scales.get_scale()

        def poison(module, inputs, output) -> None:
            def infinite(gradient: torch.Tensor) -> torch.Tensor:
                gradient = gradient.clone()
                gradient[0, 0] = math.inf
                return gradient

            output.register_hook(infinite)

        hook = training.model[0].register_forward_hook(poison)
        if not poisoned or me.rank != 3:
            hook.remove()
        scales.scale(training.loss()).backward()
        hook.remove()
        for parameter in training.model.parameters():
            local = parameter.grad.to_local()
            assert bool(local.isnan().any()) == (poisoned and local.numel() > 0)
        scales.step(training.optimizer)
        scales.update()
        assert equal(everything(training), before) == poisoned
        assert (scales.get_scale() == scale / 2) == poisoned
        training.at += 1
    assert training.replicas_are_bitwise_equal()


class Skips(nn.Sequential):
    """Leaves out one of its modules."""

    skipped: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self):
            if number != self.skipped:
                x = layer(x)
        return x


def check_a_module_that_is_left_out(me: Rank) -> None:
    """By all: nothing waits for it, at the gate or for the norm."""
    model = Skips(nn.Linear(24, 30), nn.Linear(30, 30), nn.Linear(30, 30))
    mesh = Training(me).mesh
    for layer in model:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    scales = grad_scaler()
    state = gtopk.fsdp_hook(
        model, mesh["replicate"], density=0.2, min_numel=30, scaler=scales, clip_norm=NORM,
        momentum=0.9,
    )  # fmt: skip
    for skipped in (None, 2, None):
        model.skipped = skipped
        model.zero_grad()
        scales.scale(loss_of(model, batch(me.rank, state.step))).backward()
        assert (model[2].weight.grad is None) == (skipped == 2)
        assert model[0].weight.grad.to_local().isfinite().all()
        assert state.momentum("0.weight").any()
    assert state.step == 3
    # What one replica leaves out has the size of what the other does.
    model.skipped = 1 + me.rank // 2
    with pytest.raises(ValueError, match=r"same modules .* of '[12]\.weight' here and '[12]\."):
        scales.scale(loss_of(model, batch(me.rank, 0))).backward()
    assert state.step == 3
    model.skipped = None
    model.zero_grad()
    scales.scale(loss_of(model, batch(me.rank, 1))).backward()
    assert state.step == 4


def check_a_backward_that_raised_is_not_trained_on(me: Rank) -> None:
    """FSDP2 calls no hook any more after it: gradients would stay this replica's."""

    def broken(module, inputs, output) -> None:
        def raises(gradient: torch.Tensor) -> None:
            raise RuntimeError("broken on purpose")

        output.register_hook(raises)

    training = Training(me, density=0.1)
    training.step()
    hook = training.model[2].register_forward_hook(broken)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        training.step()
    hook.remove()
    with torch.no_grad():
        training.loss()
    with pytest.raises(RuntimeError, match="the last backward raised, after which FSDP2"):
        training.step()
    assert training.state.step == 1
    dist.barrier()


def check_gradient_hooks_with_scaler_or_clip_norm_are_refused(me: Rank) -> None:
    for case, message in (
        ({"scaler": grad_scaler()}, "together with scaler=, clip_norm= and"),
        ({"clip_norm": 1.0}, "together with scaler=, clip_norm= and"),
        ({}, None),
    ):
        training = Training(me, density=0.1, **case)
        seen = []
        for parameter in training.model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.grad))
        if message is None:
            training.backward()
            assert len(seen) == 6
        else:
            with pytest.raises(NotImplementedError, match=message):
                training.backward()
    model = network().half()
    with pytest.raises(ValueError, match="scaler= was given with float16 parameters"):
        Training(me, density=0.1, model=model, scaler=grad_scaler())
    dist.barrier()


def check_shards_that_are_told_other_things_differ(me: Rank) -> None:
    with pytest.raises(ValueError, match=r"the loss has (no|a) scaler here and (no|a) scaler on"):
        Training(me, density=0.1, scaler=grad_scaler() if me.rank % 2 else None)
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
