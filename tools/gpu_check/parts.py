"""The parts of a run: what each starts, and its time limit."""

from __future__ import annotations

import pathlib
import re
import shutil
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from gpu_check.errors import CheckError
from gpu_check.machine import Machine

Answer = dict[str, Any]


MINUTES = 9  # time limit for all parts


class Part(NamedTuple):
    run: Callable[[Machine, bool, float], Answer]
    """With small sizes or not; until a time of time.monotonic() for all that it starts."""
    seconds: float
    """That it may take where a run has so many minutes; more where it has more."""


def _bits(machine: Machine, small: bool, deadline: float) -> Answer:
    answers = {size: machine.ranks("bits", size, deadline, small=small)[0] for size in (1, 2)}
    dense = machine.ranks("dense", 2, deadline, small=small)[0]
    cases = {str(size): each["cases"] for size, each in answers.items()}  # keys as in JSON
    return {"sparse": cases, **_plain(dense)}


def _training(machine: Machine, small: bool, deadline: float) -> Answer:
    return _plain(machine.ranks("training", 2, deadline, small=small)[0])


def _profile(machine: Machine, small: bool, deadline: float) -> Answer:
    return _plain(machine.ranks("profile", 2, deadline, small=small)[0])


def _compress(machine: Machine, small: bool, deadline: float) -> Answer:
    return _plain(machine.ranks("compress", 1, deadline, small=small)[0])


# A native library that contains this name can pass device pointers to UCX.
POINTERS = "GTOPK_DEVICE_POINTERS"


def _both_ways(machine: Machine, part: str, small: bool, deadline: float) -> Answer:
    """Run the part through pinned memory, and through UCX if this gtopk can."""
    pinned = machine.ranks(part, 2, deadline, small=small, **{POINTERS: "0"})[0]
    answer: Answer = {"pinned": pinned["rows"]}
    libraries = (machine.packed / "site" / "gtopk").glob("_torch_*.so")
    if not any(POINTERS.encode() in pathlib.Path(each).read_bytes() for each in libraries):
        return {**answer, "ucx": f"not measured: this gtopk does not know {POINTERS}"}
    transports = "tcp,posix,sysv,self,cuda_copy,cuda_ipc"
    through = {POINTERS: "1", "GTOPK_UCX_TLS": transports}
    try:
        direct = machine.ranks(part, 2, deadline, small=small, **through)[0]
    except CheckError as error:
        return {**answer, "ucx": f"failed: {error}"}
    return {**answer, "ucx": direct["rows"]}


def _staging(machine: Machine, small: bool, deadline: float) -> Answer:
    return _both_ways(machine, "messages", small, deadline)


def _programs(machine: Machine, small: bool, deadline: float) -> Answer:
    """Run gtopk-allreduce and gtopk-pingpong with --memory cuda on two ranks, checking all bits.

    Raises CheckError if a result differs from the sequential reference, or is not on the device.
    """
    on_device = ["--memory", "cuda", "--check"]
    size = ["-b", "9000", "-e", "9000", "-n", "2", "-w", "1"]
    if not small:
        size = ["-b", "4M", "-e", "4M", "-n", "20"]
    kinds = ["-a", "gtopk,topk,dense", "--select", "exact,sampled", "--density", "0.01"]
    reduced = machine.program("gtopk-allreduce", [*on_device, *size, *kinds], deadline)
    rows = [
        {
            **{name: row[name] for name in ("algorithm", "select", "n", "place", "wrong")},
            "seconds": statistics.median(row["samples_seconds"]),
        }
        for row in reduced["rows"]
    ]
    staged = [row for row in rows if row["place"] == "staged"]
    if staged:
        raise CheckError(f"gtopk-allreduce did not select and commit on the device: {staged[0]}")
    sizes = ["-b", "8", "-e", "64K" if small else "4M", "-f", "8", "-n", "10" if small else "200"]
    sent = machine.program("gtopk-pingpong", [*on_device, *sizes], deadline)
    return {
        "allreduce": rows,
        "pingpong": [
            {
                **{name: row[name] for name in ("layer", "bytes", "wrong")},
                "seconds": statistics.median(row["samples_seconds"]),
            }
            for row in sent["rows"]
        ],
    }


# This matches a line of gtopk-info --gpu about an element type.
TESTED = re.compile(r"  (\w+): (\d+) calls, all bits as the CPU's, (\d+) ms")


def _self_test(machine: Machine, small: bool, deadline: float) -> Answer:
    """Run gtopk-info --gpu. Raises CheckError if a bit differs or nothing was tested."""
    lines = machine.self_test(deadline)
    tested = [found for found in map(TESTED.fullmatch, lines) if found]
    if not tested:
        raise CheckError(f"gtopk-info --gpu tested nothing: {' | '.join(lines)}")
    return {
        "waits": next((each.strip() for each in lines if "stream waits" in each), "not tested"),
        "rows": [
            {"dtype": each[1], "calls": int(each[2]), "seconds": int(each[3]) * 1e-3}
            for each in tested
        ],
    }


def _first_call(machine: Machine, small: bool, deadline: float) -> Answer:
    """Measure what the self-test adds to the first call of a process, for each element type."""

    def rows(setting: str) -> list[dict[str, Any]]:
        variable = {"GTOPK_CUDA_SELF_TEST": setting}
        return machine.ranks("first_call", 1, deadline, small=small, **variable)[0]["rows"]

    return {
        "rows": [
            {
                "dtype": plain["dtype"],
                "without": plain["seconds"][0],
                "with": tested["seconds"][0],
                "second": tested["seconds"][1],
            }
            for plain, tested in zip(rows("0"), rows("1"), strict=True)
        ]
    }


# This fraction of the cases of test_kernels runs where each launch takes many times longer.
FEW_SEEDS = {"GTOPK_SEEDS": "0.05"}


def _kernels(machine: Machine, small: bool, deadline: float) -> Answer:
    """Check every call of the kernels' library, bit for bit against the CPU's functions, and
    against the number of launches that it declares.
    """
    answer = _plain(machine.kernel_tests(deadline, **(FEW_SEEDS if small else {})))
    if not answer["launches"]:
        raise CheckError("test_kernels compared no launches with what their calls declare")
    return answer


def _sanitized(tool: str, *, with_bits: bool) -> Callable[[Machine, bool, float], Answer]:
    """Run compute-sanitizer on test_kernels, and on the part `bits` too."""

    def run(machine: Machine, small: bool, deadline: float) -> Answer:
        found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not pathlib.Path(found).exists():
            return {"not_run": "compute-sanitizer is not installed here"}
        before = (found, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all")
        kernels = machine.kernel_tests(deadline, before=before, **FEW_SEEDS)
        answer = {"kernels": kernels["cases"], "summary of kernels": _summary(tool, kernels)}
        if not with_bits:
            return answer
        bits = machine.ranks(
            "bits",
            1,
            deadline,
            small=True,
            before=before,
            PYTORCH_NO_CUDA_MEMORY_CACHING="1",  # so that the sanitizer sees where each tensor ends
        )[0]
        return {**answer, "bits": bits["cases"], "summary of bits": _summary(tool, bits)}

    return run


def _summary(tool: str, answer: Answer) -> str:
    lines = [each for each in answer["printed"].splitlines() if "SUMMARY" in each]
    if not lines:
        raise CheckError(f"{tool} gave no summary: {answer['printed'][-500:]}")
    return lines[-1].strip("= ")


def _plain(answer: Answer) -> Answer:
    return {name: value for name, value in answer.items() if name != "printed"}


PARTS = {
    "self_test": Part(_self_test, 30),
    "first_call": Part(_first_call, 30),
    "kernels": Part(_kernels, 90),
    "bits": Part(_bits, 120),
    "training": Part(_training, 60),
    "profile": Part(_profile, 40),
    "compress": Part(_compress, 90),
    "staging": Part(_staging, 60),
    "programs": Part(_programs, 60),
    "memcheck": Part(_sanitized("memcheck", with_bits=True), 120),
    "racecheck": Part(_sanitized("racecheck", with_bits=True), 120),
    "synccheck": Part(_sanitized("synccheck", with_bits=False), 60),
    "initcheck": Part(_sanitized("initcheck", with_bits=False), 60),
}
