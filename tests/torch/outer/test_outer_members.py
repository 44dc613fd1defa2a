"""``gtopk.OuterOptimizer`` over a ReplicaGroup: replicas join and stay away.

Shared parameters, momentum and errors against the rule in numpy, bit for bit.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gtopk.training.outer_members import Members
from torch import nn

import gtopk
from helpers.outer import INNER
from helpers.outer_members import Member, Reference
from helpers.ranks import Rank, RankSet
from helpers.training import network

pytestmark = pytest.mark.loopback

# A round of one step for demo, whose exchanges are of gradients.
RUNS = {
    "localsgd": {},
    "diloco": {},
    "streaming-diloco": {"fragments": 1, "delay": 0, "wire": "bf16"},
    "sparseloco": {"clip": "median"},
    "pulseloco": {},
    "demo": {"transform": "tiles"},
}


def inner_of_preset(preset: str) -> int:
    return 1 if preset == "demo" else INNER


def check_a_replica_is_away_for_two_rounds(me: Rank) -> None:
    for preset, starts_again in (*((each, False) for each in RUNS), ("sparseloco", True)):
        name, arguments, inner = f"{preset} {starts_again}", RUNS[preset], inner_of_preset(preset)
        outer = Member(me, preset=preset, **arguments)
        reference = Reference(me.size, preset, **arguments)
        outer.configure(f"{name} three", 0, 1, 2)
        outer.join()
        outer.steps(inner)
        reference.steps(inner, 0, 1, 2)
        reference.round(0, 1, 2)
        if me.rank == 2:
            outer.group.shutdown()
            for _ in range(inner):
                with contextlib.suppress(dist.DistBackendError):
                    outer.step()
            with pytest.raises(dist.DistBackendError, match="call configure"):
                outer.step()
            if starts_again:
                outer = outer.again()
        else:
            outer.configure(f"{name} two", 0, 1)
            outer.steps(3 * inner - 1)
        for _ in range(2):
            reference.steps(inner, 0, 1)
            reference.round(0, 1)
        assert outer.optimizer.exchanges_next
        outer.configure(f"{name} again", 0, 1, 2)
        outer.step()
        reference.steps(inner, 0, 1)
        reference.steps(inner + 2, 2)
        reference.round(0, 1, 2)
        reference.check(me.rank, outer.state())
        assert outer.optimizer.steps == 4 * inner
        outer.steps(inner)
        reference.steps(inner, 0, 1, 2)
        reference.round(0, 1, 2)
        reference.check(me.rank, outer.state())
        outer.group.shutdown()


def check_a_replica_joins(me: Rank) -> None:
    """In the first place; so the others learn that it is not the one to take over from."""
    for preset, arguments in RUNS.items():
        inner = inner_of_preset(preset)
        reference = Reference(me.size, preset, **arguments)
        reference.steps(inner, 0, 1)
        reference.round(0, 1)
        reference.steps(inner, 0, 1)
        outer = Member(me, network(7) if me.rank == 2 else None, preset=preset, **arguments)
        if me.rank < 2:
            outer.configure(f"{preset} joins two", 0, 1)
            outer.join()
            outer.steps(2 * inner - 1)
        assert outer.optimizer.exchanges_next
        outer.configure(f"{preset} joins", 2, 0, 1)
        if me.rank < 2:
            outer.step()
        else:
            outer.join()
        reference.round(2, 0, 1, joining=(2,))
        reference.check(me.rank, outer.state())
        assert outer.optimizer.steps == 2 * inner
        assert outer.optimizer.stats()["participants"] == 2
        outer.steps(inner)
        reference.steps(inner, 0, 1, 2)
        reference.round(2, 0, 1)
        reference.check(me.rank, outer.state())
        outer.group.shutdown()


def check_one_that_joins_gets_the_whole_model(me: Rank) -> None:
    """Buffers and frozen parameters, too."""
    torch.manual_seed(me.rank)
    model = nn.Sequential(nn.Linear(24, 20), nn.BatchNorm1d(20), nn.Linear(20, 20))
    model[2].bias.requires_grad_(False)
    torch.nn.init.normal_(model[1].running_mean)
    outer = Member(me, model, preset="diloco")
    outer.configure("whole", 0, 1, 2)
    outer.join()
    mine = {name: each.tolist() for name, each in model.state_dict().items()}
    me.store.set(f"model of {me.rank}", json.dumps(mine))
    assert json.loads(me.store.get("model of 0")) == mine
    torch.manual_seed(0)
    assert torch.equal(model[0].weight, nn.Linear(24, 20).weight)
    outer.steps(INNER)
    assert outer.is_like_the_others()
    outer.group.shutdown()


def check_ranks_change_while_an_exchange_is_under_way(me: Rank) -> None:
    outer = Member(me, preset="diloco", delay=1)
    outer.configure("under way", 0, 1, 2)
    outer.join()
    outer.steps(INNER)
    outer.configure("under way again", 2, 1, 0)
    outer.step()
    assert outer.optimizer.pending
    reference = Reference(me.size, "diloco", delay=1)
    reference.steps(INNER + 1, 0, 1, 2)
    reference.check(me.rank, outer.state())
    used = reference.sums(2, 1, 0)
    if me.rank == 1:  # of a state that is saved with an exchange under way, it begins again
        saved = outer.optimizer.state_dict()["gtopk"]
        assert (saved["waiting"], saved["pending"], saved["rounds"]) == ([0], None, 0)
    outer.step()
    reference.steps(1, 0, 1, 2)
    reference.replicas.use(0, used)
    reference.check(me.rank, outer.state())
    outer.group.shutdown()


def check_each_fragment_has_its_anchor(me: Rank) -> None:
    """Fragment 1 has its turn after steps 1, 4 and 7, fragment 0 after steps 3, 6 and 9."""
    arguments = {"preset": "sparseloco", "fragments": 2}
    outer, reference = Member(me, **arguments), Reference(me.size, **arguments)
    outer.configure("fragments three", 0, 1, 2)
    outer.join()
    outer.steps(3)
    reference.steps(1, 0, 1, 2)
    reference.round(0, 1, 2, fragment=1)
    reference.steps(2, 0, 1, 2)
    reference.round(0, 1, 2)
    if me.rank == 2:
        outer.group.shutdown()
    else:
        outer.configure("fragments two", 0, 1)
        outer.steps(3)
    reference.steps(1, 0, 1)
    reference.round(0, 1, fragment=1)
    reference.steps(2, 0, 1)
    reference.round(0, 1)
    outer.configure("fragments again", 0, 1, 2)
    outer.step()
    reference.steps(1, 0, 1, 2)
    reference.round(0, 1, 2, fragment=1)
    reference.check(me.rank, outer.state())
    outer = outer.again()  # all of them do
    outer.configure("fragments started again", 0, 1, 2)
    outer.steps(2)
    reference.steps(2, 0, 1, 2)
    reference.round(0, 1, 2)
    reference.check(me.rank, outer.state())
    outer.group.shutdown()


def check_one_that_is_not_alike_does_not_join(me: Rank) -> None:
    outer = Member(me, preset="diloco", lr=0.5 if me.rank == 2 else 0.7)
    with pytest.raises(dist.DistBackendError, match="call configure"):
        outer.step()
    if me.rank < 2:
        outer.configure("alike two", 0, 1)
        outer.join()
        outer.steps(INNER - 1)
    before = outer.state()
    outer.configure("alike", 0, 1, 2)
    with pytest.raises(ValueError, match=r"lr is 0\.[57] here and 0\.[57] on rank"):
        outer.step()
    if me.rank < 2:
        outer.configure("alike again", 0, 1)
        outer.step()
        assert not np.array_equal(
            before["parameters"]["0.weight"], outer.state()["parameters"]["0.weight"]
        )
        assert outer.is_like_the_others()
    outer.group.shutdown()


def check_shared_parameter_mismatch_is_an_error_then_corrected(me: Rank) -> None:
    outer = Member(me, preset="diloco")
    outer.configure("differ", 0, 1, 2)
    outer.join()
    outer.steps(INNER)
    shared = outer.optimizer._rounds.parts()[0].parameters[0]
    before = shared.clone()
    if me.rank == 0:
        shared += 1
    outer.steps(INNER - 1)
    with pytest.raises(RuntimeError, match=r"those of rank 0 differ from those of ranks 1, 2"):
        outer.step()
    told = contextlib.nullcontext()
    if me.rank == 0:
        told = pytest.warns(UserWarning, match="differ from those of rank 1 ahead of round 1")
    with told:
        outer.step()
    assert outer.is_like_the_others()
    after = outer.optimizer._rounds.parts()[0].parameters[0]
    assert (after - before).abs().max() < 0.5  # rank 0's were 1 higher
    outer.group.shutdown()


def errors_of(outer: Member) -> torch.Tensor:
    errors = outer.optimizer.state_dict()["gtopk"]["error"]
    return torch.cat([each.flatten() for each in errors.values()])


def check_members_save_and_load_together(me: Rank) -> None:
    """As many resume bit for bit; two add up errors of three; the third of two has none."""
    me.store.set(f"folder of {me.rank}", tempfile.mkdtemp())
    path = me.store.get("folder of 0").decode()
    arguments = {"preset": "sparseloco", "fragments": 2}
    whole = Member(me, **arguments)
    whole.configure("save", 0, 1, 2)
    with pytest.raises(RuntimeError, match=r"after a step\(\) that has ended an exchange"):
        gtopk.save(whole.optimizer, path)
    whole.join()
    whole.steps(INNER + 1)
    gtopk.save(whole.optimizer, path)
    errors = [torch.empty_like(errors_of(whole)) for _ in range(3)]
    dist.all_gather(errors, errors_of(whole), group=whole.group)

    resumed = Member(me, network(7), **arguments)
    resumed.configure("load", 0, 1, 2)
    gtopk.load(resumed.optimizer, path)
    resumed.at = whole.at
    for each in (whole, resumed):
        each.steps(INNER)
    mine, its = whole.state(), resumed.state()
    for kind, tensors in mine.items():
        for name, tensor in tensors.items():
            assert np.array_equal(its[kind][name], tensor), (kind, name)
    resumed.group.shutdown()

    if me.rank < 2:
        two = Member(me, network(7), **arguments)
        two.configure("load two", 0, 1)
        gtopk.load(two.optimizer, path)
        assert torch.equal(errors_of(two), errors[0] + errors[2] if me.rank == 0 else errors[1])
        two.at = two.optimizer.steps
        two.steps(INNER)
        gtopk.save(two.optimizer, path)
        two.group.shutdown()
    dist.barrier(group=whole.group)
    three = Member(me, network(7), **arguments)
    three.configure("load three", 0, 1, 2)
    gtopk.load(three.optimizer, path)
    assert errors_of(three).any() == (me.rank < 2)
    shared = three.optimizer.shared_parameters()
    if me.rank == 2:
        assert all(map(torch.equal, shared.values(), three.model.parameters()))
    three.at = three.optimizer.steps
    three.steps(INNER)
    assert three.optimizer.stats()["participants"] == 3
    for each in (three, whole):
        each.group.shutdown()


def check_what_members_tell_each_other_has_few_bytes(me: Rank) -> None:
    """As the page says: 112 and 72 to each other; from one of them 16, and 8 per fragment."""
    sent: dict[str, list[int]] = {}

    def counted(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def count(self: Members, *arguments: object) -> None:
            before = gtopk.stats(outer.group)["bytes_sent"]
            call(self, *arguments)
            sent.setdefault(name, []).append(gtopk.stats(outer.group)["bytes_sent"] - before)

        return count

    outer = Member(me, preset="diloco")
    outer.configure("bytes", 0, 1, 2)
    outer.join()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("meet", "all_have_it"):
            patch.setattr(Members, name, counted(name, getattr(Members, name)))
        outer.steps(INNER)
        outer.configure("bytes again", 0, 1, 2)
        outer.steps(INNER)
    assert sent["all_have_it"] == [2 * 72] * 2
    # The broadcast has 24 bytes, and in a group of three every rank sends headers.
    assert sent["meet"] == [2 * 112 + (2 * 88 if me.rank == 0 else 2 * 32)]
    outer.group.shutdown()


def test_on_three_ranks_without_a_group(three_apart: RankSet, check) -> None:
    three_apart.run(check)
