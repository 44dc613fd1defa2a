"""The members of a ReplicaGroup under an outer optimizer: replicas that leave, return and join.

After each configure(), and after an exchange that failed, members meet ahead of the next exchange.
They tell each other their steps and rounds, and the most advanced member brings the others up to
date.

If a replica has several ranks, each of them is a member of the group of its shard. The replica's
ranks do each of these things together, and none writes anything before all have succeeded.
"""

from __future__ import annotations

import json
import secrets
import warnings
import weakref
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributed import DistBackendError

from gtopk.core.groups import all_gather, broadcast, meeting_place
from gtopk.state.fingerprint import Line, check_alike
from gtopk.training.outer_agreement import digest_of
from gtopk.training.outer_roll import Roll, RollCall
from gtopk.training.parameters import local_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gtopk.core.backend import GtopkBackend
    from gtopk.core.replicas import ReplicaGroup
    from gtopk.training.outer_presets import Settings
    from gtopk.training.outer_rounds import Rounds
    from gtopk.training.outer_shards import Replica

ALIKE = (
    "the replicas' OuterOptimizers are not alike",
    "Make models and optimizers in the same way on every replica",
)


class Place(NamedTuple):
    """A member's progress; the same on all ranks of a replica."""

    joined: int
    """0 for one that has no state yet."""
    number: int
    """Exchanges that have been committed."""
    step: int
    digest: int
    """Of the shared parameters and their momentum; of all shards."""
    meeting: int
    """Names the meeting of those who committed the last one; 0 if that is unknown."""
    name: int
    """Of this meeting, if this member is the one that brings the others up to date."""

    def is_current(self, source: Place) -> bool:
        """Return whether this member has the state that `source` has."""
        return bool(self.joined) and (self.number, self.digest) == (source.number, source.digest)


class Met(NamedTuple):
    """The result of a meeting, before this replica takes it over."""

    backend: weakref.ref[GtopkBackend]
    places: list[Place]
    source: int
    step: int
    number: int
    waiting: list[int]
    vectors: list[torch.Tensor]
    """What the source shares; none if nobody needs it."""
    others: list[torch.Tensor]
    """The rest of its model; none if nobody joins."""


class Members:
    """This replica as a member of the group.

    Its ranks call every method together, except have_changed().
    """

    def __init__(
        self,
        group: ReplicaGroup,
        replica: Replica,
        lines: Sequence[Line],
        others: Sequence[torch.Tensor],
        settings: Settings,
    ) -> None:
        """Join no one yet. lines: what must be equal on all members; see check_alike.

        others: parameters that are not exchanged, and buffers; a member that joins takes them over.
        """
        self._group = group
        self._replica = replica
        self._quorum, self._grace = settings.quorum, settings.grace
        self._roll = None if self._grace is None else RollCall(group, self._grace)
        self.late = False
        self._lines = lines
        self._others = others
        self.joined = False
        self._met: weakref.ref[GtopkBackend] | None = None
        self._meeting = 0
        self._committed = 0  # the meeting whose members committed the last exchange

    def have_changed(self) -> bool:
        """Return whether members must meet. Raise DistBackendError if the group has no ranks."""
        if self._roll is not None and self._met is None:
            return True
        return self._group.current_backend() is not (self._met and self._met())

    def must_meet(self) -> bool:
        """Return whether have_changed() is true on any of the replica's ranks."""
        return not self._replica.decide(lambda: int(not self.have_changed()))

    def are_called(self) -> bool:
        """Return whether others wait for this replica after it has missed a round."""
        roll, is_first = self._roll, self._replica.is_first
        if not self.late or roll is None:
            return False
        return bool(self._replica.decide(lambda: int(not is_first or roll.is_called())))

    def assemble(self, rounds: Rounds, *, changed: bool) -> bool:
        """Meet if members have changed. Return whether this replica takes part in the due exchange.

        With a grace period, it does not if it is too late or too few have come. Collective.
        """
        if self._roll is not None:
            if changed:
                rounds.take_back()
            came = self._answer(self._roll, current=not changed)
            self.late = came is None
            changed = came is None or came.anew
            if came is None or len(came.ranks) < self._quorum:
                self._met = None
                self._warn(rounds.number, came)
                return False
            if came.narrows:
                self._narrow(came)
        if changed:
            self.meet(rounds)
        return True

    def _answer(self, roll: RollCall, *, current: bool) -> Roll | None:
        """Answer a roll call once for the replica, so that all shards give the same answer."""

        def answer() -> str:
            return json.dumps(roll.answer(joined=self.joined, current=current))

        found = json.loads(self._replica.from_first(answer))
        return None if found is None else Roll(*found)

    def _narrow(self, came: Roll) -> None:
        def narrow() -> int:
            self._group.narrow(came.ranks, f"roll-{came.number}")
            return 1

        self._replica.decide(narrow)

    def _warn(self, number: int, came: Roll | None) -> None:
        what = (
            "this replica is too late for a round: it continues from its own parameters, and takes "
            "part again when the others begin their next round"
        )
        if came is not None:
            what = (
                f"only ranks {came.ranks} have come to round {number} within grace={self._grace} "
                f"s, fewer than quorum={self._quorum}: the round is skipped"
            )
        warnings.warn(f"gtopk: {what}", stacklevel=8)

    def give_up(self) -> None:
        """Meet ahead of the next exchange, even if the group is not configured before it.

        An exchange that failed for one shard may have succeeded for another, whose members would
        then wait for this replica. So end that group too.
        """
        if self._replica.groups:
            self._group.abort()
        self._met = None

    def resume(self, *, joined: bool) -> None:
        """Meet ahead of the next exchange after a state was loaded. joined: its saved value."""
        self.joined, self._committed = joined, 0
        self._met = None

    def meet(self, rounds: Rounds) -> None:
        """Agree on the step and the waiting exchanges; bring members up to date. Collective.

        A pending exchange begins again, unless another member has committed it.
        """
        rounds.take_back()
        place = self._place(rounds)
        found: list[Met] = []

        def hear() -> int:
            found.append(self._hear(rounds, place))
            return 1

        self._replica.decide(hear)
        (met,) = found
        self._check_same(met.places)
        self._update(rounds, met)
        rounds.step, rounds.number, rounds.waiting = met.step, met.number, met.waiting
        source = met.places[met.source]
        self.joined, self._met, self._meeting = True, met.backend, source.name
        self._committed = source.meeting

    def all_have_it(self) -> None:
        """Return once every member has what the exchange delivered; raise if one is lost first.

        A member that raises does not know whether others have returned; all meet before the next
            exchange.
        """

        def confirm() -> int:
            self._gathered([1])
            return 1

        self._replica.decide(confirm)
        self._committed = self._meeting

    def _place(self, rounds: Rounds) -> Place:
        """Return this replica's Place; collective over its ranks."""
        digest = digest_of(_vectors(rounds)) if self.joined else 0
        found = torch.tensor(self._replica.gathered([digest, secrets.randbits(62)]))
        name = int(found[0, 1])
        if not self.joined:
            return Place(0, 0, 0, 0, 0, name)
        of_all = digest_of([found[:, 0].contiguous()])
        return Place(1, rounds.number, rounds.step, of_all, self._committed, name)

    def _hear(self, rounds: Rounds, mine: Place) -> Met:
        """Learn the members' places and the source's state. Collective over the replicas."""
        backend = weakref.ref(self._group.current_backend())
        places = [Place(*each) for each in self._gathered(mine)]
        if not all(each.joined for each in places):
            check_alike(self._lines, self._group, ALIKE)
        source = _most_advanced(places)
        unused = [-1] * (len(rounds.fragments) - len(rounds.waiting))
        told = torch.tensor([rounds.step, rounds.number, *rounds.waiting, *unused])
        step, number, *waiting = self._broadcast(told, source).tolist()
        vectors, others = [], []
        if any(not each.is_current(places[source]) for each in places):
            vectors = [self._broadcast(vector, source) for vector in _vectors(rounds)]
            if not all(each.joined for each in places):
                others = [self._broadcast(local_of(each), source) for each in self._others]
        waiting = [each for each in waiting if each >= 0]
        return Met(backend, places, source, step, number, waiting, vectors, others)

    def _check_same(self, places: Sequence[Place]) -> None:
        """Raise DistBackendError unless all of the replica's ranks have met the same replicas."""
        met = digest_of([torch.tensor(places).flatten()])
        if len({each for (each,) in self._replica.gathered([met])}) > 1:
            raise DistBackendError(
                "gtopk: the groups of this replica's ranks have other replicas, or the same in "
                "another order, or its ranks have loaded the states of different steps: configure "
                "the groups of all ranks with the same replicas, in the same order"
            )

    def _update(self, rounds: Rounds, met: Met) -> None:
        """Take over the source's state, if this replica is behind or joins."""
        places, source, vectors, others = met.places, met.source, met.vectors, met.others
        rank = self._group.rank()
        mine, its = places[rank], places[source]
        if rank == source or mine.is_current(its):
            return
        undecided = rounds.undecided
        if undecided and (mine.number + 1, self._meeting) == (its.number, its.meeting):
            rounds.number += 1
            rounds.commit(undecided)  # the source has committed it, so all members have it
            return
        if mine.joined and mine.number == its.number:
            warnings.warn(
                f"gtopk: this replica's shared parameters differ from those of rank {source} ahead "
                f"of round {its.number}: it continues with those of rank {source}",
                stacklevel=9,
            )
        if mine.joined:
            for each in rounds.parts():
                if each.anchor is None:
                    each.anchor = each.parameters.clone()
        for vector, new in zip(_vectors(rounds), vectors, strict=True):
            vector.copy_(new)
        if not mine.joined:
            for tensor, new in zip(self._others, others, strict=True):
                local_of(tensor.detach()).copy_(new)
            for each in rounds.parts():
                each.part.scatter(each.parameters)
            self._replica.reshard()

    def _broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Return the source's tensor."""
        place = meeting_place(self._group)
        found = tensor.detach().to(place, copy=True, memory_format=torch.contiguous_format)
        broadcast(found, group=self._group, group_src=source)
        return found

    def _gathered(self, mine: Sequence[int]) -> list[list[int]]:
        """Return the numbers of every member."""
        tensor = torch.tensor(mine, dtype=torch.int64, device=meeting_place(self._group))
        found = [torch.empty_like(tensor) for _ in range(self._group.size())]
        all_gather(found, tensor, group=self._group)
        return [each.tolist() for each in found]


def _vectors(rounds: Rounds) -> list[torch.Tensor]:
    """Return the vectors that members share."""
    return [
        vector
        for each in rounds.parts()
        for vector in (each.parameters, each.velocity)
        if vector is not None
    ]


def _most_advanced(places: Sequence[Place]) -> int:
    """Return the member that brings the others up to date.

    It has committed the most exchanges. Among several such members, it belongs to the majority;
    ties go to the later step, and then to the lower rank.
    """
    ranks = range(len(places))
    last = max(each.number for each in places)
    alike = Counter(each.digest for each in places if each.joined and each.number == last)
    return max(
        ranks,
        key=lambda rank: (
            places[rank].joined,
            places[rank].number,
            alike[places[rank].digest],
            places[rank].step,
            -rank,
        ),
    )
