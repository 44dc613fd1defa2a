"""What a group has done so far, counted by the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

import torch.distributed as dist

from gtopk.core.groups import backend_of
from gtopk.ops.plan import Plan, told

if TYPE_CHECKING:
    from gtopk.diagnostics.diagnose import Diagnosis


class Statistics(TypedDict):
    """What this rank did in a group since it was created. Bytes include headers."""

    operations: int
    """Operations begun: collectives, sends and receives."""
    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    notices_sent: int
    """Messages that told other ranks of an error."""
    most_in_flight: int
    """The largest number of operations in flight at one time."""
    queue_seconds: float
    """Time between call and start, summed over operations."""
    run_seconds: float
    """Time between start and end, summed over operations, also over concurrent ones."""
    compress_seconds: float
    """Time spent selecting."""
    exchange_seconds: float
    """Messages and merges of sparse operations, summed also over concurrent ones."""
    commit_seconds: float
    """Time spent writing results and residuals."""
    transport: str
    """The transport that carries the messages, as loaded and configured."""
    plan: Plan | None
    """Of the last algorithm="auto" to end: what it chose, why, and how long it took."""
    diagnosis: Diagnosis | None
    """What gtopk.diagnose measured last in this group: contraction, recall, delta; see there."""


def stats(group: dist.ProcessGroup | None = None) -> Statistics:
    """Return what this rank did in `group` (None: the default group) since it was created.

    Reads counters, sends nothing. Raises RuntimeError if no process group is initialised, and
    ValueError if the group is not a gtopk group.
    """
    backend = backend_of(group)
    others = {"plan": told(backend.last_plan()), "diagnosis": backend.diagnosis}
    return cast("Statistics", {**backend.statistics(), **others})
