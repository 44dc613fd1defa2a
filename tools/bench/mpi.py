"""Measures Open MPI's collectives at the sizes of benchmark (p), for comparison.

Ranks are processes on this machine or, as root, one on each host of a network lab, as in
tools/bench/run; mpirun then starts them through an agent that replaces ssh. A call's time is the
slowest rank's, over up to 100 calls in a row, as in tools/bench/collectives.py, and each figure is
the median of several turns. It needs mpirun, Open MPI's library and a C compiler, but not mpi.h.

.venv/bin/python tools/bench/mpi.py --ranks 4 --json mpi.json
.venv/bin/python tools/bench/mpi.py --hosts 4 --rate 100mbit --turns 7
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import netlab

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As Open MPI's library has them. */
typedef void* handle;
extern char ompi_mpi_comm_world, ompi_mpi_float, ompi_mpi_double, ompi_mpi_op_sum, ompi_mpi_op_max;
int MPI_Init(int*, char***);
int MPI_Comm_rank(handle, int*);
int MPI_Comm_size(handle, int*);
int MPI_Barrier(handle);
int MPI_Allreduce(const void*, void*, int, handle, handle, handle);
int MPI_Allgather(const void*, int, handle, void*, int, handle, handle);
int MPI_Reduce_scatter_block(const void*, void*, int, handle, handle, handle);
int MPI_Bcast(void*, int, handle, int, handle);
int MPI_Alltoall(const void*, int, handle, void*, int, handle, handle);
double MPI_Wtime(void);
int MPI_Finalize(void);
#define WORLD ((handle)&ompi_mpi_comm_world)
#define FLOAT ((handle)&ompi_mpi_float)
#define SUM ((handle)&ompi_mpi_op_sum)
#define IN_PLACE ((void*)1)

static void call(const char* name, float* whole, float* other, int part, int ranks) {
  if (!strcmp(name, "all_reduce")) {
    MPI_Allreduce(IN_PLACE, whole, part * ranks, FLOAT, SUM, WORLD);
  } else if (!strcmp(name, "all_gather")) {
    MPI_Allgather(other, part, FLOAT, whole, part, FLOAT, WORLD);
  } else if (!strcmp(name, "reduce_scatter")) {
    MPI_Reduce_scatter_block(whole, other, part, FLOAT, SUM, WORLD);
  } else if (!strcmp(name, "broadcast")) {
    MPI_Bcast(whole, part * ranks, FLOAT, 0, WORLD);
  } else {
    MPI_Alltoall(whole, part, FLOAT, other, part, FLOAT, WORLD);
  }
}

/* <turns> <collective> <bytes> ...: a line for each turn of each size. */
int main(int count, char** words) {
  int rank = 0, ranks = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(WORLD, &rank);
  MPI_Comm_size(WORLD, &ranks);
  const int turns = atoi(words[1]);
  for (int word = 3; word < count; ++word) {
    const long bytes = atol(words[word]);
    const int part = bytes / 4 / ranks > 0 ? (int)(bytes / 4 / ranks) : 1;
    const int several = bytes > 256 << 10 ? 1 : bytes * 100 > 256 << 10 ? (256 << 10) / bytes : 100;
    float* const whole = calloc((size_t)part * ranks, sizeof(float));
    float* const other = calloc((size_t)part * ranks, sizeof(float));
    for (int turn = -1; turn < turns; ++turn) { /* the first warms up */
      MPI_Barrier(WORLD);
      double seconds = MPI_Wtime();
      for (int i = 0; i < several; ++i) {
        call(words[2], whole, other, part, ranks);
      }
      seconds = (MPI_Wtime() - seconds) / several;
      MPI_Allreduce(IN_PLACE, &seconds, 1, (handle)&ompi_mpi_double, (handle)&ompi_mpi_op_max,
                    WORLD);
      if (rank == 0 && turn >= 0) {
        printf("%s %ld %.9f\n", words[2], bytes, seconds);
      }
    }
    free(whole);
    free(other);
  }
  MPI_Finalize();
  return 0;
}
"""
COLLECTIVES = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all"
SIZES = "8,1024,8192,65536,524288,4194304,33554432"


def build(folder: str) -> str:
    """Build the program; return its path."""
    library = ctypes.util.find_library("mpi")
    if library is None:
        sys.exit("mpi.py: no library of Open MPI's is here: apt-get install openmpi-bin")
    source = Path(folder) / "collectives.c"
    source.write_text(PROGRAM)
    program = str(source.with_suffix(""))
    subprocess.run(["cc", "-O2", "-o", program, str(source), f"-l:{library}"], check=True)
    return program


def on_hosts(lab: netlab.Lab, folder: str) -> list[str]:
    """Return mpirun's command for one rank on each host of the lab; mpirun runs on host 0.

    mpirun calls the agent as it would call ssh, with a host's address and a command for its shell.
    """
    cases = [
        f'{lab.address(host)}) set -- {shlex.join(lab.enter(host))} sh -c "$*" ;;'
        for host in range(lab.hosts)
    ]
    refuse = f'*) echo "agent: no host $host in the lab of {lab.hosts}" >&2; exit 1 ;;'
    agent = Path(folder) / "agent"
    lines = ["#!/bin/sh", 'host=$1; shift; case "$host" in', *cases, refuse, "esac", 'exec "$@"']
    agent.write_text("\n".join(lines) + "\n")
    agent.chmod(0o700)
    listed = ",".join(f"{lab.address(host)}:1" for host in range(lab.hosts))
    parameters = {
        "plm_rsh_agent": str(agent),
        "oob_tcp_if_include": lab.interface,
        "btl": "tcp,self",
        "btl_tcp_if_include": lab.interface,
        "pml": "ob1",  # ob1 uses btl; Open MPI might prefer UCX
    }
    words = [word for name, value in parameters.items() for word in ("--mca", name, value)]
    return [*lab.enter(0), "mpirun", "--host", listed, *words]


def main() -> None:
    """Measures and prints a line for each collective and size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, help="on this machine")
    parser.add_argument("--hosts", type=int, default=0, help="of a network lab, with a rank each")
    parser.add_argument("--rate", default="100mbit", help="of the hosts' links; unshaped")
    parser.add_argument("--collectives", default=COLLECTIVES)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ranks = arguments.hosts or arguments.ranks
    seconds: dict[str, dict[int, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        program = build(folder)
        if arguments.hosts:
            rate = None if arguments.rate == "unshaped" else arguments.rate
            launch = on_hosts(stack.enter_context(netlab.Lab(arguments.hosts, rate)), folder)
            print(f"# {ranks} hosts, {arguments.rate}, TCP")
        else:
            launch = ["mpirun", "--oversubscribe"]
        # Ranks that share cores must yield them while they wait.
        launch += ["--mca", "mpi_yield_when_idle", "1", "-n", str(ranks)]
        for name in arguments.collectives.split(","):
            words = [*launch, program, str(arguments.turns), name, *arguments.sizes.split(",")]
            env = {**os.environ, **root}
            done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
            for line in done.stdout.splitlines():
                collective, size, taken = line.split()
                seconds.setdefault(collective, {}).setdefault(int(size), []).append(float(taken))
            for size, samples in seconds[name].items():
                middle = sorted(samples)[len(samples) // 2]
                least, most = min(samples), max(samples)
                print(
                    f"{name:>14} {size:>10} p50 {middle * 1e6:10.1f} us, "
                    f"{least * 1e6:.1f} to {most * 1e6:.1f}",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps({"ranks": ranks, "seconds": seconds}))


if __name__ == "__main__":
    main()
