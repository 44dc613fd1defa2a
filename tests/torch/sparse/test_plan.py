"""algorithm="auto", semantics= and gtopk.plan, on four ranks."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from gtopk.ops.plan import Plan

import gtopk
from helpers.ranks import Rank, RankSet
from helpers.training import Training, flat, gloo

pytestmark = pytest.mark.loopback

KEPT_BY = {
    "dense": {"dense"},
    "exact_sum": {"topk", "dense", "exact"},
    "gtopk": {"topk", "dense", "exact", "gtopk", "gtopk-tree", "hierarchical", "gtopk-placed"},
}
KEPT_BY["any"] = {*KEPT_BY["gtopk"], "rs-ag"}


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
    for semantics in KEPT_BY:
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


def check_a_mean_over_contributors_is_planned(me: Rank) -> None:
    asked = {"density": 0.01, "semantics": "exact_sum"}
    usual = gtopk.plan(10**6, **asked)["predictions"]
    counted = gtopk.plan(10**6, mean="contributors", **asked)["predictions"]
    assert list(counted) == ["topk", "exact"]
    # Of four ranks the second list has two of 10,000 entries.
    added = 2 * 10_000 / 8 + -(-20_000 // 256)
    assert counted["topk"]["bytes"] - usual["topk"]["bytes"] == pytest.approx(added)
    tensor = torch.zeros(1000)
    tensor[me.rank] = 2.0
    gtopk.sparse_all_reduce(
        tensor, k=1, algorithm="auto", op=dist.ReduceOp.AVG, mean="contributors"
    )
    assert tensor[: me.size].tolist() == [2.0] * me.size
    assert gtopk.stats()["plan"]["algorithm"] in counted


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


def bytes_of_two_dense_steps(me: Rank, warmup: list) -> int:
    """What this rank sends in a group of its own, in which nothing has been measured."""
    group = dist.new_group(list(range(me.size)))
    training = Training(me.rank, group=group)
    training.hooked(density=0.01, unit="model", warmup=warmup, group=group)
    before = gtopk.stats(group)["bytes_sent"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.steps(2)
    return gtopk.stats(group)["bytes_sent"] - before


def check_warmup_prediction_adds_bounded_bytes_to_dense_steps(me: Rank) -> None:
    """A short run with a warm-up: two dense steps, before which the next density is looked at."""
    dense = bytes_of_two_dense_steps(me, [("dense", 4)])
    looked = bytes_of_two_dense_steps(me, [("dense", 2), (0.1, 2)])
    numel = sum(each.numel() for each in Training(me.rank).model.parameters())
    tensor = 4 * numel
    links = 2  # of four ranks of one host, in two rounds
    few = 4096  # for what all ranks agree on
    least = links * 3 * 4096
    assert dense > 2 * tensor
    assert 0 < looked - dense <= max(tensor // 8, least) + links * (48 * 64 + 8) + few


def trains_where_warnings_are_errors(me: Rank) -> int:
    training = Training(me.rank)
    state = training.hooked(density=0.05, unit="model", warmup=[(1.0, 1), (0.5, 1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.steps(2)
    return state.step


def check_a_state_keeps_what_auto_chose_for_it(me: Rank) -> None:
    """Bit for bit like a run that names the algorithms; a resumed run asks for no plan."""
    arguments = {"density": 0.01, "unit": "model"}
    automatic = Training(me.rank)
    state = automatic.hooked(algorithm="auto", semantics="gtopk", **arguments)
    automatic.steps(3)
    (choice,) = state.choices
    assert (choice.unit, choice.density) == (0, 0.01)
    assert choice.algorithm in KEPT_BY["gtopk"]
    saved, model = state.state_dict(), copy.deepcopy(automatic.model)
    gathered = [None] * me.size
    dist.all_gather_object(gathered, choice, group=gloo())
    assert gathered == [choice] * me.size

    named = Training(me.rank)
    named.hooked(algorithm=choice.algorithm, **arguments)
    named.steps(3)
    assert torch.equal(flat(automatic.model), flat(named.model))

    # A resumed run uses what was saved, even an algorithm that would not be chosen.
    other = "gtopk-tree" if choice.algorithm != "gtopk-tree" else "gtopk"
    saved["auto"]["choices"] = [[0, 0.01, other, "saved"]]
    resumed, by_name = (Training(me.rank, model=copy.deepcopy(model)) for _ in range(2))
    state = resumed.hooked(algorithm="auto", semantics="gtopk", **arguments)
    expected = by_name.hooked(algorithm=other, **arguments)
    for each in (state, expected):
        each.load_state_dict(saved)
    planned = gtopk.stats()["plan"]
    resumed.steps(2)
    by_name.steps(2)
    assert gtopk.stats()["plan"] == planned
    assert [each.algorithm for each in state.choices] == [other]
    assert torch.equal(flat(resumed.model), flat(by_name.model))
    # Another density needs another choice; a dense phase needs none.
    state.density = 0.3
    resumed.steps(1)
    assert [each.density for each in state.choices] == [0.01, 0.3]


def check_units_have_choices_of_their_own(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(
        density=0.01, algorithm="auto", unit="parameter", warmup=[("dense", 1), (0.25, 1)]
    )
    training.steps(1)
    assert state.choices == []
    training.steps(2)
    selected = [i for i, unit in enumerate(state.units) if unit.selected_numel]
    assert [(each.density, each.unit) for each in state.choices] == [
        (density, unit) for density in (0.25, 0.01) for unit in selected
    ]


def check_states_that_chose_otherwise_are_told(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(density=0.01, algorithm="auto", unit="model")
    saved = state.state_dict()
    saved["auto"]["choices"] = [[0, 0.01, "dense" if me.rank == 1 else "topk", ""]]
    state.load_state_dict(saved)
    with pytest.raises(ValueError, match=r"algorithm of unit 0 at density=0\.01 is '(topk|dense)'"):
        training.step()
    dist.barrier()


def test_warmup_density_costlier_than_dense_warns_once(four: RankSet) -> None:
    first, *others = four.run(warnings_of_a_warmup)
    assert others == [[], [], []]
    assert len(first) == 1
    assert "density=1.0 in the warm-up is predicted to cost more than dense" in first[0]
    assert four.run(trains_where_warnings_are_errors) == [2] * 4


def test_auto_is_what_it_chooses_and_all_ranks_choose_alike(four: RankSet) -> None:
    every = four.run(plans_of_auto)
    for plans in zip(*every, strict=True):
        if plans[0] is None:
            assert plans == (None,) * 4
            continue
        for plan in plans:
            same = {**plans[0], "actual_seconds": plan["actual_seconds"]}
            assert plan == same
    kept = [names for names in KEPT_BY.values() for _ in range(3)]
    assert [set(plan["predictions"]) for plan in every[0][1:]] == kept
    for plan in every[0][1:]:
        cheapest = min(each["seconds"] for each in plan["predictions"].values())
        assert plan["predictions"][plan["algorithm"]]["seconds"] == cheapest
        assert plan["algorithm"] in plan["reason"]


def test_plan_is_equal_on_all_ranks_and_refresh_measures_anew(four: RankSet) -> None:
    every = four.run(plans_asked_for)
    assert every == [every[0]] * 4
    coded, raw, anew = every[0]
    assert [plan["measured_by"] for plan in every[0]] == [1, 1, 3]
    assert all(plan["actual_seconds"] == 0 for plan in every[0])
    # Raw entries have 8 bytes; two rounds of 10,000 entries and a header each.
    assert raw["predictions"]["gtopk"]["bytes"] == 2 * (64 + 80_000)
    assert anew["predictions"]["gtopk"]["bytes"] < coded["predictions"]["gtopk"]["bytes"]
    assert coded["predictions"]["gtopk"]["bytes"] < raw["predictions"]["gtopk"]["bytes"]
    # All ranks share a host.
    assert coded["costs"]["byte_within"] > 0 == coded["costs"]["byte_between"]
    assert {each["host_bytes"] for each in raw["predictions"].values()} == {0}
    # Dense is coded on wires that round: two headers, and twice 3 regions of 977 blocks of int8.
    dense = [plan["predictions"]["dense"]["bytes"] for plan in every[0]]
    assert dense[0] == dense[1]
    assert dense[2] == 2 * 64 + 2 * 3 * 977 * 258


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
