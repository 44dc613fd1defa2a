"""The wheel's console commands, under torchrun, under mpirun and alone."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from helpers import slurm
from helpers.paths import ROOT
from helpers.ranks import WATCHDOG, environment, free_port

pytestmark = pytest.mark.loopback

EXAMPLE = ROOT / "build/release/tests/standalone/example_program"
ALLREDUCE = str(pathlib.Path(sys.executable).parent / "gtopk-allreduce")
INFO = str(pathlib.Path(sys.executable).parent / "gtopk-info")
PINGPONG = str(pathlib.Path(sys.executable).parent / "gtopk-pingpong")
PRTERUN = ["prterun", "--allow-run-as-root", "--map-by", ":oversubscribe"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
SHORT = ["-b", "4K", "-e", "4K", "-n", "2", "-w", "0", "-a", "all", "--check"]


def run(command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    variables = environment() | (env or {})
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=WATCHDOG, check=False
    )


def torchrun(ranks: int) -> list[str]:
    """Not --standalone, which takes one of the ports that the kernel gives to everybody.

    The programs meet at the next port but one, which other processes may then have.
    """
    place = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    program = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
    return [*program, *place, "--nproc-per-node", str(ranks)]


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
    done = run([*torchrun(2), ALLREDUCE, *SHORT, "--json", str(path)])
    assert done.returncode == 0, done.stderr
    assert results(path) == by_hand


@pytest.mark.parametrize(
    ("launcher", "before"),
    [
        (MPIRUN, []),
        (MPIRUN, ["env", "-u", "OMPI_COMM_WORLD_RANK", "-u", "OMPI_COMM_WORLD_SIZE"]),
        (PRTERUN, []),
    ],
    ids=["mpirun", "PMIx alone", "prterun"],
)
def test_pmix_gives_the_same_bits(by_hand, tmp_path, launcher: list[str], before: list[str]):
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"no {launcher[0]} here")
    path = tmp_path / "out.json"
    launched = [*launcher, "-n", "2", *before]
    for place in ([], ["--rendezvous", f"127.0.0.1:{free_port()}"]):  # by PMIx; as told
        done = run([*launched, ALLREDUCE, *SHORT, "--json", str(path), *place])
        assert done.returncode == 0, done.stderr
        assert results(path) == by_hand


@pytest.mark.long
def test_srun_gives_the_same_bits(by_hand, tmp_path):
    if slurm.why_not():
        pytest.skip(f"no Slurm can be started: {slurm.why_not()}")
    path = tmp_path / "out.json"
    told = ["--rendezvous", f"127.0.0.1:{free_port()}"]
    with slurm.one_machine() as variables:
        for mpi, place in (("pmix", []), ("pmix", told), ("none", []), ("none", told)):
            srun = ["srun", f"--mpi={mpi}", "--overcommit", "-n", "2"]
            done = run([*srun, ALLREDUCE, *SHORT, "--json", str(path), *place], variables)
            assert done.returncode == 0, done.stdout + done.stderr
            assert results(path) == by_hand
            path.unlink()


def test_a_command_of_a_batch_script_is_one_rank():
    """Its environment speaks of four tasks, which srun would start."""
    script = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    done = run([ALLREDUCE, *SHORT], script)
    assert done.returncode == 0, done.stderr
    assert "# 1 rank on 1 host" in done.stdout


@pytest.mark.parametrize(
    "launcher",
    [lambda: torchrun(3), lambda: [*MPIRUN, "-n", "3"], lambda: [*PRTERUN, "-n", "3"]],
    ids=["torchrun", "mpirun", "prterun"],
)
def test_the_doctor_tests_the_ranks_of(launcher: Callable[[], list[str]]):
    command = launcher()
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    done = run([*command, INFO, "--doctor", "--json"])
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    assert (record["ranks"], len(record["hosts"]), record["failed"]) == (3, 1, [])
    (row,) = record["rows"]  # one host, by its two lowest ranks
    assert "/" in row["transports"]
    assert row["latency_seconds"] > 0
    assert min(row["bytes_per_second"]) > 0


@pytest.mark.parametrize("launcher", [MPIRUN, PRTERUN], ids=["mpirun", "prterun"])
def test_the_doctor_names_the_link_that_does_not_work_under(launcher: list[str]):
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"no {launcher[0]} here")

    def on(host: str, transports: str) -> list[str]:
        variables = ["-x", f"GTOPK_HOST={host}", "-x", f"UCX_TLS={transports}"]
        return ["-n", "1", *variables, INFO, "--doctor", "--timeout", "60"]

    # What these two can use they have not in common.
    done = run([*launcher, *on("a", "tcp,self"), ":", *on("b", "posix,self")])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed\n  - host 0 (a) and host 1 (b), by ranks 0 and 1: " in done.stdout


@pytest.mark.long
def test_sixty_four_ranks_make_the_connections_that_they_use():
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here")
    if not EXAMPLE.exists():
        pytest.skip(f"{EXAMPLE.relative_to(ROOT)} is not built: tools/test --long builds it")
    startup = [sys.executable, str(ROOT / "tools/bench/startup.py")]
    done = run([*startup, "--ranks", "6,64", "--turns", "1"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^ +(\d+) .* (\d+), ([\d, ]+)$", done.stdout, re.M) == [
        ("6", "12", "1, 2, 3"),
        ("64", "384", "6"),
    ]


def test_the_commands_run_without_torch_and_pass_exit_codes_on():
    assert run([PINGPONG, "--version"]).stdout.startswith("gtopk-pingpong ")
    refused = run([PINGPONG])
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    alone = "import sys; import gtopk_programs; print('torch' in sys.modules)"
    assert run([sys.executable, "-c", alone]).stdout == "False\n"
