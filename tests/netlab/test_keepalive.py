"""Ranks that are silent for longer than a NAT remembers their connections.

The lab's switch stands for the NAT: it drops segments of TCP connections that it has forgotten.
"""

from __future__ import annotations

import sys

import pytest
from netlab import Impairment, Lab

from helpers.ranks import WATCHDOG

pytestmark = pytest.mark.network

# Where UCX accepts connections, on both hosts.
PORT = 40000

# After the silence: the timers of UCX's connections, the sum of two all-reduces of ones, and of a
# third one in a new group, for which ranks need the store.
RANKS = f"""
import datetime, os, select, subprocess, sys
import torch, torch.distributed as dist

silence, timeout, store = map(float, sys.argv[1:])
dist.init_process_group("gtopk", timeout=datetime.timedelta(seconds=timeout))
numbers = torch.ones(10)
dist.all_reduce(numbers)
select.select([], [], [], silence)
ends = "sport = {PORT} or dport = {PORT}"
print(subprocess.run(["ss", "-Htno", ends], capture_output=True, text=True).stdout)
try:
    dist.all_reduce(numbers)
    if store:
        dist.all_reduce(numbers, group=dist.new_group([0, 1]))
    print("sum", numbers[0].item(), flush=True)
except dist.DistBackendError as error:
    print("error", error, flush=True)
os._exit(0)
"""


def said_after(
    silence: float,
    forget: str,
    *,
    timeout: float = 30,
    store: bool = False,
    **settings: str,
) -> list[str]:
    """What each rank printed; settings: UCX's for TCP."""
    words = [str(silence), str(timeout), str(int(store))]
    with Lab(2, None, impairment=Impairment.of(forget=forget)) as lab:
        outcome = lab.run(
            [sys.executable, "-c", RANKS, *words],
            timeout=WATCHDOG,
            env={"GTOPK_PORTS": str(PORT)} | {f"UCX_TCP_{k}": v for k, v in settings.items()},
        )
    assert outcome.ok, outcome.report()
    return [rank.output for rank in outcome.ranks]


def test_keepalives_of_both_ends_hold_a_group_through_a_silence() -> None:
    # A second each: UCX rounds down, maybe below the next one.
    for said in said_after(6, forget="3s", KEEPIDLE="1.5s", KEEPINTVL="1.5s"):
        assert "sum 4.0" in said, said
        ends = [line for line in said.splitlines() if f":{PORT}" in line]
        assert ends, said
        assert all("timer:(keepalive," in end for end in ends), said


@pytest.mark.long
def test_a_group_and_its_store_survive_a_long_silence_by_default() -> None:
    for said in said_after(45, forget="15s", store=True):
        assert "sum 8.0" in said, said


@pytest.mark.long
def test_connection_forgotten_before_keepalive_fails_at_timeout() -> None:
    said = said_after(8, forget="5s", timeout=5)
    for rank in (0, 1):
        assert "all_reduce #2 timed out after 5 s" in said[rank], said
        assert f"rank {1 - rank} (host host{1 - rank}, pid " in said[rank]
        assert "does not answer" in said[rank]


@pytest.mark.long
def test_tcp_user_timeout_resets_connection_before_op_timeout() -> None:
    said = said_after(8, forget="5s", timeout=WATCHDOG, USER_TIMEOUT="5s")
    for rank in (0, 1):
        assert f"rank {1 - rank} (host host{1 - rank}, pid " in said[rank]
        assert "is gone: Connection reset" in said[rank]
