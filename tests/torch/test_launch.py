"""Room: tests/torch. Start-up by PMIx: a plain `mpirun python train.py`, and its errors."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import slurm
import torch.distributed as dist
from ranks import HERE, environment

import gtopk

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
def test_a_plain_srun_trains(ranks: int):
    if slurm.why_not():
        pytest.skip(f"no Slurm can be started: {slurm.why_not()}")
    with slurm.one_machine() as variables:
        srun = ["srun", "--mpi=pmix", "--overcommit", "-n", str(ranks)]
        expect_training(srun, ranks, variables)


def expect_training(launcher: list[str], ranks: int, variables: dict[str, str]) -> None:
    """Runs launched_training.py, and expects its lines from every rank and way to join."""
    variables = {**environment(), **variables}
    for name in TORCHRUNS:
        variables.pop(name, None)
    done = subprocess.run(
        [*launcher, sys.executable, str(HERE / "launched_training.py")],
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
