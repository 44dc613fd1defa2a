"""``gtopk.DistributedOptimizer``: training without DDP."""

from __future__ import annotations

import copy
import gc
import os
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gtopk
from helpers.optimizer import Branches, total
from helpers.ranks import WATCHDOG, Rank, RankSet
from helpers.training import Plain, Training, batch, flat, gloo, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback

SMALL_UNITS = 8 * 1024  # bytes: five units, one per weight matrix


def check_every_bit_is_that_of_ddp(me: Rank) -> None:
    for arguments in (
        {"density": 0.05, "unit": SMALL_UNITS, "warmup": [("dense", 2), (0.2, 2)]},
        {"density": 0.02, "unit": "model", "algorithm": "rs-ag", "momentum": 0.9},
        {"density": 0.1, "unit": "parameter", "wire": "bf16", "select": "threshold"},
    ):
        hooked, plain = Training(me.rank), Plain(me.rank, **arguments)
        state = hooked.hooked(**arguments)
        for _ in range(8):
            assert hooked.step() == plain.step()
        assert torch.equal(flat(hooked.model), flat(plain.model)), arguments
        one, other = state.state_dict(), plain.state.state_dict()
        for kind in ("residuals", "momenta"):
            assert one[kind].keys() == other[kind].keys()
            assert all(torch.equal(one[kind][n], other[kind][n]) for n in one[kind])
    assert gtopk.stats()["most_in_flight"] >= 2


def check_rank_0_gives_the_first_parameters(me: Rank) -> None:
    model = nn.Sequential(nn.Linear(24, 64), nn.BatchNorm1d(64), nn.Linear(64, 40))
    with torch.no_grad():
        for each in (*model.parameters(), model[1].running_mean):
            each.fill_(me.rank + 1)
    Plain(me.rank, model=model)
    assert all((each == 1).all() for each in (*model.parameters(), model[1].running_mean))
    head = [*model[2].parameters()]  # the optimizer has no others
    with torch.no_grad():
        for each in model.parameters():
            each.requires_grad_(False).fill_(me.rank + 2)
    sgd = torch.optim.SGD([each.requires_grad_() for each in head], lr=0.1)
    gtopk.DistributedOptimizer(sgd, model)
    assert all((each == 2).all() for each in model.parameters())


def check_passes_add_up_before_they_are_exchanged(me: Rank) -> None:
    """Like DDP with no_sync() for all but the last."""
    arguments = {"density": 0.05, "unit": SMALL_UNITS}
    hooked = Training(me.rank)
    hooked.hooked(**arguments)
    plain = Plain(me.rank, backward_passes_per_step=3, **arguments)
    for _ in range(3):
        hooked.optimizer.zero_grad()
        for micro in range(3):
            hooked.ddp.require_backward_grad_sync = micro == 2
            hooked.loss().backward()
            hooked.at += 1
        hooked.optimizer.step()
        plain.optimizer.zero_grad()
        for _ in range(3):
            assert not plain.optimizer._source.under_way
            plain.loss().backward()
        plain.optimizer.step()
    assert torch.equal(flat(hooked.model), flat(plain.model))
    assert plain.state.step == 3


def check_gradients_that_are_missing_or_in_another_order(me: Rank) -> None:
    """No mass is lost; a rank without gradients still takes part."""
    model = Branches()
    plain = torch.optim.SGD(
        [
            {"params": model.layers["a"].parameters()},
            {"params": [*model.layers["b"].parameters()]},
            {"params": model.layers["c"].parameters(), "lr": 0.0},
        ],
        lr=1e-4,
    )
    optimizer = gtopk.DistributedOptimizer(
        plain, model.named_parameters(), density=0.1, unit="parameter"
    )
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(me.rank))
    fixed = model.layers["c"].weight.clone()
    for names in (("abc", "cba", "bac", "acb"), ("ab", "a", "", "b"), ("", "", "", "a")):
        before = total(optimizer.sparse_state)
        mine = {
            name: torch.zeros(p.shape, dtype=torch.double) for name, p in model.named_parameters()
        }
        if names[me.rank]:
            loss = model(x, names[me.rank])
            used = {n: p for n, p in model.named_parameters() if n.split(".")[1] in names[me.rank]}
            for name, grad in zip(used, torch.autograd.grad(loss, [*used.values()]), strict=True):
                mine[name] = grad.double()
            optimizer.zero_grad()
            model(x, names[me.rank]).backward()
        else:
            optimizer.zero_grad()
        optimizer.step()
        after = total(optimizer.sparse_state)
        for name, parameter in model.named_parameters():
            dist.all_reduce(mine[name], group=gloo())
            seen = parameter.grad.double() * me.size + after.get(name, 0)
            torch.testing.assert_close(seen, mine[name] + before.get(name, 0), rtol=1e-4, atol=1e-4)
    assert optimizer.sparse_state.step == 3
    assert torch.equal(fixed, model.layers["c"].weight)
    assert replicas_are_bitwise_equal(model)


def check_a_scaler_finds_exchanged_gradients(me: Rank) -> None:
    """Even if a parameter got none, and without a call of synchronize()."""
    model = Branches()
    scales = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer = gtopk.DistributedOptimizer(sgd, model, density=0.1, scaler=scales)
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(me.rank))
    before = flat(model).clone()
    skipped = 0
    for step in range(12):
        scale = scales.get_scale()
        optimizer.zero_grad()
        scales.scale(model(x, "abc" if step % 2 else "ac")).backward()
        scales.step(optimizer)
        scales.update()
        skipped += scales.get_scale() < scale
    assert 0 < skipped < 12
    assert flat(model).isfinite().all()
    assert not torch.equal(before, flat(model))
    assert replicas_are_bitwise_equal(model)


def check_a_fused_optimizer_gets_unscaled_gradients(me: Rank) -> None:
    ends = []
    for fused in (False, True):
        model = Branches()
        scales = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-20)
        sgd = torch.optim.SGD(model.parameters(), lr=1e-3, fused=fused)
        optimizer = gtopk.DistributedOptimizer(sgd, model, density=0.1, scaler=scales)
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(me.rank))
        for _ in range(8):  # the first are skipped
            optimizer.zero_grad()
            scales.scale(model(x, "abc")).backward()
            scales.step(optimizer)
            scales.update()
        ends.append(flat(model).clone())
    assert not torch.equal(ends[0], flat(Branches()))
    torch.testing.assert_close(ends[1], ends[0])


def check_torch_makes_an_optimizers_state_without_an_exchange(me: Rank) -> None:
    """By a step on gradients of zero, at a learning rate of zero, on any rank alone."""
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = gtopk.DistributedOptimizer(sgd, model, density=0.05)
    x, labels = batch(me.rank, 0)
    nn.functional.cross_entropy(model(x), labels).backward()
    optimizer.step()
    before = [*total(optimizer.sparse_state).values()]
    optimizer.zero_grad()
    operations = gtopk.stats()["operations"]
    saved = get_optimizer_state_dict(model, optimizer)
    set_optimizer_state_dict(model, optimizer, saved)
    assert gtopk.stats()["operations"] == operations
    assert optimizer.sparse_state.step == 1
    assert sgd.param_groups[0]["lr"] == 0.05
    after = [*total(optimizer.sparse_state).values()]
    assert all(map(torch.equal, before, after))


def check_clipping_between_synchronize_and_step(me: Rank) -> None:
    training = Plain(me.rank, density=0.05)
    before = flat(training.model).clone()
    training.loss().backward()
    training.optimizer.synchronize()
    nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3)
    with training.optimizer.skip_synchronize():
        training.optimizer.step()
    moved = flat(training.model) - before
    torch.testing.assert_close(moved.norm().item(), 0.05 * 1e-3, rtol=1e-3, atol=0)
    assert training.state.step == 1
    assert replicas_are_bitwise_equal(training.model)


def check_a_closure_sees_all_ranks(me: Rank) -> None:
    """A line search decides the same on all ranks: mean loss, exchanged gradients."""
    model = network()
    inner = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    optimizer = gtopk.DistributedOptimizer(inner, model, density=0.5)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        x, labels = batch(me.rank, 0)
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        losses.append(loss.item())
        return loss

    first = optimizer.step(closure)
    mean = torch.tensor(losses[0], dtype=torch.double)
    dist.all_reduce(mean, group=gloo())
    torch.testing.assert_close(first.item(), mean.item() / me.size, rtol=1e-5, atol=0)
    assert len(losses) > 2
    assert optimizer.sparse_state.step == len(losses)
    assert replicas_are_bitwise_equal(model)


def check_a_run_that_is_resumed_goes_on_bit_for_bit(me: Rank) -> None:
    arguments = {"density": 0.02, "momentum": 0.9, "unit": "parameter"}
    first = Plain(me.rank, **arguments)
    first.steps(4)
    saved = copy.deepcopy((first.model.state_dict(), first.optimizer.state_dict()))
    again = Plain(me.rank, seed=9, **arguments)
    again.at = first.at
    again.model.load_state_dict(saved[0])
    again.optimizer.load_state_dict(saved[1])
    schedulers = [torch.optim.lr_scheduler.StepLR(each.optimizer, 2) for each in (first, again)]
    for _ in range(4):
        assert first.step() == again.step()
        for each in schedulers:
            each.step()
    assert first.optimizer.param_groups[0]["lr"] < 0.05
    assert torch.equal(flat(first.model), flat(again.model))
    plain = torch.optim.SGD(first.model.parameters(), lr=0.05, momentum=0.9)
    plain.load_state_dict(first.optimizer.state_dict())  # it ignores the residuals
    again.optimizer.load_state_dict(plain.state_dict())
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(first.optimizer)


def check_habits_that_would_race_are_refused(me: Rank) -> None:
    model = Branches()
    optimizer = gtopk.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    x = torch.ones(1, 40)
    model(x, "ab").backward()
    with pytest.raises(RuntimeError, match="while gradients are in flight"):
        optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="step\\(\\) or synchronize\\(\\) first"):
        optimizer.sparse_state.state_dict()
    optimizer.step()
    optimizer.zero_grad()
    model(x, "ab").backward()
    with pytest.raises(RuntimeError, match="more than backward_passes_per_step=1 times"):
        model(x, "a").backward()
    optimizer.zero_grad()  # the second backward raised
    with pytest.raises(ValueError, match="add the group to the wrapped optimizer"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    model(x, "abc").backward()
    optimizer.step()
    assert optimizer.sparse_state.step == 2
    assert replicas_are_bitwise_equal(model)


def check_a_backward_that_raises_is_no_step(me: Rank) -> None:
    training = Plain(me.rank, density=0.05, unit=SMALL_UNITS)
    training.step()
    before = total(training.state)
    parameters = dict(training.model.named_parameters())
    training.optimizer.zero_grad()
    mine = torch.autograd.grad(training.loss(), [*parameters.values()])

    def broken(gradient: torch.Tensor) -> None:
        raise RuntimeError("broken on purpose")

    handle = parameters["0.weight"].register_hook(broken)
    training.at -= 1
    with pytest.raises(RuntimeError, match="broken on purpose"):
        training.loss().backward()
    with pytest.raises(RuntimeError, match="zero_grad\\(\\) first"):
        training.optimizer.step()
    handle.remove()
    training.optimizer.zero_grad()
    after = total(training.state)
    assert training.state.step == 1
    # What had been exchanged by then was given back: all but the last unit.
    for (name, _), gradient in zip(parameters.items(), mine, strict=True):
        if name in before:
            dist.all_reduce(gradient, group=gloo())
            expected = before[name] + (0 if name == "0.weight" else gradient.double())
            torch.testing.assert_close(after[name], expected, rtol=1e-4, atol=1e-5)
    training.step()
    assert replicas_are_bitwise_equal(training.model)


def check_checkpointed_segments_and_gradients_in_another_layout(me: Rank) -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(160, 20)
    ).to(memory_format=torch.channels_last)
    alone = copy.deepcopy(model)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = gtopk.DistributedOptimizer(sgd, model, density=1.0, unit="parameter")
    x = torch.randn(2, 1, 12, 3, generator=torch.Generator().manual_seed(me.rank))
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    for reentrant in (True, False):
        optimizer.zero_grad()
        y = checkpoint(model[:2], x, use_reentrant=reentrant)
        model[2:](y).square().sum().backward()
        optimizer.synchronize()
        alone.zero_grad()
        alone(x).square().sum().backward()
        for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
            dist.all_reduce(expected.grad, group=gloo())
            torch.testing.assert_close(mine.grad, expected.grad / me.size, rtol=1e-4, atol=1e-4)
    assert optimizer.sparse_state.step == 2


def hooked(model: nn.Module) -> list[bool]:
    return [bool(each._post_accumulate_grad_hooks) for each in model.parameters()]


def await_no_hooks(model: nn.Module, meanwhile: Callable[[], object]) -> None:
    """The thread that completes works may hold the last of them for a moment."""
    end = time.monotonic() + WATCHDOG
    while any(hooked(model)) and time.monotonic() < end:
        meanwhile()
    assert not any(hooked(model))


def check_deleted_optimizer_leaves_no_hooks(me: Rank) -> None:
    training = Plain(me.rank, density=0.05)
    training.step()
    model = training.model
    gc.collect()
    assert all(hooked(model))
    del training
    await_no_hooks(model, gc.collect)


def check_one_that_is_replaced_exchanges_nothing_any_more(me: Rank) -> None:
    def operations_of_three_steps(of: Plain) -> int:
        before = gtopk.stats()["operations"]
        of.steps(3)
        return gtopk.stats()["operations"] - before

    arguments = {"density": 0.05, "unit": SMALL_UNITS}
    gc.collect()
    gc.disable()  # nothing that follows may depend on when cycles are collected
    try:
        for kept in (True, False):
            training, fresh = (Plain(me.rank, **arguments) for _ in range(2))
            for each in (training, fresh):
                each.steps(3)
            sgd = torch.optim.SGD(training.model.parameters(), lr=0.05, momentum=0.9)
            training.optimizer.zero_grad()
            old, saved = training.optimizer, training.optimizer.state_dict()
            training.optimizer = gtopk.DistributedOptimizer(sgd, training.model, **arguments)
            training.optimizer.load_state_dict(saved)
            if kept:
                for use in (old.step, old.synchronize):
                    with pytest.raises(RuntimeError, match="another DistributedOptimizer has been"):
                        use()
            del old
            assert operations_of_three_steps(training) == operations_of_three_steps(fresh)
            assert torch.equal(flat(training.model), flat(fresh.model))
        # Dropped without a successor: gradients are this rank's.
        model = training.model
        training.optimizer, training.state = None, None
        del sgd
        await_no_hooks(model, os.sched_yield)
    finally:
        gc.enable()


def check_optimizer_replaced_mid_step_returns_sums_to_residuals(me: Rank) -> None:
    model = Branches()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {"density": 1.0, "unit": "parameter"}
    old = gtopk.DistributedOptimizer(sgd, model, **arguments)
    model(torch.ones(1, 40), "bc").backward()  # the units of a come last: the step does not end
    gtopk.DistributedOptimizer(sgd, model, **arguments)
    left = total(old.sparse_state)
    for name in ("layers.b.weight", "layers.c.weight"):
        mean = model.get_parameter(name).grad
        assert mean.any()
        torch.testing.assert_close(left[name], mean.double() * me.size)
    assert old.sparse_state.step == 0


def check_ranks_that_differ_are_told(me: Rank) -> None:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="density is"):
        gtopk.DistributedOptimizer(sgd, model, density=0.1 if me.rank else 0.2)
    with pytest.raises(
        ValueError,
        match=r"4 parameters of .* are not among named_parameters, the first of shape \(64, 24\)",
    ):
        gtopk.DistributedOptimizer(sgd, model[3:].named_parameters())
    with pytest.raises(ValueError, match=r"must be a torch\.optim.Optimizer, given Sequential"):
        gtopk.DistributedOptimizer(model, model)
    with pytest.raises(ValueError, match="backward_passes_per_step must be a whole number"):
        gtopk.DistributedOptimizer(sgd, model, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="not gtopk"):
        gtopk.DistributedOptimizer(sgd, model, group=gloo())
    optimizer = gtopk.DistributedOptimizer(sgd, model)
    with pytest.raises(ValueError, match="given a DistributedOptimizer"):
        gtopk.DistributedOptimizer(optimizer, model)
    training = Training(me.rank, model=model)
    training.ddp.register_comm_hook(optimizer.sparse_state, gtopk.sparse_hook)
    del optimizer  # its hooks are still on the parameters
    with pytest.raises(ValueError, match="belongs to a DistributedOptimizer"):
        training.loss().backward()
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
