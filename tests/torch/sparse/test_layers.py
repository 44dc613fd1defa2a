"""density="adaptive" on four ranks: measured, agreed on, kept, saved."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from gtopk.ops.options import predicted_algorithms
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers import reference
from helpers.ranks import Rank, RankSet
from helpers.training import Training, flat, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback

SIZES = {"first": 400, "second": 300, "small": 10, "third": 200}
D = sum(SIZES.values())
BOUNDS = (0.02, 0.2)
ADAPTIVE = {
    "density": "adaptive",
    "density_bounds": BOUNDS,
    "unit": "parameter",
    "min_numel": 100,
}


class Linear(nn.Module):
    """The gradients of its sum are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        for name, size in SIZES.items():
            setattr(self, name, nn.Parameter(torch.zeros(size)))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        parts = gradient.split(list(SIZES.values()))
        return sum(p @ g for p, g in zip(self.parameters(), parts, strict=True))


def gradient(rank: int, step: int) -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(1000 * rank + step))


def part(of: torch.Tensor, name: str) -> torch.Tensor:
    return of.split(list(SIZES.values()))[list(SIZES).index(name)]


def linear(**arguments) -> tuple[nn.Module, DistributedDataParallel, gtopk.SparseState]:
    model = Linear()
    ddp = DistributedDataParallel(model)
    return model, ddp, gtopk.attach(ddp, **{**ADAPTIVE, **arguments})


def say(state: gtopk.SparseState, ready: list[float]) -> None:
    """Pretends that this was measured on this rank."""
    state.backward.stopwatch.ready = lambda: ready


def alike(value: object) -> bool:
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return all(each == values[0] for each in values)


def check_ranks_measure_and_choose_alike(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(**ADAPTIVE, warmup=[("dense", 2)])
    for step in range(12):
        assert bool(state.layers) == (step > 7)  # 2 not counted, 5 measured, 1 to choose
        training.step()
    names = [name for layer in state.layers for name in layer.names]
    assert sorted(names) == sorted(name for name, _ in training.model.named_parameters())
    assert [unit.names for unit in state.units] == [layer.names for layer in state.layers]
    assert all(BOUNDS[0] <= layer.density <= BOUNDS[1] for layer in state.layers)
    assert alike(state.layers)
    assert replicas_are_bitwise_equal(training.model)
    before = [unit.names for unit in state.units]
    state.density = "adaptive"
    assert not state.layers
    training.steps(8)
    assert state.layers
    state.density = 0.1
    assert state.unit_density(0) == 0.1
    assert len(state.units) >= len(before)
    training.step()
    assert replicas_are_bitwise_equal(training.model)


def check_merged_layers_go_on_with_their_residuals_and_momenta(me: Rank) -> None:
    """Equals the reference step by step: two layers become one, at another density."""
    for momentum in (0.0, 0.9):
        model, ddp, state = linear(momentum=momentum)
        parts = {name: [name] for name in ("third", "second", "first")}
        density = dict.fromkeys(parts, BOUNDS[0])
        residuals = {name: [torch.zeros(SIZES[name])] * me.size for name in parts}
        momenta = [torch.zeros(D) for _ in range(me.size)]
        for step in range(8):
            if step == 4:
                # Other ranks are later, and the slowest counts: a thousand seconds for the pair.
                say(state, [0.0, 0.0, 1e3 if me.rank == 2 else 0.0])
                parts = {"both": ["third", "second"], "first": ["first"]}
                density = {"both": BOUNDS[1], "first": BOUNDS[0]}
                pairs = zip(residuals["third"], residuals.pop("second"), strict=True)
                residuals["both"] = [torch.cat(each) for each in pairs]
            every = [gradient(rank, step) for rank in range(me.size)]
            model.zero_grad()
            ddp(every[me.rank]).backward()
            momenta = [torch.add(g, u, alpha=momentum) for g, u in zip(every, momenta, strict=True)]
            for unit, names in parts.items():
                given = [torch.cat([part(u, name) for name in names]) for u in momenta]
                k = max(1, int(density[unit] * given[0].numel() + 0.5))
                outcome = reference.sparse_all_reduce(
                    given, residuals[unit], k, "gtopk", "own", average=True
                )
                seen = torch.cat([getattr(model, name).grad for name in names])
                assert torch.equal(seen, outcome.tensor), (momentum, step, unit)
                for u, g, residual in zip(momenta, given, residuals[unit], strict=True):
                    acc = (g + residual).abs()
                    sent = torch.zeros(len(acc), dtype=torch.bool)
                    sent[acc.argsort(descending=True, stable=True)[:k]] = True
                    cleared = (sent & (outcome.tensor != 0)).split([SIZES[n] for n in names])
                    for name, mask in zip(names, cleared, strict=True):
                        part(u, name)[mask] = 0
                residuals[unit] = outcome.residuals
            small = torch.stack([part(u, "small") for u in momenta]).mean(0)
            assert torch.allclose(model.small.grad, small, atol=1e-6)
        assert [layer.density for layer in state.layers] == [BOUNDS[1], BOUNDS[0]]
        assert state.layers[0].elements == 500
        assert alike(state.layers)


def check_a_resumed_run_keeps_what_was_chosen(me: Rank) -> None:
    """Bit for bit, from a state_dict and from a pickle; with other bounds it chooses anew."""
    whole = Training(me.rank)
    state = whole.hooked(**ADAPTIVE, momentum=0.9, select="threshold", algorithm="auto")
    units = len(state.units)
    say(state, [0.001 * i for i in range(units)])
    whole.steps(3)
    assert len(state.layers) == len(state.units)
    saved, pickled = state.state_dict(), pickle.dumps(state)
    halfway = {name: value.clone() for name, value in whole.model.state_dict().items()}
    optimizer = copy.deepcopy(whole.optimizer.state_dict())
    whole.steps(3)
    for pick in (False, True):
        resumed = Training(me.rank)
        resumed.model.load_state_dict(halfway)
        resumed.optimizer.load_state_dict(copy.deepcopy(optimizer))  # it keeps the tensors
        resumed.at = 3
        if pick:
            again = pickle.loads(pickled)
            again.bind(resumed.model.named_parameters())
            resumed.ddp.register_comm_hook(again, gtopk.sparse_hook)
        else:
            again = resumed.hooked(**ADAPTIVE, momentum=0.9, select="threshold", algorithm="auto")
            again.load_state_dict(saved)
        assert again.layers == state.layers
        resumed.steps(3)
        assert torch.equal(flat(resumed.model), flat(whole.model))
    other = Training(me.rank).hooked(**{**ADAPTIVE, "density_bounds": (0.02, 0.3)}, momentum=0.9)
    other.load_state_dict(saved)
    assert not other.layers
    assert len(other.units) == units
    broken = {**saved, "adaptive": {"bounds": list(BOUNDS), "layers": [["x"]]}}
    with pytest.raises(ValueError, match=r"not a saved SparseState: a layer of 'adaptive' must be"):
        again.load_state_dict(broken)


def check_a_folder_of_all_ranks_keeps_it_too(me: Rank, folder: str) -> None:
    training = Training(me.rank)
    state = training.hooked(**ADAPTIVE)
    say(state, [0.0] * len(state.units))
    training.steps(2)
    assert len(state.layers) == 1  # no unit has to wait
    gtopk.save(state, folder)
    again = Training(me.rank).hooked(**ADAPTIVE)
    gtopk.load(again, folder)
    assert again.layers == state.layers
    for name, _ in training.model.named_parameters():
        mine, its = again.residual(name), state.residual(name)
        assert mine is None or torch.equal(mine, its)


def check_an_optimizer_chooses_as_well(me: Rank) -> None:
    training = Training(me.rank)
    optimizer = gtopk.DistributedOptimizer(
        torch.optim.SGD(training.model.parameters(), lr=0.05), training.model, **ADAPTIVE
    )
    training.ddp = training.model
    training.optimizer = optimizer
    training.steps(10)
    assert optimizer.sparse_state.layers
    assert alike(optimizer.sparse_state.layers)
    assert replicas_are_bitwise_equal(training.model)


def check_what_adaptive_refuses_is_what_no_plan_predicts(me: Rank) -> None:
    predicted = gtopk.plan(10_000, density=0.01, wire="int8")["predictions"]
    assert set(predicted) == set(predicted_algorithms())


def test_on_four_ranks(check, four: RankSet):
    four.run(check)


def test_a_folder(four: RankSet, tmp_path):
    four.run(check_a_folder_of_all_ranks_keeps_it_too, str(tmp_path))
