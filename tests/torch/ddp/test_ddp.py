"""DistributedDataParallel over the backend, plain and with gtopk.sparse_hook."""

from __future__ import annotations

import io
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from gtopk.core import _native
from gtopk.ops.options import algorithms
from torch import nn

import gtopk
from helpers.ranks import Rank, RankSet
from helpers.training import Training, flat, gloo, network, replicas_are_bitwise_equal, share

pytestmark = pytest.mark.loopback

SMALL_UNITS = 8 * 1024  # bytes: five units, one per weight matrix


def check_plain_ddp_trains_as_over_gloo(me: Rank) -> None:
    ours, theirs = Training(me.rank), Training(me.rank, group=gloo())
    for _ in range(20):
        ours.step()
        theirs.step()
    torch.testing.assert_close(flat(ours.model), flat(theirs.model), rtol=1e-4, atol=1e-5)
    assert replicas_are_bitwise_equal(ours.model)


def check_density_one_trains_as_dense(me: Rank) -> None:
    for algorithm in algorithms():
        sparse, plain = Training(me.rank), Training(me.rank, group=gloo())
        sparse.hooked(**share(algorithm, 1.0), algorithm=algorithm, unit=SMALL_UNITS)
        for _ in range(5):
            sparse.step()
            plain.step()
        torch.testing.assert_close(flat(sparse.model), flat(plain.model), rtol=1e-4, atol=1e-5)
        assert replicas_are_bitwise_equal(sparse.model)


def check_a_dense_phase_trains_as_dense_and_leaves_nothing(me: Rank) -> None:
    sparse, plain = Training(me.rank), Training(me.rank, group=gloo())
    state = sparse.hooked(density=0.02, unit=SMALL_UNITS, warmup=[("dense", 5), (0.2, 2)])
    densities = []
    for _ in range(5):
        densities.append(state.density)
        sparse.step()
        plain.step()
    assert densities == ["dense"] * 5
    torch.testing.assert_close(flat(sparse.model), flat(plain.model), rtol=1e-4, atol=1e-5)
    # Residuals are still zero, and no memory was allocated for them.
    assert all(state.unit_residual_is_zero(i) for i in range(len(state.units)))
    assert state.density == 0.2
    for _ in range(3):
        sparse.step()
    assert state.density == 0.02
    assert any(residual.any() for residual in state.state_dict()["residuals"].values())
    assert replicas_are_bitwise_equal(sparse.model)


def check_every_step_passes_the_options_that_the_first_made(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(density=0.02, unit=SMALL_UNITS)
    training.step()
    made = state.unit_options(0).native
    with mock.patch.object(_native, "sparse_options", side_effect=AssertionError("made anew")):
        for _ in range(3):
            training.step()
            assert all(state.unit_options(i).native is made for i in range(len(state.units)))
    assert replicas_are_bitwise_equal(training.model)


def check_no_gradient_mass_is_lost(me: Rank) -> None:
    """200 training steps, five units: in every step, sum of acc = result + sum of residuals."""
    training = Training(me.rank)
    state = gtopk.SparseState(
        training.model.named_parameters(),
        density=0.01,
        unit=SMALL_UNITS,
        warmup=[(0.25, 10), (0.05, 10)],
    )
    local: dict[str, torch.Tensor] = {}
    names = {id(parameter): name for name, parameter in training.model.named_parameters()}

    def listening(state, bucket):
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            local[names[id(parameter)]] = gradient.clone()
        return gtopk.sparse_hook(state, bucket)

    training.ddp.register_comm_hook(state, listening)
    assert len([unit for unit in state.units if unit.large]) >= 4
    losses, sparsity = [], []
    for _ in range(200):
        before = {
            name: r.clone() for name in names.values() if (r := state.residual(name)) is not None
        }
        losses.append(training.step())
        gradients = {n: p.grad.flatten().double() for n, p in training.model.named_parameters()}
        small = [n for n in gradients if n not in before]
        # Sums over ranks of acc, residuals and small gradients: in float64, over gloo, at once.
        acc = torch.cat([(local[n].double() + before[n].double()).flatten() for n in before])
        left = torch.cat([state.residual(n).double().flatten() for n in before])
        dense = torch.cat([local[n].double().flatten() for n in small])
        sums = torch.cat([acc, left, dense])
        dist.all_reduce(sums, group=gloo())
        acc, left, dense = sums.split([len(acc), len(left), len(dense)])
        result = torch.cat([gradients[n] for n in before]) * me.size
        torch.testing.assert_close(acc, result + left, rtol=1e-5, atol=1e-6)
        means = torch.cat([gradients[n] for n in small])
        torch.testing.assert_close(means, dense / me.size, rtol=1e-5, atol=1e-7)
        sparsity.append(result.count_nonzero().item() / result.numel())
    assert state.step == 200
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20]), "it does not learn"
    assert max(sparsity[20:]) < 0.012
    assert min(sparsity[:10]) > 0.2
    assert replicas_are_bitwise_equal(training.model)
    assert gtopk.stats()["most_in_flight"] >= 2


def check_results_do_not_depend_on_buckets(me: Rank) -> None:
    """DDP's buckets change after the first step and with their limit; units do not."""
    ends = []
    for bucket_mb in (25, 0.008, 0.002):
        training = Training(me.rank, bucket_mb=bucket_mb)
        training.hooked(density=0.05, unit=SMALL_UNITS)
        for _ in range(6):
            training.step()
        ends.append(flat(training.model))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def check_buckets_are_rebuilt_and_units_span_them(me: Rank) -> None:
    training = Training(me.rank)
    state = gtopk.SparseState(training.model.named_parameters(), density=0.05, unit=24 * 1024)
    layouts: list[list[int]] = []

    def listening(state, bucket):
        if bucket.index() == 0:
            layouts.append([])
        layouts[-1].append(len(bucket.parameters()))
        return gtopk.sparse_hook(state, bucket)

    training.ddp.register_comm_hook(state, listening)
    for _ in range(3):
        training.step()
    assert layouts[0] != layouts[1], layouts
    assert layouts[1] == layouts[2], layouts
    assert len(layouts[1]) > len(state.units) > 1, (layouts, len(state.units))
    assert replicas_are_bitwise_equal(training.model)


def check_unit_shapes(me: Rank) -> None:
    for unit, count in (("parameter", 5), ("model", 1), (25 * 2**20, 1)):
        training = Training(me.rank)
        state = training.hooked(density=0.02, unit=unit)
        assert len([each for each in state.units if each.large]) == count
        for _ in range(3):
            training.step()
        assert replicas_are_bitwise_equal(training.model)


def resumed(training: Training, saved: io.BytesIO, how: str, **arguments) -> Training:
    """A training that continues on the same rank from what was saved."""
    saved.seek(0)
    checkpoint = torch.load(saved, weights_only=how != "pickle")
    again = Training(training.rank, model=network(seed=99))
    again.model.load_state_dict(checkpoint["model"])
    again.optimizer.load_state_dict(checkpoint["optimizer"])
    again.at = checkpoint["at"]
    if how == "pickle":
        state = checkpoint["state"]
        with pytest.raises(RuntimeError, match=r"bind\(model.named_parameters\(\)\)"):
            _ = state.backward
        state.bind(again.model.named_parameters())
        again.ddp.register_comm_hook(state, gtopk.sparse_hook)
    else:
        again.hooked(**arguments).load_state_dict(checkpoint["state"])
    return again


def check_a_resumed_run_continues_bit_for_bit(me: Rank) -> None:
    for how, select in (
        ("state_dict", "exact"),
        ("state_dict", "threshold"),
        ("pickle", "threshold"),
    ):
        arguments = {"density": 0.02, "unit": SMALL_UNITS, "warmup": [(0.2, 3), (0.1, 4)]}
        arguments["select"] = select
        training = Training(me.rank)
        state = training.hooked(**arguments)
        for _ in range(5):
            training.step()
        saved = io.BytesIO()
        torch.save(
            {
                "model": training.model.state_dict(),
                "optimizer": training.optimizer.state_dict(),
                "at": training.at,
                "state": state.state_dict() if how == "state_dict" else state,
            },
            saved,
        )
        again = resumed(training, saved, how, **arguments)
        for _ in range(5):
            assert training.step() == again.step()
        assert torch.equal(flat(training.model), flat(again.model)), (how, select)
        kept = [state.unit_selector_state(i)[0].item() for i in range(len(state.units))]
        assert any(kept) == (select == "threshold")
        dist.barrier()


def check_a_state_of_another_rank_is_refused(me: Rank) -> None:
    def state():
        return gtopk.SparseState(network().named_parameters(), unit=SMALL_UNITS)

    saved = state().state_dict()
    state().load_state_dict(saved)
    other = (me.rank + 1) % 4
    for strict in (True, False):
        with pytest.raises(ValueError, match=f"rank {other}, but this is rank {me.rank}"):
            state().load_state_dict({**saved, "place": {"rank": other, "ranks": 4}}, strict)
        with pytest.raises(
            ValueError, match=r"one of 8 ranks, but this run has 4: use gtopk\.save"
        ):
            state().load_state_dict({**saved, "place": {"rank": me.rank, "ranks": 8}}, strict)


def check_accumulated_gradients(me: Rank) -> None:
    sparse, plain = Training(me.rank), Training(me.rank, group=gloo())
    state = sparse.hooked(density=1.0, unit=SMALL_UNITS)
    for training in (sparse, plain):
        training.optimizer.zero_grad()
        for micro in range(3):
            with training.ddp.no_sync() if micro < 2 else nullcontext():
                training.loss().backward()
            training.at += 1
        training.optimizer.step()
    torch.testing.assert_close(flat(sparse.model), flat(plain.model), rtol=1e-5, atol=1e-6)
    assert state.step == 1


def check_parameters_of_several_types(me: Rank) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.a, self.b = nn.Linear(24, 64), nn.Linear(64, 40).double()
            self.c, self.d = nn.Linear(40, 64).bfloat16(), nn.Linear(64, 40)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.d(self.c(self.b(self.a(x).tanh().double()).bfloat16()).float())

    training = Training(me.rank, model=Mixed())
    state = training.hooked(density=0.1, unit="model", min_numel=512)
    assert {unit.dtype for unit in state.units} == {torch.float32, torch.float64, torch.bfloat16}
    for _ in range(4):
        training.step()
    for parameter in training.model.parameters():
        mine = parameter.detach().double()
        first = mine.clone()
        dist.broadcast(first, 0)
        assert torch.equal(mine, first)
    assert state.residual("c.weight").dtype == torch.float32
    assert state.residual("b.weight").dtype == torch.float64
    assert state.residual("b.bias") is None


def check_gradients_that_are_not_contiguous(me: Rank) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(160, 20)
    ).to(memory_format=torch.channels_last)
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    state = gtopk.SparseState(model.named_parameters(), density=1.0, unit="parameter")
    ddp.register_comm_hook(state, gtopk.sparse_hook)
    x = torch.randn(2, 1, 12, 3, generator=torch.Generator().manual_seed(me.rank))
    ddp(x.contiguous(memory_format=torch.channels_last)).square().sum().backward()
    mean = model[1].weight.grad.clone()
    assert not model[1].weight.grad.is_contiguous()
    model.zero_grad()
    model(x).square().sum().backward()
    expected = model[1].weight.grad.clone()
    dist.all_reduce(expected, group=gloo())
    torch.testing.assert_close(mean, expected / me.size, rtol=1e-4, atol=1e-4)


def check_parameters_that_differ_from_ddps(me: Rank) -> None:
    training = Training(me.rank)
    state = gtopk.SparseState(list(training.model.named_parameters())[1:])
    training.ddp.register_comm_hook(state, gtopk.sparse_hook)
    with pytest.raises(ValueError, match=r"shape \(64, 24\) that its SparseState does not know"):
        training.loss().backward()
    training = Training(me.rank)
    more = [*training.model.named_parameters(), ("extra", nn.Parameter(torch.zeros(2000)))]
    training.ddp.register_comm_hook(gtopk.SparseState(more, unit=SMALL_UNITS), gtopk.sparse_hook)
    with pytest.raises(ValueError, match="does not reduce 1 parameters of its SparseState: extra"):
        training.loss().backward()
    dist.barrier()


def check_sparse_gradients_of_the_states_parameters_are_named(me: Rank) -> None:
    model = nn.Sequential(nn.Embedding(100, 16, sparse=True), nn.Linear(16, 4))
    ddp = nn.parallel.DistributedDataParallel(model)
    state = gtopk.SparseState(model.named_parameters())
    ddp.register_comm_hook(state, gtopk.sparse_hook)
    with pytest.raises(ValueError, match=r"gradient of '0\.weight' is sparse"):
        ddp(torch.tensor([1, 2])).sum().backward()
    dist.barrier()


def check_a_group_that_is_not_gtopks_is_refused(me: Rank) -> None:
    training = Training(me.rank, group=gloo())
    training.hooked(group=gloo())
    with pytest.raises(ValueError, match="not gtopk"):
        training.loss().backward()
    dist.barrier()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
