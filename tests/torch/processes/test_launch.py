"""Start-up by PMIx or Slurm's variables: a plain `mpirun python train.py`."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
import torch.distributed as dist
from gtopk.core import launch

import gtopk
from helpers import slurm
from helpers.ranks import environment, free_port

pytestmark = pytest.mark.loopback

TORCHRUNS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_plain_mpirun_trains(ranks: int):
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not in PATH: nothing was started by it")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    expect_training([mpirun, "-n", str(ranks), "--oversubscribe"], ranks, root)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("mpi", ["pmix", "none"])
def test_a_plain_srun_trains(mpi: str, ranks: int):
    if slurm.why_not():
        pytest.skip(f"no Slurm can be started: {slurm.why_not()}")
    with slurm.one_machine() as variables:
        srun = ["srun", f"--mpi={mpi}", "--overcommit", "-n", str(ranks)]
        expect_training(srun, ranks, variables)


@pytest.mark.long
@pytest.mark.parametrize("command", [["salloc", "-n", "3"], ["srun", "--mpi=none", "-n", "1"]])
def test_a_process_that_srun_did_not_start_is_no_rank_of_many(command: list[str]):
    """salloc's shell has srun's variables for three tasks, and is none of them."""
    if slurm.why_not():
        pytest.skip(f"no Slurm can be started: {slurm.why_not()}")
    script = "import gtopk; print(gtopk.launch_env()['WORLD_SIZE'])"
    with slurm.one_machine() as variables:
        for name in TORCHRUNS:
            variables.pop(name, None)
        done = subprocess.run(
            [*command, "--overcommit", sys.executable, "-c", script],
            env=variables,
            capture_output=True,
            text=True,
            timeout=240,
        )
    if command[0] == "srun":
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    else:
        assert "but srun did not start it: put srun before the command" in done.stderr


def expect_training(launcher: list[str], ranks: int, variables: dict[str, str]) -> None:
    """Runs launched_training.py, and expects its lines from every rank and way to join."""
    variables = {**environment(), **variables}
    for name in TORCHRUNS:
        variables.pop(name, None)
    done = subprocess.run(
        [*launcher, sys.executable, str(pathlib.Path(__file__).with_name("launched_training.py"))],
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    evens = (ranks + 1) // 2
    for way in ("pmix://", "launch_env"):
        for rank in range(ranks):
            of_evens = 1 if rank % 2 else evens
            line = f"{way}: rank {rank} of {ranks}, alike True, better True, evens {of_evens}\n"
            assert line in done.stdout, done.stdout + done.stderr


def test_without_a_server_it_says_so(monkeypatch: pytest.MonkeyPatch):
    for name in TORCHRUNS:
        monkeypatch.delenv(name, raising=False)
    said = r"no PMIx server started it \(PMIX_NAMESPACE is not set\).*mpirun, prterun or srun"
    with pytest.raises(dist.DistBackendError, match=said):
        next(dist.rendezvous("pmix://"))
    with pytest.raises(dist.DistBackendError, match=said):
        gtopk.launch_env()


def test_what_a_launcher_has_set_stays(monkeypatch: pytest.MonkeyPatch):
    torchruns = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29400"}
    for name in TORCHRUNS:
        monkeypatch.delenv(name, raising=False)
    for name, value in torchruns.items():
        monkeypatch.setenv(name, value)
    assert gtopk.launch_env() == torchruns


TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "node[01-02],gpu7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NTASKS": "8",  # of the job, whose step is smaller
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
PLACE = {"RANK": "3", "WORLD_SIZE": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
PORT = str(10000 + (4711 * 101 + 2) % 19000)
NO_TASK = "but srun did not start it: put srun before the command"

# What is set besides; and what launch_env() returns, or its error.
STEPS = {
    "a task": ({}, {**PLACE, "MASTER_ADDR": "node01", "MASTER_PORT": PORT}),
    "with the script's address": (
        {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29600"},
        {**PLACE, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29600"},
    ),
    "under torchrun": (
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
    ),
    "without a place on its host": (
        {"SLURM_LOCALID": "", "SLURM_STEP_TASKS_PER_NODE": ""},
        {"RANK": "3", "WORLD_SIZE": "5", "MASTER_ADDR": "node01", "MASTER_PORT": PORT},
    ),
    "a batch script": ({"SLURM_STEP_ID": "", "SLURM_PROCID": "0"}, NO_TASK),
    "a batch step": ({"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"}, NO_TASK),
    "a rank of mpirun": (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "5"},
        r"it is not one of srun's tasks: OMPI_COMM_WORLD_RANK differs from SLURM_PROCID",
    ),
    "too high a rank": ({"SLURM_PROCID": "5"}, "SLURM_PROCID is '5': expected a number from 0 to"),
    "no number of tasks": ({"SLURM_STEP_NUM_TASKS": ""}, "SLURM_STEP_NUM_TASKS is not"),
    "no hosts": ({"SLURM_STEP_NODELIST": ""}, "4711.2 has no SLURM_STEP_NODELIST: set MASTER_ADDR"),
}


def set_step(monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]) -> None:
    """Gives this process the variables of TASK, but for these changes, and of no other launcher."""
    launchers = ("PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK")
    monkeypatch.setattr(launch, "_served", None)
    for variable in (*TORCHRUNS, *launchers):
        monkeypatch.setenv(variable, "")  # and removed again afterwards
        monkeypatch.delenv(variable)
    for variable, value in {**TASK, **changes}.items():
        monkeypatch.setenv(variable, value)


@pytest.mark.parametrize("name", STEPS)
def test_a_slurm_step_without_pmix_sets_what_torchrun_would_set(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    changes, expected = STEPS[name]
    set_step(monkeypatch, changes)
    if isinstance(expected, str):
        with pytest.raises(dist.DistBackendError, match=expected):
            gtopk.launch_env()
        with pytest.raises(dist.DistBackendError, match=expected):
            next(dist.rendezvous("pmix://"))
    else:
        assert gtopk.launch_env() == expected
        assert gtopk.launch_env() == expected  # a no-op


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [
        (4, 5, r"pmix:// was given rank=4, but the launcher says 3: leave rank out"),
        (3, 6, r"given world_size=6, but the launcher says 5: leave world_size out"),
    ],
)
def test_numbers_that_differ_from_the_launchers_are_refused(rank, size, message, monkeypatch):
    set_step(monkeypatch, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
    with pytest.raises(ValueError, match=message):
        next(dist.rendezvous("pmix://", rank=rank, world_size=size))


def test_one_rendezvous_by_pmix_serves_one_meeting(monkeypatch: pytest.MonkeyPatch):
    alone = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "localhost"}
    place = {"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_LOCALID": "0", "MASTER_ADDR": "127.0.0.1"}
    set_step(monkeypatch, {**alone, **place, "MASTER_PORT": str(free_port())})
    meeting = dist.rendezvous("pmix://")
    assert next(meeting)[1:] == (0, 1)
    with pytest.raises(RuntimeError, match="cannot meet again through the same pmix://"):
        next(meeting)


def test_two_tasks_of_a_step_meet_without_pmix():
    script = """
import torch, torch.distributed as dist, gtopk
for way in ("pmix://", None):
    if way is None:
        gtopk.launch_env()
    dist.init_process_group("gtopk", init_method=way)
    one = torch.ones(1)
    dist.all_reduce(one)
    print(dist.get_rank(), dist.get_world_size(), one.item(), flush=True)
    dist.destroy_process_group()
"""
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**environment(), **step, "SLURM_PROCID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        printed, _ = process.communicate(timeout=240)
        assert printed == f"{rank} 2 2.0\n" * 2


def test_a_port_that_is_taken_is_named_with_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "_served", None)
    for name in (*TORCHRUNS, "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with socket.create_server(("", 0)) as taken:
        place = {"SLURM_PROCID": "0", "MASTER_PORT": str(taken.getsockname()[1])}
        for variable, value in {**TASK, **place}.items():
            monkeypatch.setenv(variable, value)
        with pytest.raises(dist.DistNetworkError, match="set MASTER_PORT to a free port"):
            gtopk.launch_env()
