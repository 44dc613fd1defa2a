"""Forks: children leave the parent's resources alone; ranks may be children."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from helpers.ranks import WATCHDOG, environment, run_script

pytestmark = pytest.mark.loopback

ALONE = """
import os, sys, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # Python 3.12's, of any fork
import torch, torch.distributed as dist
dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def ended_well(script: str, said: str) -> None:
    """Exit code 0, and no output but `said`."""
    done = run_script(script, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, said, "")


@pytest.mark.parametrize("way", ["sys.exit()", "dist.destroy_process_group(); sys.exit()"])
def test_a_forked_child_exits_as_processes_do(way):
    script = f"""
{ALONE}
kept = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: done.value())
child = os.fork()
if child == 0:
    {way}
assert ended(child) == 0
# Nor does its end take anything from the parent.
dist.all_reduce(torch.ones(3))
group = dist.new_group([0])
dist.all_reduce(torch.ones(3), group=group)
print("parent works on")
"""
    ended_well(script, "parent works on")


def test_a_forked_child_is_told_what_it_cannot_do():
    script = f"""
{ALONE}
import gtopk
from gtopk.core.groups import backend_of
backend = backend_of(None)
work = backend.recv([torch.ones(3)], 0, 0)
def init():
    dist.destroy_process_group()
    dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
child = os.fork()
if child == 0:
    calls = [lambda: dist.all_reduce(torch.ones(3)), lambda: dist.barrier(),
             lambda: gtopk.sparse_all_reduce(torch.ones(3), k=1), lambda: gtopk.stats(),
             work.wait, backend.abort, backend.get_error, init]
    for number, call in enumerate(calls):
        try:
            call()
            os._exit(10 + number)
        except ValueError as error:
            if "was forked" not in str(error) or "spawn" not in str(error):
                os._exit(20 + number)
    sys.exit(0)
assert ended(child) == 0
backend.send([torch.ones(3)], 0, 0)
work.wait()
print("parent works on")
"""
    ended_well(script, "parent works on")


def test_multiprocessings_forked_children_leave_the_group_alone():
    script = f"""
{ALONE}
import multiprocessing as mp
def child():
    import gtopk
    torch.ones(3).sum()
children = [mp.get_context("fork").Process(target=child) for _ in range(3)]
for each in children: each.start()
dist.all_reduce(torch.ones(3))
for each in children: each.join()
print([each.exitcode for each in children])
"""
    ended_well(script, "[0, 0, 0]")


def test_ranks_that_are_forked_children_work_and_say_goodbye(tmp_path: pathlib.Path):
    # Rank 0 ends at once; rank 1 notices long before any deadline. While rank 0 leaves, rank 1
    # sends it nothing, which rank 0 would have to take for a lost message. Neither destroys the
    # group. The parent has left its own group.
    program = tmp_path / "ranks.py"
    program.write_text("""
import sys
import torch, torch.distributed as dist
import multiprocessing as mp

def rank_main(rank, path, gone):
    dist.init_process_group("gtopk", init_method=f"file://{path}", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(3))
    if rank == 0:
        return
    gone.wait()
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        print("has left" in str(error), flush=True)

if __name__ == "__main__":
    dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    context = mp.get_context("fork")
    gone = context.Event()
    ranks = [context.Process(target=rank_main, args=(rank, sys.argv[1], gone)) for rank in (0, 1)]
    for each in ranks: each.start()
    ranks[0].join()
    gone.set()
    ranks[1].join()
    print([each.exitcode for each in ranks])
""")
    command = [sys.executable, str(program), str(tmp_path / "store")]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WATCHDOG, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n[0, 0]\n"), done.stderr
    # From 2.15 on torch's flight recorder says that rank 1 was rank 0 of the group before, and, if
    # the process lasts until it sees rank 1's error, that it dumps its trace.
    remarks = (
        "FlightRecorderHook: global rank changed from 0 to 1;",
        "FlightRecorderHook: dumping trace on collective failure",
    )
    said = done.stderr.splitlines()
    assert [line for line in said if not any(remark in line for remark in remarks)] == []
