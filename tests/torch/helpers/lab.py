"""Programs on the hosts of a lab."""

from __future__ import annotations

import os
import select
import sys

WATCHDOG = 120


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def has_ended(pid: int, seconds: float) -> bool:
    """Whether the process is gone, or ends within `seconds`; blocks on it instead of sleeping."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


# Start of a rank's script: where rank 0 listens, and how the others reach it once it does.
CONNECT = """
import os, socket
rank, address = int(os.environ["RANK"]), ("10.77.0.1", int(os.environ["MASTER_PORT"]))
def connect():
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            pass
"""
