"""error_decay: how much of what a step did not deliver waits for the next one."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp

import gtopk
from helpers.fsdp import Training as Sharded
from helpers.ranks import Rank, RankSet
from helpers.scaler import equal, residuals
from helpers.training import Plain, Training, batch, flat, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback

CODED = {"algorithm": "dense", "wire": "2bit", "unit": "parameter"}
LISTS = {"density": 0.05, "algorithm": "topk", "unit": "parameter"}
LARGE = 1024  # elements; smaller parameters are averaged densely


def steps_without_residuals(me: Rank, steps: int, **options) -> nn.Module:
    """Each parameter's gradient reduced by a call of its own, which keeps nothing."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for at in range(steps):
        x, labels = batch(me.rank, at)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        for parameter in model.parameters():
            if parameter.numel() >= LARGE:
                gtopk.sparse_all_reduce(parameter.grad, op=ReduceOp.AVG, **options)
            else:
                dist.all_reduce(parameter.grad, ReduceOp.AVG)
        optimizer.step()
    return model


def check_nothing_is_kept_with_a_decay_of_zero(me: Rank) -> None:
    for arguments in (CODED, LISTS):
        options = {name: value for name, value in arguments.items() if name != "unit"}
        expected = steps_without_residuals(me, 4, **options)
        training = Training(me.rank)
        state = training.hooked(**arguments, error_decay=0)
        training.steps(4)
        assert state.kept.residuals.all_zero
        assert torch.equal(flat(training.model), flat(expected))
        assert replicas_are_bitwise_equal(training.model)


def check_what_is_saved_is_empty_and_stays_so(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(**CODED, error_decay=0)
    training.step()
    saved = state.state_dict()
    assert not any(each.any() for each in saved["residuals"].values())
    state.load_state_dict(copy.deepcopy(saved))
    training.step()
    assert state.kept.residuals.all_zero  # the zeros that were saved are released again
    assert state.config.as_dict()["error_decay"] == 0


def check_a_share_of_what_is_left_stays(me: Rank) -> None:
    for arguments in (CODED, LISTS):
        kept = []
        for decay in (1.0, 0.25):
            training = Training(me.rank)
            state = training.hooked(**arguments, error_decay=decay)
            training.step()
            kept.append(residuals(state))
        whole, quarter = kept
        assert all(each.any() for each in whole.values())
        assert equal({name: each * 0.25 for name, each in whole.items()}, quarter)


def check_a_step_that_did_not_happen_takes_nothing_away(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(**LISTS, error_decay=0.5)
    training.step()
    before = residuals(state)
    training.optimizer.zero_grad()
    loss = training.loss()
    (loss * (float("nan") if me.rank == 1 else 1.0)).backward()
    assert any(each.any() for each in before.values())
    assert equal(before, residuals(state))


def check_what_was_skipped_travels_once_more(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(**CODED, error_decay=0)
    training.optimizer.zero_grad()
    training.loss().backward()
    delivered = {name: p.grad.clone() for name, p in training.model.named_parameters()}
    state.skip()
    for name, each in residuals(state).items():
        share = me.size * delivered[name] if me.rank == 0 else torch.zeros(())
        torch.testing.assert_close(each, share.expand_as(each))
    training.optimizer.zero_grad()
    (0 * training.loss()).backward()  # nothing but what waits
    for name, p in training.model.named_parameters():
        if p.numel() >= LARGE:
            torch.testing.assert_close(p.grad, delivered[name])
    assert state.kept.residuals.all_zero


def check_the_optimizer_gives_the_bits_of_ddp(me: Rank) -> None:
    hooked, plain = Training(me.rank), Plain(me.rank, **CODED, error_decay=0)
    state = hooked.hooked(**CODED, error_decay=0)
    for _ in range(3):
        assert hooked.step() == plain.step()
    assert torch.equal(flat(hooked.model), flat(plain.model))
    assert state.kept.residuals.all_zero
    assert plain.state.kept.residuals.all_zero


def check_replicas_of_shards(me: Rank) -> None:
    arguments = {"algorithm": "dense", "wire": "int8"}
    kept, dropped = Sharded(me, **arguments), Sharded(me, **arguments, error_decay=0)
    for _ in range(3):
        last = kept.step(), dropped.step()
    assert abs(last[0] - last[1]) < 0.02 * abs(last[0])
    assert dropped.replicas_are_bitwise_equal()
    assert dropped.state.kept.residuals.all_zero
    assert not kept.state.kept.residuals.all_zero


def check_ranks_with_two_decays_are_told_both(me: Rank) -> None:
    training = Training(me.rank)
    training.hooked(**CODED, error_decay=0 if me.rank == 1 else 1)
    with pytest.raises(ValueError, match=r"error_decay is (0|1)\.0 here and (0|1)\.0 on rank"):
        training.step()


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


@pytest.mark.parametrize("decay", [-0.1, 1.5, float("nan"), "all"])
def test_a_decay_is_a_share(decay) -> None:
    with pytest.raises((ValueError, TypeError), match=r"gtopk: .*number"):
        gtopk.SparseState(network().named_parameters(), 0.1, error_decay=decay)


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"algorithm": "dense"}, False),
        ({"algorithm": "dense", "wire": "raw"}, False),
        ({"algorithm": "dense", "warmup": [("dense", 3)]}, False),
        ({"algorithm": "dense", "warmup": [("dense", 3, "int8")]}, True),
        ({"algorithm": "dense", "wire": "bf16"}, True),
        ({"density": 0.1}, True),
        ({"density": 0.1, "algorithm": "auto", "semantics": "dense", "wire": "int8"}, True),
    ],
)
def test_a_decay_without_effect_is_refused(arguments, taken) -> None:
    if taken:
        gtopk.SparseState(network().named_parameters(), **arguments, error_decay=0)
        return
    with pytest.raises(ValueError, match=r"error_decay=0\.0 has no effect: algorithm='dense' on"):
        gtopk.SparseState(network().named_parameters(), **arguments, error_decay=0)
