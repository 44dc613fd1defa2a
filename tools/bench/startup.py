"""Times start-up of P ranks on this machine: a gtopk program and an MPI hello world, in turn.

The gtopk program is the example (examples/standalone): P ranks meet, exchange one sparse all-reduce
with the algorithm `gtopk`, and leave. The MPI program, if Open MPI's library is installed, calls
MPI_Init, MPI_Barrier and MPI_Finalize. mpirun starts both, and the seconds cover the whole mpirun.
The connections are counted in the ranks' logs; if they differ from the connections of recursive
doubling, the exit code is 1.

.venv/bin/python tools/bench/startup.py --ranks 2,16,64 --turns 3
"""

from __future__ import annotations

import argparse
import collections
import ctypes.util
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "build/release/tests/standalone/example_program"
# This does not use mpi.h, which is not in mpirun's package. The declarations match Open MPI's
# library.
HELLO = """
#include <stdio.h>
extern char ompi_mpi_comm_world;
int MPI_Init(int*, char***);
int MPI_Comm_rank(void*, int*);
int MPI_Comm_size(void*, int*);
int MPI_Barrier(void*);
int MPI_Finalize(void);
int main(int count, char** words) {
  int rank = 0, size = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(&ompi_mpi_comm_world, &rank);
  MPI_Comm_size(&ompi_mpi_comm_world, &size);
  MPI_Barrier(&ompi_mpi_comm_world);
  printf("rank %d of %d\\n", rank, size);
  MPI_Finalize();
  return 0;
}
"""
WATCHDOG = 600.0


def hello(folder: str) -> str | None:
    """Build the MPI program; return None if Open MPI's library is not installed."""
    library = ctypes.util.find_library("mpi")
    if library is None:
        return None
    source = Path(folder) / "hello.c"
    source.write_text(HELLO)
    program = str(source.with_suffix(""))
    subprocess.run(["cc", "-o", program, str(source), f"-l:{library}"], check=True)
    return program


def started(program: str, ranks: int) -> tuple[float, str]:
    """Return the seconds of mpirun, and the output of its ranks."""
    env = {**os.environ, "GTOPK_LOG_LEVEL": "info"}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), program]
    begin = time.monotonic()
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=WATCHDOG, check=False
    )
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seconds, done.stdout + done.stderr


def connections(said: str) -> list[int]:
    """Return how many others have connected to each rank, in ascending order."""
    return sorted(collections.Counter(re.findall(r"connects to \S+ pid (\d+) ", said)).values())


def partners(ranks: int) -> list[int]:
    """Return with how many others each rank swaps lists in recursive doubling, ascending."""
    rounds = ranks.bit_length() - 1
    folded = ranks - 2**rounds  # ranks that pass their list to a neighbour
    return sorted([1] * folded + [rounds + 1] * folded + [rounds] * (ranks - 2 * folded))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,16,64", help="numbers of ranks (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each (%(default)s)")
    arguments = parser.parse_args()
    if shutil.which("mpirun") is None:
        print("startup: mpirun is not in PATH", file=sys.stderr)
        return 1
    print(f"# {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; seconds, median (least)")
    print(" ranks      gtopk              MPI              connections, of a rank")
    right = True
    with tempfile.TemporaryDirectory() as folder:
        programs = {"gtopk": str(EXAMPLE), "MPI": hello(folder)}
        for ranks in map(int, arguments.ranks.split(",")):
            seconds: dict[str, list[float]] = {name: [] for name, path in programs.items() if path}
            for turn in range(arguments.turns):
                for name in list(seconds) if turn % 2 == 0 else list(seconds)[::-1]:
                    took, said = started(programs[name], ranks)
                    seconds[name].append(took)
                    if name == "gtopk":
                        made = connections(said)
                        right = right and made == partners(ranks)
            texts = [f"{statistics.median(s):8.2f} ({min(s):.2f})" for s in seconds.values()]
            texts += ["no libmpi"] * (2 - len(texts))
            each = ", ".join(map(str, sorted(set(made))))
            print(f"{ranks:6d} {texts[0]:>18} {texts[1]:>18} {sum(made):8d}, {each}", flush=True)
    if not right:
        print("startup: these are not the connections of recursive doubling", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
