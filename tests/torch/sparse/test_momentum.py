"""Momentum correction: ``SparseState(momentum=…, nesterov=…)``."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.momentum import D, K, Linear, Simulation, gradient
from helpers.ranks import Rank, RankSet
from helpers.training import Training, flat, gloo, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback


def check_twenty_steps_are_those_of_the_paper(me: Rank) -> None:
    """Bit for bit, except for small parameters, whose mean is summed in another order."""
    cases = itertools.product(("gtopk", "topk"), ("own", "merged"), (False, True))
    for ranks in range(1, 5):
        group = dist.new_group(list(range(ranks)))
        if me.rank >= ranks:
            continue
        for algorithm, put_back, nesterov in cases if ranks == 4 else [("gtopk", "own", False)]:
            dtype = torch.bfloat16 if nesterov and put_back == "own" else torch.float32
            model = Linear(dtype)
            ddp = DistributedDataParallel(model, process_group=group)
            state = gtopk.attach(
                ddp,
                density=K / D,
                momentum=0.9,
                nesterov=nesterov,
                algorithm=algorithm,
                put_back=put_back,
                warmup=[("dense", 3)],
                min_numel=100,
            )
            simulation = Simulation(ranks, dtype, nesterov)
            for step in range(20):
                every = [gradient(rank, step, dtype) for rank in range(ranks)]
                model.zero_grad()
                ddp(every[me.rank]).backward()
                expected = simulation.step(every, "dense" if step < 3 else algorithm, put_back)
                seen = torch.cat([model.large.grad, model.small.grad])
                assert torch.equal(seen[:D], expected[:D]), (algorithm, put_back, nesterov, step)
                assert torch.allclose(seen[D:], expected[D:], rtol=1e-2, atol=1e-5)
            mine = simulation.momenta[me.rank]
            assert torch.equal(state.momentum("large"), mine[:D])
            assert torch.equal(state.momentum("small"), mine[D:])
            assert torch.equal(state.residual("large"), simulation.residuals[me.rank])


def check_fifty_steps_down_a_ladder_with_accumulated_gradients(me: Rank) -> None:
    """A step is that of the sum of one to three backwards, at the density of its phase."""
    ladder = [("dense", 3), (0.25, 6), (0.05, 8)]
    entries = [*([0] * 3), *([D // 4] * 6), *([D // 20] * 8), *([K] * 33)]
    for ranks in range(1, 5):
        group = dist.new_group(list(range(ranks)))
        if me.rank >= ranks:
            continue
        model = Linear(torch.float32)
        ddp = DistributedDataParallel(model, process_group=group)
        state = gtopk.attach(ddp, density=K / D, momentum=0.9, warmup=ladder, min_numel=100)
        simulation = Simulation(ranks, torch.float32, nesterov=False)
        for step, k in enumerate(entries):
            passes = range(3 * step, 3 * step + 1 + step % 3)
            sums = [
                functools.reduce(
                    torch.add, [gradient(rank, each, torch.float32) for each in passes]
                )
                for rank in range(ranks)
            ]
            model.zero_grad()
            for each in passes:
                with ddp.no_sync() if each < passes[-1] else contextlib.nullcontext():
                    ddp(gradient(me.rank, each, torch.float32)).backward()
            expected = simulation.step(sums, "gtopk" if k else "dense", "own", k or K)
            seen = torch.cat([model.large.grad, model.small.grad])
            assert torch.equal(seen[:D], expected[:D]), (ranks, step)
            assert torch.allclose(seen[D:], expected[D:], rtol=1e-5, atol=1e-5)
        assert state.step == 50
        assert torch.equal(state.momentum("large"), simulation.momenta[me.rank][:D])
        assert torch.equal(state.residual("large"), simulation.residuals[me.rank])


def check_momentum_and_residual_are_masked_at_what_was_delivered(me: Rank) -> None:
    """SketchedSGD's update: where the sum's heavy hitters were delivered, both are zero, on all
    ranks; elsewhere both go on. true-topk, which it approximates, alike.
    """
    for algorithm in ("sketch", "true-topk"):
        model = Linear(torch.float32)
        ddp = DistributedDataParallel(model)
        state = gtopk.attach(ddp, K / D, momentum=0.9, algorithm=algorithm, min_numel=100)
        momenta = [torch.zeros(D) for _ in range(me.size)]
        residuals = [torch.zeros(D) for _ in range(me.size)]
        for step in range(50):
            every = [gradient(rank, step, torch.float32) for rank in range(me.size)]
            model.zero_grad()
            ddp(every[me.rank]).backward()
            delivered = model.large.grad != 0
            assert 0 < delivered.sum() <= K
            momenta = [torch.add(g[:D], u, alpha=0.9) for g, u in zip(every, momenta, strict=True)]
            residuals = [u + r for u, r in zip(momenta, residuals, strict=True)]
            mean = torch.stack(residuals).mean(0)
            expected = torch.where(delivered, mean, 0)
            torch.testing.assert_close(model.large.grad, expected, rtol=1e-5, atol=1e-5)
            for each in (*momenta, *residuals):
                each[delivered] = 0
            assert torch.equal(state.momentum("large"), momenta[me.rank]), (algorithm, step)
            assert torch.equal(state.residual("large"), residuals[me.rank]), (algorithm, step)


def check_a_dense_phase_is_sgd_with_momentum(me: Rank) -> None:
    for nesterov in (False, True):
        plain, corrected = Training(me.rank), Training(me.rank)
        arguments = {"lr": 0.05, "momentum": 0.9, "nesterov": nesterov}
        plain.optimizer = torch.optim.SGD(plain.ddp.parameters(), **arguments)
        corrected.optimizer = torch.optim.SGD(corrected.ddp.parameters(), lr=0.05)
        corrected.hooked(momentum=0.9, nesterov=nesterov, warmup=[("dense", 100)])
        for _ in range(20):
            plain.step()
            corrected.step()
        assert torch.allclose(flat(plain.model), flat(corrected.model), atol=1e-5)
        assert replicas_are_bitwise_equal(corrected.model)


def momenta(state: gtopk.SparseState) -> dict[str, torch.Tensor]:
    return state.state_dict()["momenta"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def check_a_step_that_is_not_finite_moves_no_momentum(me: Rank) -> None:
    """Its unit's; with a scaler, none, including those of units with only small parameters."""
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        training = Training(me.rank)
        state = training.hooked(density=0.05, momentum=0.9, unit="parameter", scaler=scaler)
        scale = scaler.scale if scaler else (lambda loss: loss)
        scale(training.loss()).backward()
        before = momenta(state)
        assert all(each.any() for each in before.values())
        training.optimizer.zero_grad()
        spoiled = training.model[0].weight
        handle = spoiled.register_hook(lambda grad: grad * (math.nan if me.rank == 1 else 1.0))
        scale(training.loss()).backward()
        handle.remove()
        after = momenta(state)
        moved = {name for name in after if not torch.equal(before[name], after[name])}
        assert "0.weight" not in moved
        assert bool(moved) == (scaler is None)
        assert all(each.isfinite().all() for each in after.values())


def check_a_run_that_is_resumed_goes_on_bit_for_bit(me: Rank) -> None:
    arguments = {"density": 0.02, "momentum": 0.9, "unit": "parameter", "select": "threshold"}
    first = Training(me.rank)
    state = first.hooked(**arguments)
    first.steps(5)
    saved, pickled = state.state_dict(), copy.deepcopy(state)
    resumed, copied = (Training(me.rank, model=copy.deepcopy(first.model)) for _ in range(2))
    for each in (resumed, copied):
        each.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
        each.at = first.at
    other = resumed.hooked(**arguments)
    other.load_state_dict(saved)
    pickled.bind(copied.model.named_parameters())
    copied.ddp.register_comm_hook(pickled, gtopk.sparse_hook)
    for each in (first, resumed, copied):
        each.steps(5)
        assert torch.equal(flat(each.model), flat(first.model))
    assert same(momenta(state), momenta(other))
    assert same(momenta(state), momenta(pickled))
    # Saved without momentum, it starts from zero. Loaded without momentum, it is left out.
    none = Training(me.rank).hooked(density=0.02, unit="parameter")
    assert none.state_dict()["momenta"] == {}
    assert none.momentum("0.weight") is None
    assert none.load_state_dict(saved) == ([], [])
    other.load_state_dict(none.state_dict())
    assert not any(each.any() for each in momenta(other).values())


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.other = nn.Linear(64, 64, bias=False), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        return self.used(x) + (self.other(x) if both else 0)


def check_gradient_dropped_by_ddp_enters_momentum_once(me: Rank) -> None:
    """A gradient that was accumulated and that DDP drops enters the momentum once, not twice."""
    model = Branches()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    weight = model.other.weight
    state = gtopk.attach(ddp, momentum=0.5, algorithm="dense", min_numel=1)
    x = torch.full((1, 64), me.rank + 1.0)
    ddp(x, True).sum().backward()
    kept, before = weight.grad.clone(), state.momentum("other.weight").clone()
    assert before.any()
    ddp(x, False).sum().backward()
    assert torch.equal(weight.grad, kept)
    torch.testing.assert_close(state.momentum("other.weight"), 0.5 * before)
    # Delivered and given back: half the momentum, without what .grad still holds.
    total, expected = state.residual("other.weight").double(), 0.5 * before.double()
    for each in (total, expected):
        dist.all_reduce(each, group=gloo())
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, True, "0.9", math.nan])
def test_a_momentum_that_makes_no_sense_is_refused(momentum) -> None:
    with pytest.raises(ValueError, match=r"momentum must be a number in \[0, 1\)"):
        gtopk.SparseState(Linear(torch.float32).named_parameters(), momentum=momentum)
    with pytest.raises(ValueError, match="nesterov=True needs a momentum above 0"):
        gtopk.SparseState(Linear(torch.float32).named_parameters(), nesterov=True)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
