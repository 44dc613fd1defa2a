"""What a group reports when ranks do not come: errors, monitored barriers, and
the flight recorder.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import gtopk
from helpers.ranks import Rank, RankSet, environment, run_script

pytestmark = pytest.mark.loopback

SHORT = timedelta(seconds=1.5)
LONG = timedelta(seconds=30)


def check_monitored_barriers_pass(me: Rank) -> None:
    for wait_all in (False, True):
        dist.group.WORLD.monitored_barrier(LONG, wait_all)


def missing(me: Rank, late: list[int], wait_all: bool) -> str | None:
    """What the others are told about ranks that miss a monitored barrier."""
    group = dist.new_group(timeout=LONG)
    error = None
    if me.rank in late:
        elsewhere = dist.barrier(async_op=True)
        me.store.set(f"away/{late}/{me.rank}", "")
        elsewhere.wait()
    else:
        me.store.wait([f"away/{late}/{rank}" for rank in late], LONG)
        with pytest.raises(dist.DistBackendError) as caught:
            group.monitored_barrier(SHORT, wait_all)
        error = str(caught.value)
        dist.barrier()
    dist.destroy_process_group(group)
    return error


def check_monitored_barrier_names_absent_ranks(me: Rank) -> None:
    for late, wait_all in (([2], False), ([1, 3], True)):
        error = missing(me, late, wait_all)
        if error is None:
            continue
        named = re.findall(r"rank (\d) \(host \S+, pid \d+\) never entered", error)
        assert named == [str(rank) for rank in late], error
        assert "never entered monitored_barrier #1; it is in barrier #" in error


def check_ranks_that_mix_barriers_up_hear_of_both(me: Rank) -> None:
    group = dist.new_group(timeout=LONG)
    barrier = group.monitored_barrier if me.rank == 0 else lambda: group.barrier().wait()
    with pytest.raises(dist.DistBackendError, match=r"monitored_barrier\(\)") as caught:
        barrier()
    assert re.search(r"(?<!monitored_)barrier\(\)", str(caught.value))
    dist.destroy_process_group(group)


def check_torchs_function_takes_gtopk_since_2_14(me: Rank) -> None:
    """Older versions compare the backend's name with gloo's."""
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14):
        dist.monitored_barrier(timeout=LONG, wait_all_ranks=True)
        return
    with pytest.raises(ValueError, match="GLOO"):
        dist.monitored_barrier()


def check_the_recorder_tells_what_was_called(me: Rank) -> None:
    dist.all_reduce(torch.ones(3, 4, dtype=torch.bfloat16))
    record = gtopk.flight_recorder()
    assert json.loads(json.dumps(record)) == record
    last = record["entries"][-1]
    assert last["profiling_name"] == "gtopk:all_reduce"
    assert last["call"] == "all_reduce(d=12, dtype=bfloat16, op=SUM)"
    assert (last["input_sizes"], last["input_dtypes"]) == ([[12]], ["bfloat16"])
    assert last["state"] == "completed"
    group = dist.group.WORLD.group_name
    assert last["process_group"][0] == group
    assert record["pg_config"][group]["rank"] == me.rank
    assert record["pg_status"][group]["last_completed_collective"] == last["collective_seq_id"]


def check_the_recorder_can_be_read_while_an_operation_hangs(me: Rank) -> None:
    tensor = torch.ones(5)
    if me.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        hanging: list[str] = []
        while not hanging:  # until the engine's thread has recorded it
            entries = gtopk.flight_recorder()["entries"]
            hanging = [e["call"] for e in entries if e["state"] in ("scheduled", "started")]
        assert hanging == ["all_reduce(d=5, dtype=float32, op=SUM)"]
        for rank in range(1, me.size):
            dist.send(torch.ones(1), rank)
        work.wait()
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(tensor)
    assert tensor.tolist() == [4.0] * 5


def test_on_four_ranks(four: RankSet, check) -> None:
    four.run(check)


JOB = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), is_master=False)
rank = int(sys.argv[1])
dist.init_process_group("gtopk", store=store, rank=rank, world_size=2)
dist.all_reduce(torch.ones(3))
if rank == 0:
    try:
        dist.group.WORLD.monitored_barrier(timedelta(seconds=0.5))
    except dist.DistBackendError:
        pass
store.set(f"done/{rank}", "")
store.wait(["done/0", "done/1"])
dist.destroy_process_group()
"""


def test_a_time_out_leaves_a_file_of_each_rank(tmp_path: pathlib.Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, str(rank), str(store.port)],
            env={**environment(), "GTOPK_FLIGHT_RECORDER_DIR": str(tmp_path)},
        )
        for rank in range(2)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    files = {path: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    records = {record["pg_config"]["0"]["rank"]: record for record in files.values()}
    failed = records[0]["entries"][-1]
    assert failed["state"] == "failed"
    assert "never entered monitored_barrier #2" in failed["error"]
    assert all(path.suffix == ".json" for path in files)


def test_without_a_group_there_is_nothing_to_read() -> None:
    done = run_script("import gtopk\ngtopk.flight_recorder()")
    assert "RuntimeError: gtopk: nothing is recorded, as this process is not in a" in done.stderr


def test_an_environment_that_makes_no_sense_is_an_error() -> None:
    source = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gtopk', store=dist.HashStore(), rank=0, world_size=1)"
    )
    done = run_script(source, GTOPK_FLIGHT_RECORDER="much")
    assert "ValueError: gtopk: GTOPK_FLIGHT_RECORDER=much: expected a number" in done.stderr
