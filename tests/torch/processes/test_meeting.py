"""Ranks find one another whatever earlier runs left in the store."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from helpers.ranks import WATCHDOG, Rank, RankSet, environment

pytestmark = pytest.mark.loopback

GROUPS = 5000  # a process can be in 4,096 at once


@pytest.mark.long
def test_ranks_meet_though_one_died_twice_before_it_met(tmp_path: pathlib.Path):
    program = tmp_path / "restarts.py"
    # One write per line: print() may make several, and the ranks share the output.
    program.write_text("""
import os, sys, torch, torch.distributed as dist

def dies(store, *_):
    "Rank 1 for torch: waits until rank 0 has begun to meet, and dies before it meets."
    store.wait(["gtopk/arrivals"])
    os._exit(1)

if os.environ["RANK"] == "1" and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 2:
    from gtopk.core import _native
    _native.create_backend = dies
dist.init_process_group("gtopk")
ones = torch.ones(3)
dist.all_reduce(ones)
dist.destroy_process_group()
dist.init_process_group("gtopk")
dist.all_reduce(ones)
sys.stdout.write(f"{ones.tolist()}\\n")
sys.stdout.flush()
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "2", "--monitor-interval", "0.05"]
    done = subprocess.run(
        [*command, str(program)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[4.0, 4.0, 4.0]\n" * 2), done.stderr


def check_groups_in_turn(me: Rank) -> None:
    """Mostly groups of one rank, as torch takes milliseconds to agree on a group of two."""
    import torch
    import torch.distributed as dist

    together = torch.ones(1)
    for number in range(GROUPS):
        both = number % 50 == 0
        members = [0, 1] if both else [me.rank]
        group = dist.new_group(members, use_local_synchronization=True)
        if both:
            dist.all_reduce(together, group=group)
        dist.destroy_process_group(group)
    assert together.item() == 2.0 ** (GROUPS // 50)


def test_more_groups_in_turn_than_a_process_can_be_in_at_a_time():
    with RankSet(2) as ranks:
        ranks.run(check_groups_in_turn)
