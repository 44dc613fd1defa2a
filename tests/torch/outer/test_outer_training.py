"""``gtopk.OuterOptimizer`` in loops: what they do, and what goes wrong."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
import torch.distributed as dist
from gtopk.training.outer_fragments import fragments_of, layer_of, smallest_gap, turns_of
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import gtopk
from helpers.outer import INNER, STEPS, Outer, inner_of, inner_step
from helpers.ranks import Rank, RankSet
from helpers.scaler import scaler
from helpers.training import batch, flat, network, replicas_are_bitwise_equal

pytestmark = pytest.mark.loopback

PRESETS = {
    "localsgd": {},
    "diloco": {},
    "streaming-diloco": {"inner_steps": 6},
    "sparseloco": {},
    "pulseloco": {},
    "demo": {},
}


def check_a_run_that_is_resumed_goes_on_bit_for_bit(me: Rank) -> None:
    """After four steps: of streaming-diloco while the exchange of a fragment is under way."""
    for preset, arguments in PRESETS.items():
        whole = Outer(me.rank, preset=preset, **arguments)
        whole.steps(4)
        saved = copy.deepcopy((whole.model.state_dict(), whole.optimizer.state_dict()))
        saved = pickle.loads(pickle.dumps(saved))
        assert (saved[1]["gtopk"]["pending"] is not None) == (preset == "streaming-diloco")
        resumed = Outer(me.rank, network(7), preset=preset, **arguments)
        resumed.model.load_state_dict(saved[0])
        resumed.optimizer.load_state_dict(saved[1])
        resumed.at = whole.at
        for each in (whole, resumed):
            each.steps(4)
        assert torch.equal(flat(whole.model), flat(resumed.model)), preset
        assert torch.equal(whole.shared(), resumed.shared()), preset
        assert whole.optimizer.stats()["rounds"] >= 2, preset


def check_shared_parameters_move_when_an_exchange_is_due(me: Rank) -> None:
    outer = Outer(me.rank, preset="streaming-diloco", inner_steps=9, delay=2)
    first = outer.optimizer.shared_parameters()
    outer.steps(4)  # fragment 1 has its turn after 3, and is due after 5
    dist.barrier()  # whoever has passed it has also sent its part
    assert outer.optimizer._rounds.pending.fragment == 1
    outer.optimizer.state_dict()  # waits
    now = outer.optimizer.shared_parameters()
    assert all(torch.equal(first[name], now[name]) for name in first)
    outer.step()
    now = outer.optimizer.shared_parameters()
    moved = [name for name in first if not torch.equal(first[name], now[name])]
    # Layers 0, 2, 3, 5, 7, 9 hold parameters: the second and the fifth of them.
    assert moved == ["2.weight", "2.bias", "7.weight", "7.bias"]
    kept = {name: each.clone() for name, each in outer.model.named_parameters()}
    assert any(not torch.equal(kept[name], now[name]) for name in moved)  # mix


def check_memory_beside_the_model(me: Rank) -> None:
    """The shared parameters, a momentum if there is one, errors where something is left behind."""
    for arguments, kept in (
        ({"preset": "localsgd"}, ["parameters"]),
        ({"preset": "diloco"}, ["parameters", "velocity"]),
        ({"preset": "diloco", "momentum": 0.0}, ["parameters"]),
        ({"preset": "diloco", "wire": "4bit", "error_decay": 1.0}, None),
        ({"preset": "sparseloco"}, ["parameters", "error"]),
        ({"preset": "sparseloco", "error_decay": 0.0}, ["parameters"]),
    ):
        saved = Outer(me.rank, **arguments).optimizer.state_dict()["gtopk"]
        there = [name for name in ("parameters", "velocity", "error") if saved[name]]
        assert there == (kept or ["parameters", "velocity", "error"]), arguments


def check_a_replica_that_is_not_finite_has_no_part(me: Rank) -> None:
    outer = Outer(me.rank, preset="sparseloco")
    outer.steps(5)
    if me.rank == 1:
        with torch.no_grad():
            outer.model[0].weight[3, 5] = float("nan")
        with pytest.warns(UserWarning, match=r"parameters are not finite in round 1: it does"):
            outer.optimizer.step()
        assert not any(x.any() for x in outer.optimizer.state_dict()["gtopk"]["error"].values())
    else:
        outer.optimizer.step()
    assert outer.optimizer.stats()["participants"] == 3
    assert flat(outer.model).isfinite().all()
    assert replicas_are_bitwise_equal(outer.model)
    outer.optimizer.zero_grad()
    outer.steps(INNER)
    assert outer.optimizer.stats()["participants"] == 4


def check_a_round_without_replicas_changes_nothing(me: Rank) -> None:
    outer = Outer(me.rank, preset="sparseloco")
    outer.steps(5)
    before, error = outer.shared(), outer.optimizer.state_dict()["gtopk"]["error"]
    with torch.no_grad():
        outer.model[0].weight[0, 0] = float("inf")
    with pytest.warns(UserWarning, match="not finite"):
        outer.optimizer.step()
    assert torch.equal(flat(outer.model), before)
    after = outer.optimizer.state_dict()["gtopk"]["error"]
    assert all(torch.equal(error[name], after[name]) for name in error)
    stats = outer.optimizer.stats()
    assert (stats["rounds"], stats["skipped"], stats["participants"]) == (2, 1, 0)


def check_a_round_that_misses_its_quorum_is_skipped_by_all(me: Rank) -> None:
    """Whoever is well goes on from its own parameters, and sends in the next round what it has not
    sent in this one.
    """
    outer = Outer(me.rank, preset="sparseloco", quorum=4)
    alone = network()
    inner = inner_of(alone)
    before, error = outer.shared(), outer.optimizer.state_dict()["gtopk"]["error"]
    outer.steps(2)
    for step in range(2):
        inner_step(alone, inner, me.rank, step)
    inner.step()  # again with the gradients of the last one
    if me.rank == 1:
        with torch.no_grad():
            outer.model[0].weight[3, 5] = float("nan")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        outer.optimizer.step()
    assert "3 replicas took part in round 0, fewer than quorum=4" in str(seen[-1].message)
    assert torch.equal(outer.shared(), before)
    after = outer.optimizer.state_dict()["gtopk"]["error"]
    assert all(torch.equal(error[name], after[name]) for name in error)
    assert torch.equal(flat(outer.model), before if me.rank == 1 else flat(alone))
    stats = outer.optimizer.stats()
    assert (stats["rounds"], stats["skipped"], stats["participants"]) == (1, 1, 3)
    outer.optimizer.zero_grad()
    outer.steps(INNER)
    assert outer.optimizer.stats()["participants"] == 4
    assert not torch.equal(outer.shared(), before)
    assert replicas_are_bitwise_equal(outer.model)


def check_a_sum_that_overflows_changes_nothing(me: Rank) -> None:
    for preset, what in (("diloco", "movements"), ("localsgd", "parameters")):
        model = nn.Linear(4, 4, bias=False)
        inner = torch.optim.SGD(model.parameters(), 1.0)
        outer = gtopk.OuterOptimizer(inner, model, preset, inner_steps=1)
        before = outer.shared_parameters()["weight"]
        model.weight.grad = torch.full((4, 4), 3e38)
        with pytest.warns(UserWarning, match=f"{what} overflowed when they were added in round 0"):
            outer.step()
        assert torch.equal(model.weight, before)


def check_what_is_not_finite_is_named(me: Rank) -> None:
    for preset, what in (("demo", "gradients"), ("diloco", "buffers")):
        outer = Outer(me.rank, Odd() if what == "buffers" else None, preset=preset)
        outer.steps(INNER - 1)
        if me.rank != 1:
            outer.optimizer.step()
            continue
        with torch.no_grad():
            wrong = (
                outer.model[0].weight.grad if what == "gradients" else outer.model.norm.running_var
            )
            wrong[0] = float("nan")
        with pytest.warns(UserWarning, match=f"this replica's {what} are not finite in round"):
            outer.optimizer.step()


def check_replicas_that_differ_are_named(me: Rank) -> None:
    outer = Outer(me.rank, preset="diloco")
    outer.steps(4)
    saved = outer.optimizer.state_dict()
    if me.rank == 2:
        outer.optimizer._rounds.parts()[0].parameters[77] += 1e-6
    outer.step()
    before = outer.shared()
    message = r"differ in round 1: those of rank 2 differ from those of ranks 0, 1, 3\."
    with pytest.raises(RuntimeError, match=message):
        outer.step()
    assert torch.equal(outer.shared(), before)
    outer.optimizer.load_state_dict(saved)
    outer.optimizer._rounds.number += me.rank == 3
    outer.steps(1)
    with pytest.raises(RuntimeError, match="different rounds: rank 3 in round 2, rank 0 in round"):
        outer.step()


def check_two_replicas_that_differ_are_both_named(me: Rank) -> None:
    outer = Outer(me.rank, preset="diloco")
    outer.optimizer._rounds.parts()[0].parameters[0] += me.rank
    outer.steps(2)
    with pytest.raises(RuntimeError, match="those of ranks 0, 1 differ from each other"):
        outer.step()


class Odd(nn.Module):
    """With a frozen, a tied, an unused, an empty and a complex parameter, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(24, 40, bias=False)
        self.norm = nn.BatchNorm1d(40)
        self.last = nn.Linear(24, 40, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(5))
        self.empty = nn.Parameter(torch.ones(0))
        self.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.register_buffer("mask", torch.full((2,), float("-inf")))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x)) + self.last(x) * self.turn.real.sum() + self.turn.imag.sum()


def check_odd_parameters_and_buffers(me: Rank) -> None:
    for preset in ("localsgd", "diloco", "sparseloco"):
        model = Odd()
        with torch.no_grad():
            model.frozen.fill_(me.rank)
            model.scratch.fill_(me.rank)
        outer = Outer(me.rank, model, preset=preset)
        assert not model.frozen.any()  # from rank 0, once
        with torch.no_grad():
            model.frozen.fill_(me.rank)
        outer.steps(2)
        running = model.norm.running_mean.clone()
        x, _ = batch(me.rank, 2)
        with torch.no_grad():
            running = 0.9 * running + 0.1 * model.first(x).mean(0)
        dist.all_reduce(running)
        outer.step()
        names = [*outer.optimizer.shared_parameters()]
        assert names == ["unused", "turn", "first.weight", "norm.weight", "norm.bias"]
        assert (model.frozen == me.rank).all()
        trained = [each for name, each in model.named_parameters() if name in names]
        numbers = [x.detach() for x in trained if not x.is_complex()]
        numbers.append(torch.view_as_real(model.turn.detach()))
        assert replicas_are_bitwise_equal(nn.ParameterList(map(nn.Parameter, numbers)))
        assert torch.allclose(model.norm.running_mean, running / me.size, atol=1e-6)
        assert model.norm.num_batches_tracked == INNER
        assert model.mask.isinf().all()
        assert model.turn.dtype == torch.complex64
        assert model.last.weight is model.first.weight


def check_half_types_keep_shared_parameters_in_float32(me: Rank) -> None:
    for preset in ("localsgd", "diloco", "sparseloco"):
        model = network().bfloat16()
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        outer = gtopk.OuterOptimizer(inner, model, preset, inner_steps=2)
        for step in range(6):
            x, labels = batch(me.rank, step)
            outer.zero_grad()
            nn.functional.cross_entropy(model(x.bfloat16()), labels).backward()
            outer.step()
        saved = outer.state_dict()["gtopk"]["parameters"]
        assert all(each.dtype == torch.float32 for each in saved.values())
        assert all(
            torch.equal(each, saved[name].bfloat16()) for name, each in model.named_parameters()
        ), preset
        assert any(not torch.equal(saved[n], saved[n].bfloat16().float()) for n in saved)


def check_steps_are_counted_and_not_backwards(me: Rank) -> None:
    """Accumulation, a closure and a scheduler; and the step with which torch makes a state."""
    outer = Outer(me.rank, preset="diloco")
    optimizer, model = outer.optimizer, outer.model
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(INNER):
        assert optimizer.stats()["rounds"] == 0
        optimizer.zero_grad()
        for micro in range(4):
            x, labels = batch(me.rank, 4 * step + micro)
            nn.functional.cross_entropy(model(x), labels).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()
            schedule.step()
    assert optimizer.stats()["rounds"] == 1
    assert optimizer._inner.param_groups[0]["lr"] == 0.01 / 2**INNER

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert optimizer.stats()["steps"] == INNER + 1
    fresh = Outer(me.rank, preset="diloco")
    get_optimizer_state_dict(fresh.model, fresh.optimizer)
    assert fresh.optimizer.stats()["steps"] == 0


def check_a_scaler_changes_no_bit(me: Rank) -> None:
    """Also with an inner optimizer that unscales the gradients itself."""
    for fused in (False, True):
        plain, scaled = (Outer(me.rank, fused=fused, preset="sparseloco") for _ in range(2))
        scales = scaler()
        plain.steps(STEPS)
        for step in range(STEPS):
            x, labels = batch(me.rank, step)
            scaled.optimizer.zero_grad()
            scales.scale(nn.functional.cross_entropy(scaled.model(x), labels)).backward()
            if step % 2:
                scales.unscale_(scaled.optimizer)
            scales.step(scaled.optimizer)
            scales.update()
        assert torch.equal(flat(plain.model), flat(scaled.model))


def check_a_step_that_a_scaler_skips_counts(me: Rank) -> None:
    """On one replica only: the others do not wait for it."""
    for fused in (False, True):
        outer, scales = Outer(me.rank, fused=fused, preset="diloco"), scaler()
        for step in range(INNER):
            x, labels = batch(me.rank, step)
            outer.optimizer.zero_grad()
            scales.scale(nn.functional.cross_entropy(outer.model(x), labels)).backward()
            if (me.rank, step) == (1, 1):
                outer.model[0].weight.grad[0, 0] = float("inf")
            before = flat(outer.model)
            scales.step(outer.optimizer)
            scales.update()
            if step == 1:
                assert torch.equal(before, flat(outer.model)) == (me.rank == 1)
        assert outer.optimizer.stats()["participants"] == me.size
        assert replicas_are_bitwise_equal(outer.model)


def test_fragments_take_even_turns_and_mix_layers_of_all_depths() -> None:
    assert turns_of(30, 3) == {0: 0, 10: 1, 20: 2}
    assert turns_of(7, 3) == {0: 0, 2: 1, 4: 2}
    assert [smallest_gap(7, count) for count in (1, 2, 3)] == [7, 3, 2]
    names = ["tokens.weight", *(f"blocks.{i}.{x}" for i in range(4) for x in "ab"), "head"]
    assert fragments_of(names, 3) == [
        ["tokens.weight", "blocks.2.a", "blocks.2.b"],
        ["blocks.0.a", "blocks.0.b", "blocks.3.a", "blocks.3.b"],
        ["blocks.1.a", "blocks.1.b", "head"],
    ]
    assert layer_of("decoder.layers.12.mlp.0.weight") == "decoder.layers.12"
    assert layer_of("0.weight") == "0"


def test_two_replicas_that_differ_are_both_named(two: RankSet) -> None:
    two.run(check_two_replicas_that_differ_are_both_named)


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)
