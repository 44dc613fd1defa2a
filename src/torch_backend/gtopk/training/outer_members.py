"""The members of a ReplicaGroup under an outer optimizer: replicas that leave, return and join.

After each configure(), and after an exchange that failed, members meet ahead of the next exchange:
they tell each other where they are, and the most advanced one brings the others up to date.
"""

from __future__ import annotations

import secrets
import warnings
import weakref
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from gtopk.core.groups import meeting_place
from gtopk.state.fingerprint import Line, check_alike
from gtopk.training.outer_agreement import digest_of
from gtopk.training.outer_roll import Roll, RollCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gtopk.core.backend import GtopkBackend
    from gtopk.core.replicas import ReplicaGroup
    from gtopk.training.outer_presets import Settings
    from gtopk.training.outer_rounds import Rounds

ALIKE = (
    "the replicas' OuterOptimizers are not alike",
    "Make models and optimizers in the same way on every replica",
)


class Place(NamedTuple):
    """Where a member is."""

    joined: int
    """0 for one that has no state yet."""
    number: int
    """Exchanges that have been committed."""
    step: int
    digest: int
    """Of the shared parameters and their momentum."""
    meeting: int
    """Names the meeting of those who committed the last one; 0 if that is unknown."""

    def is_current(self, source: Place) -> bool:
        """Return whether it has what `source` has."""
        return bool(self.joined) and (self.number, self.digest) == (source.number, source.digest)


class Members:
    """This replica as a member of the group."""

    def __init__(
        self,
        group: ReplicaGroup,
        lines: Sequence[Line],
        others: Sequence[torch.Tensor],
        settings: Settings,
    ) -> None:
        """lines: what must be alike on all members, see check_alike.

        others: parameters that are not exchanged and buffers, which one that joins takes over.
        """
        self._group = group
        self._quorum, self._grace = settings.quorum, settings.grace
        self._roll = None if self._grace is None else RollCall(group, self._grace)
        self.late = False
        self._lines = lines
        self._others = others
        self.joined = False
        self._met: weakref.ref[GtopkBackend] | None = None
        self._meeting = 0
        self._committed = 0  # the meeting of those who committed the last exchange

    def have_changed(self) -> bool:
        """Return whether members must meet. Raise DistBackendError if the group has no ranks."""
        if self._roll is not None and self._met is None:
            return True
        return self._group.current_backend() is not (self._met and self._met())

    def are_called(self) -> bool:
        """Return whether others wait for this replica, which has missed a round."""
        return self.late and self._roll is not None and self._roll.is_called()

    def assemble(self, rounds: Rounds) -> bool:
        """Meet if members have changed. Return whether this replica takes part in what is due.

        With a grace period it does not if it is too late, or too few have come. Collective.
        """
        changed = self.have_changed()
        if self._roll is not None:
            if changed:
                rounds.take_back()
            came = self._roll.answer(joined=self.joined, current=not changed)
            self.late = came is None
            changed = came is None or came.anew
            if came is None or len(came.ranks) < self._quorum:
                self.meet_again()
                self._warn(rounds.number, came)
                return False
            if came.narrows:
                self._group.narrow(came.ranks, f"roll-{came.number}")
        if changed:
            self.meet(rounds)
        return True

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

    def meet_again(self) -> None:
        """Meet ahead of the next exchange, even if the group is not configured before."""
        self._met = None

    def resume(self, *, joined: bool) -> None:
        """Meet ahead of the next exchange, as a state was loaded. joined: of the one that saved."""
        self.joined, self._committed = joined, 0
        self.meet_again()

    def meet(self, rounds: Rounds) -> None:
        """Agree on the step, and on the exchanges that wait; bring members up to date. Collective.

        An exchange that is under way begins again, unless another member has committed it.
        """
        rounds.take_back()
        backend = weakref.ref(self._group.current_backend())
        places = self._told(rounds)
        if not all(each.joined for each in places):
            check_alike(self._lines, self._group, ALIKE)
        source = _most_advanced(places)
        step, number, meeting, *waiting = self._from_source(rounds, source)
        if any(not each.is_current(places[source]) for each in places):
            self._update(rounds, places, source)
        rounds.step, rounds.number = step, number
        rounds.waiting = [each for each in waiting if each >= 0]
        self.joined, self._met, self._meeting = True, backend, meeting
        self._committed = places[source].meeting

    def all_have_it(self) -> None:
        """Return once every member has what the exchange delivered; raise if one is lost before.

        One that raises does not know whether others have returned: they meet before the next.
        """
        self._gathered([1])
        self._committed = self._meeting

    def _told(self, rounds: Rounds) -> list[Place]:
        mine = Place(0, 0, 0, 0, 0)
        if self.joined:
            digest = digest_of(_vectors(rounds))
            mine = Place(1, rounds.number, rounds.step, digest, self._committed)
        return [Place(*each) for each in self._gathered(mine)]

    def _from_source(self, rounds: Rounds, source: int) -> list[int]:
        """Return the source's step, round, a new meeting's name, and exchanges that wait."""
        unused = [-1] * (len(rounds.fragments) - len(rounds.waiting))
        mine = [rounds.step, rounds.number, secrets.randbits(62), *rounds.waiting, *unused]
        found: list[int] = self._broadcast(torch.tensor(mine), source).tolist()
        return found

    def _update(self, rounds: Rounds, places: Sequence[Place], source: int) -> None:
        """Send what the source has to the members that are behind, or join. Collective."""
        vectors = [self._broadcast(vector, source) for vector in _vectors(rounds)]
        others = []
        if not all(each.joined for each in places):
            others = [self._broadcast(each, source) for each in self._others]
        rank = self._group.rank()
        mine, its = places[rank], places[source]
        if rank == source or mine.is_current(its):
            return
        undecided = rounds.undecided
        if undecided and (mine.number + 1, self._meeting) == (its.number, its.meeting):
            rounds.number += 1
            rounds.commit(undecided)  # the source has committed it, so all have it
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
                tensor.detach().copy_(new)
            for each in rounds.parts():
                each.part.scatter(each.parameters)

    def _broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Return the source's tensor."""
        place = meeting_place(self._group)
        found = tensor.detach().to(place, copy=True, memory_format=torch.contiguous_format)
        dist.broadcast(found, group=self._group, group_src=source)
        return found

    def _gathered(self, mine: Sequence[int]) -> list[list[int]]:
        """Return the numbers of every member."""
        tensor = torch.tensor(mine, dtype=torch.int64, device=meeting_place(self._group))
        found = [torch.empty_like(tensor) for _ in range(self._group.size())]
        dist.all_gather(found, tensor, group=self._group)
        return [each.tolist() for each in found]


def _vectors(rounds: Rounds) -> list[torch.Tensor]:
    """Return what members share."""
    return [
        vector
        for each in rounds.parts()
        for vector in (each.parameters, each.velocity)
        if vector is not None
    ]


def _most_advanced(places: Sequence[Place]) -> int:
    """Return the member that brings the others up to date.

    It has committed the most exchanges; of those that differ then, it is one of the majority. The
    further step decides among the rest, and then the lower rank.
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
