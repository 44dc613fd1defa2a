"""Replicas of an OuterOptimizer are killed, at each point of a round."""

from __future__ import annotations

import os
import signal

import pytest
import torch.distributed as dist
from gtopk.training.outer_exchange import Agreement, Exchange
from gtopk.training.outer_members import Members
from gtopk.training.outer_rounds import Rounds

from helpers.outer import INNER
from helpers.outer_members import Member, Reference
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kills_before(owner: type, name: str) -> None:
    setattr(owner, name, lambda *_, **__: killed())


def kills_after_the_agreement() -> None:
    def send(self: Exchange, *_: object) -> None:
        self._agreement.participants()
        killed()

    Exchange._send_everything = Exchange._send_selection = send


POINTS = {
    "before the agreement": lambda: kills_before(Agreement, "__init__"),
    "before the exchange": kills_after_the_agreement,
    "before it says that it has the result": lambda: kills_before(Members, "all_have_it"),
    "before it uses the result": lambda: kills_before(Rounds, "commit"),
}


def check_the_survivors_of_a_round_go_on(me: Rank, preset: str, point: str) -> None:
    outer = Member(me, preset=preset)
    outer.configure("three", 0, 1, 2)
    outer.join()
    outer.steps(INNER)
    outer.step()
    if me.rank == 1:
        if point in POINTS:
            POINTS[point]()
            outer.steps(INNER)
        killed()
    reference = Reference(me.size, preset)
    reference.steps(INNER, 0, 1, 2)
    reference.round(0, 1, 2)
    outer.steps(INNER - 2)
    if point == "before it uses the result":  # so the others do use it
        outer.steps(INNER)
        reference.steps(INNER, 0, 1, 2)
        reference.round(0, 1, 2)
    assert outer.optimizer.exchanges_next
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        outer.step()
    reference.steps(INNER, 0, 2)
    reference.check(me.rank, outer.state())
    assert outer.optimizer.exchanges_next
    with pytest.raises(dist.DistBackendError):
        outer.step()
    outer.configure("two", 0, 2)
    outer.step()
    reference.steps(2, 0, 2)
    reference.round(0, 2)
    reference.check(me.rank, outer.state())
    assert outer.optimizer.steps == outer.at
    outer.step()  # the next turn comes when it would have come
    reference.steps(1, 0, 2)
    reference.round(0, 2)
    reference.check(me.rank, outer.state())


@pytest.mark.parametrize(
    ("point", "preset"),
    [
        ("between two rounds", "diloco"),
        ("before the agreement", "sparseloco"),
        ("before the exchange", "diloco"),
        ("before the exchange", "sparseloco"),
        ("before it says that it has the result", "diloco"),
        ("before it uses the result", "sparseloco"),
    ],
)
def test_a_replica_is_killed(three_apart: RankSet, point: str, preset: str) -> None:
    three_apart.run(check_the_survivors_of_a_round_go_on, preset, point, killed=1)


def check_a_survivor_hears_later_that_the_round_counts(me: Rank) -> None:
    """Rank 2 has the result, and does not hear that all have it; rank 0 does."""
    outer = Member(me, preset="sparseloco")
    outer.configure("three", 0, 1, 2)
    outer.join()
    outer.steps(INNER - 1)
    hears = Members.all_have_it
    if me.rank == 1:
        kills_before(Rounds, "commit")
    elif me.rank == 2:

        def raises(self: Members) -> None:
            hears(self)
            raise dist.DistBackendError("the connection broke")

        Members.all_have_it = raises
    reference = Reference(me.size, "sparseloco")
    reference.steps(INNER, 0, 1, 2)
    if me.rank == 2:
        with pytest.raises(dist.DistBackendError, match="the connection broke"):
            outer.step()
        reference.check(2, outer.state())
        Members.all_have_it = hears
    else:
        outer.steps(INNER)
        with pytest.raises(dist.DistBackendError, match=r"rank [12]"):
            outer.step()
    outer.configure("two", 0, 2)
    outer.step()
    used = reference.sums(0, 1, 2)
    reference.steps(1, 2)  # whose movement is lost
    reference.replicas.use(0, used)
    reference.steps(INNER + 1, 0)
    reference.round(0, 2)
    reference.check(me.rank, outer.state())
    assert outer.optimizer.steps == 2 * INNER + 1
    outer.steps(INNER - 1)
    reference.steps(INNER - 1, 0, 2)
    reference.round(0, 2)
    reference.check(me.rank, outer.state())


def test_a_survivor_hears_later_that_the_round_counts(three_apart: RankSet) -> None:
    three_apart.run(check_a_survivor_hears_later_that_the_round_counts, killed=1)


def check_a_replica_is_killed_while_an_exchange_is_under_way(me: Rank) -> None:
    outer = Member(me, preset="diloco", delay=1)
    outer.configure("three", 0, 1, 2)
    outer.join()
    outer.steps(INNER)
    assert outer.optimizer.pending
    if me.rank == 1:
        killed()
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        outer.step()
    assert not outer.optimizer.pending
    outer.configure("two", 0, 2)
    outer.step()  # begins again
    reference = Reference(me.size, "diloco", delay=1)
    reference.steps(INNER + 2, 0, 2)
    reference.check(me.rank, outer.state())
    used = reference.sums(0, 2)
    assert outer.optimizer.pending
    outer.step()  # uses it, and begins the one whose turn it is
    assert outer.optimizer.pending
    reference.steps(1, 0, 2)
    reference.replicas.use(0, used)
    reference.check(me.rank, outer.state())
    used = reference.sums(0, 2)
    outer.step()
    reference.steps(1, 0, 2)
    reference.replicas.use(0, used)
    reference.check(me.rank, outer.state())


def test_a_replica_is_killed_while_an_exchange_is_under_way(three_apart: RankSet) -> None:
    three_apart.run(check_a_replica_is_killed_while_an_exchange_is_under_way, killed=1)
