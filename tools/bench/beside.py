"""Compares gtopk-pingpong's layer `messages` with UCX's ucx_perftest, in turn within one run.

Both use the same UCX library, with gtopk's UCX_TLS and settings, and error handling on. Latencies
are half a round trip, at a percentile (50 is the median); bandwidths are measured with windows of
messages one way, over the whole run. The median over the turns is reported. The limits are a
latency of at most 1.1 times UCX's plus 1 us, and a bandwidth of at least 0.95 times UCX's (with
--strict, the exit code is 1 if one is missed).

--layers adds the time of the same message through a group's queue and the engine's thread (calls),
and through torch.distributed's send and recv (work).

.venv/bin/python tools/bench/beside.py shm tcp --layers calls,work
.venv/bin/python tools/bench/beside.py 1gbit --sizes 8,64K,4M        # two hosts of the lab (root)
.venv/bin/python tools/bench/beside.py tcp --segments 8K,64K,272K,528K   # a sweep
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import libucx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import netlab  # noqa: E402

PINGPONG = str(ROOT / "build/release/tools/programs/gtopk-pingpong")
WORK = str(ROOT / "tools/bench/work.py")
UCX = Path(libucx.__file__).parent
PERFTEST = str(UCX / "bin/ucx_perftest")
# These are gtopk's own settings (docs/ucx.md).
SETTINGS = {"UCX_MM_ERROR_HANDLING": "y", "UCX_TCP_CONN_NB": "y"}
NEARLY = {"shm": "posix,sysv,self", "tcp": "tcp,self"}
LATENCY_FACTOR, LATENCY_SLACK, BANDWIDTH_FACTOR = 1.1, 1e-6, 0.95
WATCHDOG = 300.0


def bytes_of(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KM]?)", text).groups()
    return int(number) << {"": 0, "K": 10, "M": 20}[unit]


class Pair:
    """Two places, and how to start a command in each."""

    def __init__(self, name: str, stack, first: list[str]) -> None:
        self.name = name
        self.first = first
        self.lab = None if name in NEARLY else stack(netlab.Lab(2, name))

    def address(self) -> str:
        return self.lab.address(0) if self.lab else "127.0.0.1"

    def enter(self, host: int) -> list[str]:
        core = sorted(os.sched_getaffinity(0))[-1 - host]
        alone = [*self.first, "taskset", "--cpu-list", str(core)] if self.first else []
        return (self.lab.enter(host) if self.lab else []) + alone

    def port(self) -> int:
        if self.lab:
            return self.lab.free_port(0)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def environment(self, segment: str) -> dict[str, str]:
        devices = {"UCX_NET_DEVICES": "eth0"} if self.lab else {}
        if self.name == "tcp":
            devices = {"UCX_NET_DEVICES": "lo"}
        library = {"LD_LIBRARY_PATH": str(UCX / "lib"), "UCX_LOG_LEVEL": "error"}
        segments = {"UCX_TCP_TX_SEG_SIZE": segment, "UCX_TCP_RX_SEG_SIZE": segment}
        tls = {"UCX_TLS": NEARLY.get(self.name, "tcp,self")}
        return {**os.environ, **SETTINGS, **segments, **tls, **devices, **library}

    def run(self, server: list[str], client: list[str], env: dict[str, str]) -> str:
        """Run both; return the client's output. Retries while the server does not listen yet."""
        serving = subprocess.Popen(
            [*self.enter(0), *server], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            end = time.monotonic() + WATCHDOG
            while True:
                done = subprocess.run(
                    [*self.enter(1), *client],
                    env=env,
                    capture_output=True,
                    text=True,
                    timeout=WATCHDOG,
                    check=False,
                )
                if done.returncode == 0:
                    serving.wait(timeout=WATCHDOG)
                    return done.stdout
                if serving.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{client}: {done.stdout}{done.stderr}")
                time.sleep(0.05)
        finally:
            serving.kill()
            serving.wait()


def rounds(size: int, slow: bool) -> int:
    """Return rounds for a few hundred megabytes of each size, or a few on a shaped link."""
    most = (16 if slow else 512) << 20
    return max(5, min(2000, most // max(size, 1)))


def at(samples: list[float], mode: str, percentile: float) -> float:
    """Return a percentile of latencies, or the bandwidth of the whole run, as ucx_perftest does."""
    if mode == "bw":
        return statistics.fmean(samples)
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * percentile / 100))]


def ours(layer: str, pair: Pair, mode: str, size: int, window: int, percentile: float, env):
    """Return the seconds for one message one way, measured by gtopk-pingpong."""
    count = rounds(size, pair.lab is not None) // (1 if mode == "lat" else window) + 5
    if size > 1 << 16:
        count *= 10  # it runs a tenth of them
    port = pair.port()
    options = ["--layer", layer, "--mode", mode, "--window", str(window)]
    options += ["-b", str(size), "-e", str(size), "-n", str(count), "-w", "5"]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        pair.run(
            [PINGPONG, "--listen", str(port), *options],
            [PINGPONG, f"{pair.address()}:{port}", *options, "--json", file.name],
            env,
        )
        (row,) = json.load(file)["rows"]
    return at(row["samples_seconds"], mode, percentile)


def messages(*arguments) -> float:
    return ours("messages", *arguments)


def calls(*arguments) -> float:
    return ours("calls", *arguments)


def work(pair: Pair, mode: str, size: int, window: int, percentile: float, env) -> float:
    """Return the same through torch.distributed."""
    count = rounds(size, pair.lab is not None) // (1 if mode == "lat" else window) + 5
    # torch loads the libucx wheel by itself.
    env = {name: value for name, value in env.items() if name != "LD_LIBRARY_PATH"}
    env |= {"MASTER_ADDR": pair.address(), "MASTER_PORT": str(pair.port()), "WORLD_SIZE": "2"}
    command = [sys.executable, WORK, mode, str(size), str(window), str(count)]
    said = pair.run([*command, "0"], [*command, "1"], env)
    return at(json.loads(said.splitlines()[-1]), mode, percentile)


def theirs(pair: Pair, mode: str, size: int, window: int, percentile: float, env) -> float:
    """Return the same with ucx_perftest, whose bandwidth covers the whole run."""
    port = str(pair.port())
    count = rounds(size, pair.lab is not None) + (5 if mode == "lat" else 5 * window)
    test = ["-t", f"tag_{mode}", "-s", str(size), "-n", str(count), "-w", "5"]
    test += ["-O", str(window)] if mode == "bw" else ["-R", str(percentile)]
    said = pair.run(
        [PERFTEST, "-p", port, "-e"],
        [PERFTEST, pair.address(), "-p", port, "-e", "-f", "-v", *test],
        env,
    )
    names, numbers = [line.split(",") for line in said.splitlines() if "," in line][-2:]
    row = dict(zip(names, map(float, numbers), strict=True))
    if mode == "lat":
        return row[next(name for name in names if "percentile" in name)] * 1e-6
    return 1 / row["overall_mr"]


LAYERS = ("calls", "work")
SIDES = {"gtopk": messages, "ucx": theirs, "calls": calls, "work": work}


def compare(pair: Pair, mode: str, size: int, arguments, segment: str) -> dict:
    """Run both in turn, and the requested layers after them."""
    env = pair.environment(segment)
    names = ["gtopk", "ucx", *filter(None, arguments.layers.split(","))]
    measured: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(arguments.turns):
        for name in names if turn % 2 == 0 else reversed(names):
            seconds = SIDES[name](pair, mode, size, arguments.window, arguments.percentile, env)
            measured[name].append(seconds)
    middle = {name: statistics.median(seconds) for name, seconds in measured.items()}
    mine, other = middle["gtopk"], middle["ucx"]
    met = (
        mine <= LATENCY_FACTOR * other + LATENCY_SLACK
        if mode == "lat"
        else mine <= other / BANDWIDTH_FACTOR
    )
    return {
        "network": pair.name,
        "segment": segment,
        "mode": mode,
        "bytes": size,
        "met": met,
        **measured,
        **{f"{name}_seconds": seconds for name, seconds in middle.items()},
    }


def show(row: dict) -> None:
    """Print one line of the table: times for latencies, rates for bandwidths, and the ratio."""
    size, mine, other = row["bytes"], row["gtopk_seconds"], row["ucx_seconds"]
    if row["mode"] == "lat":
        figures = f"{mine * 1e6:12.2f} {other * 1e6:12.2f}   us   {mine / other:6.2f}"
    else:
        figures = f"{size / mine / 1e9:12.3f} {size / other / 1e9:12.3f}   GB/s {other / mine:6.2f}"
    bar = "met" if row["met"] else "missed"
    line = f"{row['network']:>8} {row['segment']:>6} {row['mode']:>4} {size:10d} {figures}  {bar}"
    for layer in LAYERS:
        if layer in row:
            seconds = row[f"{layer}_seconds"]
            figure = seconds * 1e6 if row["mode"] == "lat" else size / seconds / 1e9
            line += f"  {layer} {figure:.3f}"
    print(line, flush=True)


def main() -> int:
    """Measures, prints, and reports whether the limits were met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="+", help="shm, tcp, or a rate of the lab")
    parser.add_argument("--sizes", default="8,1K,8K,64K,256K,1M,8M,64M")
    parser.add_argument("--segments", default="272K", help="of TCP, compared")
    parser.add_argument("--modes", default="lat,bw")
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--percentile", type=float, default=50, help="of latencies")
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="each side on a core of its own before all other work (SCHED_FIFO; root); for shm "
        "alone, as over TCP the kernel's own threads would wait for a core, too",
    )
    parser.add_argument(
        "--nice",
        action="store_true",
        help="the same with a nice value of -20, which lets those threads in",
    )
    parser.add_argument("--layers", default="", help="calls, work, or both: reported beside")
    parser.add_argument("--pingpong", help="the program, if not that of build/release")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.realtime and arguments.networks != ["shm"]:
        parser.error("--realtime is for shm alone")
    unknown = set(filter(None, arguments.layers.split(","))) - set(LAYERS)
    if unknown:
        parser.error(f"--layers: {', '.join(sorted(unknown))}: there are {', '.join(LAYERS)}")
    if arguments.pingpong:
        global PINGPONG
        PINGPONG = arguments.pingpong
    first = ["chrt", "--fifo", "10"] if arguments.realtime else []
    first = ["nice", "--adjustment", "-20"] if arguments.nice else first
    rows = []
    load = os.getloadavg()[0]
    print(f"# {os.cpu_count()} cores, load {load:.1f}, {arguments.turns} turns, each's median")
    print(" network segment mode      bytes        gtopk          ucx          ratio")
    for network in arguments.networks:
        opened = []

        def keep(lab, opened=opened):
            opened.append(lab)
            return lab

        try:
            pair = Pair(network, keep, first)
            for segment in arguments.segments.split(","):
                for mode in arguments.modes.split(","):
                    for size in map(bytes_of, arguments.sizes.split(",")):
                        rows.append(compare(pair, mode, size, arguments, segment))
                        show(rows[-1])
        finally:
            for lab in opened:
                lab.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    missed = sum(not row["met"] for row in rows)
    print(f"# {len(rows) - missed} of {len(rows)} within the bars")
    return 1 if arguments.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
