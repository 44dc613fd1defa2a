"""The last operations of this process in its groups, recorded by the engine."""

from __future__ import annotations

import json
from typing import Any

from gtopk.core import _native


def flight_recorder() -> dict[str, Any]:
    """Read the flight recorder: the last operations of all gtopk groups of this process.

    Returns {"version", "pg_config", "pg_status", "entries"}, whose fields docs/flight_recorder.md
    explains; names are those of PyTorch's own recorder where it has the same field. Sends nothing
    and does not block, so it can be called while operations hang. GTOPK_FLIGHT_RECORDER in the
    environment sets how many operations are remembered (2,000), 0 for none. Raises RuntimeError
    if this process is in no gtopk group.
    """
    record = _native.load().flight_record()
    if not record:
        raise RuntimeError("gtopk: nothing is recorded, as this process is in no gtopk group")
    told: dict[str, Any] = json.loads(record)
    return told
