"""The rounds of an outer optimizer: the shared state, and when each fragment is exchanged."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict

import torch

from gtopk.core.groups import backend_of
from gtopk.training.outer_buffers import write
from gtopk.training.outer_exchange import Exchange, Outcome, Selection, Shared
from gtopk.training.outer_fragments import turns_of
from gtopk.training.outer_parts import parts_of
from gtopk.training.outer_rule import advance, mixed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch.distributed as dist

    from gtopk.training.outer_buffers import Buffered, Buffers
    from gtopk.training.outer_presets import Settings
    from gtopk.training.outer_shards import Replica


class OuterStatistics(TypedDict):
    """What this replica's outer optimizer has done since it was made. Bytes include headers."""

    steps: int
    """Calls of step(), including those that a GradScaler skipped."""
    rounds: int
    """Exchanges that have ended, of all fragments."""
    skipped: int
    """Those of them that left the shared parameters unchanged, or for which it was too late."""
    participants: int
    """Replicas that took part in the last exchange."""
    bytes_sent: int
    """Bytes sent by exchanges, and by whatever else this process ran in the group meanwhile."""
    bytes_received: int
    """Bytes received, likewise."""
    exchange_seconds: float
    """Time that step() spent on exchanges, including waiting for other replicas."""
    seconds: float
    """Time since this was made; exchanges cost the share exchange_seconds / seconds of it."""


@dataclass
class Pending:
    """An exchange whose result has not been used yet."""

    fragment: int
    due: int
    """The step after which the result is used."""
    takes_part: bool
    result: Exchange | Outcome

    def outcome(self) -> Outcome:
        """Wait for the exchange."""
        return self.result.finish() if isinstance(self.result, Exchange) else self.result


class Delivered(NamedTuple):
    """The result of an exchange, which commit() uses completely or not at all."""

    pending: Pending
    outcome: Outcome
    buffers: list[tuple[torch.Tensor, Buffered]]


class Membership(Protocol):
    """What rounds need from the members of a ReplicaGroup; see Members in outer_members."""

    joined: bool
    late: bool
    """Whether it has missed a round, as it was too late."""

    def are_called(self) -> bool:
        """Return whether others wait for a replica that is late."""

    def have_changed(self) -> bool:
        """Return whether members must meet, as far as this rank knows."""

    def must_meet(self) -> bool:
        """Return whether members must meet; collective over the replica's ranks."""

    def assemble(self, rounds: Rounds, *, changed: bool) -> bool:
        """Find out who takes part in the due exchange; return whether this replica does."""

    def meet(self, rounds: Rounds) -> None:
        """Meet; collective."""

    def give_up(self) -> None:
        """End the exchange that failed here; meet ahead of the next one."""

    def all_have_it(self) -> None:
        """Return once every member has what an exchange delivered; collective."""

    def resume(self, *, joined: bool) -> None:
        """Continue as the member that saved a state."""


class Rounds:
    """The shared parameters and what belongs to them, fragment by fragment."""

    def __init__(
        self,
        fragments: Sequence[Mapping[str, torch.Tensor]],
        groups: Mapping[str, int],
        inner: torch.optim.Optimizer,
        buffers: Buffers,
        replica: Replica,
        settings: Settings,
        group: dist.ProcessGroup | None,
        device: torch.device | None,
        members: Membership | None,
    ) -> None:
        """Share these fragments: parameters by name, with equal values on all replicas by now.

        groups: the number of each parameter's group in the inner optimizer. device: where vectors
        are kept and exchanged; None means the parameters' device. members: the members of a group
        whose ranks change, whose parameters may then differ before join(); None for other groups.
        """
        self._settings = settings
        self._group = group
        self.members = members
        self._inner = inner
        self._buffers = buffers
        self._replica = replica
        self._selection = Selection(settings) if settings.selects else None
        self._turns = turns_of(settings.inner_steps, settings.fragments)
        self.fragments = [
            [
                Shared(
                    part,
                    part.gather(),
                    part.new() if settings.momentum else None,
                    part.new() if settings.keeps_error else None,
                )
                for part in parts_of(
                    parameters,
                    settings.transform,
                    groups,
                    apart=settings.takes_gradients,
                    device=device,
                )
            ]
            for parameters in fragments
        ]
        self.step = 0
        self.number = 0
        """The number of exchanges that have begun."""
        self.pending: Pending | None = None
        self.waiting: list[int] = []
        """Fragments whose turn has come, and whose exchange has not begun or is to be repeated."""
        self.undecided: Delivered | None = None
        """What was delivered by an exchange of which other members may have heard that all have it,
        and this one has not."""
        self._before = (0, 0)
        self.statistics = OuterStatistics(
            steps=0,
            rounds=0,
            skipped=0,
            participants=0,
            bytes_sent=0,
            bytes_received=0,
            exchange_seconds=0.0,
            seconds=0.0,
        )

    @property
    def joined(self) -> bool:
        """Whether this replica has joined; false for a member that has yet to join()."""
        return self.members is None or self.members.joined

    @torch.no_grad()
    def after_step(self, *, finite: bool = True) -> None:
        """Count a step, use the result that is due, begin the exchange whose turn it is.

        finite: False if this replica must not take part, even if its values are finite.
        """
        self.step += 1
        self.statistics["steps"] += 1
        turn = self._turns.get(self.step % self._settings.inner_steps)
        if turn is not None and turn not in self.waiting:
            self.waiting.append(turn)
        if self.waiting or self._is_due(self.step) or (self.members and self.members.are_called()):
            self._exchange(finite)

    @torch.no_grad()
    def join(self) -> None:
        """Take over the members' parameters and step, without taking part in an exchange."""
        self._exchange(joins=True)

    def exchanges_next(self) -> bool:
        """Return whether the next step begins or ends an exchange."""
        step = self.step + 1
        has_turn = step % self._settings.inner_steps in self._turns
        late = not self.joined or (self.members is not None and self.members.late)
        return has_turn or bool(self.waiting) or self._is_due(step) or late

    def resume(
        self, step: int, number: int, pending: Pending | None, waiting: Sequence[int]
    ) -> None:
        """Continue after this step of a run that was saved."""
        self.step, self.number, self.pending = step, number, pending
        self.waiting, self.undecided = list(waiting), None
        if self.members is None:
            self._note_bytes()

    def take_back(self) -> None:
        """Undo the start of a pending exchange, if any; it will begin again."""
        if self.pending is not None:
            self.number -= 1
            if self.pending.fragment not in self.waiting:
                self.waiting.insert(0, self.pending.fragment)
            self.pending = None

    def parts(self) -> list[Shared]:
        """Return the parts of all fragments."""
        return [each for fragment in self.fragments for each in fragment]

    def _exchange(self, finite: bool = True, *, joins: bool = False) -> None:
        """Use the result that is due; begin the waiting exchanges, one after the other."""
        began, members = time.monotonic(), self.members
        try:
            changed = members is not None and members.must_meet()
            if self._is_due(self.step) and not changed:
                self._use()
            begins = changed or (bool(self.waiting) and self.pending is None)
            if members and begins and not members.assemble(self, changed=changed):
                self.waiting = []  # their turn has passed
                self.statistics["rounds"] += 1
                self.statistics["skipped"] += 1
            while self.waiting and self.pending is None:
                self._begin(self.waiting[0], finite, joins)
                del self.waiting[0]
                if not self._settings.delay:
                    self._use()
        except BaseException:
            if members is None:  # the exchange is skipped and not repeated
                self.pending, self.waiting = None, []
            else:
                self.take_back()
                members.give_up()
            raise
        self.statistics["exchange_seconds"] += time.monotonic() - began

    def _is_due(self, step: int) -> bool:
        return self.pending is not None and self.pending.due <= step

    def _begin(self, fragment: int, finite: bool, joins: bool) -> None:
        self._note_bytes()
        self.undecided = None
        buffers_are_finite = fragment != 0 or self._buffers.are_finite()
        exchange = Exchange(
            self.number,
            self.fragments[fragment],
            self._settings,
            self._selection,
            self._group,
            self._replica,
            rates=[self._inner_number(each, "lr") for each in self.fragments[fragment]],
            finite=finite and buffers_are_finite and not joins,
        )
        if not exchange.takes_part and not joins:
            what = "gradients" if self._settings.takes_gradients else "parameters"
            if not buffers_are_finite:
                what = "buffers"
            warnings.warn(
                f"gtopk: this replica's {what} are not finite in round {self.number}: it does not "
                "take part in the round, and continues from the shared parameters. If that happens "
                "again, lower the inner learning rate or clip gradients",
                stacklevel=7,
            )
        due = self.step + self._settings.delay
        self.pending = Pending(fragment, due, exchange.takes_part, exchange)
        self.number += 1

    def _use(self) -> None:
        """Wait for the exchange and use it, unless a member does not get it."""
        pending = self.pending
        assert pending is not None
        delivered = self._delivered(pending)
        if self.members is not None:
            self.undecided = delivered
            self.members.all_have_it()
        self._count_bytes()
        self.commit(delivered)

    def _delivered(self, pending: Pending) -> Delivered:
        """Wait for the exchange, and average buffers.

        The means are None unless they are finite on all of the replica's ranks. Collective over the
        replica's ranks. Raise on all of them if the exchange failed on one.
        """
        found: list[Delivered] = []

        def moves() -> int:
            outcome = pending.outcome()
            averages = self._reaches_quorum(outcome) and pending.fragment == 0
            buffers = self._buffers.exchange(outcome.participants) if averages else []
            found.append(Delivered(pending, outcome, buffers))
            return int(outcome.means is not None)

        all_move = self._replica.decide(moves)
        outcome = found[0].outcome if all_move else found[0].outcome._replace(means=None)
        return found[0]._replace(outcome=outcome)

    def commit(self, delivered: Delivered) -> None:
        """Move the fragment's shared parameters and take over all of them, or none."""
        self.pending = self.undecided = None
        pending, outcome, buffers = delivered
        for flat, some in buffers:
            write(flat, some)
        for i, each in enumerate(self.fragments[pending.fragment]):
            if not self._reaches_quorum(outcome) and pending.takes_part:
                continue  # keeps its own parameters, as if the round had not ended
            if outcome.means is not None:
                self._move(each, outcome.means[i], outcome.errors[i])
            if self._settings.mix and pending.takes_part:
                local = mixed(each.part.gather(), each.parameters, self._settings.mix)
                each.part.scatter(local)
            else:
                each.part.scatter(each.parameters)
            each.anchor = None
        self._replica.reshard()
        self._count(outcome)

    def _reaches_quorum(self, outcome: Outcome) -> bool:
        return len(outcome.participants) >= self._settings.quorum

    def _move(self, shared: Shared, mean: torch.Tensor, error: torch.Tensor | None) -> None:
        shared.error = error
        settings = self._settings
        if settings.averages_parameters:
            shared.parameters.copy_(mean)
            return
        lr, decay = settings.lr, settings.decay
        if settings.takes_gradients:
            lr, decay = (self._inner_number(shared, each) for each in ("lr", "weight_decay"))
        advance(shared.parameters, shared.velocity, mean, settings, lr=lr, decay=decay)

    def _note_bytes(self) -> None:
        statistics = backend_of(self._group).statistics()
        self._before = (int(statistics["bytes_sent"]), int(statistics["bytes_received"]))

    def _count_bytes(self) -> None:
        counted, now = self.statistics, backend_of(self._group).statistics()
        counted["bytes_sent"] += int(now["bytes_sent"]) - self._before[0]
        counted["bytes_received"] += int(now["bytes_received"]) - self._before[1]

    def _inner_number(self, shared: Shared, name: str) -> float:
        # Look groups up each time, because loading a state gives an optimizer new ones.
        return float(self._inner.param_groups[shared.part.group].get(name, 0.0))

    def _count(self, outcome: Outcome) -> None:
        counted = self.statistics
        counted["rounds"] += 1
        counted["skipped"] += outcome.means is None
        counted["participants"] = len(outcome.participants)
        if not self._reaches_quorum(outcome):
            if self._settings.quorum > 1:
                warnings.warn(
                    f"gtopk: {len(outcome.participants)} replicas took part in round "
                    f"{self.number - 1}, fewer than quorum={self._settings.quorum}: the round "
                    "is skipped",
                    stacklevel=9,
                )
        elif outcome.means is None:
            what = "gradients" if self._settings.takes_gradients else "movements"
            if self._settings.averages_parameters:
                what = "parameters"
            warnings.warn(
                f"gtopk: the replicas' {what} overflowed when they were added in round "
                f"{self.number - 1}: the shared parameters stay as they were",
                stacklevel=9,
            )
