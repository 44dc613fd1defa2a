"""The network lab is shaped, isolated and leaves nothing behind.

Needs root (network namespaces). Times are asserted from below only: a shaped link can never deliver
sooner than its rate and bucket allow, however busy the machine is.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from netlab import CALIBRATED, Lab, Loopback, Shape
from netlab import lab as lab_module
from netlab.probe import Calibration, Point, calibrate, fit

from helpers.lab import CONNECT, WATCHDOG, has_ended, python
from helpers.paths import TOOLS

# --- the shape, without any network


def test_calibrated_rates_have_the_documented_settings():
    settings = {rate: (shape.mtu, shape.burst) for rate, shape in CALIBRATED.items()}
    assert settings == {
        "10mbit": (1500, 2048),
        "50mbit": (1500, 2048),
        "100mbit": (1500, 2048),
        "200mbit": (9000, 10240),
        "300mbit": (9000, 10240),
        "1gbit": (9000, 20480),
    }


def test_rate_between_calibrated_rates_is_not_calibrated():
    assert Shape.of("100mbit").calibrated
    assert Shape.of("0.1gbit").calibrated
    assert not Shape.of("150mbit").calibrated
    assert not Shape.of("100mbit", burst=128 << 10).calibrated
    assert (Shape.of("150mbit").mtu, Shape.of("20mbit").mtu) == (9000, 1500)


def test_a_rate_that_cannot_be_read_names_the_accepted_form():
    with pytest.raises(ValueError, match="100mbit"):
        Shape.of("fast")


def test_wire_seconds_count_the_headers_of_every_segment():
    shape = Shape.of("100mbit")
    assert shape.wire_bytes(1448) == 1448 + 66
    assert shape.wire_bytes(1449) == 1449 + 2 * 66
    assert shape.wire_seconds(1448) == pytest.approx(1514 * 8 / 1e8)


def test_probe_rejects_a_bucket_with_free_bytes_after_a_pause():
    # What 100 Mbit/s with a bucket of 128 KiB measures (docs/lab.md).
    free = Point(100_000, back_to_back=8.3e-3, gapped=0.23e-3, wire=8.37e-3)
    true = Point(100_000, back_to_back=8.3e-3, gapped=8.2e-3, wire=8.37e-3)
    small = Point(100, back_to_back=30e-6, gapped=110e-6, wire=13e-6)
    allowance = Shape.of("100mbit").burst
    assert Calibration([small, free], 30e-6, 83e-9, {}).disagreements(allowance)
    assert not Calibration([small, true], 30e-6, 83e-9, {}).disagreements(allowance)


def test_the_fit_recovers_alpha_and_beta_of_a_straight_line():
    alpha, beta = fit({size: 3e-5 + 8e-9 * size for size in (100, 10**5, 3 * 10**5, 10**6)})
    assert alpha == pytest.approx(3e-5)
    assert beta == pytest.approx(8e-9)


# --- whether a lab can be made here


def checked(*prefix: str, **env: str) -> tuple[int, str]:
    """Exit code and output line of `netlab check`, which tools/test asks too."""
    interpreter = os.path.realpath(sys.executable)  # a chroot may not contain .venv
    command = [*prefix, interpreter, f"{TOOLS}/netlab", "check"]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=WATCHDOG
    )
    return done.returncode, done.stdout + done.stderr


def test_the_check_names_the_packages_that_are_missing():
    code, said = checked(PATH="/nowhere")
    assert code == 1
    assert said.startswith("the network lab needs iproute2 and mount and util-linux: apt-get")
    assert said.count("\n") == 1


def test_the_check_asks_for_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(lab_module.shutil, "which", lambda tool: f"/usr/sbin/{tool}")
    assert lab_module.why_not() == (
        "the network lab makes network namespaces, which needs root: run it with sudo"
    )


@pytest.mark.network
def test_where_labs_can_be_made_the_check_says_nothing():
    assert checked() == (0, "")


# Mounts everything in / except /tmp into the directory $1, which is itself made a mount if $3 says
# so. It runs in a namespace of its own, so it goes with the command.
CHROOT = """
set -e
root=$1 tools=$2
if [ "$3" = mount ]; then mount --bind "$root" "$root"; fi
cd /
for entry in *; do
  if [ -L "$entry" ]; then cp -P "$entry" "$root/$entry"
  elif [ -d "$entry" ] && [ "$entry" != tmp ]; then
    mkdir "$root/$entry"
    mount --rbind "$entry" "$root/$entry"
  fi
done
mkdir -p -m 1777 "$root/tmp" "$root$tools"
mount --bind "$tools" "$root$tools"
shift 3
exec chroot "$root" "$@"
"""


@pytest.mark.network
@pytest.mark.parametrize("kind", ["directory", "mount"])
def test_check_in_a_chroot_passes_on_a_mount_or_names_the_fix(tmp_path, kind):
    unshare = ("unshare", "--mount", "--propagation", "private", "sh", "-c", CHROOT, "sh")
    code, said = checked(*unshare, str(tmp_path), str(TOOLS), kind)
    if kind == "mount":
        assert (code, said) == (0, "")
    else:
        assert code == 1
        assert "mount --bind DIR DIR && mount --make-rprivate DIR" in said


# --- ranks on loopback, without root


def test_every_rank_gets_the_environment_of_torch_distributed():
    script = (
        "import os; print(*(os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', "
        "'MASTER_ADDR', 'GLOO_SOCKET_IFNAME')), int(os.environ['MASTER_PORT']) > 0)"
    )
    with Loopback(3) as hosts:
        outcome = hosts.run(python(script), timeout=WATCHDOG)
    assert outcome.ok, outcome.report()
    assert [rank.output.strip() for rank in outcome.ranks] == [
        f"{r} 3 {r} 127.0.0.1 lo True" for r in range(3)
    ]


def test_a_variable_that_is_none_is_taken_away():
    with Loopback(1) as hosts:
        script = "import os; print('RANK' in os.environ, 'WORLD_SIZE' in os.environ)"
        outcome = hosts.run(python(script), timeout=WATCHDOG, env={"RANK": None})
    assert outcome.ranks[0].output == "False True\n", outcome.report()


def test_exit_codes_signals_and_output_come_back_by_rank():
    with Loopback(2) as hosts:
        script = "import os, sys; r = os.environ['RANK']; print('here', r); sys.exit(7 * int(r))"
        outcome = hosts.run(python(script), timeout=WATCHDOG)
        ended = [(rank.returncode, rank.output) for rank in outcome.ranks]
        assert ended == [(0, "here 0\n"), (7, "here 1\n")]
        assert not outcome.ok
        job = hosts.start(python("import signal; signal.pause()"))
        job.signal(1, signal.SIGKILL)
        outcome = job.wait(WATCHDOG, failure_grace=0)
    assert [r.returncode for r in outcome.ranks] == [-signal.SIGKILL] * 2


def test_a_hanging_job_is_ended_by_the_watchdog_and_says_so():
    with Loopback(2) as hosts:
        outcome = hosts.run(python("import signal; signal.pause()"), timeout=0.2)
    assert outcome.timed_out
    assert not outcome.ok


def test_cpu_seconds_are_those_of_the_rank():
    burn = "import os, time\nwhile os.environ['RANK'] == '1' and time.process_time() < 0.5: pass"
    with Loopback(2) as hosts:
        outcome = hosts.run(python(burn), timeout=WATCHDOG)
    assert outcome.ranks[1].cpu_seconds >= 0.48
    assert outcome.ranks[0].cpu_seconds < outcome.ranks[1].cpu_seconds


# --- namespaces


@pytest.mark.network
def test_each_host_has_its_own_hostname_and_one_interface():
    script = (
        "import os, socket; print(socket.gethostname(), sorted(os.listdir('/sys/class/net')), "
        "socket.gethostbyname('host1'))"
    )
    with Lab(3, "100mbit") as lab:
        outcome = lab.run(python(script), timeout=WATCHDOG)
    assert outcome.ok, outcome.report()
    assert [rank.output for rank in outcome.ranks] == [
        f"host{r} ['eth0', 'lo'] 10.77.0.2\n" for r in range(3)
    ]


@pytest.mark.network
@pytest.mark.parametrize("rate", CALIBRATED)
def test_every_interface_and_switch_port_is_shaped_as_calibrated(rate):
    with Lab(2, rate) as lab:
        qdiscs = lab.qdiscs()
    shape = CALIBRATED[rate]
    assert [qdisc["kind"] for qdisc in qdiscs] == ["tbf"] * 4
    assert [qdisc["options"]["rate"] for qdisc in qdiscs] == [shape.bits_per_second / 8] * 4
    # The kernel keeps the bucket as a time in ticks of 64 ns, so it comes back rounded down.
    bursts = [qdisc["options"]["burst"] for qdisc in qdiscs]
    assert bursts == pytest.approx([shape.burst] * 4, rel=0.01)


@pytest.mark.network
def test_no_message_beats_the_link_rate_even_after_a_pause():
    sizes = (100, 100_000, 300_000)
    with Lab(2, "100mbit") as lab:
        calibration = calibrate(lab, sizes, repeats=5)
    for point in calibration.points:
        soonest = lab.shape.soonest_seconds(point.size)
        assert point.gapped >= soonest
        assert calibration.pingpong[point.size] >= soonest
    # Seconds per byte, measured on the largest: headers make it slower than the bare rate, a wrong
    # bucket faster.
    assert calibration.pingpong[sizes[-1]] / sizes[-1] >= 0.98 * 8 / 1e8


@pytest.mark.network
def test_two_senders_share_the_receivers_switch_port():
    size = 500_000
    script = f"""{CONNECT}
import time
if rank == 0:
    with socket.create_server(address) as server:
        links = [server.accept()[0] for _ in range(2)]
        start = time.perf_counter()
        for link in links:
            link.sendall(b"!")
        got = 0
        while got < 2 * {size}:
            for link in links:
                link.settimeout(0.001)
                try:
                    got += len(link.recv(1 << 16))
                except TimeoutError:
                    pass
        print(time.perf_counter() - start)
else:
    link = connect()
    link.recv(1)
    link.sendall(bytes({size}))
    link.recv(1)
"""
    with Lab(3, "100mbit") as lab:
        outcome = lab.run(python(script), timeout=WATCHDOG)
        counters = lab.counters()
    assert outcome.ok, outcome.report()
    assert float(outcome.ranks[0].output) >= lab.shape.soonest_seconds(2 * size)
    assert counters[0].rx_bytes >= 2 * size
    for sender in counters[1:]:
        # Each counts its own bytes: headers and TCP retransmissions on top, never the other's.
        assert size <= sender.tx_bytes < 2 * size


@pytest.mark.network
def test_labs_in_use_at_the_same_time_do_not_meet():
    with Lab(2, None) as one, Lab(2, None) as other:
        answer = "import os; print(os.readlink('/proc/self/ns/net'))"
        outcomes = [lab.run(python(answer), timeout=WATCHDOG) for lab in (one, other)]
        spaces = {rank.output for outcome in outcomes for rank in outcome.ranks}
        addresses = {lab.address(0) for lab in (one, other)}
    assert len(spaces) == 4
    assert len(addresses) == 1


@pytest.mark.network
@pytest.mark.parametrize("chosen", ["cubic", "reno"])
def test_hosts_use_the_chosen_congestion_control_at_both_ends(chosen):
    # At both ends: of a connection made, and of one accepted.
    script = f"""{CONNECT}
if rank == 0:
    with socket.create_server(address) as server:
        link, _ = server.accept()
else:
    link = connect()
name = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
print(name.rstrip(bytes(1)).decode())
link.close()
"""
    options = {} if chosen == "cubic" else {"congestion_control": chosen}
    with Lab(2, "100mbit", **options) as lab:
        outcome = lab.run(python(script), timeout=WATCHDOG)
    assert outcome.ok, outcome.report()
    assert [rank.output for rank in outcome.ranks] == [f"{chosen}\n"] * 2


@pytest.mark.network
def test_only_ranks_on_hosts_of_their_own_are_held_to_tcp():
    with Lab(1, None) as lab:
        assert lab.environment(0, 1)["UCX_TLS"] == "tcp,self"
    assert "UCX_TLS" not in Loopback(1).environment(0, 1)


@pytest.mark.network
def test_the_lab_leaves_the_machines_own_network_as_it_was():
    before = subprocess.run(["ip", "-br", "link"], capture_output=True, check=True).stdout
    lab = Lab(2, "100mbit")
    during = subprocess.run(["ip", "-br", "link"], capture_output=True, check=True).stdout
    job = lab.start(python("import signal; signal.pause()"))
    pids = [job.pid(0), job.pid(1)]
    lab.close()
    after = subprocess.run(["ip", "-br", "link"], capture_output=True, check=True).stdout
    assert before == during == after
    assert all(has_ended(pid, 0) for pid in pids)


@pytest.mark.network
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_hosts_and_ranks_end_with_their_lab_whatever_ends_it(number):
    # The ranks say that they run, then wait for ever; netlab itself gets the signal.
    ranks = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    command = [sys.executable, f"{TOOLS}/netlab", "run", "--hosts", "2", "--", *python(ranks)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # A shell's background job, as these tests may be, ignores SIGINT, and so would its
        # children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as netlab:
        try:
            pids = [int(netlab.stdout.readline().split()[1]) for _ in range(2)]
            children = pathlib.Path(f"/proc/{netlab.pid}/task/{netlab.pid}/children").read_text()
            netlab.send_signal(number)
            assert all(has_ended(pid, WATCHDOG) for pid in [*pids, *map(int, children.split())])
        finally:
            netlab.kill()


@pytest.mark.network
def test_gloo_crosses_the_lab_and_its_bytes_are_counted():
    script = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
x = torch.full((250_000,), float(dist.get_rank() + 1))
dist.all_reduce(x)
assert x.eq(3).all()
dist.destroy_process_group()
"""
    with Lab(2, "1gbit") as lab:
        outcome = lab.run(python(script), timeout=WATCHDOG)
        counters = lab.counters()
    assert outcome.ok, outcome.report()
    for host in counters:
        assert 1_000_000 <= host.tx_bytes < 2_000_000
