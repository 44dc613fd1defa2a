"""gtopk.attach, and states that differ between ranks: an error on every rank."""

from __future__ import annotations

import copy
import functools
import io
import pickle

import pytest
import torch
import torch.distributed as dist
from gtopk.state.fingerprint import first_difference
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gtopk
from helpers.ranks import Rank, RankSet
from helpers.training import Training, flat, gloo, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback


@functools.cache
def halves() -> list[dist.ProcessGroup]:
    """Ranks 0 and 1, ranks 2 and 3."""
    return [dist.new_group([0, 1]), dist.new_group([2, 3])]


def check_attach_takes_model_and_group_from_the_ddp(me: Rank) -> None:
    half = halves()[me.rank // 2]
    model = network()
    model[0].bias.requires_grad_(False)
    ignored = {"2.bias"}
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    ddp = DistributedDataParallel(model, process_group=half)
    state = gtopk.attach(ddp, density=0.05, unit="parameter")
    names = {name for unit in state.units for name in unit.names}
    assert names == {name for name, _ in model.named_parameters()} - ignored - {"0.bias"}
    assert state.group is half
    assert state.density == 0.05
    # The halves see different data, and diverge.
    for step in range(3):
        x = torch.randn(8, 24, generator=torch.Generator().manual_seed(4 * step + me.rank))
        model.zero_grad()
        ddp(x).square().sum().backward()
    mine = model[9].weight.grad
    gathered = [torch.empty_like(mine) for _ in range(me.size)]
    dist.all_gather(gathered, mine)
    assert torch.equal(gathered[0], gathered[1])
    assert torch.equal(gathered[2], gathered[3])
    assert not torch.equal(gathered[0], gathered[2])
    with pytest.raises(RuntimeError, match="already has a communication hook"):
        gtopk.attach(ddp)
    dist.barrier()


def check_attach_trains_as_the_hook_registered_by_hand(me: Rank) -> None:
    ends = []
    for by_hand in (True, False):
        training = Training(me.rank)
        if by_hand:
            training.hooked(density=0.05, unit="model")
        else:
            gtopk.attach(training.ddp, 0.05, unit="model")
        for _ in range(4):
            training.step()
        ends.append(flat(training.model))
    assert torch.equal(*ends)


def refused(me: Rank, message: str, training: Training, state: gtopk.SparseState) -> None:
    """The first backward raises on every rank and changes nothing; the group still works."""
    training.ddp.register_comm_hook(state, gtopk.sparse_hook)
    with pytest.raises(ValueError, match=message):
        training.loss().backward()
    assert state.step == 0
    assert not any(residual.any() for residual in state.state_dict()["residuals"].values())
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor[0].item() == me.size


class Two(nn.Module):
    """Two layers of one shape, registered in either order: DDP itself sees no difference."""

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(64, 64, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(nn.functional.pad(x, (0, 40))).tanh())[:, :40]


def check_parameters_in_another_order_are_named(me: Rank) -> None:
    training = Training(me.rank, model=Two(("b", "a") if me.rank == 1 else ("a", "b")))
    state = gtopk.SparseState(training.model.named_parameters(), unit="model")
    here, there, whose = "'a", "'b", 0
    if me.rank != 1:
        here, there, whose = "'b", "'a", 1
    where = rf"unit 0 holds {here}.weight' .* here and {there}.weight' .* on rank {whose}\."
    refused(me, where, training, state)


def check_configurations_that_differ_are_named_with_both_values(me: Rank) -> None:
    odd = me.rank == 2
    for changes, message in (
        ({"density": 0.5}, "density is {} here and {} on rank {}"),
        ({"warmup": [("dense", 3)]}, "warmup is {} here and {} on rank {}"),
        ({"algorithm": "gtopk-tree"}, "algorithm is {} here and {} on rank {}"),
        ({"put_back": "merged"}, "put_back is {} here and {} on rank {}"),
    ):
        training = Training(me.rank)
        plain = {"density": 0.05, "warmup": (), "algorithm": "gtopk", "put_back": "own"}
        arguments = {**plain, **(changes if odd else {})}
        state = gtopk.SparseState(training.model, unit="model", **arguments)
        ((name, value),) = changes.items()
        both = [
            repr([list(each) for each in v] if name == "warmup" else v)
            for v in (plain[name], value)
        ]
        said = message.format(*(both[::-1] if odd else both), 0 if odd else 2)
        refused(me, said.replace("[", r"\["), training, state)


def check_a_checkpoint_that_one_rank_has_not_loaded_is_named(me: Rank) -> None:
    training = Training(me.rank)
    state = gtopk.SparseState(training.model, unit="model")
    if me.rank != 3:
        state.load_state_dict({**state.state_dict(), "step": 7})
    training.ddp.register_comm_hook(state, gtopk.sparse_hook)
    mine, theirs, whose = (0, 7, 0) if me.rank == 3 else (7, 0, 3)
    with pytest.raises(ValueError, match=f"step is {mine} here and {theirs} on rank {whose}"):
        training.loss().backward()


def check_a_ddp_of_a_subgroup_needs_a_state_of_it(me: Rank) -> None:
    """Otherwise all ranks, in two DDPs of two, would exchange gradients with one another."""
    half = halves()[me.rank // 2]
    mine = "0, 1" if me.rank < 2 else "2, 3"
    operations = gtopk.stats(dist.group.WORLD)["operations"]
    for by_state in (True, False):
        ddp = DistributedDataParallel(network(), process_group=half)
        state = gtopk.SparseState(ddp.module.named_parameters())
        if by_state:
            ddp.register_comm_hook(state, gtopk.sparse_hook)
        else:
            ddp.register_comm_hook(
                None, lambda _, bucket, state=state: gtopk.sparse_hook(state, bucket)
            )
        with pytest.raises(
            ValueError, match=rf"over ranks {mine}, .* over ranks 0, 1, 2, 3: .*attach"
        ):
            ddp(torch.ones(2, 24)).sum().backward()
    assert gtopk.stats(dist.group.WORLD)["operations"] == operations
    # Over another backend but the same ranks: DDP's own messages may use it.
    training = Training(me.rank, group=gloo())
    training.hooked(density=0.05)
    training.step()
    assert replicas_are_bitwise_equal(training.model)


def check_ranks_compare_their_states_once(me: Rank) -> None:
    training = Training(me.rank)
    training.hooked(density=0.05, unit="model")
    counts = []
    for _ in range(4):
        before = gtopk.stats()["operations"]
        training.optimizer.zero_grad()
        loss = training.loss()
        forward = gtopk.stats()["operations"] - before
        loss.backward()
        counts.append(gtopk.stats()["operations"] - before - forward)
    assert counts == [3, 2, 2, 2]
    dist.barrier()


def check_copies_are_states_of_their_own(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(density=0.05, unit="model")
    training.step()
    saved = io.BytesIO()
    torch.save(state, saved)
    saved.seek(0)
    pickled = pickle.dumps(state)
    elements = sum(p.numel() for p in training.model.parameters() if p.numel() >= 1024)
    assert len(pickled) < 4 * elements + 20_000
    for made in (
        copy.deepcopy(state),
        pickle.loads(pickled),
        torch.load(saved, weights_only=False),
    ):
        assert (made.step, made.config, made.units) == (1, state.config, state.units)
        assert torch.equal(made.residual("0.weight"), state.residual("0.weight"))
        made.residual("0.weight").zero_()
        assert state.residual("0.weight").any()
        with pytest.raises(RuntimeError, match=r"call state\.bind"):
            _ = made.backward
        with pytest.raises(ValueError, match="the pickled state has other units"):
            made.bind(nn.Linear(64, 64))


def check_a_rank_without_data_takes_part_under_join(me: Rank) -> None:
    training = Training(me.rank)
    state = training.hooked(density=0.05, unit="model")
    with training.ddp.join():
        for _ in range(3 + me.rank):
            training.step()
    assert state.step == 6
    assert replicas_are_bitwise_equal(training.model)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


def test_attach_wants_a_ddp():
    with pytest.raises(ValueError, match="DistributedDataParallel around the model, given Linear"):
        gtopk.attach(nn.Linear(4, 4))


def test_the_first_difference_has_both_sides() -> None:
    here = [("k", "3"), ("wire", "bf16"), ("select", "exact")]
    assert first_difference(here, [here[0], ("wire", "raw")], "rank 1") == (
        "wire bf16 here and raw on rank 1"
    )
    assert first_difference(here, [here[0], ("momentum", "0.9")], "rank 1") == (
        "wire bf16 here and momentum 0.9 on rank 1"
    )
    assert first_difference(here, here[:2], "rank 1") == (
        "select exact here and nothing more on rank 1"
    )
