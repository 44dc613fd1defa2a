"""Unusual hosts: each works, or says in one line why not.

Ranks run gtopk-allreduce, which checks every result, in namespaces; only the last test uses torch.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
from netlab import Lab, Outcome

from helpers.paths import ROOT
from helpers.ranks import WATCHDOG, environment, free_port

pytestmark = pytest.mark.network

ALLREDUCE = str(pathlib.Path(sys.executable).parent / "gtopk-allreduce")
SIZES = ["-b", "4K", "-e", "64K", "-f", "16", "-n", "2", "-w", "0"]
WORK = [*SIZES, "-a", "dense,gtopk", "--check"]
INFO = {"GTOPK_LOG_LEVEL": "info"}


def complaints(text: str) -> list[str]:
    """The program's own error lines."""
    return [line for line in text.splitlines() if line.startswith("gtopk-allreduce: ")]


# --- a /dev/shm for each rank

OWN_SHM = 'mount -t tmpfs tmpfs /dev/shm; exec "$@"'
PROCESSES = ["--pid", "--fork", "--kill-child", "--mount-proc"]


def in_namespaces(flags: list[str], tls: str | None) -> list[tuple[int, str]]:
    """Two ranks, each in its own namespaces with these flags: exit codes and output."""
    enter = ["unshare", "--mount", *flags, "sh", "-c", OWN_SHM, "sh"]
    chosen = {**environment(), **INFO, **({"UCX_TLS": tls} if tls else {})}
    place = ["--ranks", "2", "--rendezvous", f"127.0.0.1:{free_port()}"]
    ranks = [
        subprocess.Popen(
            [*enter, ALLREDUCE, *WORK, *place, "--rank", rank],
            env=chosen,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    said = [rank.communicate(timeout=WATCHDOG)[0] for rank in ranks]
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


@pytest.mark.parametrize(
    ("flags", "tls", "over"),
    [
        ([], None, "posix|sysv"),
        ([], "tcp,posix,self", "posix"),  # found through /proc
        (PROCESSES, None, "posix|sysv"),
        (PROCESSES, "tcp,posix,self", "tcp"),
        (["--ipc"], None, "tcp"),
        (["--ipc", *PROCESSES], None, "tcp"),
    ],
)
def test_ranks_with_separate_dev_shm_use_posix_sysv_or_tcp(flags, tls, over):
    for code, said in in_namespaces(flags, tls):
        assert code == 0, said
        assert re.search(rf"connects to \S+ pid \d+ over ({over})/", said), said


def test_ranks_with_a_small_dev_shm_use_sysv_shared_memory():
    # They would take 4.2 MiB each of it, and be ended by a signal when it is full.
    script = """
mount -t tmpfs -o size=16m tmpfs /dev/shm
for rank in 0 1 2 3; do
  "$@" --rank $rank & ranks="$ranks $!"
done
for rank in $ranks; do wait $rank || exit; done
"""
    place = ["--ranks", "4", "--rendezvous", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", ALLREDUCE, *WORK, *place],
        env={**environment(), **INFO},
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    over = re.findall(r"connects to \S+ pid \d+ over (\w+)/", done.stdout + done.stderr)
    assert set(over) == {"sysv"}


def test_ranks_with_nothing_in_common_say_so():
    for code, said in in_namespaces(PROCESSES, "posix,self"):
        assert code == 1, said
        assert len(complaints(said)) == 1, said
    assert "UCX finds no route to it" in said
    assert "UCX_NET_DEVICES of both ranks have entries in common?" in complaints(said)[0]


# --- names and addresses


def run(lab: Lab, rendezvous: str, *options: str, env=None, prefix: tuple = ()) -> Outcome:
    return lab.run(
        [*prefix, ALLREDUCE, *WORK, "--rendezvous", rendezvous, *options],
        timeout=WATCHDOG,
        env={**INFO, **(env or {})},
    )


@pytest.mark.parametrize("rank_0", ["[fd77::1]:29500", "host0:29500"])
def test_hosts_with_ipv6_alone_meet_and_exchange(rank_0):
    with Lab(2, None, ipv6=True) as lab:
        outcome = run(lab, rank_0)
    assert outcome.ok, outcome.report()
    assert all("over tcp/eth0" in rank.output for rank in outcome.ranks), outcome.report()


def test_a_host_whose_own_name_nobody_can_resolve_works():
    rename = ("sh", "-c", 'echo "lost$RANK" > /proc/sys/kernel/hostname; exec "$@"', "sh")
    with Lab(2, None) as lab:
        outcome = run(lab, "10.77.0.1:29500", prefix=rename)
    assert outcome.ok, outcome.report()
    assert "connects to lost1" in outcome.ranks[0].output


def test_unresolvable_rendezvous_is_named_in_the_timeout_error():
    with Lab(2, None) as lab:
        outcome = run(lab, "nowhere.invalid:29500", "--timeout", "2")
    assert [rank.returncode for rank in outcome.ranks] == [1, 1], outcome.report()
    (missing,) = complaints(outcome.ranks[0].output)
    assert "rank 1 of 2 has not arrived" in missing
    (unresolved,) = complaints(outcome.ranks[1].output)
    assert "within 2 s: nowhere.invalid:29500: the name cannot be resolved" in unresolved


# --- an interface that is up but leads nowhere


def add_dead_interface(lab: Lab, host: int) -> None:
    for words in (
        "link add dead0 type veth peer name dead1",
        f"addr add 192.0.2.{host + 1}/24 dev dead0",
        "link set dead0 up",
        "link set dead1 up",
    ):
        subprocess.run([*lab.enter(host), "ip", *words.split()], check=True)


@pytest.mark.parametrize("devices", ["eth0", "dead0", None])
def test_of_two_interfaces_the_one_that_leads_nowhere_is_named(devices):
    with Lab(2, None) as lab:
        for host in range(2):
            add_dead_interface(lab, host)
        outcome = run(lab, "host0:29500", "--timeout", "30", env={"UCX_NET_DEVICES": devices})
    if devices == "eth0":
        assert outcome.ok, outcome.report()
    if outcome.ok:
        assert devices != "dead0", outcome.report()
        return
    # Unless told otherwise, UCX may choose either.
    assert [rank.returncode for rank in outcome.ranks] == [1, 1], outcome.report()
    for rank in outcome.ranks:
        (complaint,) = complaints(rank.output)
        assert "no answer from it over tcp/dead0" in complaint
        assert "Set UCX_NET_DEVICES to the one that does" in complaint


# --- hosts that cannot connect: the address and port are named, and the setting that helps

PORTS = "30000-30100"
TCP = 6  # a bare Debian has no /etc/protocols, where its name would stand
NO_ANSWER = (
    r"10\.77\.0\.\d:30\d{3} does not answer: a firewall may drop packets to that port "
    r"\(UCX_TCP_PORT_RANGE"
)
NO_ROUTE = (
    r"no route from here to 10\.77\.0\.\d:30\d{3} \(.*\): the address may not lead to its host "
    r"\(UCX_NET_DEVICES says .*\), or a firewall rejects connections \(UCX_TCP_PORT_RANGE"
)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("iif eth0 blackhole", NO_ANSWER),  # as a firewall that drops
        ("iif eth0 unreachable", NO_ROUTE),  # that rejects
        ("iif eth0 prohibit", NO_ROUTE),
        ("iif lo unreachable", NO_ROUTE),  # no route for what is sent from here
        ("iif lo prohibit", NO_ROUTE),
    ],
)
def test_failed_first_connection_names_address_port_and_setting(rule, said):
    where, what = rule.rsplit(" ", 1)
    with Lab(2, None) as lab:
        for host in range(2):
            for words in (
                f"rule add {where} ipproto {TCP} dport {PORTS} priority 1 {what}",
                "rule add priority 2 table local",  # else first, for what comes in
                "rule del priority 0",
            ):
                subprocess.run([*lab.enter(host), "ip", *words.split()], check=True)
            forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"  # else it rejects without a word
            subprocess.run([*lab.enter(host), "sh", "-c", forward], check=True)
        env = {"UCX_TCP_PORT_RANGE": PORTS, "UCX_TCP_SYN_CNT": "1"}
        outcome = run(lab, "host0:29500", "--timeout", "60", env=env)
    assert [rank.returncode for rank in outcome.ranks] == [1, 1], outcome.report()
    named = re.compile(rf"rank \d \(.*\) cannot be reached: .*{said}")
    found = [complaint for rank in outcome.ranks for complaint in complaints(rank.output)]
    assert len(found) == 2, outcome.report()
    for complaint in found:  # the rank that fails first ends, and its last error is the cause
        assert named.search(complaint), complaint


def test_ip_family_mismatch_names_both_addresses_and_the_setting():
    with Lab(2, None, ipv6=True) as lab:
        words = ["ip", "addr", "add", "10.77.0.2/24", "dev", "eth0"]
        subprocess.run([*lab.enter(1), *words], check=True)
        outcome = run(lab, "[fd77::1]:29500")
        helped = run(lab, "[fd77::1]:29500", env={"UCX_TCP_AF_PRIO": "inet6,inet"})
    assert [rank.returncode for rank in outcome.ranks] == [1, 1], outcome.report()
    for rank in outcome.ranks:
        (complaint,) = complaints(rank.output)
        assert re.search(r"\[fd77::1\]:\d+", complaint), complaint
        assert "10.77.0.2:" in complaint
        assert "Set UCX_TCP_AF_PRIO=inet6,inet on all ranks" in complaint
    assert helped.ok, helped.report()


# --- two sockets with a NIC each, as far as the ranks can tell

TWO_SOCKETS = ROOT / "tests/transport/topology/two_sockets.xml"
TWO_NODES = """
echo 0-1 > /dev/shm/online-$RANK
mount --bind /dev/shm/online-$RANK /sys/devices/system/node/online
exec "$@"
"""


@pytest.mark.parametrize(("network", "told"), [("10.77.0", True), ("10.78.0", False)])
def test_ucx_takes_the_nearer_of_two_nics_in_the_same_network(network, told):
    prefix = ("unshare", "--mount", "sh", "-c", TWO_NODES, "sh")
    # By that file GPU 0 is near eth0 and GPU 2 near eth1, and there are four ranks on a host.
    local = {"LOCAL_WORLD_SIZE": "4", "HWLOC_XMLFILE": str(TWO_SOCKETS)}
    for local_rank, nic in (("0", "eth0"), ("2", "eth1")):
        with Lab(2, None) as lab:
            for host in range(2):
                for words in (
                    "link add link eth0 name eth1 type macvlan mode bridge",
                    f"addr add {network}.{host + 101}/24 dev eth1",
                    "link set eth1 up",
                ):
                    subprocess.run([*lab.enter(host), "ip", *words.split()], check=True)
            env = {**local, "LOCAL_RANK": local_rank, "UCX_NET_DEVICES": None}
            outcome = run(lab, "10.77.0.1:29500", prefix=prefix, env=env)
        assert outcome.ok, outcome.report()
        for rank in outcome.ranks:
            said = f"UCX_NET_DEVICES={nic}: eth0, eth1 are all in 10.77.0.0/24" in rank.output
            assert said == told, rank.output
            if told:
                assert f"over tcp/{nic}\n" in rank.output, rank.output


# --- with torch

TRAINING = """
import torch, torch.distributed as dist
dist.init_process_group("gtopk")
numbers = torch.full((100_000,), 1.0 + dist.get_rank())
dist.all_reduce(numbers)
print(numbers.unique().tolist(), flush=True)
dist.destroy_process_group()
"""


def test_torch_meets_on_hosts_with_ipv6_alone():
    with Lab(2, None, ipv6=True) as lab:
        outcome = lab.run([sys.executable, "-c", TRAINING], timeout=WATCHDOG)
    assert outcome.ok, outcome.report()
    assert [rank.output.splitlines()[-1] for rank in outcome.ranks] == ["[3.0]"] * 2
