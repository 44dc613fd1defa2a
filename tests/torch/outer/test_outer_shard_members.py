"""``gtopk.OuterOptimizer`` over FSDP2 and a ReplicaGroup for each shard: no replica is torn.

Three replicas of two ranks, each a job of its own. Every bit is that of the rule in numpy.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gtopk.training.outer_buffers import Buffers
from gtopk.training.outer_exchange import Agreement, Exchange
from gtopk.training.outer_members import Members
from gtopk.training.outer_rounds import Rounds
from torch.distributed.fsdp import fully_shard

import gtopk
from helpers.outer_shard_members import SHARDS, Reference, ShardMember, inside_of
from helpers.outer_shards import INNER, Odd, Outer, local, network, own_parts
from helpers.ranks import Rank, RankSet
from helpers.training import batch

pytestmark = pytest.mark.loopback

ROUNDS = {"diloco": {}, "sparseloco": {"clip": "median"}}
OTHER = "exchange of other shards of this replica failed"


def parts_of(outer: Outer) -> list[np.ndarray]:
    """This rank's parts of everything."""
    kept = [each for kind in ("parameters", "velocity", "error") for each in outer.saved(kind)]
    return [each.numpy() for each in (*own_parts(outer.model), *kept)]


def run_over_fixed_groups(me: Rank, preset: str, arguments: dict) -> list[np.ndarray]:
    outer = Outer(me, preset=preset, **arguments)
    outer.steps(2 * INNER + 1)
    return parts_of(outer)


def run_over_replica_groups(me: Rank, preset: str, arguments: dict) -> list[np.ndarray]:
    if me.rank >= 4:
        return []
    outer = ShardMember(me, f"undisturbed {preset}", preset=preset, **arguments)
    outer.begin("two", 0, 1)
    outer.steps(INNER + 1)
    found = parts_of(outer)
    outer.leave()
    return found


@pytest.mark.parametrize("preset", ROUNDS)
def test_undisturbed_every_bit_is_that_of_fixed_groups(
    four: RankSet, six_apart: RankSet, preset: str
) -> None:
    fixed = four.run(run_over_fixed_groups, preset, ROUNDS[preset])
    found = six_apart.run(run_over_replica_groups, preset, ROUNDS[preset])
    for mine, its in zip(found[:4], fixed, strict=True):
        assert all(map(np.array_equal, mine, its))
        assert len(mine) == len(its) > 9


def check_a_replica_joins(me: Rank) -> None:
    """In the first place, in each shard's group."""
    for preset in ROUNDS:
        reference = Reference(3, preset)
        reference.steps(INNER, 0, 1)
        reference.round(0, 1)
        reference.steps(INNER, 0, 1)
        outer = ShardMember(me, f"joins {preset}", preset=preset)
        if outer.replica < 2:
            outer.begin("two", 0, 1)
            outer.steps(INNER - 1)
        outer.configure("three", 2, 0, 1)
        if outer.replica < 2:
            outer.steps(1)
        else:
            outer.join()
        reference.round(2, 0, 1, joining=(2,))
        reference.check(outer)
        assert outer.optimizer.steps == 2 * INNER
        outer.steps(INNER)
        reference.steps(INNER, 0, 1, 2)
        reference.round(2, 0, 1)
        reference.check(outer)
        outer.leave()


def fails_after(owner: type, name: str, then: Callable[[], None] = lambda: None) -> None:
    """Let this rank's next call fail once the others have what they need of it, and `then`."""
    call = getattr(owner, name)

    def fails(*arguments: object) -> None:
        setattr(owner, name, call)
        call(*arguments)
        then()
        raise dist.DistBackendError("the connection broke")

    setattr(owner, name, fails)


FAILURES = {
    "its agreement": (Agreement, "__init__", {}),
    "its exchange": (Exchange, "_finish", {}),
    "its buffers": (Buffers, "exchange", {}),
    "with a grace period": (Exchange, "_finish", {"grace": 600.0}),
}


def check_a_round_that_fails_on_one_rank_fails_on_its_replica(me: Rank) -> None:
    """And, before it says that it has the result, on all; the next step repeats it."""
    for what, (owner, name, arguments) in FAILURES.items():
        outer = ShardMember(me, what, preset="sparseloco", **arguments)
        reference = Reference(3, "sparseloco")
        outer.begin("three", 0, 1, 2)
        reference.steps(INNER, 0, 1, 2)
        reference.round(0, 1, 2)
        outer.steps(INNER - 1)
        if me.rank == 3:
            fails_after(owner, name)
        message = {2: OTHER, 3: "the connection broke"}.get(me.rank, "gtopk")
        with pytest.raises(dist.DistBackendError, match=message):
            outer.steps(1)
        reference.steps(INNER, 0, 1, 2)
        reference.check(outer)
        if not arguments:
            outer.configure("again", 0, 1, 2)
        outer.steps(1)
        reference.steps(1, 0, 1, 2)
        reference.round(0, 1, 2)
        reference.check(outer)
        outer.leave()


def check_a_replica_hears_later_that_the_round_counts(me: Rank) -> None:
    """A rank of replica 1 does not hear that all have the result; its other rank does."""
    outer = ShardMember(me, "hears later", preset="sparseloco")
    reference = Reference(3, "sparseloco")
    outer.configure("three", 0, 1, 2)
    outer.join()
    outer.steps(INNER - 1)
    reference.steps(INNER, 0, 1, 2)
    others = [f"{rank} has used it" for rank in (0, 1, 4, 5)]
    if me.rank == 3:
        fails_after(Members, "_gathered", lambda: me.store.wait(others))
    if outer.replica == 1:
        with pytest.raises(dist.DistBackendError, match="broke" if me.rank == 3 else OTHER):
            outer.steps(1)
        assert outer.optimizer.stats()["rounds"] == 0
        reference.check(outer)
    else:
        outer.steps(1)
        assert outer.optimizer.stats()["rounds"] == 1
        me.store.set(f"{me.rank} has used it", "")
    outer.configure("again", 0, 1, 2)
    used = reference.sums(0, 1, 2)
    outer.steps(1 if outer.replica == 1 else INNER)
    reference.steps(1, 1)  # whose movement is lost
    reference.use(used)
    reference.steps(INNER, 0, 2)
    reference.round(0, 1, 2)
    reference.check(outer)
    outer.leave()


def check_groups_of_other_replicas_are_refused(me: Rank) -> None:
    outer = ShardMember(me, "others", preset="diloco")
    order = [(0, 1, 2), (1, 0, 2)][outer.shard]
    outer.configure("mixed", *order)
    with pytest.raises(dist.DistBackendError, match="other replicas, or the same in another order"):
        outer.join()
    outer.configure("alike", 0, 1, 2)
    outer.join()
    outer.configure("more", *((0, 1, 2) if outer.shard else order))
    outer.steps(INNER)
    if outer.shard:
        outer.members.shutdown()
    outer.steps(INNER - 1)
    message = "call configure" if outer.shard else OTHER
    with pytest.raises(dist.DistBackendError, match=message):
        outer.steps(1)
    outer.leave()


def check_a_late_replica_is_late_as_a_whole(me: Rank) -> None:
    outer, reference = ShardMember(me, "late", preset="diloco", grace=600.0), Reference(3, "diloco")
    outer.begin("three", 0, 1, 2)  # roll calls 0 and 1, of the first shard's group
    reference.steps(INNER, 0, 1, 2)
    reference.round(0, 1, 2)
    roll = outer.optimizer._rounds.members._roll
    outer.steps(INNER - 1)
    came = dist.PrefixStore("late three 0/rolls", me.store)
    if outer.replica < 2:
        if me.rank == 0:
            came.wait(["2/1"])
            roll._grace = 0.0
        outer.steps(1)
        roll._grace = 600.0
        me.store.set(f"late: {me.rank} has gone on", "")
        me.store.wait(["late: 4 has noticed", "late: 5 has noticed"])
        outer.steps(INNER)
    else:
        me.store.wait([f"late: {rank} has gone on" for rank in range(4)])
        with pytest.warns(UserWarning, match="this replica is too late for a round"):
            outer.steps(1)
        outer.steps(1)  # alone
        me.store.set(f"late: {me.rank} has noticed", "")
        came.wait(["3/0", "3/came"])
        outer.steps(1)
    reference.steps(INNER, 0, 1)
    reference.round(0, 1)
    reference.steps(INNER, 0, 1)
    reference.steps(INNER + 2, 2)
    reference.round(0, 1, 2)
    reference.check(outer)
    outer.leave()


def check_one_that_joins_gets_the_whole_model(me: Rank) -> None:
    """Its shards, and what FSDP leaves whole; frozen parameters and buffers, too."""
    inside = inside_of(me, "whole")
    model = Odd()
    fully_shard(model.turn, mesh=inside)
    fully_shard(model, mesh=inside, ignored_params={model.whole})
    with torch.no_grad():
        for each in (*model.parameters(), model.norm.running_mean):
            local(each).copy_(torch.randn(local(each).shape) + me.rank)
    outer = ShardMember(me, "whole", model.eval(), preset="diloco")
    x, _ = batch(0, 0)
    outer.configure("three", 0, 1, 2)
    with torch.no_grad():
        model(x)  # FSDP keeps whole parameters of it
        outer.join()
        found = [model(x)]
    outer.optimizer.replica.reshard()
    for steps in (0, INNER):
        outer.steps(steps)
        found += [local(each).clone() for each in (*model.parameters(), model.norm.running_mean)]
    for each in found:
        mine = torch.view_as_real(each) if each.is_complex() else each
        first = mine.clone()
        dist.broadcast(first, group=outer.members, group_src=0)
        assert torch.equal(mine, first)
    outer.leave()


def check_replicas_save_and_load_together(me: Rank) -> None:
    me.store.set(f"folder of {me.rank}", tempfile.mkdtemp())
    path = me.store.get("folder of 0").decode()
    whole = ShardMember(me, "save", preset="sparseloco")
    whole.configure("three", 0, 1, 2)
    with pytest.raises(RuntimeError, match=r"after a step\(\) that has ended an exchange"):
        gtopk.save(whole.optimizer, path)
    whole.join()
    whole.steps(INNER)
    gtopk.save(whole.optimizer, path)
    resumed = ShardMember(me, "load", network(7), preset="sparseloco")
    resumed.configure("three", 0, 1, 2)
    gtopk.load(resumed.optimizer, path)
    resumed.at = whole.at
    for each in (whole, resumed):
        each.steps(INNER)
    assert all(map(np.array_equal, parts_of(whole), parts_of(resumed)))
    resumed.members.shutdown()
    whole.leave()


def test_on_three_replicas_of_two_ranks(six_apart: RankSet, check) -> None:
    six_apart.run(check)


def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kills_before(owner: type, name: str) -> None:
    setattr(owner, name, killed)


POINTS = {
    "between rounds": (Members, "must_meet"),
    "before the agreement": (Agreement, "__init__"),
    "before it says that it has the result": (Members, "all_have_it"),
    "before it uses the result": (Rounds, "commit"),
}


def check_the_others_go_on(me: Rank, point: str, arguments: dict) -> None:
    """Rank 3 is killed, so rank 2 leaves."""
    outer = ShardMember(me, "killed", preset="sparseloco", **arguments)
    reference = Reference(3, "sparseloco")
    outer.begin("three", 0, 1, 2)
    reference.steps(INNER, 0, 1, 2)
    reference.round(0, 1, 2)
    outer.steps(INNER - 1)
    reference.steps(INNER, 0, 2)
    if outer.replica == 1:
        if me.rank == 3:
            kills_before(*POINTS[point])
        with pytest.raises(RuntimeError, match="rank 1"):
            outer.steps(INNER + 1)  # if it has used the result, at FSDP's next exchange
        outer.leave()
        return
    roll = outer.optimizer._rounds.members._roll
    if point == "before it uses the result":  # so the others do use it
        outer.steps(1)
        reference.steps(INNER, 1)
        reference.round(0, 1, 2)
        outer.steps(INNER - 1)
        reference.steps(INNER, 0, 2)
    if roll is None:
        with pytest.raises(dist.DistBackendError, match="gtopk"):
            outer.steps(1)
        reference.check(outer)
        reference.steps(1, 0, 2)
    if roll is None:
        outer.configure("two", 0, 2)
    elif me.rank == 0:
        outer.members.configured().store.wait(["rolls/2/2"])
        roll._grace = 0.0
    outer.steps(1)
    reference.round(0, 2)
    reference.check(outer)
    assert outer.optimizer.stats()["participants"] == 2
    outer.leave()


LONG = pytest.mark.long  # each starts six ranks anew


@pytest.mark.parametrize(
    ("point", "arguments"),
    [
        pytest.param("between rounds", {}, marks=LONG),
        ("between rounds", {"grace": 600.0}),
        pytest.param("before the agreement", {}, marks=LONG),
        ("before it says that it has the result", {}),
        pytest.param("before it uses the result", {}, marks=LONG),
    ],
    ids=str,
)
def test_a_rank_is_killed(six_apart: RankSet, point: str, arguments: dict) -> None:
    six_apart.run(check_the_others_go_on, point, arguments, killed=SHARDS + 1)
