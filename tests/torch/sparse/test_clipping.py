"""Local clipping before accumulation: ``SparseState(clip_norm=…, clip=…)``."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.momentum import SMALL, D, K, Linear, Simulation, gradient
from helpers.optimizer import Branches
from helpers.ranks import Rank, RankSet
from helpers.training import Plain, Training, flat, gloo, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback


class Two(nn.Module):
    """Two units whose gradients are its inputs, the second's three times as large."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first, self.second = Linear(dtype), Linear(dtype)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.first(given) + 3 * self.second(given)


def clipped(pieces: list[torch.Tensor], most: float) -> list[torch.Tensor]:
    """All of these together, clipped to norm `most`."""
    norm = math.sqrt(sum(each.double().square().sum().item() for each in pieces))
    return [each * (most / norm) if norm > most else each for each in pieces]


def check_twenty_steps_are_those_of_the_paper(me: Rank) -> None:
    """Each rank clips to c / sqrt(P), before momentum and residual; some steps need no clipping."""
    cases = [*((ranks, "model") for ranks in range(1, 5)), (4, "unit")]
    for ranks, clip in cases:
        group = dist.new_group(list(range(ranks)))
        if me.rank >= ranks:
            continue
        model = Two()
        ddp = DistributedDataParallel(model, process_group=group)
        arguments = {"momentum": 0.9, "warmup": [("dense", 3)], "min_numel": 100}
        clipping = {"clip_norm": 60.0 * math.sqrt(ranks), "clip": clip}
        state = gtopk.attach(ddp, density=K / D, unit=4 * (D + SMALL), **arguments, **clipping)
        simulations = [Simulation(ranks, torch.float32, False) for _ in range(2)]
        for step in range(20):
            every = [
                gradient(rank, step, torch.float32) * (step % 5 + 0.1) for rank in range(ranks)
            ]
            model.zero_grad()
            ddp(every[me.rank]).backward()
            given = [[g, 3 * g] for g in every]
            if clip == "model":
                given = [clipped(pieces, 60.0) for pieces in given]
            else:
                given = [[clipped([g], 60.0)[0] for g in pieces] for pieces in given]
            algorithm = "dense" if step < 3 else "gtopk"
            for i, (simulation, layer) in enumerate(
                zip(simulations, (model.first, model.second), strict=True)
            ):
                expected = simulation.step([pieces[i] for pieces in given], algorithm, "own")
                seen = torch.cat([layer.large.grad, layer.small.grad])
                torch.testing.assert_close(seen, expected, rtol=1e-5, atol=1e-5)
        for name, simulation in zip(("first", "second"), simulations, strict=True):
            for seen, expected in (
                (state.residual(f"{name}.large"), simulation.residuals[me.rank]),
                (state.momentum(f"{name}.large"), simulation.momenta[me.rank][:D]),
                (state.momentum(f"{name}.small"), simulation.momenta[me.rank][D:]),
            ):
                torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-3)


def check_a_norm_that_is_never_reached_changes_no_bit(me: Rank) -> None:
    plain, clipping, unit = (
        Training(me.rank),
        Training(me.rank),
        Plain(me.rank, density=0.05, unit=8 * 1024, clip_norm=1e6),
    )
    plain.hooked(density=0.05, unit=8 * 1024)
    clipping.hooked(density=0.05, unit=8 * 1024, clip_norm=1e6)
    for training in (plain, clipping, unit):
        training.steps(5)
    assert torch.equal(flat(plain.model), flat(clipping.model))
    assert torch.equal(flat(plain.model), flat(unit.model))


def check_a_scaler_and_a_gradient_that_is_not_finite(me: Rank) -> None:
    """The norm is that of the unscaled gradient; NaN stops the step, and nothing is clipped."""
    scales = [torch.amp.GradScaler("cpu", init_scale=s) for s in (1.0, 2.0**20)]
    trainings = [Training(me.rank) for _ in scales]
    states = [
        each.hooked(density=0.05, clip_norm=0.1, clip="unit", unit=8 * 1024, scaler=scaler)
        for each, scaler in zip(trainings, scales, strict=True)
    ]
    for step in range(4):
        for training, scaler in zip(trainings, scales, strict=True):
            training.optimizer.zero_grad()
            loss = training.loss()
            if step == 2 and me.rank == 1:
                loss = loss * math.nan
            scaler.scale(loss).backward()
            assert training.model[0].weight.grad.isnan().any() == (step == 2)
            scaler.step(training.optimizer)
            scaler.update()
            training.at += 1
    assert torch.equal(*(flat(each.model) for each in trainings))
    assert replicas_are_bitwise_equal(trainings[0].model)
    assert all(
        torch.equal(states[0].residual(n), states[1].residual(n)) for n in ("0.weight", "2.weight")
    )


def check_what_is_dropped_comes_back_clipped(me: Rank) -> None:
    """A .grad left over travels clipped, is dropped, and leaves the residual clipped."""
    model = Branches()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    state = gtopk.attach(ddp, density=1.0, clip_norm=4.0, min_numel=1)
    x = torch.full((2, 40), me.rank + 1.0)
    ddp(x, "abc").backward()
    kept = model.layers["b"].weight.grad.clone()
    ddp(x, "ac").backward()
    assert torch.equal(model.layers["b"].weight.grad, kept)
    assert state.step == 2
    total = state.residual("layers.b.weight").double()
    if me.rank == 0:
        assert total.any()  # what had been delivered, minus this rank's contribution
    dist.all_reduce(total, group=gloo())
    assert total.abs().max() < 1e-5 * kept.abs().max()


@pytest.mark.parametrize("norm", [0, -1.0, math.inf, math.nan, 10**400, True, "1"])
def test_a_norm_that_makes_no_sense_is_refused(norm) -> None:
    with pytest.raises(ValueError, match="clip_norm must be a finite number above 0"):
        gtopk.SparseState(Two().named_parameters(), clip_norm=norm)
    with pytest.raises(ValueError, match="clip='layer' is unknown; available: 'model', 'unit'"):
        gtopk.SparseState(Two().named_parameters(), clip="layer")


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
