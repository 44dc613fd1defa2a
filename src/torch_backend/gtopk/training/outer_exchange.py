"""One exchange of an outer optimizer: what each replica sends, and the mean that all receive."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import ReduceOp

from gtopk.core import standalone
from gtopk.ops.options import SparseOptions, codes_dense, traits_of
from gtopk.ops.sparse_all_reduce import sparse_all_reduce
from gtopk.training.outer_agreement import Agreement, digest_of
from gtopk.training.outer_rule import (
    clipped,
    error_left,
    mean_of,
    movement,
    norm_of,
    visible,
    with_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.distributed_c10d import Work

    from gtopk.training.outer_parts import Part
    from gtopk.training.outer_presets import Settings
    from gtopk.training.outer_shards import Replica


@dataclass
class Shared:
    """The vectors kept for one part: the shared parameters and the state that belongs to them."""

    part: Part
    parameters: torch.Tensor
    velocity: torch.Tensor | None
    """The momentum; None without one."""
    error: torch.Tensor | None
    """What this replica has not sent yet; None if it keeps none."""
    anchor: torch.Tensor | None = None
    """The shared parameters that this replica took over last, if it has missed rounds since."""

    def taken(self) -> torch.Tensor:
        """Return the shared parameters from which this replica's movement is measured."""
        return self.parameters if self.anchor is None else self.anchor


class Outcome(NamedTuple):
    """What an exchange delivered; the same on all replicas except the errors."""

    participants: list[int]
    """Ranks in the group of the replicas that took part; the others were not finite."""
    means: list[torch.Tensor] | None
    """The mean for each part; None if the round is skipped."""
    errors: list[torch.Tensor | None]
    """This replica's new errors."""


class Selection:
    """The function Q: the part of a vector that is sent, selected and rounded as in the exchange.

    It runs the same code in a group of this replica alone, which sends nothing.
    """

    def __init__(self, settings: Settings) -> None:
        """See Settings."""
        self._settings = settings
        self._alone = standalone.create_backend(
            HashStore(),
            0,
            1,
            timedelta(minutes=1),
            name="an outer optimizer's selection",
        )
        weakref.finalize(self, self._alone.shutdown).atexit = False

    def of(self, vector: torch.Tensor, shared: Shared) -> torch.Tensor:
        """Return the entries that are sent, rounded as on the wire, with zeros elsewhere."""
        if self._settings.selects_visible:
            return visible(vector, shared.parameters)
        block = shared.part.block
        sent = vector.clone()
        share = self._settings.share_of(block)
        options = SparseOptions(None, share, "topk", "block", block, wire=self._settings.wire)
        self._alone.sparse_all_reduce([sent], options).wait()
        return sent


class Exchange:
    """One exchange of some parts: the constructor begins it, finish() returns what it delivers."""

    def __init__(
        self,
        number: int,
        parts: Sequence[Shared],
        settings: Settings,
        selection: Selection | None,
        group: dist.ProcessGroup | None,
        replica: Replica,
        *,
        rates: Sequence[float],
        finite: bool,
    ) -> None:
        """Begin; collective, also over the replica's ranks.

        number: the round's number. selection: None if everything is sent. rates: the inner
        optimizer's learning rate of each part. finite: False if this replica must not take part,
        even if its values are finite.
        """
        self._settings = settings
        self._group = group
        self._parts = parts
        wanted = [_wanted(each, settings, rate) for each, rate in zip(parts, rates, strict=True)]
        finite = finite and all(bool(each.isfinite().all()) for each in wanted)
        self.takes_part = replica.least(int(finite)) == 1
        if not self.takes_part:
            for each in wanted:
                each.zero_()
        lists = (
            []
            if selection is None
            else [selection.of(each, part) for each, part in zip(wanted, parts, strict=True)]
        )
        norm = _norm(lists, parts, replica) if settings.clip else None
        self._works: list[Work | None] = []
        self._totals: list[torch.Tensor] = []
        self._errors: list[torch.Tensor | None] = []
        self._returned: list[torch.Tensor | None] = []
        self._outcome: Outcome | None = None
        self._failure: Exception | None = None
        try:
            self._send(number, wanted, lists, norm)
        except Exception as error:
            if not replica.groups:
                raise
            self._failure = error  # finish() raises it; the replica's other ranks do not know it

    def _send(
        self,
        number: int,
        wanted: Sequence[torch.Tensor],
        lists: Sequence[torch.Tensor],
        norm: float | None,
    ) -> None:
        """Begin the operations that are collective over the replicas."""
        settings, parts = self._settings, self._parts
        digest = digest_of(each.parameters for each in parts)
        self._agreement = Agreement(number, digest, self.takes_part, self._group, norm)
        if not settings.selects:
            for vector in wanted:
                self._send_everything(vector)
            return
        median = None if norm is None else self._agreement.median_norm()
        for part, vector, sent in zip(parts, wanted, lists, strict=True):
            error = error_left(vector, sent, settings.subtract) if settings.keeps_error else None
            if norm is not None and median is not None:
                clipped(sent, norm, median)
            self._send_selection(sent, error, part)

    def finish(self) -> Outcome:
        """Wait for the exchange. Raise as Agreement.participants() and sparse_all_reduce()."""
        if self._outcome is None:
            self._outcome = self._finish()
        return self._outcome

    def _finish(self) -> Outcome:
        if self._failure is not None:
            raise self._failure
        participants = self._agreement.participants()
        for work in self._works:
            if work is not None:
                work.wait()
        if len(participants) < self._settings.quorum:
            return Outcome(participants, None, self._errors)
        divided = self._settings.mean == "contributors"  # the exchange has divided per coordinate
        means = [
            part.part.restore(total if divided else mean_of(total, len(participants)))
            for part, total in zip(self._parts, self._totals, strict=True)
        ]
        for error, returned in zip(self._errors, self._returned, strict=True):
            if error is not None and returned is not None:
                error.add_(returned * self._settings.subtract)
        # A sum that overflowed is NaN on every replica, so all of them skip the round.
        finite = all(bool(each.isfinite().all()) for each in means)
        return Outcome(participants, means if finite else None, self._errors)

    def _send_everything(self, vector: torch.Tensor) -> None:
        """Send all entries with the algorithm "dense". Rounding errors become the new error."""
        settings = self._settings
        keeps = settings.keeps_error and codes_dense(settings.wire)
        error = torch.zeros_like(vector) if keeps else None
        self._add(vector, error)
        self._works.append(
            sparse_all_reduce(
                vector,
                residual=error,
                algorithm="dense",
                wire=settings.wire,
                group=self._group,
                async_op=True,
            )
        )

    def _send_selection(
        self, sent: torch.Tensor, error: torch.Tensor | None, shared: Shared
    ) -> None:
        """Send lists. Losses from re-selection and from rounding clipped values go to the error.

        Rounding values that are already rounded changes nothing.
        """
        settings = self._settings
        by_coordinate = settings.mean == "contributors"
        rounds = settings.clip is not None and settings.wire is not None
        all_arrives = traits_of(settings.algorithm, settings.wire).delivers_selections
        loses = error is not None and (rounds or not all_arrives)
        returned = torch.zeros_like(sent) if loses else None
        self._add(sent, error, returned)
        self._works.append(
            sparse_all_reduce(
                sent,
                residual=returned,
                algorithm=settings.algorithm,
                wire=settings.wire,
                op=ReduceOp.AVG if by_coordinate else ReduceOp.SUM,
                mean="contributors" if by_coordinate else "ranks",
                group=self._group,
                async_op=True,
                **_selector(settings, shared.part.block),
            )
        )

    def _add(
        self,
        total: torch.Tensor,
        error: torch.Tensor | None,
        returned: torch.Tensor | None = None,
    ) -> None:
        self._totals.append(total)
        self._errors.append(error)
        self._returned.append(returned)


def _norm(lists: Sequence[torch.Tensor], parts: Sequence[Shared], replica: Replica) -> float:
    """Return the norm of what this replica sends, over all of its ranks."""
    if not replica.groups:
        return norm_of(lists)
    return replica.norm_of(
        (slot.parameter, sent)
        for each, part in zip(lists, parts, strict=True)
        for slot, sent in part.part.tensors(each)
    )


def _selector(settings: Settings, block: int) -> Any:
    """Return arguments with which the exchange selects everything that was selected before."""
    if settings.selects_visible:
        return {"density": 1.0}
    return {"density": settings.share_of(block), "select": "block", "block": block}


def _wanted(shared: Shared, settings: Settings, rate: float) -> torch.Tensor:
    """Return a = error_decay * e + scale * T(shared - own parameters), or the own parameters.

    For gradients: error_decay * e + T(learning rate * gradient).
    """
    part = shared.part
    if settings.averages_parameters:
        local = part.gather()
        if shared.anchor is not None:  # the movement includes the rounds that it missed
            local.add_(shared.parameters - shared.anchor)
        return local
    if settings.takes_gradients:
        moved = part.gather_gradients().mul_(rate)
    else:
        moved = movement(shared.taken(), part.gather(), part.parameter_dtype)
    return with_error(part.transform(moved), shared.error, settings)
