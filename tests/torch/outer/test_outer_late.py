"""A round of an OuterOptimizer with grace= does not wait for ever.

Against the rule in numpy, bit for bit. Whom a round waits for is not left to time: a replica whose
grace is 0 comes only after those have that it shall wait for.
"""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta

import pytest
import torch.distributed as dist

from helpers.outer import INNER
from helpers.outer_members import Member, Reference
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback

TOO_LATE = "this replica is too late for a round"
LONG = 600.0


class Punctual(Member):
    """A replica that waits for all; the roll calls of a configuration have numbers from 0 on."""

    def __init__(self, me: Rank, name: str, **arguments) -> None:
        super().__init__(me, grace=LONG, **arguments)
        self.configure(name, 0, 1, 2)
        self.join()  # roll call 0

    def wait_for(self, rank: int, roll: int) -> None:
        """Until this one has come."""
        self.group.configured().store.wait([f"rolls/{roll}/{each}" for each in (rank, "came")])

    def goes_on_without_others(self) -> None:
        """From now on, as soon as it comes itself."""
        self.optimizer._rounds.members._roll._grace = 0.0

    def waits_for_all(self) -> None:
        self.optimizer._rounds.members._roll._grace = LONG


def round_of_all(outer: Punctual, reference: Reference) -> None:
    """Roll call 1."""
    outer.steps(INNER)
    reference.steps(INNER, 0, 1, 2)
    reference.round(0, 1, 2)
    reference.check(outer.rank, outer.state())


def check_unchanged_members_keep_their_group(me: Rank) -> None:
    outer = Punctual(me, "again", preset="diloco")
    for roll in (1, 2):
        outer.steps(INNER)
        decided = outer.group.configured().store.get(f"rolls/{roll}/roll")
        there, anew, _ = json.loads(decided)
        assert (there, anew) == ([0, 1, 2], False)
    outer.group.shutdown()


def check_one_that_is_late_has_weight_0_and_is_in_the_next_round(me: Rank) -> None:
    for preset, arguments in (("sparseloco", {"clip": "median"}), ("diloco", {})):
        outer = Punctual(me, preset, preset=preset, **arguments)
        reference = Reference(me.size, preset, **arguments)
        round_of_all(outer, reference)
        reference.steps(INNER, 0, 1)
        reference.round(0, 1)
        if me.rank < 2:
            outer.steps(INNER - 1)
            if me.rank == 0:
                outer.wait_for(1, roll=2)
                outer.goes_on_without_others()
            outer.step()
            outer.waits_for_all()
            reference.check(me.rank, outer.state())
            assert outer.optimizer.stats()["participants"] == 2
            me.store.set(f"{preset}: {me.rank} has gone on", "")
            me.store.wait([f"{preset}: it has noticed"])
            outer.steps(INNER)
        else:
            me.store.wait([f"{preset}: {rank} has gone on" for rank in (0, 1)])
            outer.steps(INNER - 1)
            with pytest.warns(UserWarning, match=TOO_LATE):
                outer.step()
            outer.step()  # alone
            assert outer.optimizer.exchanges_next
            me.store.set(f"{preset}: it has noticed", "")
            outer.wait_for(0, roll=3)
            outer.step()  # with the others, though its own turn would come later
        reference.steps(INNER, 0, 1)
        reference.steps(INNER + 2, 2)
        reference.round(0, 1, 2)
        reference.check(me.rank, outer.state())
        assert outer.optimizer.steps == 3 * INNER
        round_of_all(outer, reference)
        found = outer.optimizer.stats()
        assert (found["participants"], found["rounds"], found["skipped"]) == (
            3,
            4,
            1 if me.rank == 2 else 0,
        )
        outer.group.shutdown()


def check_a_round_that_too_few_reach_is_skipped(me: Rank) -> None:
    outer, reference = Punctual(me, "few", preset="diloco", quorum=3), Reference(me.size, "diloco")
    round_of_all(outer, reference)
    outer.steps(INNER - 1)
    if me.rank < 2:
        if me.rank == 0:
            outer.wait_for(1, roll=2)
            outer.goes_on_without_others()
        with pytest.warns(UserWarning, match=r"only ranks \[0, 1\] have come to round 1 .*skipped"):
            outer.step()
        outer.waits_for_all()
        me.store.set(f"{me.rank} has skipped", "")
    else:
        me.store.wait(["0 has skipped", "1 has skipped"])
        with pytest.warns(UserWarning, match=TOO_LATE):
            outer.step()
    reference.steps(INNER, 0, 1, 2)
    reference.check(me.rank, outer.state())
    assert outer.optimizer.stats()["skipped"] == 1
    outer.steps(INNER - 1)
    if me.rank == 2:
        me.store.set("it may be called", "")  # not before: it would come a step earlier
        outer.wait_for(0, roll=3)
    else:
        me.store.wait(["it may be called"])
    outer.step()
    reference.steps(INNER, 0, 1, 2)
    reference.round(0, 1, 2)
    reference.check(me.rank, outer.state())
    outer.group.shutdown()


def check_first_join_requires_all_replicas(me: Rank) -> None:
    outer = Member(me, preset="diloco", grace=0.0)
    outer.configure("all must come", 0, 1, 2)
    if me.rank == 0:
        outer.group.set_timeout(timedelta(seconds=0.1))
        with pytest.raises(dist.DistBackendError, match=r"ranks \[1, 2\] have not come to the fir"):
            outer.join()
        me.store.set("has given up", "")
    me.store.wait(["has given up"])
    outer.group.shutdown()


def test_on_three_ranks_without_a_group(three_apart: RankSet, check) -> None:
    three_apart.run(check)


def check_the_survivors(me: Rank, during: bool) -> None:
    outer, reference = Punctual(me, "killed", preset="sparseloco"), Reference(3, "sparseloco")
    round_of_all(outer, reference)
    if me.rank == 1:
        if during:
            outer.optimizer._rounds.members.all_have_it = lambda: os.kill(os.getpid(), 9)
            outer.steps(INNER)
        os.kill(os.getpid(), signal.SIGKILL)
    outer.steps(INNER - 1)
    reference.steps(INNER, 0, 2)
    roll = 2
    if during:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            outer.step()
        reference.check(me.rank, outer.state())
        reference.steps(1, 0, 2)
        roll = 3
    if me.rank == 0:
        outer.wait_for(2, roll)
        outer.goes_on_without_others()
    outer.step()
    reference.round(0, 2)
    reference.check(me.rank, outer.state())
    assert outer.optimizer.stats()["participants"] == 2


@pytest.mark.parametrize("during", [False, True], ids=["between rounds", "during a round"])
def test_survivors_need_no_configure(three_apart: RankSet, during: bool) -> None:
    three_apart.run(check_the_survivors, during, killed=1)
