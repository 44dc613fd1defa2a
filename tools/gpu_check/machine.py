"""Where the checks run: the packed folder, the device, and processes that have both."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from gpu_check.errors import CheckError, UsageError

TEST_KERNELS = "test_kernels"
BUILT_TEST_KERNELS = "build/release/tests/cuda/test_kernels"
LAUNCHES = "launches_of_"  # the prefix of such properties in test_kernels


class Machine:
    """One device, and ranks that share it. device: torch's name; other than cuda, for tests."""

    def __init__(self, packed: pathlib.Path, device: str) -> None:
        """Raises UsageError for a folder that is not packed."""
        self.device = device
        self.packed = packed.resolve()
        if device == "cuda" and not (self.packed / "site").is_dir():
            raise UsageError(f"{packed} is not what `gpu-check pack` makes: name it with --packed")

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a process that finds the packed files."""
        here = str(pathlib.Path(__file__).resolve().parents[1])
        paths = [here, os.environ.get("PYTHONPATH", "")]
        libraries = [os.environ.get("LD_LIBRARY_PATH", "")]
        if (self.packed / "site").is_dir():
            paths.insert(1, str(self.packed / "site"))
            libraries.insert(0, str(self.packed / "lib"))
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "OMP_NUM_THREADS": "2",
            "PYTHONDONTWRITEBYTECODE": "1",
            **more,
        }

    def why_not(self) -> str:
        """Return why there is no such device here, or ""."""
        if self.device != "cuda":
            return ""
        script = (
            "import torch\n"
            "print(torch.__version__, torch.version.cuda, torch.cuda.is_available(),\n"
            "      torch.cuda.get_device_name() if torch.cuda.is_available() else '', sep='|')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return f"{sys.executable} has no torch: {done.stderr.strip().splitlines()[-1]}"
        version, _, available, _ = done.stdout.strip().split("|")
        if available != "True":
            return f"torch {version} sees no CUDA device (torch.cuda.is_available() is False)"
        return ""

    def about(self) -> dict[str, str]:
        """Describe the machine for the page."""
        said = {"python": platform.python_version(), "kernel": platform.release()}
        try:
            done = subprocess.run(
                ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv"],
                capture_output=True,
                text=True,
                check=False,
            )
            said["gpu"] = done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr
        except OSError:
            said["gpu"] = "no nvidia-smi"
        said["load"] = " ".join(f"{each:.1f}" for each in os.getloadavg())
        return said

    def ranks(
        self,
        part: str,
        size: int,
        deadline: float,
        *,
        small: bool = False,
        before: tuple[str, ...] = (),
        **environment: str,
    ) -> list[dict[str, Any]]:
        """Runs ranks.py's part on this many ranks; `before` precedes each command line.

        deadline: a time of time.monotonic(). If a rank fails or is not done by then, raises
        CheckError with the end of its output.
        """
        with tempfile.TemporaryDirectory() as folder:
            words = [part, str(size), folder, self.device, str(int(small))]
            python = [*before, sys.executable, "-m", "gpu_check.ranks"]
            commands = [[*python, str(rank), *words] for rank in range(size)]
            said = self._run(part, commands, deadline, environment)
            answers = []
            for rank in range(size):
                answer = json.loads(pathlib.Path(folder, f"answer{rank}").read_text())
                answers.append({**answer, "printed": said[rank][-2000:]})
            return answers

    def program(
        self, name: str, words: list[str], deadline: float, **environment: str
    ) -> dict[str, Any]:
        """Run two ranks of a gtopk program; return its --json. Raises CheckError likewise."""
        with tempfile.TemporaryDirectory() as folder:
            record = pathlib.Path(folder, "record.json")
            meet = ["--ranks", "2", "--rendezvous", f"127.0.0.1:{_free_port()}"]
            command = [str(self.programs() / name), *words, *meet, "--json", str(record)]
            commands = [[*command, "--rank", str(rank)] for rank in range(2)]
            self._run(name, commands, deadline, environment)
            return json.loads(record.read_text())

    def self_test(self, deadline: float) -> list[str]:
        """Return the lines of `gtopk-info --gpu`. Raises CheckError likewise, or if bits differ."""
        silence = max(1, int(deadline - time.monotonic()))
        command = [str(self.programs() / "gtopk-info"), "--gpu", "--timeout", str(silence)]
        (said,) = self._run("gtopk-info --gpu", [command], deadline, {})
        return said.splitlines()

    def programs(self) -> pathlib.Path:
        """Return the folder of the programs, packed or installed."""
        packed = self.packed / "site" / "gtopk_programs"
        if packed.is_dir():
            return packed / "bin"
        found = importlib.util.find_spec("gtopk_programs")
        if found is None or found.origin is None:
            raise CheckError("gtopk_programs is not installed here")
        return pathlib.Path(found.origin).parent / "bin"

    def kernel_tests(
        self, deadline: float, *, before: tuple[str, ...] = (), **environment: str
    ) -> dict[str, Any]:
        """Run test_kernels. Return the number of its cases, the number of kernels that each kind of
        call launched, which must be the declared number each time, and its output.

        Raises CheckError likewise, or one that names the cases that have failed.
        """
        if self.device == "cuda":
            usual = {"GTOPK_CUDA_DRIVER": "libcuda.so.1"}
            usual["GTOPK_CUDA_KERNELS"] = str(self.packed / "site" / "gtopk" / "libgtopk_cuda.so")
            named = {each: os.environ.get(each, usual[each]) for each in usual}
            environment = {**named, **environment}
        with tempfile.TemporaryDirectory() as folder:
            record = pathlib.Path(folder, "record.json")
            command = [*before, str(self._test_kernels()), f"--gtest_output=json:{record}"]
            try:
                (said,) = self._run(TEST_KERNELS, [command], deadline, environment)
            except CheckError as error:
                raise CheckError(_failures(record) or str(error)) from None
            told = json.loads(record.read_text())
            launches = {
                name.removeprefix(LAUNCHES): seen
                for name, seen in told.items()
                if name.startswith(LAUNCHES)
            }
            return {"cases": told["tests"], "launches": launches, "printed": said[-2000:]}

    def _test_kernels(self) -> pathlib.Path:
        """Return the packed program, or the one of this checkout's release build."""
        packed = self.packed / "bin" / TEST_KERNELS
        built = pathlib.Path(__file__).resolve().parents[2] / BUILT_TEST_KERNELS
        for each in (packed, built):
            if each.is_file():
                return each
        raise CheckError(f"there is no {packed}, and no {built}: cmake --build --preset release")

    def _run(
        self, what: str, commands: list[list[str]], deadline: float, environment: dict[str, str]
    ) -> list[str]:
        """Return what each rank printed. Raises CheckError unless all succeed in time."""
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            processes, logs = [], []
            for rank, command in enumerate(commands):
                logs.append(open(f"{folder}/log{rank}", "w+"))  # noqa: SIM115
                processes.append(
                    subprocess.Popen(
                        command,
                        env=self.environment(**environment),
                        stdout=logs[-1],
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # a sanitizer runs the actual process as its child
                    )
                )
            try:
                codes = [_joined(each, deadline) for each in processes]
            finally:
                for each in processes:
                    if each.poll() is None:
                        os.killpg(each.pid, signal.SIGKILL)
                        each.wait()
            said = []
            for log in logs:
                log.seek(0)
                said.append(log.read())
                log.close()
        for rank, code in enumerate(codes):
            if code != 0:
                late = f"stopped after {time.monotonic() - begin:.0f} s: the part's time was up"
                why = f"exit code {code}" if code is not None else late
                raise CheckError(f"{what}, rank {rank}: {why}: {said[rank][-2000:].strip()}")
        return said


def _failures(record: pathlib.Path) -> str:
    """Say which cases failed in GoogleTest's record, and why the first did; "" if none did."""
    if not record.exists():
        return ""
    told = json.loads(record.read_text())
    failed = {
        f"{suite['name']}.{case['name']}": case["failures"][0]["failure"]
        for suite in told["testsuites"]
        for case in suite["testsuite"]
        if case.get("failures")
    }
    if not failed:
        return ""
    named = ", ".join([*failed][:10]) + (", ..." if len(failed) > 10 else "")
    first = next(iter(failed.values()))[:1000].strip()
    return f"{len(failed)} of {told['tests']} cases failed: {named}. The first: {first}"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _joined(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
