"""Room: tests/torch. The wheel's console commands, under torchrun, under mpirun and alone."""

from __future__ import annotations

import json
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
from ranks import WATCHDOG, environment

pytestmark = pytest.mark.loopback

ALLREDUCE = str(pathlib.Path(sys.executable).parent / "gtopk-allreduce")
PINGPONG = str(pathlib.Path(sys.executable).parent / "gtopk-pingpong")
SHORT = ["-b", "4K", "-e", "4K", "-n", "2", "-w", "0", "-a", "all", "--check"]


def run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WATCHDOG, check=False
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def results(path: pathlib.Path) -> dict[str, int]:
    """For each algorithm, a checksum of the tensor that all ranks ended with."""
    rows = json.loads(path.read_text())["rows"]
    assert [row["wrong"] for row in rows] == [0] * len(rows)
    return {row["algorithm"]: row["checksum"] for row in rows}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory) -> dict[str, int]:
    """Two ranks started by hand."""
    path = tmp_path_factory.mktemp("by-hand") / "out.json"
    place = ["--ranks", "2", "--rendezvous", f"127.0.0.1:{free_port()}", "--json", str(path)]
    ranks = [
        subprocess.Popen([ALLREDUCE, *SHORT, *place, "--rank", rank], stdout=-1, env=environment())
        for rank in "01"
    ]
    for rank in ranks:
        rank.communicate(timeout=WATCHDOG)
    assert [rank.returncode for rank in ranks] == [0, 0]
    return results(path)


def test_torchrun_gives_the_same_bits(by_hand, tmp_path):
    path = tmp_path / "out.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = run(
        [*torchrun, "--no-python", "--nproc-per-node", "2", ALLREDUCE, *SHORT, "--json", str(path)]
    )
    assert done.returncode == 0, done.stderr
    assert results(path) == by_hand


def test_mpirun_gives_the_same_bits(by_hand, tmp_path):
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun here")
    path = tmp_path / "out.json"
    launched = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    for place in ([], ["--rendezvous", f"127.0.0.1:{free_port()}"]):  # by PMIx; by --rendezvous
        done = run([*launched, ALLREDUCE, *SHORT, "--json", str(path), *place])
        assert done.returncode == 0, done.stderr
        assert results(path) == by_hand


def test_the_commands_run_without_torch_and_pass_exit_codes_on():
    assert run([PINGPONG, "--version"]).stdout.startswith("gtopk-pingpong ")
    refused = run([PINGPONG])
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    alone = "import sys; import gtopk_programs; print('torch' in sys.modules)"
    assert run([sys.executable, "-c", alone]).stdout == "False\n"
