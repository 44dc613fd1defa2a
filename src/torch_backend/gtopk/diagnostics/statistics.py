"""What this process did in its groups: counters, and a record of its last operations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypedDict, cast

import torch.distributed as dist

from gtopk.core import _native
from gtopk.core.groups import backend_of
from gtopk.ops.plan import Plan, told

if TYPE_CHECKING:
    from gtopk.core.backend import GtopkBackend
    from gtopk.diagnostics.diagnose import Diagnosis


class Statistics(TypedDict):
    """What this rank did in all its groups, or in one. Bytes include headers."""

    operations: int
    """Operations begun: collectives, sends and receives."""
    messages_sent: int
    """Messages of operations that this rank sent."""
    messages_received: int
    """Messages of operations that this rank received."""
    bytes_sent: int
    """Bytes of the messages sent."""
    bytes_received: int
    """Bytes of the messages received."""
    notices_sent: int
    """Messages that reported an error to other ranks."""
    most_in_flight: int
    """The largest number of operations of one group in flight at one time."""
    queue_seconds: float
    """Time between call and start, summed over operations."""
    run_seconds: float
    """Time between start and end, summed over operations, including concurrent ones."""
    compress_seconds: float
    """Time spent selecting."""
    exchange_seconds: float
    """Time in messages and merges of sparse operations, summed over concurrent ones too."""
    commit_seconds: float
    """Time spent writing results and residuals."""
    transport: str
    """The transport that carries the messages, as loaded and configured; "" if no group exists."""
    plan: Plan | None
    """For the group's last algorithm="auto" to end: what it chose, why, and how long it took."""
    diagnosis: Diagnosis | None
    """The last result of gtopk.diagnose in this group: contraction, recall, delta; see there."""


def stats(group: dist.ProcessGroup | None = None) -> Statistics:
    """Return what this rank did in all gtopk groups of this process, or in one of them.

    Without `group`, the figures of all groups that this process has been in are added up, including
    those that have ended, no matter who made them: torch.distributed, a framework that makes its
    own groups, a ReplicaGroup with its former ranks, or create_backend. ``most_in_flight`` is the
    largest value of any group. ``plan`` and ``diagnosis`` then describe the default group, and are
    None if there is none or it is not gtopk's. A forked child starts from zero.

    With `group`, the figures cover that group since it was created.

    It reads counters and sends nothing. Raises RuntimeError if this process has been in no gtopk
    group, and ValueError if `group` is not a gtopk group.
    """
    backend = _default() if group is None else backend_of(group)
    plan = None if backend is None else told(backend.last_plan())
    diagnosis = None if backend is None else backend.diagnosis
    if group is None:
        counts, seconds, transport = _native.load().statistics(None)
        if not counts:
            raise RuntimeError(
                "gtopk: there are no statistics, as this process has not been in a gtopk group"
            )
        figures = {**counts, **seconds, "transport": transport}
    else:
        assert backend is not None
        figures = backend.statistics()
    return cast("Statistics", {**figures, "plan": plan, "diagnosis": diagnosis})


def _default() -> GtopkBackend | None:
    """Return the default group's backend; None if there is none, or it is not gtopk's."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    try:
        return backend_of(None)
    except ValueError:
        return None


def flight_recorder() -> dict[str, Any]:
    """Read the flight recorder: the last operations of all gtopk groups of this process.

    Returns {"version", "pg_config", "pg_status", "entries"}, whose fields docs/flight_recorder.md
    explains; fields that PyTorch's own recorder also has keep their names. It sends nothing
    and does not block, so it can be called while operations hang. GTOPK_FLIGHT_RECORDER in the
    environment sets how many operations are remembered (default 2,000; 0 for none). Raises
    RuntimeError if this process is in no gtopk group.
    """
    record = _native.load().flight_record()
    if not record:
        raise RuntimeError("gtopk: nothing is recorded, as this process is not in a gtopk group")
    told: dict[str, Any] = json.loads(record)
    return told
