"""``gtopk.OuterOptimizer`` over FSDP2: two replicas of two shards each."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate

import gtopk
from helpers.outer import inner_of
from helpers.outer_reference import PRESETS, Replicas, Rule
from helpers.outer_shards import (
    INNER,
    Odd,
    Outer,
    Part,
    local,
    loss_of,
    mesh,
    network,
    own_parts,
    sharded,
)
from helpers.ranks import Rank, RankSet
from helpers.scaler import scaler
from helpers.training import batch, equal

pytestmark = pytest.mark.loopback


def expected(rule: Rule, inner: int, *, whole: bool) -> tuple[list[nn.Module], list[Replicas]]:
    """Each replica's model two steps after the second round, and what is shared of each part."""
    models = [network() for _ in range(2)]
    replicas = [
        Replicas([Part(model, shard) for model in models], rule, inner)
        for shard in ([None] if whole else [0, 1])
    ]
    inners = [inner_of(model) for model in models]
    for step in range(2 * inner + 2):
        for replica, (model, optimizer) in enumerate(zip(models, inners, strict=True)):
            model.zero_grad()
            for shard in range(2):
                (loss_of(model, 2 * replica + shard, step) / 2).backward()
            if not rule.gradients:
                optimizer.step()
        for each in replicas:
            each.after(step + 1)
    return models, replicas


CASES = [
    ("localsgd", {}, True),
    ("diloco", {}, True),
    ("pulseloco", {}, True),
    ("streaming-diloco", {"fragments": 5}, False),
    ("sparseloco", {}, False),
    ("sparseloco", {"wire": "bf16", "momentum": 0.6, "mean": "participants"}, False),
    ("demo", {"transform": "tiles"}, False),
]


def check_bits(me: Rank, preset: str, overrides: dict, whole: bool) -> None:
    """Of each shard: as without shards where elements do not matter to each other (`whole`)."""
    rule = dataclasses.replace(PRESETS[preset], **overrides)
    inner = 1 if rule.gradients else INNER if rule.fragments == 1 else 10
    models, replicas = expected(rule, inner, whole=whole)
    replica, shard = divmod(me.rank, 2)
    arguments = {} if rule.gradients else {"inner_steps": inner}
    outer = Outer(me, preset=preset, **arguments, **overrides)
    outer.steps(2 * inner + 2)

    def parts(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        cut = [each.detach().chunk(2) for each in tensors]
        return [each[shard] if shard < len(each) else each[0][:0] for each in cut]

    assert equal(own_parts(outer.model), parts(list(models[replica].parameters())))
    mine = replicas[0 if whole else shard]
    shared = [torch.from_numpy(each) for each in mine.shared]
    found = outer.shared()
    assert equal(found, parts(shared)) if whole else equal([x for x in found if len(x)], shared)
    for kind, vectors in (
        ("velocity", mine.velocity if rule.momentum else None),
        ("error", mine.errors[replica] if rule.error_decay else None),
    ):
        saved = outer.saved(kind)
        assert bool(saved) == (vectors is not None), kind
        if vectors is not None:
            wanted = [torch.from_numpy(each) for each in mine.tensors(vectors)]
            wanted = [x for x in parts(wanted) if len(x)] if whole else wanted
            by_name = outer.optimizer.state_dict()["gtopk"][kind]
            names = [name for name, each in outer.model.named_parameters() if len(local(each))]
            assert equal([by_name[name] for name in names], wanted), kind


@pytest.mark.parametrize(("preset", "overrides", "whole"), CASES, ids=str)
def test_every_bit_is_that_of_the_rule(
    four: RankSet, preset: str, overrides: dict, whole: bool
) -> None:
    four.run(check_bits, preset, overrides, whole)


def by_hand(me: Rank, moved: list[list[float]], beside: list[float], preset: str, **arguments):
    """A weight of two rows, a row for each shard, and one number that both ranks of a replica have.

    After a step each replica has moved so far from zero.
    """
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    model.beside = nn.Parameter(torch.zeros(1))
    fully_shard(model, mesh=mesh()["shard"], ignored_params={model.beside})
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    group = mesh()["replicate"].get_group()
    outer = gtopk.OuterOptimizer(inner, model, preset, group, inner_steps=1, **arguments)
    replica, shard = divmod(me.rank, 2)
    gradient = torch.full((1, 1), -float(moved[replica][shard]))
    model.weight.grad = DTensor.from_local(gradient, mesh()["shard"], model.weight.placements)
    model.beside.grad = torch.full((1,), -beside[replica])
    return model, outer


def check_a_list_is_clipped_by_the_norm_of_all_shards(me: Rank) -> None:
    """Which is 13 of one replica, counting what several ranks hold once, and 26 of the other."""
    moved, beside = [[3, 4], [24, 6]], [12.0, 8.0]
    arguments = {"clip": "median", "wire": None, "mean": "participants"}
    model, outer = by_hand(me, moved, beside, "sparseloco", **arguments)
    outer.step()
    assert local(model.weight).item() == [(3 + 12) / 2, (4 + 3) / 2][me.rank % 2]
    assert model.beside.item() == (12 + 4) / 2


def check_a_replica_takes_part_as_a_whole(me: Rank) -> None:
    """One of its shards is not finite: the other one stays out as well."""
    outer = Outer(me, preset="sparseloco")
    outer.steps(5)
    outer.backward()
    if me.rank == 3:
        with torch.no_grad():
            local(outer.model[0].weight)[3, 5] = float("nan")
    if me.rank < 2:
        outer.optimizer.step()
    else:
        with pytest.warns(UserWarning, match="parameters are not finite in round 1: it does not"):
            outer.optimizer.step()
        assert not any(each.any() for each in outer.saved("error"))
    assert outer.optimizer.stats()["participants"] == 1
    both = [torch.empty_like(x) for x in own_parts(outer.model) for _ in range(2)]
    for i, each in enumerate(own_parts(outer.model)):
        assert each.isfinite().all()
        dist.all_gather(both[2 * i : 2 * i + 2], each, group=mesh()["replicate"].get_group())
        assert torch.equal(*both[2 * i : 2 * i + 2])
    outer.steps(INNER)
    assert outer.optimizer.stats()["participants"] == 2


def check_overflow_in_one_shard_skips_the_round_for_all_shards(me: Rank) -> None:
    model, outer = by_hand(me, [[3e38, 1], [3e38, 1]], [1.0, 1.0], "diloco")
    with pytest.warns(UserWarning, match="movements overflowed when they were added in round 0"):
        outer.step()
    assert local(model.weight).item() == model.beside.item() == 0
    assert outer.stats()["skipped"] == 1


def check_an_exchange_that_fails_for_a_shard_fails_for_all(me: Rank) -> None:
    for arguments in ({"preset": "diloco"}, {"preset": "sparseloco", "clip": "median"}):
        outer = Outer(me, **arguments)
        outer.steps(INNER - 1)
        if me.rank == 3:
            outer.optimizer._rounds.parts()[0].parameters[0] += 1
        before = outer.shared()
        message = "of ranks 1, 3 differ" if me.rank % 2 else "exchange of other shards of this repl"
        with pytest.raises(RuntimeError, match=message):
            outer.steps(1)
        assert equal(outer.shared(), before)


def check_the_next_forward_sees_what_a_round_assigned(me: Rank) -> None:
    """Also if FSDP still has whole parameters from a forward without a backward."""
    x, _ = batch(0, 99)
    for options in ({}, {"reshard_after_forward": False}):
        outer = Outer(me, sharded(network(), **options), preset="diloco")
        for _ in range(INNER - 1):
            outer.steps(1)
        outer.backward()
        with torch.no_grad():
            outer.model(x)
            outer.optimizer.step()
            found = outer.model(x)
            gtopk.OuterOptimizer(outer.optimizer._inner, outer.model, group=outer.optimizer.group)
        plain = network(7)
        shared = outer.optimizer.shared_parameters()
        plain.load_state_dict({name: each.full_tensor() for name, each in shared.items()})
        assert torch.equal(found, plain(x).detach())


def check_odd_parameters_and_buffers(me: Rank) -> None:
    group = mesh()["replicate"].get_group()
    for preset in ("localsgd", "diloco", "sparseloco"):
        model = Odd()
        fully_shard(model.turn, mesh=mesh()["shard"])
        fully_shard(model, mesh=mesh()["shard"], ignored_params={model.whole})
        local(model.frozen).fill_(me.rank // 2)
        outer = Outer(me, model, preset=preset, state_device="cpu")
        assert not local(model.frozen).any()  # from the first replica, once
        outer.steps(INNER)
        shared = outer.optimizer.shared_parameters()
        layers = [f"{layer}.{kind}" for layer in ("first", "norm") for kind in ("weight", "bias")]
        assert [*shared] == ["whole", *layers, "turn.by"]
        assert not isinstance(shared["whole"], DTensor)
        assert shared["turn.by"].dtype == torch.complex64
        numbers = [model.norm.running_mean]
        for name, each in shared.items():
            mine = local(model.get_parameter(name))
            assert torch.equal(mine, local(each))
            numbers.append(torch.view_as_real(mine) if mine.is_complex() else mine)
        for mine in numbers:
            first = mine.clone()
            dist.broadcast(first, group=group, group_src=0)
            assert torch.equal(mine, first)


def check_half_types_keep_shared_parameters_in_float32(me: Rank) -> None:
    outer = Outer(me, sharded(network().bfloat16()), preset="diloco")
    outer.steps(2 * INNER)
    kept = outer.optimizer.state_dict()["gtopk"]["parameters"]
    assert all(each.dtype == torch.float32 for each in kept.values())
    for name, each in outer.model.named_parameters():
        assert local(each).dtype == torch.bfloat16
        assert name not in kept or torch.equal(local(each), kept[name].bfloat16())
    assert any(not torch.equal(each, each.bfloat16().float()) for each in kept.values())


def check_gradients_that_are_still_sums_are_added_up(me: Rank) -> None:
    """As those of a norm under tensor parallelism may be."""
    over, group = mesh()["shard"], mesh()["replicate"].get_group()
    model = nn.Module()
    model.weight = nn.Parameter(DTensor.from_local(torch.zeros(2), over, [Replicate()]))
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    outer = gtopk.OuterOptimizer(inner, model, "demo", group)
    terms = torch.tensor([[3.0, 1.0], [-1.0, -3.0]][me.rank % 2])  # the sum has other signs
    model.weight.grad = DTensor.from_local(terms, over, [Partial()])
    outer.step()
    assert torch.equal(local(model.weight), torch.tensor([-0.5, 0.5]))


def check_a_step_that_a_scaler_skips_is_that_of_all_shards(me: Rank) -> None:
    """Of a gradient that is not finite in one of them; without one, a scaler changes no bit."""
    plain, scaled, scales = Outer(me, preset="sparseloco"), Outer(me, preset="sparseloco"), scaler()
    plain.steps(INNER)
    for step in range(INNER + 1):
        scaled.optimizer.zero_grad()
        scales.scale(loss_of(scaled.model, me.rank, step)).backward()
        before = own_parts(scaled.model)
        if step == INNER:
            assert equal(before, own_parts(plain.model))
            if me.rank == 1:
                local(scaled.model[0].weight.grad)[0, 0] = float("inf")
        scales.step(scaled.optimizer)
        scales.update()
    assert equal(before, own_parts(scaled.model)) == (me.rank < 2)


def check_a_first_step_with_a_learning_rate_of_zero_counts(me: Rank) -> None:
    """Unless all gradients are zeros, as when torch makes an optimizer's state."""
    outer = Outer(me, preset="diloco")
    outer.optimizer.param_groups[0]["lr"] = 0.0
    outer.backward()
    outer.optimizer.step()
    assert outer.optimizer.steps == 1
    for each in outer.model.parameters():
        each.grad.zero_()
    outer.optimizer.step()
    assert outer.optimizer.steps == 1


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
