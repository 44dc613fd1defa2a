"""Hosts of several ranks in the network lab: what ranks on a host share."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from netlab import Impairment, Lab, Loopback

from helpers.lab import WATCHDOG, python
from helpers.paths import TORCH
from helpers.ranks import environment


@pytest.mark.network
def test_hostname_ipc_and_dev_shm_are_shared_only_within_a_host():
    script = """
import os, pathlib
rank, local = os.environ["RANK"], os.environ["LOCAL_RANK"]
pathlib.Path(f"/dev/shm/netlab-{rank}").touch()
print(os.uname().nodename, local, os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"],
      os.environ["UCX_TLS"], os.stat("/proc/self/ns/ipc").st_ino)
"""
    with Lab(2, None, ranks_per_host=2) as lab:
        outcome = lab.run(python(script), timeout=WATCHDOG)
        assert outcome.ok, outcome.report()
        listing = "import os; print(sorted(f for f in os.listdir('/dev/shm') if 'netlab' in f))"
        seen = lab.run(python(listing), timeout=WATCHDOG)
    names, locals_, worlds, local_worlds, transports, spaces = zip(
        *(rank.output.split() for rank in outcome.ranks), strict=True
    )
    assert names == ("host0", "host0", "host1", "host1")
    assert locals_ == ("0", "1", "0", "1")
    assert set(worlds) == {"4"}
    assert set(local_worlds) == {"2"}
    assert set(transports) == {"tcp,sm,self"}
    assert spaces[0] == spaces[1] != spaces[2] == spaces[3]
    here = str(os.stat("/proc/self/ns/ipc").st_ino)
    assert here not in spaces
    first, second = "['netlab-0', 'netlab-1']\n", "['netlab-2', 'netlab-3']\n"
    assert [rank.output for rank in seen.ranks] == [first, first, second, second]
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("netlab-")]


@pytest.mark.network
def test_ranks_can_be_dealt_to_the_hosts_in_turn():
    script = "import os; print(os.uname().nodename, os.environ['LOCAL_RANK'])"
    with Lab(2, None, ranks_per_host=3, in_turn=True) as lab:
        outcome = lab.run(python(script), timeout=WATCHDOG)
    assert outcome.ok, outcome.report()
    assert [rank.output.split() for rank in outcome.ranks] == [
        [f"host{rank % 2}", str(rank // 2)] for rank in range(6)
    ]


BY_HOSTS = """
import sys
import torch, torch.distributed as dist, gtopk
from helpers import reference
torch.set_num_threads(1)
dist.init_process_group("gtopk")
rank, ranks = dist.get_rank(), dist.get_world_size()
algorithm, hosts = sys.argv[1], [int(host) for host in sys.argv[2]]
d, k = 20_000, 8_000
residual, residuals = torch.zeros(d), None
sent = 0
for step in range(2):
    gradients = [torch.randn(d, generator=torch.Generator().manual_seed(10 * step + r))
                 for r in range(ranks)]
    expected = reference.sparse_all_reduce(gradients, residuals, k, algorithm, hosts=hosts)
    residuals, tensor = expected.residuals, gradients[rank].clone()
    dist.barrier()
    before = gtopk.stats()["bytes_sent"]
    gtopk.sparse_all_reduce(tensor, k=k, residual=residual, algorithm=algorithm, wire="raw")
    sent += gtopk.stats()["bytes_sent"] - before
    same = [torch.equal(tensor.view(torch.int32), expected.tensor.view(torch.int32)),
            torch.equal(residual.view(torch.int32), residuals[rank].view(torch.int32))]
    assert all(same), (rank, step, same)
print(f"{sent} bytes")  # torch may write warnings of its store beside it
dist.destroy_process_group()
"""


@pytest.mark.network
@pytest.mark.parametrize(
    ("algorithm", "hosts"),
    [pytest.param("hierarchical", "0011", marks=pytest.mark.long), ("gtopk-placed", "0101")],
)
def test_only_leaders_lists_cross_the_wire_between_two_hosts(algorithm, hosts):
    path = os.pathsep.join([str(TORCH), os.environ.get("PYTHONPATH", "")])
    command = [*python(BY_HOSTS), algorithm, hosts]
    with Lab(2, None, ranks_per_host=2, in_turn=hosts == "0101") as lab:
        outcome = lab.run(command, timeout=WATCHDOG, env={"PYTHONPATH": path})
        counters = lab.counters()
    assert outcome.ok, outcome.report()
    lists = 2 * (64 + 8 * 8_000)  # of k entries, in both steps
    # To the neighbours in a binomial tree, 0-1, 0-2 and 2-3, in both steps.
    headers = {rank: 2 * 64 * neighbours for rank, neighbours in enumerate((2, 1, 2, 1))}
    # A leader sends its host's list, and the result.
    leaders = {hosts.index(host) for host in hosts}
    sent = {rank: headers[rank] + lists * (2 if rank in leaders else 1) for rank in range(4)}
    said = {rank.rank: re.findall(r"^(\d+) bytes$", rank.output, re.M) for rank in outcome.ranks}
    assert said == {rank: [str(each)] for rank, each in sent.items()}
    # One of a host's three lists: packets have headers, and ranks meet over the same link.
    for host in counters:
        assert lists < host.tx_bytes < 1.1 * lists + 50_000


ALLREDUCE = str(pathlib.Path(sys.executable).parent / "gtopk-allreduce")
ALL = ["-b", "4K", "-e", "4K", "-n", "2", "-w", "0", "-a", "all", "--check"]


def bits(path: pathlib.Path) -> dict[str, int]:
    """For each algorithm whose tree does not follow the hosts, a checksum of the result."""
    rows = json.loads(path.read_text())["rows"]
    assert [row["wrong"] for row in rows] == [0] * len(rows)
    sums = {row["algorithm"]: row["checksum"] for row in rows}
    assert {"hierarchical", "gtopk-placed"} <= sums.keys()
    return {name: sums[name] for name in sums.keys() - {"hierarchical", "gtopk-placed"}}


@pytest.mark.network
@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(2, 2), (8, 1)])
def test_gtopk_allreduce_gives_the_same_bits_on_any_hosts(hosts, ranks_per_host, tmp_path):
    ranks = hosts * ranks_per_host
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    alone = Loopback(ranks).run([ALLREDUCE, *ALL, "--json", str(here)], timeout=WATCHDOG)
    assert alone.ok, alone.report()
    with Lab(hosts, None, ranks_per_host=ranks_per_host) as lab:
        outcome = lab.run([ALLREDUCE, *ALL, "--json", str(there)], timeout=WATCHDOG)
    assert outcome.ok, outcome.report()
    expected = bits(here)
    assert len(expected) > 5
    assert bits(there) == expected
    if shutil.which("mpirun"):
        launched = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
        path = tmp_path / "launched.json"
        done = subprocess.run(
            [*launched, ALLREDUCE, *ALL, "--json", str(path)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=WATCHDOG,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert bits(path) == expected


@pytest.mark.network
@pytest.mark.parametrize(("delay", "connections"), [("0.5ms", 1), ("15ms", 10)])
def test_more_connections_are_opened_to_a_rank_that_is_far_away(delay, connections):
    # The reference checks every result; a list of 3,276 entries goes in parts.
    command = [ALLREDUCE, "-b", "128K", "-e", "128K", "-n", "3", "-w", "0", "-a", "gtopk"]
    command += ["--density", "0.1", "--check"]
    with Lab(2, None, impairment=Impairment.of(delay)) as lab:
        outcome = lab.run(command, timeout=WATCHDOG, env={"GTOPK_LOG_LEVEL": "info"})
    assert outcome.ok, outcome.report()
    for rank in outcome.ranks:
        times = re.findall(r"connects to host\d pid \d+ (\d+) times", rank.output)
        assert times == ([str(connections)] if connections > 1 else []), rank.output
