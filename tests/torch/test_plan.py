"""Room: tests/torch. algorithm="auto", semantics= and gtopk.plan, on four ranks."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from gtopk.choices import SEMANTICS
from gtopk.planning import Plan
from ranks import Rank, RankSet
from training import Training

import gtopk

pytestmark = pytest.mark.loopback

KEPT_BY = {
    "exact_sum": {"topk", "dense", "exact"},
    "gtopk": {"topk", "dense", "exact", "gtopk", "gtopk-tree"},
    "any": {"topk", "dense", "exact", "gtopk", "gtopk-tree", "rs-ag"},
}


def gradient(rank: int) -> torch.Tensor:
    return torch.randn(5000, generator=torch.Generator().manual_seed(rank))


def reduce(me: Rank, **arguments) -> tuple[torch.Tensor, torch.Tensor]:
    tensor = gradient(me.rank)
    residual = torch.zeros_like(tensor)
    gtopk.sparse_all_reduce(tensor, residual=residual, **arguments)
    return tensor, residual


def plans_of_auto(me: Rank) -> list[Plan | None]:
    group = dist.new_group([0, 1, 2, 3])
    plans = [gtopk.stats(group)["plan"]]
    for semantics in SEMANTICS:
        for density in (0.001, 0.1, 1.0):
            arguments = {"density": density, "group": group}
            automatic = reduce(me, algorithm="auto", semantics=semantics, **arguments)
            plan = gtopk.stats(group)["plan"]
            assert plan is not None
            named = reduce(me, algorithm=plan["algorithm"], semantics=semantics, **arguments)
            assert all(torch.equal(*pair) for pair in zip(automatic, named, strict=True))
            assert plan["actual_seconds"] > 0
            plans.append(plan)
    return plans


def plans_asked_for(me: Rank) -> list[Plan | None]:
    group = dist.new_group([0, 1, 2, 3])
    return [
        gtopk.plan(10**6, density=0.01, wire=wire, group=group, refresh=refresh)
        for wire, refresh in ((None, False), ("raw", False), ("int8", True))
    ]


def check_semantics_rule_algorithms_out(me: Rank) -> None:
    with pytest.raises(ValueError, match=r"'exact_sum' rules out algorithm 'gtopk'"):
        reduce(me, k=5, algorithm="gtopk", semantics="exact_sum")
    with pytest.raises(ValueError, match=r"'gtopk' rules out algorithm 'rs-ag'"):
        reduce(me, k=5, algorithm="rs-ag", semantics="gtopk")
    reduce(me, k=5, algorithm="topk", semantics="exact_sum")


def check_ranks_that_differ_are_told(me: Rank) -> None:
    odd = me.rank == 2
    both = r"semantics=(any[\s\S]*semantics=gtopk|gtopk[\s\S]*semantics=any)"
    with pytest.raises(dist.DistBackendError, match=both):
        reduce(me, k=5, algorithm="auto", semantics="gtopk" if odd else "any")
    with pytest.raises(dist.DistBackendError, match=r"k=5[\s\S]*k=6|k=6[\s\S]*k=5"):
        gtopk.plan(100, k=5 + odd)
    reduce(me, k=5, algorithm="auto")


def warnings_of_a_warmup(me: Rank) -> list[str]:
    training = Training(me.rank)
    training.hooked(density=0.05, unit="model", warmup=[(1.0, 1), ("dense", 1), (0.001, 1)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(4):
            training.step()
    return [str(each.message) for each in seen if "gtopk:" in str(each.message)]


def test_a_density_of_the_warmup_that_is_dearer_than_dense_is_told_once(four: RankSet) -> None:
    first, *others = four.run(warnings_of_a_warmup)
    assert others == [[], [], []]
    assert len(first) == 1
    assert "density=1.0 in the warm-up is predicted to cost more than dense" in first[0]


def test_auto_is_what_it_chooses_and_all_ranks_choose_alike(four: RankSet) -> None:
    every = four.run(plans_of_auto)
    for plans in zip(*every, strict=True):
        if plans[0] is None:
            assert plans == (None,) * 4
            continue
        for plan in plans:
            same = {**plans[0], "actual_seconds": plan["actual_seconds"]}
            assert plan == same
    kept = [KEPT_BY[semantics] for semantics in SEMANTICS for _ in range(3)]
    assert [set(plan["predictions"]) for plan in every[0][1:]] == kept
    for plan in every[0][1:]:
        cheapest = min(each["seconds"] for each in plan["predictions"].values())
        assert plan["predictions"][plan["algorithm"]]["seconds"] == cheapest
        assert plan["algorithm"] in plan["reason"]


def test_a_plan_is_the_same_on_all_ranks_and_measured_anew_on_demand(four: RankSet) -> None:
    every = four.run(plans_asked_for)
    assert every == [every[0]] * 4
    coded, raw, anew = every[0]
    assert [plan["measured_by"] for plan in every[0]] == [0, 0, 2]
    assert all(plan["actual_seconds"] == 0 for plan in every[0])
    # Entries of raw lists have 8 bytes, two rounds of 10,000 and a header.
    assert raw["predictions"]["gtopk"]["bytes"] == 2 * (64 + 80_000)
    assert anew["predictions"]["gtopk"]["bytes"] < coded["predictions"]["gtopk"]["bytes"]
    assert coded["predictions"]["gtopk"]["bytes"] < raw["predictions"]["gtopk"]["bytes"]
    # Dense knows no wire.
    assert len({plan["predictions"]["dense"]["bytes"] for plan in every[0]}) == 1


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
