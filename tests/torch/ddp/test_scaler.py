"""Loss scaling (``scaler=``) and steps that are undone (``skip()``)."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.ranks import Rank, RankSet
from helpers.scaler import equal, residuals, scaled_step, scaler
from helpers.training import Training, flat, gloo, replicas_are_bitwise_equal, share

pytestmark = pytest.mark.loopback

SMALL_UNITS = 8 * 1024  # bytes: five units, one per weight matrix


def total(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the sums over the ranks."""
    sums = {name: tensor.double() for name, tensor in tensors.items()}
    for tensor in sums.values():
        dist.all_reduce(tensor, group=gloo())
    return sums


# Scaling by a power of two and back leaves every bit of a gradient as it is.
def check_a_scale_that_grows_changes_no_bit(me: Rank) -> None:
    for algorithm in ("gtopk", "topk", "true-topk", "dense"):
        warmup = [("dense", 2), *([] if algorithm == "dense" else [(0.2, 2)])]
        arguments = {**share(algorithm, 0.05), "unit": SMALL_UNITS, "warmup": warmup}
        plain, scaled = Training(me.rank), Training(me.rank)
        scales = scaler()
        expected = plain.hooked(**arguments, algorithm=algorithm)
        state = scaled.hooked(**arguments, algorithm=algorithm, scaler=scales)
        for _ in range(10):
            plain.step()
            scaled_step(scaled, scales)
        assert scales.get_scale() == 2.0**13
        assert torch.equal(flat(plain.model), flat(scaled.model))
        assert equal(residuals(expected), residuals(state))
    assert replicas_are_bitwise_equal(scaled.model)


def check_one_unit_that_is_not_finite_stops_all(me: Rank) -> None:
    training = Training(me.rank)
    scales = scaler(interval=1000)
    # The biases are units of their own, without a large part.
    state = training.hooked(density=0.05, unit="parameter", min_numel=200, scaler=scales)
    for _ in range(2):
        scaled_step(training, scales)
    for number, poisoned in enumerate(training.model.parameters()):
        before = flat(training.model).clone(), residuals(state), scales.get_scale()
        culprit = number % me.size == me.rank
        poison = poisoned.register_hook(
            lambda gradient, factor=math.inf if culprit else 1.0: gradient * factor
        )
        scaled_step(training, scales)
        poison.remove()
        assert all(p.grad.isnan().any() for p in training.model.parameters() if p.numel() >= 200)
        assert torch.equal(before[0], flat(training.model))
        assert equal(before[1], residuals(state))
        assert scales.get_scale() == before[2] / 2
        scaled_step(training, scales)
        assert not torch.equal(before[0], flat(training.model))
        assert not equal(before[1], residuals(state))
    assert replicas_are_bitwise_equal(training.model)


def check_overflow_under_the_scale_gives_nan_and_keeps_residual(me: Rank) -> None:
    model = nn.Linear(64, 64, bias=False)
    ddp = DistributedDataParallel(model)
    scales = scaler(scale=2.0**100)
    state = gtopk.attach(ddp, density=0.1, scaler=scales)
    state.residual("weight").fill_(2.0**60)
    x = torch.full((1, 64), 2.0**-80)
    scales.scale(ddp(x).sum()).backward()
    assert model.weight.grad.isnan().all()
    assert (state.residual("weight") == 2.0**60).all()


def check_more_units_than_are_in_flight(me: Rank) -> None:
    def deep() -> nn.Module:
        torch.manual_seed(2)
        middle = [nn.Linear(24, 24, bias=False) for _ in range(80)]
        return nn.Sequential(*middle, nn.Linear(24, 24))

    plain, scaled = Training(me.rank, model=deep()), Training(me.rank, model=deep())
    scales = scaler()
    plain.hooked(density=0.1, unit="parameter", min_numel=1)
    scaled.hooked(density=0.1, unit="parameter", min_numel=1, scaler=scales)
    for _ in range(3):
        plain.step()
        scaled_step(scaled, scales)
    assert torch.equal(flat(plain.model), flat(scaled.model))


class Breaks(torch.autograd.Function):
    """Raises in its backward."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("broken on purpose")


def check_a_backward_that_breaks_off_commits_nothing(me: Rank) -> None:
    training = Training(me.rank)
    scales = scaler()
    state = training.hooked(density=0.05, unit=SMALL_UNITS, scaler=scales)
    scaled_step(training, scales)
    before = residuals(state)
    hook = training.model[0].register_forward_hook(lambda module, x, y: Breaks.apply(y))
    with pytest.raises(RuntimeError, match="broken on purpose"):
        scaled_step(training, scales)
    hook.remove()
    assert equal(before, residuals(state))


# The first units wait at the step's gate, which only this thread shuts, later.
def check_a_barrier_behind_a_backward_that_breaks_off(me: Rank) -> None:
    group = dist.new_group(timeout=timedelta(seconds=60))
    training = Training(me.rank, group=group)
    scales = scaler()
    state = training.hooked(density=0.05, unit=SMALL_UNITS, scaler=scales, group=group)
    scaled_step(training, scales)
    hook = training.model[0].register_forward_hook(lambda module, x, y: Breaks.apply(y))
    with pytest.raises(RuntimeError, match="broken on purpose"):
        scaled_step(training, scales)
    hook.remove()
    dist.barrier(group=group)
    residuals(state)  # shuts it


def check_what_ddp_drops_comes_back_without_the_scale(me: Rank) -> None:
    torch.manual_seed(4)
    model = nn.ModuleDict({"a": nn.Linear(40, 40), "b": nn.Linear(40, 40)})
    scales = scaler()

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: torch.Tensor, names: str) -> torch.Tensor:
            return sum(self.layers[name](x).square().sum() for name in names)

    ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
    state = gtopk.attach(ddp, density=0.1, scaler=scales)
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(me.rank))
    scales.scale(ddp(x, "ab")).backward()
    ddp.zero_grad(set_to_none=True)
    before = total({"b": state.residual("layers.b.weight")})
    scales.scale(ddp(x, "a")).backward()
    assert model["b"].weight.grad is None
    after = total({"b": state.residual("layers.b.weight")})
    torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-5)


def check_a_step_that_is_skipped_goes_back(me: Rank) -> None:
    for scales in (None, scaler()):
        for warmup in ([], [("dense", 9)]):
            training = Training(me.rank)
            state = training.hooked(density=0.05, unit=SMALL_UNITS, scaler=scales, warmup=warmup)
            mine: dict[str, torch.Tensor] = {}
            for step in range(3):
                training.optimizer.zero_grad()
                loss = training.loss()
                before = total(residuals(state))
                # This rank's contribution.
                for name, parameter in training.model.named_parameters():
                    if name in before:
                        (own,) = torch.autograd.grad(loss, parameter, retain_graph=True)
                        mine[name] = own
                put_in = total(mine)
                (loss if scales is None else scales.scale(loss)).backward()
                assert all(parameter.grad is not None for parameter in training.model.parameters())
                if step == 1:
                    continue  # that step counts
                state.skip()
                once = residuals(state)
                for name, sum_ in total(once).items():
                    torch.testing.assert_close(
                        sum_, before[name] + put_in[name], rtol=1e-4, atol=1e-6
                    )
                state.skip()
                assert equal(once, residuals(state))


def check_ranks_with_and_without_a_scaler_differ(me: Rank) -> None:
    training = Training(me.rank)
    training.hooked(density=0.05, unit=SMALL_UNITS, scaler=scaler() if me.rank == 0 else None)
    with pytest.raises(RuntimeError, match="gate=6"):
        training.loss().backward()
    dist.barrier()


def check_a_scaler_that_is_set_later(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(density=0.05, unit=SMALL_UNITS)
    training.step()
    state.scaler = scaler()
    scaled_step(training, state.scaler)
    state.scaler = torch.amp.GradScaler("cpu", enabled=False)
    training.step()
    assert replicas_are_bitwise_equal(training.model)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


def test_parameters_of_float16_are_refused() -> None:
    model = nn.Linear(64, 64).half()
    with pytest.raises(ValueError, match="scaler= was given with float16 parameters"):
        gtopk.SparseState(model.named_parameters(), scaler=scaler())


def test_a_scale_that_is_no_scale_is_refused() -> None:
    from gtopk.state.rates import scale_of

    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="must be finite and above 0"):
            scale_of(scaler(scale=wrong))
