"""accumulate="update": residuals are updates that were not applied."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers import reference
from helpers.ranks import Rank, RankSet
from helpers.training import Training, flat, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback

LARGE, SMALL = (300, 200), 10
D = sum(LARGE)
DENSITY = 0.02


class Linear(nn.Module):
    """The gradients of its sum are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Parameter(torch.zeros(SMALL))
        self.late = nn.Parameter(torch.zeros(LARGE[1]))
        self.early = nn.Parameter(torch.zeros(LARGE[0]))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        early, late, small = gradient.split([*LARGE, SMALL])
        return self.early @ early + self.late @ late + self.small @ small


def gradient(rank: int, step: int) -> torch.Tensor:
    return torch.randn(D + SMALL, generator=torch.Generator().manual_seed(1000 * rank + step))


def rates_at(step: int, *, differ: bool) -> tuple[float, float]:
    """The rates of `early`, and of `late` and `small`: they drop, and rise."""
    rate = (0.5, 0.05, 0.125)[step // 10 % 3]
    return rate, 0.25 * rate if differ else rate


def optimizer_of(model: Linear) -> torch.optim.SGD:
    groups = [{"params": [model.early]}, {"params": [model.late, model.small]}]
    return torch.optim.SGD(groups, lr=1.0)


def check_twenty_steps_are_those_of_the_papers(me: Rank) -> None:
    """acc = lr g + residual, and the parameters move by what is delivered: P from 1 to 4.

    Residuals bit for bit; parameters to rounding, as the optimizer multiplies by lr again.
    """
    cases = [
        *itertools.product(("gtopk", "topk"), ("own", "merged"), (False, True), (0.0,)),
        *itertools.product(("gtopk",), ("own",), (False, True), (0.9,)),
    ]
    for ranks in range(1, 5):
        group = dist.new_group(list(range(ranks)))
        if me.rank >= ranks:
            continue
        for algorithm, put_back, differ, momentum in cases if ranks == 4 else cases[:2]:
            model = Linear()
            optimizer = optimizer_of(model)
            ddp = DistributedDataParallel(model, process_group=group)
            state = gtopk.attach(
                ddp,
                density=DENSITY,
                accumulate="update",
                optimizer=optimizer,
                algorithm=algorithm,
                put_back=put_back,
                momentum=momentum,
                min_numel=100,
            )
            k = round(DENSITY * D)
            residuals = [torch.zeros(D) for _ in range(ranks)]
            momenta = [torch.zeros(D) for _ in range(ranks)]
            at = torch.zeros(D)
            for step in range(20):
                early, late = rates_at(step, differ=differ)
                factor = torch.cat([torch.full((LARGE[0],), early), torch.full((LARGE[1],), late)])
                updates = [gradient(rank, step)[:D] * factor for rank in range(ranks)]
                momenta = [
                    torch.add(u, m, alpha=momentum) for u, m in zip(updates, momenta, strict=True)
                ]
                accs = [(m + r).abs() for m, r in zip(momenta, residuals, strict=True)]
                outcome = reference.sparse_all_reduce(
                    momenta, residuals, k, algorithm, put_back, average=True
                )
                for m, acc in zip(momenta, accs, strict=True):
                    sent = torch.zeros(D, dtype=torch.bool)
                    sent[acc.argsort(descending=True, stable=True)[:k]] = True
                    m[sent & (outcome.tensor != 0) if put_back == "own" else sent] = 0
                residuals = outcome.residuals
                at -= outcome.tensor
                optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = early, late
                optimizer.zero_grad()
                ddp(gradient(me.rank, step)).backward()
                optimizer.step()
                what = (ranks, algorithm, put_back, differ, step)
                moved = torch.cat([model.early.detach(), model.late.detach()])
                assert torch.allclose(moved, at, rtol=1e-4, atol=1e-5), what
                mine = torch.cat([state.residual("early"), state.residual("late")])
                assert torch.equal(mine, residuals[me.rank]), what


def check_a_loss_scale_changes_nothing(me: Rank) -> None:
    """The scale is a power of two; with one rate and with two."""
    for differ in (False, True):
        found = []
        for scale in (1.0, 1024.0):
            model = Linear()
            optimizer = optimizer_of(model)
            ddp = DistributedDataParallel(model)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**9)
            state = gtopk.attach(
                ddp,
                density=DENSITY,
                accumulate="update",
                optimizer=optimizer,
                scaler=scaler,
                min_numel=100,
            )
            for step in range(15):
                early, late = rates_at(step, differ=differ)
                optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = early, late
                optimizer.zero_grad()
                given = gradient(me.rank, step)
                if step == 12 and me.rank == 1:
                    given[0] = torch.inf
                scaler.scale(ddp(given)).backward()
                if step == 12:
                    assert all(each.grad.isnan().all() for each in model.parameters())
                    optimizer.zero_grad()
                    continue
                scaler.step(optimizer)
                scaler.update()
            found.append(torch.cat([flat(model), state.residual("early"), state.residual("late")]))
        assert torch.equal(*found)


def check_a_skipped_step_and_a_dropped_one_lose_no_update(me: Rank) -> None:
    """The sum of residuals over ranks is preserved, in units of updates."""

    def total(state: gtopk.SparseState) -> torch.Tensor:
        mine = torch.cat([state.residual("early"), state.residual("late")])
        dist.all_reduce(mine)
        return mine

    for differ in (False, True):
        model = Linear()
        optimizer = optimizer_of(model)
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        state = gtopk.attach(
            ddp, density=DENSITY, accumulate="update", optimizer=optimizer, min_numel=100
        )
        rates = rates_at(0, differ=differ)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        ddp(gradient(me.rank, 0)).backward()
        before = total(state)
        ddp.zero_grad()
        ddp(gradient(me.rank, 1)).backward()
        added = sum(gradient(rank, 1)[:D] for rank in range(me.size))
        added[: LARGE[0]] *= rates[0]
        added[LARGE[0] :] *= rates[1]
        assert not torch.allclose(total(state), before + added, atol=1e-4)
        state.skip()
        assert torch.allclose(total(state), before + added, atol=1e-4)
        before = total(state)
        ddp.zero_grad()
        (ddp.module.early.sum() * 0 + ddp(torch.zeros(D + SMALL)) * 0).backward()
        delivered = torch.cat([model.early.grad, model.late.grad])
        assert delivered.any()
        delivered[: LARGE[0]] *= rates[0]
        delivered[LARGE[0] :] *= rates[1]
        assert torch.allclose(total(state) + me.size * delivered, before, atol=1e-4)


class Halves(nn.Module):
    """Uses one of its two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(200))
        self.other = nn.Parameter(torch.ones(200))

    def forward(self, x: torch.Tensor, which: str) -> torch.Tensor:
        return (getattr(self, which) * x).sum()


def check_what_ddp_drops_goes_back_as_an_update(me: Rank) -> None:
    """`other` has a residual, and no rank uses it: what it is delivered reaches no .grad."""
    for rates in ((0.5, 0.5), (0.5, 0.125)):
        model = Halves()
        groups = [
            {"params": [each], "lr": rate}
            for each, rate in zip(model.parameters(), rates, strict=True)
        ]
        optimizer = torch.optim.SGD(groups, lr=1.0)
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        state = gtopk.attach(
            ddp, density=DENSITY, accumulate="update", optimizer=optimizer, min_numel=100
        )
        given = torch.randn(200, generator=torch.Generator().manual_seed(me.rank))
        ddp(given, "other").backward()
        before = state.residual("other").clone()
        dist.all_reduce(before)
        optimizer.zero_grad()
        ddp(1e-6 * given, "one").backward()
        assert model.other.grad is None
        after = state.residual("other").clone()
        dist.all_reduce(after)
        assert torch.allclose(after, before, atol=1e-5)


def check_an_optimizer_has_its_own_rates(me: Rank) -> None:
    """The same bits as under DDP."""
    found = []
    for wrapped in (False, True):
        training = Training(me.rank)
        plain = torch.optim.SGD(training.model.parameters(), lr=0.05)
        arguments = {"density": 0.05, "accumulate": "update", "unit": 8000}
        if wrapped:
            training.ddp = training.model
            training.optimizer = gtopk.DistributedOptimizer(plain, training.model, **arguments)
        else:
            training.optimizer = plain
            gtopk.attach(training.ddp, **arguments, optimizer=plain)
        for step in range(10):
            plain.param_groups[0]["lr"] = 0.05 / (1 + step)
            training.step()
        assert replicas_are_bitwise_equal(training.model)
        found.append(flat(training.model))
    assert torch.equal(*found)


def check_what_cannot_be_is_an_error(me: Rank) -> None:
    training = Training(me.rank)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"does not have '0.weight' \(\d+ parameters in all\)"):
        training.hooked(accumulate="update", optimizer=other)
    state = training.hooked(accumulate="update", optimizer=training.optimizer)
    training.optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(ValueError, match=r"with lr=0.0 in group 0 of the optimizer"):
        training.step()
    saved = state.state_dict()
    gradients = Training(me.rank).hooked()
    with pytest.raises(ValueError, match=r"has accumulate='update', but this one has 'gradient'"):
        gradients.load_state_dict(saved)


def test_on_four_ranks(check, four: RankSet):
    four.run(check)
