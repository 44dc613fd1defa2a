"""DDP loses no gradient: what does not reach .grad is in a residual."""

from __future__ import annotations

import gc
import math
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from gtopk.ops.options import algorithms, selectors
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.ledger import Ledger
from helpers.ranks import Rank, RankSet
from helpers.training import Training, batch, gloo, network, replicas_are_bitwise_equal, share

pytestmark = pytest.mark.loopback

SMALL_UNITS = 8 * 1024


class Conditional(nn.Module):
    """Three branches; each backward names those it uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(24, 64)
        self.always, self.one, self.nobody = (nn.Linear(64, 64) for _ in range(3))
        self.last = nn.Linear(64, 40)

    def forward(self, x: torch.Tensor, branches: tuple[str, ...]) -> torch.Tensor:
        x = self.first(x).tanh()
        return self.last(sum(getattr(self, branch)(x) for branch in branches).tanh())


def check_unused_parameters(
    me: Rank,
    steps: int,
    *,
    zero: str = "none",
    micro: int = 1,
    used_every: int = 10,
    dtype: torch.dtype = torch.float32,
    **ddp_arguments,
) -> None:
    """Only rank 1 uses `one`; all ranks use `nobody` every `used_every` steps."""
    model = Conditional().to(dtype)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02, **ddp_arguments)
    state = gtopk.SparseState(model.named_parameters(), density=0.05, unit=40 * 1024)
    ledger = Ledger(ddp, state)
    generator = torch.Generator().manual_seed(me.rank)
    for name in ledger.parameters:
        state.residual(name).normal_(generator=generator)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    dropped = 0
    for step in range(steps):
        branches = ["always"]
        branches += ["one"] if me.rank == 1 else []
        branches += ["nobody"] if step % used_every == used_every - 1 else []
        if zero != "never":
            optimizer.zero_grad(set_to_none=zero == "none")
        for i in range(micro):
            with ddp.no_sync() if i < micro - 1 else nullcontext():
                x, labels = batch(me.rank, step * micro + i)
                if i == micro - 1:
                    ledger.open()
                output = ddp(x.to(dtype), tuple(branches))
                nn.functional.cross_entropy(output, labels).backward()
        ledger.check()
        dropped += model.nobody.weight.grad is None
        optimizer.step()
    assert state.step == steps
    if zero == "none":
        assert dropped == steps - steps // used_every


def check_no_mass_is_lost_to_parameters_that_nobody_uses(me: Rank) -> None:
    check_unused_parameters(me, 60, find_unused_parameters=True)


def check_no_mass_is_lost_however_gradients_are_kept(me: Rank) -> None:
    for view in (False, True):
        for zero in ("none", "zero", "never"):
            for micro in (1, 2):
                check_unused_parameters(
                    me,
                    4,
                    zero=zero,
                    micro=micro,
                    used_every=3,
                    find_unused_parameters=True,
                    gradient_as_bucket_view=view,
                )
        check_unused_parameters(
            me, 4, used_every=99, static_graph=True, gradient_as_bucket_view=view
        )


def check_what_was_dropped_is_back_in_the_first_ranks_residual(me: Rank) -> None:
    model = Conditional()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    state = gtopk.SparseState(model.named_parameters(), density=1.0, unit="model")
    ddp.register_comm_hook(state, gtopk.sparse_hook)
    state.residual("nobody.weight").fill_(me.rank + 1.0)
    ddp(batch(me.rank, 0)[0], ("always",)).sum().backward()
    assert model.nobody.weight.grad is None
    expected = torch.full((64, 64), 10.0 if me.rank == 0 else 0.0)
    assert torch.equal(state.residual("nobody.weight"), expected)


def check_a_diagnosis_whose_call_raises_loses_nothing(me: Rank) -> None:
    """Neither what DDP drops nor what skip() takes back."""

    def call(_: object) -> None:
        raise ArithmeticError("of the call")

    model = Conditional()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    state = gtopk.SparseState(model.named_parameters(), density=0.1, unit="model")
    ledger = Ledger(ddp, state)
    gtopk.diagnose(state, 1, call)
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + me.rank)
        state.residual("nobody.weight").normal_(generator=generator)
        model.zero_grad()
        ledger.open()
        with pytest.raises(ArithmeticError, match="of the call"):
            ddp(batch(me.rank, step)[0], ("always", "one")).sum().backward()
        assert model.nobody.weight.grad is None
        assert state.step == step + 1
        ledger.check()
    state.skip()
    ledger.check(delivered=False)
    # A DistributedOptimizer's backward counts as well: the next step follows on this one.
    model = Conditional()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = gtopk.DistributedOptimizer(sgd, model, density=1.0, unit="model")
    gtopk.diagnose(optimizer.sparse_state, 1, call)
    for step in range(2):
        optimizer.zero_grad()
        with pytest.raises(ArithmeticError, match="of the call"):
            model(batch(me.rank, step)[0], ("always", "one", "nobody")).sum().backward()
        optimizer.step()
        assert optimizer.sparse_state.step == step + 1
    assert replicas_are_bitwise_equal(model)


def check_state_moved_to_a_new_ddp_learns_its_unused_parameters(me: Rank) -> None:
    model = Conditional()
    state = gtopk.SparseState(model.named_parameters(), density=1.0)
    for find_unused in (False, True):
        ddp = DistributedDataParallel(model, find_unused_parameters=find_unused)
        ddp.register_comm_hook(state, gtopk.sparse_hook)
        model.zero_grad()
        state.residual("nobody.weight").fill_(1.0)
        branches = ("always",) if find_unused else ("always", "one", "nobody")
        ddp(batch(me.rank, 0)[0], branches).sum().backward()
        ddp.reducer._remove_autograd_hooks()
        del ddp
        gc.collect()
    expected = torch.full((64, 64), 4.0 if me.rank == 0 else 0.0)
    assert torch.equal(state.residual("nobody.weight"), expected)


def check_a_dense_phase_delivers_what_residuals_hold(me: Rank) -> None:
    training = Training(me.rank)
    state = gtopk.SparseState(training.model, density=0.05, warmup=[("dense", 2)])
    ledger = Ledger(training.ddp, state)
    for name in ledger.parameters:
        state.residual(name).fill_(me.rank + 1.0)
    for _ in range(3):
        ledger.open()
        training.step()
        ledger.check()
        left = [state.residual(name).any().item() for name in ledger.parameters]
        assert any(left) == (state.step == 3)


def check_broken_backward_loses_no_mass_and_the_next_one_works(me: Rank) -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(_, x, broken):
            Breaks.broken = broken
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            if Breaks.broken:
                raise ArithmeticError("broken off")
            return gradient, None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x, broken=False):
            return self.net[2:](Breaks.apply(self.net[:2](x), broken))

    training = Training(me.rank, model=Model())
    state = gtopk.SparseState(training.model.named_parameters(), density=0.05, unit="parameter")
    ledger = Ledger(training.ddp, state)
    generator = torch.Generator().manual_seed(me.rank)
    for name in ledger.parameters:
        state.residual(name).normal_(generator=generator)
    x = torch.randn(4, 24)
    # In DDP's first backward everything is in one bucket.
    training.ddp(x).sum().backward()
    training.optimizer.zero_grad()
    ledger.open()
    with pytest.raises(ArithmeticError, match="broken off"):
        training.ddp(x, True).sum().backward()
    arrived = sum(name in ledger.arrived for name in ledger.parameters)
    assert 1 <= arrived < 5, arrived
    assert state.state_dict()["step"] == 1
    # A unit without all its gradients has seen none.
    for unit in state.units:
        if not ledger.arrived.keys() >= set(unit.names):
            for name in unit.names:
                ledger.arrived.pop(name, None)
    ledger.check(delivered=False)
    # DDP itself cannot continue after this; the state can, with another DDP.
    training.ddp.reducer._remove_autograd_hooks()
    again = DistributedDataParallel(training.model, bucket_cap_mb=0.008)
    ledger = Ledger(again, state)
    training.optimizer.zero_grad()
    ledger.open()
    again(x).sum().backward()
    ledger.check()
    assert state.step == 2
    first = training.model.net[0].weight.grad.clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, training.model.net[0].weight.grad)


def check_broken_backward_mass_survives_overwritten_ddp_buckets(me: Rank) -> None:
    """They are DDP's, and may be overwritten before anyone learns that the backward failed."""
    for algorithm, warmup in [*((each, ()) for each in algorithms()), ("gtopk", [("dense", 9)])]:
        training = Training(me.rank)
        arguments = {**share(algorithm, 0.05), "unit": SMALL_UNITS, "algorithm": algorithm}
        state = gtopk.SparseState(training.model, warmup=warmup, **arguments)
        ledger = Ledger(training.ddp, state)
        generator = torch.Generator().manual_seed(me.rank)
        for name in ledger.parameters:
            state.residual(name).normal_(generator=generator)

        def breaks(_):
            raise ArithmeticError("broken off")

        training.step()
        training.optimizer.zero_grad()
        ledger.open()
        broken = training.model[0].weight.register_hook(breaks)
        with pytest.raises(ArithmeticError, match="broken off"):
            training.loss().backward()
        broken.remove()
        for exchange in state.backward.exchanges:
            for work in list(exchange.works):
                work.wait()
        for buffer in ledger.buffers:
            buffer.fill_(7.0)
        assert state.state_dict()["step"] == 1
        delivered = 0
        for unit in state.units:
            if ledger.arrived.keys() >= set(unit.names):
                delivered += bool(unit.large)
            else:
                for name in unit.names:
                    ledger.arrived.pop(name, None)
        assert delivered >= 1
        ledger.check(delivered=False)


def check_a_backward_that_fails_is_no_step(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(density=0.05, unit="model")
    training.step()
    before = state.state_dict()
    state.density = 0.5 if me.rank == 2 else 0.05
    with pytest.raises(RuntimeError, match="k="):
        training.loss().backward()
    after = state.state_dict()
    assert state.step == after["step"] == 1
    assert all(
        torch.equal(before["residuals"][n], after["residuals"][n]) for n in ledger_names(state)
    )
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor[0].item() == me.size


def ledger_names(state: gtopk.SparseState) -> list[str]:
    return [each.name for unit in state.units for each in unit.large]


def check_a_unit_that_is_not_finite_does_not_happen(me: Rank) -> None:
    """In no part of it, whichever part is not finite, and on however many ranks."""
    cases = [
        ("3.bias", {1: math.nan}),
        ("0.bias", {3: math.inf}),
        ("0.weight", {0: math.nan}),
        # Finite on each rank, but the sum is not, which shows after the large part has gone.
        ("9.bias", dict.fromkeys(range(4), 2e38)),
        ("9.weight", dict.fromkeys(range(4), 2e38)),
    ]
    training = Training(me.rank)
    state = training.hooked(density=0.05, unit="model")
    training.step()
    spoil: list[tuple[str, float]] = []
    for name, parameter in training.model.named_parameters():
        parameter.register_hook(
            lambda gradient, name=name: (
                torch.full_like(gradient, spoil[0][1]) if spoil and spoil[0][0] == name else None
            )
        )
    for name, values in cases:
        before = state.state_dict()["residuals"]
        spoil[:] = [(name, values[me.rank])] if me.rank in values else []
        training.optimizer.zero_grad()
        training.loss().backward()
        for other, parameter in training.model.named_parameters():
            assert parameter.grad.isnan().all(), (name, other)
        after = state.state_dict()["residuals"]
        for other in before:
            assert torch.equal(before[other].view(torch.int32), after[other].view(torch.int32))
        spoil.clear()
        assert math.isfinite(training.step())
    assert replicas_are_bitwise_equal(training.model)


def check_units_stand_alone_when_one_is_not_finite(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(density=0.05, unit=SMALL_UNITS)
    spoilt = next(unit for unit in state.units if "3.bias" in unit.names)
    assert spoilt.large
    training.model[3].bias.register_hook(lambda g: g * math.nan if me.rank == 2 else g)
    training.loss().backward()
    for name, parameter in training.model.named_parameters():
        assert parameter.grad.isnan().all() == (name in spoilt.names), name


def check_small_gradients_of_a_half_type_are_summed_in_float32(me: Rank) -> None:
    model = nn.Linear(32, 40).half()
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(gtopk.SparseState(model.named_parameters()), gtopk.sparse_hook)
    model.bias.register_hook(lambda g: torch.full_like(g, 60_000.0 - 32 * me.rank))
    ddp(torch.ones(1, 32).half()).sum().backward()
    assert model.bias.grad.unique().tolist() == [59_968.0]  # the even neighbour of 59,952


def check_no_mass_is_lost_in_half_types(me: Rank) -> None:
    """Except for the result's last rounding, which is outside of the sum."""
    model = Conditional().bfloat16()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    state = gtopk.SparseState(model.named_parameters(), density=0.05, unit="model")
    ddp.register_comm_hook(state, gtopk.sparse_hook)
    residual = state.residual("nobody.weight")
    residual.copy_(torch.randn(64, 64, generator=torch.Generator().manual_seed(me.rank)))
    sums = [residual.clone()]
    for step in range(4):
        ddp(batch(me.rank, step)[0].bfloat16(), ("always",)).sum().backward()
        sums.append(residual.clone())
    for each in sums:
        dist.all_reduce(each, group=gloo())
    # Partial sums of up to about 8 are rounded to eight bits.
    for each in sums[1:]:
        torch.testing.assert_close(sums[0], each, rtol=0, atol=8 * 2**-8)


def check_no_mass_is_lost_by_any_selector_or_coarse_wire(me: Rank) -> None:
    """Five units; the first rank notes what was delivered."""
    wires = [{"wire": wire} for wire in ("4bit", "2bit", "ternary", "sign")]
    blocks = {"block": {"block": 100}}
    selects = [{"select": each, **blocks.get(each, {})} for each in selectors()]
    for arguments in selects + wires:
        training = Training(me.rank)
        state = gtopk.SparseState(
            training.model, density=0.02, unit=SMALL_UNITS, algorithm="topk", **arguments
        )
        ledger = Ledger(training.ddp, state)
        for _ in range(3):
            ledger.open()
            training.step()
            ledger.check()
        assert replicas_are_bitwise_equal(training.model)
        assert any(each.any() for each in state.state_dict()["residuals"].values())


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
