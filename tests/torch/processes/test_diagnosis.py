"""gtopk.diagnose: the papers' inequalities, against numpy on known gradients."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gtopk.diagnostics.inequalities import of_rank, of_sum
from gtopk.ops.options import SparseOptions, algorithms, selecting_algorithms
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.ranks import Rank, RankSet
from helpers.training import Training, flat

pytestmark = pytest.mark.loopback

SIZES = {"first": 700, "second": 300, "small": 10}
D = sum(SIZES.values())
DENSITY = 0.05


def kinds(d: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {
        "normal": random.standard_normal(d),
        "heavy tails": random.standard_t(2, d),
        "ties": random.integers(-3, 4, d).astype(float),
        "signs": random.choice([-1.0, 1.0], d),
        "nearly empty": np.where(np.arange(d) < 3, random.standard_normal(d), 0),
        "zeros": np.zeros(d),
    }


def first_of(u: np.ndarray, k: int) -> list[int]:
    """The first k in the selection order, zeros left out."""
    order = sorted(range(len(u)), key=lambda i: (-abs(u[i]), i))
    return [i for i in order if u[i] != 0][:k]


def left(u: np.ndarray, found) -> float:
    return sum(float(u[i]) ** 2 for i in set(range(len(u))) - {int(i) for i in found})


@pytest.mark.parametrize("k", [1, 7, 100, 101])
@pytest.mark.parametrize("kind", kinds(1))
def test_figures_of_a_rank_are_those_of_numpy(kind, k):
    u = kinds(101)[kind]
    square, best = left(u, []), first_of(u, k)
    selected = np.random.default_rng(k).permutation(101)[: k // 2 + 1]
    figures = of_rank(torch.from_numpy(u), k, torch.from_numpy(selected))
    assert figures.norm == pytest.approx(math.sqrt(square))
    assert figures.selected == len(selected)
    if square == 0:
        assert figures.contraction is figures.recall is figures.above_chord is None
        assert sum(figures.histogram) == 0
        return
    assert figures.contraction == pytest.approx(left(u, best) / square, abs=1e-12)
    assert figures.selected_contraction == pytest.approx(left(u, selected) / square, abs=1e-12)
    assert figures.recall == len(set(best) & set(selected.tolist())) / len(best)
    curve = np.sort(u**2)[::-1] / np.max(u**2)
    line = 1 - np.arange(101) / 101
    assert figures.above_chord == pytest.approx(np.max(curve - line), abs=1e-12)
    scaled = np.clip(u / math.sqrt(square / 101), -8, 8)
    assert sum(figures.histogram) == 101
    edges = np.linspace(-8, 8, 65)
    assert figures.histogram == np.histogram(scaled, edges)[0].tolist()
    assert figures.contraction <= 1 - k / 101 + 1e-12


def test_a_bell_keeps_the_bound_of_theorem_1_and_signs_do_not():
    d, k = 20_000, 200
    bell = of_rank(torch.from_numpy(kinds(d)["normal"]), k, None)
    assert bell.above_chord == 0
    assert bell.contraction < (1 - k / d) ** 2
    assert bell.selected is bell.recall is bell.selected_contraction is None
    signs = of_rank(torch.from_numpy(kinds(d)["signs"]), k, None)
    assert signs.above_chord == pytest.approx(1, abs=1e-3)
    assert signs.contraction == pytest.approx(1 - k / d)  # as Random-k leaves, above the bound


@pytest.mark.parametrize("kind", kinds(1))
def test_figures_of_a_sum_are_those_of_numpy(kind):
    u, k = kinds(101)[kind], 10
    random = np.random.default_rng(1)
    indices = random.permutation(101)[:k]
    values = u[indices] * random.choice([1.0, 0.5], k)
    padded = (np.append(indices, [0, 0]), np.append(values, [0.0, 0.0]))
    figures = of_sum(torch.from_numpy(u), k, *map(torch.from_numpy, padded))
    result = np.zeros(101)
    result[indices] = values
    lost = float(((u - result) ** 2).sum())
    assert figures.sum_norm == pytest.approx(math.sqrt(left(u, [])))
    assert figures.lost_norm == pytest.approx(math.sqrt(lost))
    assert figures.delivered == np.count_nonzero(values)
    if not u.any():
        assert figures.delta is figures.delivered_recall is None
        return
    assert figures.delta == pytest.approx(lost / ((1 - k / 101) * left(u, [])))
    best = first_of(u, k)
    found = set(indices[values != 0].tolist())
    assert figures.delivered_recall == len(set(best) & found) / len(best)


def test_delta_is_what_random_k_leaves_on_average():
    """The denominator is its expectation: against a thousand draws."""
    u = torch.from_numpy(kinds(200)["heavy tails"])
    k, left_over = 20, []
    generator = torch.Generator().manual_seed(3)
    for _ in range(1000):
        drawn = torch.randperm(200, generator=generator)[:k]
        left_over.append(of_sum(u, k, drawn, u[drawn]).delta)
    assert np.mean(left_over) == pytest.approx(1, abs=0.02)
    everything = torch.arange(200)
    assert of_sum(u, 200, everything, u).delta is None


def test_algorithms_without_a_selection_of_each_rank_are_named():
    """Those whose result, of one rank, has no more than k entries, whatever the selector."""
    options = [SparseOptions(3, algorithm=each, select="sampled") for each in algorithms()]
    found = {each.algorithm: each.most_delivered(100, 1) for each in options}
    selecting = {each for each, most in found.items() if most == 4}
    assert selecting == set(selecting_algorithms())


class Linear(nn.Module):
    """The gradient of its sum is what it is given."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for name, size in SIZES.items():
            setattr(self, name, nn.Parameter(torch.zeros(size, dtype=dtype)))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        parts = gradient.split(list(SIZES.values()))
        return sum(p @ g for p, g in zip(self.parameters(), parts, strict=True))


def gradient(rank: int, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(D, generator=generator).pow(3).to(dtype)


def linear(dtype: torch.dtype = torch.float32, **arguments):
    model = Linear(dtype)
    ddp = DistributedDataParallel(model)
    defaults = {"density": DENSITY, "unit": "parameter", "min_numel": 100}
    return model, ddp, gtopk.attach(ddp, **{**defaults, **arguments})


def gathered(value: object) -> list:
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def part(of: torch.Tensor, name: str) -> torch.Tensor:
    return of.split(list(SIZES.values()))[list(SIZES).index(name)]


CASES = [
    {},
    {"algorithm": "gtopk-tree", "put_back": "merged"},
    {"algorithm": "topk", "select": "gaussian", "wire": "bf16"},
    {"algorithm": "exact", "select": "sampled", "wire": "int8"},
    {"algorithm": "rs-ag", "select": "threshold"},
    {"algorithm": "topk", "select": "block", "block": 64},
    {"algorithm": "gtopk", "select": "block", "block": 64},
    {"algorithm": "hierarchical", "dtype": torch.bfloat16},
    {"algorithm": "true-topk"},
    {"algorithm": "sketch"},
    {"algorithm": "random-k"},
    {"dtype": torch.float64},
]


def check_figures_are_those_of_numpy(me: Rank) -> None:
    groups = [dist.new_group([rank], backend="gtopk") for rank in range(me.size)]
    for case in CASES:
        arguments = dict(case)
        dtype = arguments.pop("dtype", torch.float32)
        model, ddp, state = linear(dtype, **arguments)
        seen: list = []
        gtopk.diagnose(state, 2, seen.append)
        for step in range(3):
            before = {name: state.residual(name).clone() for name in ("second", "first")}
            kept = [state.unit_selector_state(i).clone() for i in range(2)]
            model.zero_grad()
            mine = gradient(me.rank, step, dtype)
            ddp(mine).backward()
            if step % 2:
                continue
            assert len(seen) == step // 2 + 1
            diagnosis = seen[-1]
            assert gtopk.stats()["diagnosis"] is diagnosis
            assert diagnosis.step == step
            assert [each.names for each in diagnosis.units] == [("second",), ("first",)]
            accs = [part(mine, name).to(old.dtype) + old for name, old in before.items()]
            residuals = [state.residual(name) for name in before]
            every = gathered((accs, residuals, [each[-6:-1] for each in diagnosis.units]))
            for index, unit in enumerate(diagnosis.units):
                of_unit = [[each[index] for each in of_rank] for of_rank in every]
                grad = getattr(model, unit.names[0]).grad
                check_unit(me, state, unit, of_unit, kept[index], grad, groups)
            random = sum(each.random * each.sum_norm**2 for each in diagnosis.units)
            lost = sum(each.lost_norm**2 for each in diagnosis.units)
            assert diagnosis.delta == pytest.approx(lost / random)
        json.dumps([row for each in seen for row in each.rows()])
        assert [row["step"] for each in seen for row in each.rows()] == [0, 0, 2, 2]


def check_unit(me: Rank, state, unit, every, kept, grad, groups) -> None:
    """One unit's figures; every rank's acc, residual and figures of the sum are known."""
    acc, residual, shared = every[me.rank]
    d, config = acc.numel(), state.config
    blocks = acc.split(config.block if config.select == "block" else d)
    k = sum(max(1, int(DENSITY * each.numel() + 0.5)) for each in blocks)
    assert (unit.elements, unit.k, unit.density) == (d, k, DENSITY)
    assert unit.random == pytest.approx(1 - k / d)
    assert unit.bell == pytest.approx((1 - k / d) ** 2)
    u = acc.double().numpy()
    best = first_of(u, k)
    assert unit.contraction == pytest.approx(left(u, best) / left(u, []), rel=1e-6)
    if config.algorithm in ("true-topk", "sketch", "random-k"):
        assert unit.selected is unit.recall is None
    else:  # what this rank would deliver if it were alone
        alone = acc.clone()
        gtopk.sparse_all_reduce(
            alone,
            density=DENSITY,
            algorithm="topk",
            select=config.select,
            block=config.block,
            state=kept,
            group=groups[me.rank],
        )
        selected = alone.nonzero().flatten().tolist()
        assert unit.selected == len(selected)
        assert unit.recall == len(set(best) & set(selected)) / len(best)
        assert unit.selected_contraction == pytest.approx(left(u, selected) / left(u, []), rel=1e-6)
    total = sum(each.double().numpy() for each, _, _ in every)
    rest = sum(each.double().numpy() for _, each, _ in every)  # no mass is lost
    assert unit.residual_norm == pytest.approx(residual.double().norm().item())
    assert unit.sum_norm == pytest.approx(math.sqrt((total**2).sum()), rel=1e-5)
    assert unit.lost_norm == pytest.approx(math.sqrt((rest**2).sum()), rel=1e-4)
    assert unit.delta == pytest.approx((rest**2).sum() / (1 - k / d) / (total**2).sum(), rel=1e-4)
    found = set(grad.nonzero().flatten().tolist())
    assert unit.delivered == len(found)
    best = first_of(total, k)
    assert unit.delivered_recall == pytest.approx(len(set(best) & found) / k)
    if config.algorithm == "true-topk":
        assert unit.delivered_recall == 1
    assert shared == unit[-6:-1]  # from sum_norm to delta
    assert all(each == shared for _, _, each in every)


def check_diagnosis_keeps_results_and_sends_only_on_its_steps(me: Rank) -> None:
    for arguments in ({}, {"select": "threshold", "momentum": 0.9, "wire": "bf16"}):
        outcomes, sent = [], []
        for every in (0, 3):
            training = Training(me.rank)
            state = training.hooked(density=0.05, unit=4096, min_numel=100, **arguments)
            gtopk.diagnose(state, every)
            of_steps = []
            for _ in range(6):
                before = gtopk.stats()["bytes_sent"]
                training.step()
                of_steps.append(gtopk.stats()["bytes_sent"] - before)
            sent.append(of_steps)
            residuals = [state.residual(n) for n, _ in training.model.named_parameters()]
            outcomes.append(
                [flat(training.model), *(each for each in residuals if each is not None)]
            )
        for plain, diagnosed in zip(*outcomes, strict=True):
            assert torch.equal(plain, diagnosed)
        for step, (plain, diagnosed) in enumerate(zip(*sent, strict=True)):
            # The first also compares the states.
            assert (diagnosed > plain) if step % 3 == 0 else (diagnosed == plain)


def check_what_did_not_happen_or_went_densely_is_left_out(me: Rank) -> None:
    seen: list = []
    model, ddp, state = linear(warmup=[("dense", 2)])
    gtopk.diagnose(state, 1, seen.append)
    for step in range(5):
        model.zero_grad()
        mine = gradient(me.rank, step)
        if step == 3 and me.rank == 2:
            part(mine, "first")[5] = math.nan
        ddp(mine).backward()
    assert [(each.step, len(each.units)) for each in seen] == [(2, 2), (3, 1), (4, 2)]
    assert seen[1].units[0].names == ("second",)
    gtopk.diagnose(state, 0)
    ddp(gradient(me.rank, 9)).backward()
    assert len(seen) == 3


def check_every_way_to_train_can_be_diagnosed(me: Rank) -> None:
    """DistributedOptimizer's gradients, a loss scale, updates instead of gradients."""
    seen: list = []
    model = Linear()
    optimizer = gtopk.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
        model,
        density=DENSITY,
        min_numel=100,
        accumulate="update",
    )
    gtopk.diagnose(optimizer.sparse_state, 1, seen.append)
    model(gradient(me.rank, 1)).backward()
    optimizer.step()
    total = sum(gathered(0.5 * gradient(me.rank, 1)[: D - SIZES["small"]]))
    assert len(seen[0].units) == 1
    assert seen[0].units[0].sum_norm == pytest.approx(total.norm().item(), rel=1e-5)

    class Scaler:
        def get_scale(self) -> float:
            return 8.0

    model, ddp, state = linear(scaler=Scaler())
    gtopk.diagnose(state, 1, seen.append)
    ddp(8 * gradient(me.rank, 2)).backward()
    total = sum(gathered(part(gradient(me.rank, 2), "first")))
    assert seen[1].units[1].sum_norm == pytest.approx(total.norm().item(), rel=1e-5)


def check_bad_arguments_and_ranks_that_differ_are_errors(me: Rank) -> None:
    _, ddp, state = linear()
    for every, call, said in (
        (-1, None, "every must be a whole number"),
        (1.5, None, "every must be a whole number"),
        (1, 7, "call must be a function, given int"),
    ):
        with pytest.raises(ValueError, match=said):
            gtopk.diagnose(state, every, call)
    with pytest.raises(ValueError, match=r"diagnose's every is \d+ here and \d+ on rank \d"):
        gtopk.diagnose(state, 100 if me.rank else 10)
    for wrong in (ddp, None):
        with pytest.raises(
            TypeError, match=f"must be a SparseState, given a {type(wrong).__name__}"
        ):
            gtopk.diagnose(wrong, 1)
    assert state.diagnostics.every == 0
    ddp(gradient(me.rank, 1)).backward()


def test_on_four_ranks(check, four: RankSet):
    four.run(check)
