"""A Slurm for one machine and one user, running during a test: munge, controller
and node daemon as children of this process, with their own files and ports.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator

from helpers.ranks import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
STARTS_WITHIN = 30.0  # seconds

CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/cons_tres
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why such a Slurm cannot run here; "" if it can."""
    missing = [name for name in PROGRAMS if _path(name) is None]
    if missing:
        packages = "slurmctld slurmd slurm-client munge libpmix-dev"
        install = f"apt-get install --no-install-recommends {packages}"
        return f"not there: {', '.join(missing)} ({install})"
    return "" if os.geteuid() == 0 else "slurmd needs root"


@contextlib.contextmanager
def one_machine() -> Iterator[dict[str, str]]:
    """Yields the variables with which srun finds it."""
    # No other user may be able to write above munge's socket, so pytest's folder cannot hold it.
    with (
        tempfile.TemporaryDirectory(prefix="gtopk-slurm-") as name,
        contextlib.ExitStack() as stack,
    ):
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        for each in ("spool", "state"):
            (folder / each).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        configuration = folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname().split(".")[0],
                folder=folder,
                controller_port=free_port(),
                node_port=free_port(),
            )
        )
        variables = {**os.environ, "SLURM_CONF": str(configuration)}
        munge = [f"--key-file={key}", f"--socket={folder}/munge.socket", "--foreground", "--force"]
        munge += [f"--{each}-file={folder}/munge.{each}" for each in ("pid", "log", "seed")]
        for words in (["munged", *munge], ["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            stack.enter_context(_daemon(words, variables, folder))
        _await_idle_node(variables, folder)
        yield variables


@contextlib.contextmanager
def _daemon(words: list[str], variables: dict[str, str], folder: pathlib.Path) -> Iterator[None]:
    path = _path(words[0])
    with (folder / f"{words[0]}.log").open("w") as log:
        process = subprocess.Popen(
            [str(path), *words[1:]], env=variables, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_idle_node(variables: dict[str, str], folder: pathlib.Path) -> None:
    """Wait until sinfo, which asks again every second, prints that the node is idle.

    srun gives up if the controller does not answer yet.
    """
    # Into a pipe it would print by whole buffers.
    words = ["stdbuf", "-oL", "sinfo", "--iterate=1", "--noheader", "--format=%t"]
    with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True) as sinfo:
        watchdog = threading.Timer(STARTS_WITHIN, sinfo.kill)
        watchdog.start()
        try:
            idle = any(line.strip() == "idle" for line in sinfo.stdout)
        finally:
            watchdog.cancel()
            sinfo.kill()
    if not idle:
        logs = "\n".join(log.read_text() for log in folder.glob("*.log"))
        raise RuntimeError(f"Slurm's node is not idle after {STARTS_WITHIN} s:\n{logs}")


def _path(program: str) -> str | None:
    # Daemons are not in every user's PATH.
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
