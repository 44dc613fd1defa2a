"""The backend of one group: torch's view of it, and what gtopk adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch._C._distributed_c10d import ErrorType
from torch.distributed.distributed_c10d import Work

from gtopk.core import _native

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    import torch
    from torch._C._distributed_c10d import Backend
    from torch.futures import Future


class Options(Protocol):
    """The part that operators need of gtopk.ops.options.SparseOptions."""

    @property
    def native(self) -> _native.SparseOptions:
        """Return the options as the native library's value."""


class GtopkBackend:
    """A gtopk backend. It also has all methods of torch's Backend (allreduce, send, abort, …)."""

    def __init__(self, backend: Backend, number: int) -> None:
        """Hold a gtopk backend and the number by which operators know it."""
        self._backend = backend
        self._number = number
        self._operators = _native.load()
        self.diagnosis: Any = None
        """The last Diagnosis of a SparseState of this group."""

    def __getattr__(self, name: str) -> Any:
        """Look the name up in torch's Backend."""
        return getattr(self._backend, name)

    def sparse_all_reduce(
        self,
        tensors: Sequence[torch.Tensor],
        options: Options,
        residual: torch.Tensor | None = None,
        *,
        timeout: timedelta | None = None,
        delivered: Sequence[torch.Tensor] = (),
        state: torch.Tensor | None = None,
        scale: float = 1.0,
        gate: _native.Gate | None = None,
        momentum: torch.Tensor | None = None,
    ) -> Work:
        """See gtopk.sparse_all_reduce; the future's value is `tensors`.

        delivered: [indices, values] (int64, the accumulation type), which receive the indices of
        the result and their sums. Each must hold the longest possible result. "dense" records all
        elements in order and writes no indices.

        scale: multiplies the result before it is rounded; residuals are not scaled. gate: made by
        _native.gate(); the operation commits only if all parts that arrive at the gate have
        happened. momentum: has the residual's shape; it is zeroed where this rank's entries were
        cleared.
        """
        work = self._operators.sparse_all_reduce(
            self._number,
            options.native,
            tensors,
            residual,
            timeout_ms=None if timeout is None else round(timeout.total_seconds() * 1000),
            delivered=delivered,
            state=state,
            scale=scale,
            gate=gate,
            momentum=momentum,
        )
        return Work.unbox(work)

    def plan(self, d: int, like: torch.Tensor, options: Options, anew: bool) -> tuple[Any, ...]:
        """See gtopk.plan; returns the operator's tuple."""
        told: tuple[Any, ...] = self._operators.plan(self._number, options.native, d, like, anew)
        return told

    def end_of(self, work: Work) -> Future[list[torch.Tensor]]:
        """Return the future of a Work whose callbacks call no collectives of the group.

        These callbacks run as soon as the Work ends; callbacks of other futures run in the order of
        the collectives.
        """
        self._operators.leave_order(work.boxed())
        return work.get_future()

    def last_plan(self) -> tuple[Any, ...]:
        """Return the plan of the last "auto" to end, in plan()'s format; starts with "" if none."""
        told: tuple[Any, ...] = self._operators.last_plan(self._number)
        return told

    def statistics(self) -> dict[str, int | float | str]:
        """See gtopk.stats."""
        counts, seconds, transport = self._operators.statistics(self._number)
        return {**counts, **seconds, "transport": transport}

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of later operations."""
        self._operators.set_timeout(self._number, round(timeout.total_seconds() * 1000))

    def get_error(self) -> ErrorType:
        """Return SUCCESS, or the reason why the group failed: TIMEOUT or COMM_ERROR."""
        return ErrorType(self._operators.get_error(self._number))


def sequence_number(work: Work) -> int:
    """Return a gtopk Work's collective number in its group, from 1; 0 for a point-to-point message.

    For a coalescing window, return the number of its last collective.
    """
    number: int = _native.load().sequence_number(work.boxed())
    return number
