"""Roll calls: which replicas have come to an exchange when it begins, and which are too late.

Replicas answer in the store in which a ReplicaGroup was configured. Uses no parameters.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from torch.distributed import DistBackendError, DistError, PrefixStore

if TYPE_CHECKING:
    from gtopk.core.replicas import Configured, ReplicaGroup

_POLL = 0.02  # seconds
_KEPT = 8  # number of roll calls whose answers stay in the store
# These are a replica's possible answers.
_NEW, _CURRENT, _BEHIND = "new", "current", "behind"


class Roll(NamedTuple):
    """Who has come to an exchange."""

    number: int
    ranks: list[int]
    """As in the last configure()."""
    anew: bool
    """Whether they must meet before they can exchange anything."""
    narrows: bool
    """Whether the group that was configured has to be narrowed to them."""


class RollCall:
    """The roll calls of the replicas with which a ReplicaGroup was configured."""

    def __init__(self, group: ReplicaGroup, grace: float) -> None:
        """Wait this many seconds for others, if this replica comes first."""
        self._group = group
        self._grace = grace
        self._given: Configured | None = None
        self._number = 0
        self._last: list[int] = []

    def answer(self, *, joined: bool, current: bool) -> Roll | None:
        """Wait until it is decided who has come; return None if it was decided without this one.

        joined: whether this replica has a state. current: whether it has met the replicas that came
        last time, and could exchange with them. Raise DistBackendError if the store cannot be
        reached.
        """
        with self._store() as store:
            decided = store.add("decided", 0)
            if decided > self._number:
                self._number = decided
                return None
            number, self._number = self._number, self._number + 1
            place = PrefixStore(str(number), store)
            given = self._given
            assert given is not None
            place.set(str(given.rank), _NEW if not joined else _CURRENT if current else _BEHIND)
            place.add("came", 1)
            roll = self._decided(number, place, store, given)
        if given.rank not in roll.ranks:
            return None
        self._last = roll.ranks
        return roll

    def is_called(self) -> bool:
        """Return whether replicas have come to the next exchange."""
        with self._store() as store:
            return store.check([f"{self._number}/came"])

    def _decided(
        self, number: int, place: PrefixStore, store: PrefixStore, given: Configured
    ) -> Roll:
        """Wait until a replica decides; decide if all have come or the others are too late."""
        began = time.monotonic()
        while not place.check(["roll"]):
            waited = time.monotonic() - began
            if place.add("came", 0) == given.size or waited >= self._grace:
                there = [rank for rank in range(given.size) if place.check([str(rank)])]
                answers = [place.get(str(rank)).decode() for rank in there]
                if len(there) == given.size or set(answers) != {_NEW}:
                    anew = set(answers) != {_CURRENT} or there != self._last
                    mine = json.dumps([there, anew, given.rank])
                    if place.compare_set("roll", "", mine).decode() == mine:
                        store.add("decided", 1)
                        if number >= _KEPT:
                            _forget(number - _KEPT, store, given.size)
                    break
                if waited >= self._group.timeout.total_seconds():
                    missing = sorted({*range(given.size)} - {*there})
                    raise DistBackendError(
                        f"gtopk: ranks {missing} have not come to the first exchange within the "
                        f"group's timeout, {self._group.timeout}. No replica that came has a state "
                        "yet, so all of the group must come: configure it with those that run"
                    )
            time.sleep(_POLL)
        ranks, anew, _ = json.loads(place.get("roll"))
        # At the first roll call, the group is as it was configured.
        return Roll(number, ranks, anew, anew and (number > 0 or len(ranks) < given.size))

    @contextlib.contextmanager
    def _store(self) -> Iterator[PrefixStore]:
        """Yield the part of the store for the last configure(), which restarts the numbering."""
        given = self._group.configured()
        if given is not self._given:
            self._given, self._number, self._last = given, 0, []
        try:
            yield PrefixStore("rolls", given.store)
        except DistBackendError:
            raise
        except DistError as error:
            raise DistBackendError(
                f"gtopk: the store at {given.address}, in which replicas answer, cannot be reached "
                f"({error}): call configure() with another one"
            ) from error


def _forget(number: int, store: PrefixStore, size: int) -> None:
    for name in (*map(str, range(size)), "came", "roll"):
        store.delete_key(f"{number}/{name}")
