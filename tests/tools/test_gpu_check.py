"""tools/gpu-check: what is packed, and that its parts run, over the fake device.

Nothing here has run on a GPU.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import time

import pytest
import torch
from gpu_check.errors import CheckError
from gpu_check.machine import BUILT_TEST_KERNELS, Machine
from gpu_check.pack import MIB, bytes_of
from gpu_check.page import page
from gpu_check.parts import PARTS, POINTERS

from helpers.paths import ROOT, TORCH

TOOL = ROOT / "tools" / "gpu-check"
KERNELS = ROOT / "build" / "release" / "src" / "cuda" / "libgtopk_cuda.so"
TEST_KERNELS = ROOT / BUILT_TEST_KERNELS
FITS = 64 * MIB
QUICK = "first_call,profile,staging"
# What is installed, not what was packed last: the checkout has no folder of packages.
INSTALLED = (TOOL, "run", "--packed", ROOT)


def ran(
    *words: object, python: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [python, *map(str, words)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def version() -> str:
    return ".".join(torch.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def packed(wheel: pathlib.Path, tmp_path_factory) -> pathlib.Path:
    if not KERNELS.exists() or not TEST_KERNELS.exists():
        pytest.skip("the kernels for GPUs, or their tests, were not built")
    into = tmp_path_factory.mktemp("gpu") / "packed"
    words = ["--wheel", wheel, "--kernels", KERNELS, "--tests", TEST_KERNELS]
    words += ["--into", into, "--torch", version()]
    refused = ran(TOOL, "pack", *words, "--most", "1")
    assert refused.returncode == 1
    assert "that is more than --most 1 MiB" in refused.stderr
    assert not into.exists()
    # By the system's Python, which has no UCX: the checkout's has.
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    done = ran(TOOL, "pack", *words, python=python)
    assert done.returncode == 0, done.stderr
    assert "MiB" in done.stdout
    again = ran(TOOL, "pack", *words)
    assert again.returncode == 0, f"over its own: {again.stderr}"
    return into


def test_what_is_packed_can_be_carried_and_is_all_that_is_needed(packed: pathlib.Path) -> None:
    assert bytes_of(packed) < FITS
    assert (packed / "site" / "gtopk" / "libgtopk_cuda.so").stat().st_size > MIB
    native = list((packed / "site" / "gtopk").glob("_torch_*.so"))
    assert [each.name for each in native] == [f"_torch_{version().replace('.', '_')}.so"]
    assert not list(packed.rglob("*.a"))
    manifest = json.loads((packed / "manifest.json").read_text())
    assert manifest["torch"] == version()
    tests = packed / "bin" / "test_kernels"
    assert tests.stat().st_size < TEST_KERNELS.stat().st_size, "it is stripped"
    needs = subprocess.run(["ldd", tests], capture_output=True, text=True, check=True).stdout
    for library in ("libfmt", "libhwy"):
        assert f"=> {packed}/bin/../site/gtopk/{library}" in needs
    assert "libucp" not in needs
    assert "libgtest" not in needs
    script = """
import os, torch, torch.distributed as dist, gtopk
dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.arange(5.0)
gtopk.sparse_all_reduce(tensor, k=2)
print(tensor.tolist(), gtopk.__file__)
print(*{line.split()[-1] for line in open("/proc/self/maps") if "libucp" in line})
dist.destroy_process_group()
"""
    done = ran("-c", script, PYTHONPATH=str(packed / "site"), GTOPK_CUDA_KERNELS="none")
    assert done.returncode == 0, done.stderr
    result, ucx = done.stdout.splitlines()
    assert result == f"[0.0, 0.0, 0.0, 3.0, 4.0] {packed}/site/gtopk/__init__.py"
    assert ucx == f"{packed}/site/libucx/lib/libucp.so.0"


def test_without_a_gpu_it_says_so_and_runs_nothing(packed: pathlib.Path, tmp_path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = ran(packed / "gpu-check", "run", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-check: there is no GPU here, nothing was run: torch ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pack", "--wheel", "nowhere.whl"], "nowhere.whl: there is no such file"),
        (["run", "--packed", "nowhere"], "nowhere is not what `gpu-check pack` makes"),
        (["run", "--device", "fake", "--parts", "bits,nothing"], "no part 'nothing'; there are"),
    ],
)
def test_bad_words_are_one_line(words: list[str], said: str, tmp_path: pathlib.Path) -> None:
    into = ["--into", tmp_path / "into"] if words[0] == "pack" else []
    done = ran(TOOL, *words, *into)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_with_other_things_in_it_is_left_alone(wheel, tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = ran(TOOL, "pack", "--wheel", wheel, "--into", tmp_path)
    assert done.returncode == 2
    assert "has other things in it" in done.stderr
    assert (tmp_path / "mine").read_text() == "mine"


def run_on_the_fake(fake_library: str, out: pathlib.Path, parts: str) -> dict:
    done = ran(
        *(*INSTALLED, "--small", "--device", "fake", "--parts", parts, "--out", out),
        *("--minutes", 60),
        GTOPK_CUDA_DRIVER=fake_library,
        GTOPK_CUDA_KERNELS=fake_library,
        PYTHONPATH=os.pathsep.join(filter(None, [str(TORCH), os.environ.get("PYTHONPATH")])),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((out / "results.json").read_text())
    text = (out / "results.md").read_text()
    assert text == page(results)
    assert "**Small sizes: figures say nothing.**" in text
    assert [*results["parts"]] == parts.split(",")
    return results["parts"]


def test_its_parts_run_over_the_fake_device(fake_library: str, tmp_path: pathlib.Path) -> None:
    parts = run_on_the_fake(fake_library, tmp_path, QUICK)
    assert [row["dtype"] for row in parts["first_call"]["rows"]] == ["float32", "bfloat16"]
    assert all(row["with"] > row["without"] > 0 for row in parts["first_call"]["rows"])
    assert "synchronize_device" not in parts["profile"]["waits"]
    assert [row["bytes"] for row in parts["staging"]["pinned"]] == [1 << i for i in range(13, 23)]
    assert all(row["seconds"] > 0 for row in parts["staging"]["pinned"])


def test_the_programs_are_run_on_the_device(fake_gpu: str, tmp_path: pathlib.Path) -> None:
    part = run_on_the_fake(fake_gpu, tmp_path, "programs")["programs"]
    places = {(row["algorithm"], row["place"]) for row in part["allreduce"]}
    assert places == {("gtopk", "device"), ("topk", "device"), ("dense", "device")}
    assert len(part["allreduce"]) == 3 * 2
    assert [row["bytes"] for row in part["pingpong"]] == 2 * [8, 64, 512, 4096, 32768, 65536]
    assert all(row["wrong"] == 0 for row in part["allreduce"] + part["pingpong"])


def test_programs_that_find_no_kernels_on_the_device_fail(fake_gpu: str, tmp_path) -> None:
    done = ran(
        *(*INSTALLED, "--small", "--device", "fake", "--parts", "programs", "--minutes", 60),
        *("--out", tmp_path),
        GTOPK_CUDA_DRIVER=fake_gpu,
        GTOPK_CUDA_KERNELS="none",
    )
    assert done.returncode == 1
    failed = json.loads((tmp_path / "results.json").read_text())["parts"]["programs"]["failed"]
    assert failed.startswith("gtopk-allreduce did not select and commit on the device: ")


SAID = """GPU 0, a fake, CUDA 13.0
  stream waits: 20 round trips, 2.1 ms
  float32: 229 calls, all bits as the CPU's, 3663 ms
  float16: 229 calls, all bits as the CPU's, 3324 ms
"""


@pytest.mark.parametrize(
    ("printed", "code", "said"),
    [
        (SAID, 0, ""),
        ("GPU 0, a fake, CUDA 13.0\n", 0, "gtopk-info --gpu tested nothing: GPU 0, a fake"),
        (SAID + "  float64: 229 calls, 1 of them not as on the CPU, 9 ms\n", 1, "exit code 1: "),
    ],
)
def test_the_self_test_is_told_as_gtopk_info_has_it(
    printed: str, code: int, said: str, tmp_path, monkeypatch
) -> None:
    """With a script in the program's place, which takes many seconds on the fake device."""
    script = tmp_path / "gtopk-info"
    script.write_text(f"#!/bin/sh\ntest $1 = --gpu && cat <<END && exit {code}\n{printed}END\n")
    script.chmod(0o755)
    monkeypatch.setattr(Machine, "programs", lambda _: tmp_path)
    machine, deadline = Machine(tmp_path, "fake"), time.monotonic() + 60
    if said:
        with pytest.raises(CheckError, match=said):
            PARTS["self_test"].run(machine, True, deadline)
        return
    answer = PARTS["self_test"].run(machine, True, deadline)
    assert answer["waits"] == "stream waits: 20 round trips, 2.1 ms"
    assert answer["rows"] == [
        {"dtype": "float32", "calls": 229, "seconds": pytest.approx(3.663)},
        {"dtype": "float16", "calls": 229, "seconds": pytest.approx(3.324)},
    ]


@pytest.mark.long
def test_the_self_test_is_run_on_the_device(fake_gpu: str, tmp_path: pathlib.Path) -> None:
    part = run_on_the_fake(fake_gpu, tmp_path, "self_test")["self_test"]
    types = ["float32", "float64", "bfloat16", "float16"]
    assert [row["dtype"] for row in part["rows"]] == types
    assert {row["calls"] for row in part["rows"]} == {229}
    assert "20 round trips" in part["waits"]


@pytest.fixture
def test_kernels() -> None:
    if not TEST_KERNELS.exists():
        pytest.skip("test_kernels was not built")


@pytest.mark.usefixtures("test_kernels")
def test_the_kernels_tests_are_run_on_the_device(fake_gpu: str, tmp_path: pathlib.Path) -> None:
    part = run_on_the_fake(fake_gpu, tmp_path, "kernels")["kernels"]
    assert part["cases"] == 68
    kinds = {"accumulate", "commit", "commit_whole", "find", "gather", "sketch"}
    selectors = ("block", "exact", "gaussian", "sampled", "threshold")
    assert {*part["launches"]} == kinds | {f"select_{each}" for each in selectors}
    for kind, times in {"commit": 3, "gather": 1, "sketch": 4, "select_block": 3}.items():
        launches, calls = map(int, part["launches"][kind].removesuffix(" calls").split(" in "))
        assert launches == times * calls > 0, kind


@pytest.mark.usefixtures("test_kernels")
def test_a_launch_that_a_call_does_not_declare_is_a_failure(fake_gpu: str, tmp_path) -> None:
    done = ran(
        *(*INSTALLED, "--small", "--device", "fake", "--parts", "kernels", "--minutes", 60),
        *("--out", tmp_path),
        GTOPK_CUDA_DRIVER=fake_gpu,
        GTOPK_CUDA_KERNELS=fake_gpu,
        FAKE_DEVICE_KERNEL="more:gather",
    )
    assert done.returncode == 1
    failed = json.loads((tmp_path / "results.json").read_text())["parts"]["kernels"]["failed"]
    cases = ", ".join(f"KernelsSums/{i}.GatherAsTheCpuDoes" for i in range(4))
    assert failed.startswith(f"4 of 68 cases failed: {cases}. The first: ")
    assert "gather declares 1 launches (src/cuda/launches.hpp), seen 2" in failed


@pytest.mark.usefixtures("test_kernels")
def test_cases_of_the_kernels_tests_that_fail_are_named(fake_gpu: str, tmp_path) -> None:
    done = ran(
        *(*INSTALLED, "--small", "--device", "fake", "--parts", "kernels", "--minutes", 60),
        *("--out", tmp_path),
        GTOPK_CUDA_DRIVER=fake_gpu,
        GTOPK_CUDA_KERNELS=fake_gpu,
        FAKE_DEVICE_FAILS="commit",
    )
    assert done.returncode == 1
    failed = json.loads((tmp_path / "results.json").read_text())["parts"]["kernels"]["failed"]
    named = "1 of 68 cases failed: KernelsCommit/0.WriteWhatTheCpuWrites. The first: "
    assert failed.startswith(named)
    assert "the kernels: an error of a fake's (1)" in failed


@pytest.mark.usefixtures("test_kernels")
def test_the_sanitizers_run_the_kernels_tests_too(fake_gpu: str, tmp_path, monkeypatch) -> None:
    """With a script in the sanitizer's place, which ends as that does where it finds errors."""
    script = tmp_path / "compute-sanitizer"
    script.write_text(
        "#!/bin/sh\n"
        'test "$1 $3 $4 $5 $6" = "--tool --error-exitcode 9 --target-processes all" || exit 8\n'
        'shift 6; "$@" && echo "========= ERROR SUMMARY: $ERRORS errors" && test "$ERRORS" = 0 ||'
        " exit 9\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("GTOPK_CUDA_DRIVER", fake_gpu)
    monkeypatch.setenv("GTOPK_CUDA_KERNELS", fake_gpu)
    ranks = [{"cases": 60, "printed": "========= RACECHECK SUMMARY: 0 hazards"}]
    monkeypatch.setattr(Machine, "ranks", lambda *_, **__: ranks)
    of_kernels = {"kernels": 68, "summary of kernels": "ERROR SUMMARY: 0 errors"}
    of_bits = {"bits": 60, "summary of bits": "RACECHECK SUMMARY: 0 hazards"}
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        monkeypatch.setenv("ERRORS", "0")
        answer = PARTS[tool].run(Machine(tmp_path, "fake"), True, time.monotonic() + 300)
        assert answer == of_kernels | (of_bits if tool in ("memcheck", "racecheck") else {})
        monkeypatch.setenv("ERRORS", "2")
        with pytest.raises(CheckError, match=r"exit code 9: (?s:.*)ERROR SUMMARY: 2 errors"):
            PARTS[tool].run(Machine(tmp_path, "fake"), True, time.monotonic() + 300)


class Recorder(Machine):
    """Starts nothing, and records until when what it is asked for may run."""

    def __init__(self, packed: pathlib.Path) -> None:
        super().__init__(packed, "fake")
        self.deadlines: list[float] = []

    def ranks(self, part, size, deadline, **_):
        self.deadlines.append(deadline)
        return [{"cases": 1, "rows": [], "printed": "SUMMARY"}]

    def program(self, name, words, deadline, **_):
        self.deadlines.append(deadline)
        return {"rows": []}

    def self_test(self, deadline):
        self.deadlines.append(deadline)
        return SAID.splitlines()

    def kernel_tests(self, deadline, **_):
        self.deadlines.append(deadline)
        return {"cases": 1, "launches": {"commit": "3 in 1 calls"}, "printed": "SUMMARY"}


def test_all_that_a_part_starts_has_one_deadline(tmp_path, monkeypatch) -> None:
    library = tmp_path / "site" / "gtopk" / "_torch_2_11.so"
    library.parent.mkdir(parents=True)
    library.write_text(POINTERS)
    (tmp_path / "compute-sanitizer").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    started = {}
    for name, part in PARTS.items():
        machine = Recorder(tmp_path)
        part.run(machine, True, 17.0)
        assert {*machine.deadlines} == {17.0}, name
        started[name] = len(machine.deadlines)
    several = {
        "first_call": 2,
        "bits": 3,
        "staging": 2,
        "programs": 2,
        "memcheck": 2,
        "racecheck": 2,
    }
    assert started == {name: several.get(name, 1) for name in PARTS}


def test_child_processes_are_killed_when_a_part_times_out(tmp_path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    read = os.open(held, os.O_RDONLY | os.O_NONBLOCK)  # at its end once nobody can write to it
    command = ["sh", "-c", f"(echo started; exec tail -f /dev/null) >{held} & wait"]
    with pytest.raises(CheckError, match=r"a part, rank 0: stopped after \d+ s: the part's time"):
        Machine(tmp_path, "fake")._run("a part", [command], time.monotonic() + 2, {})
    said = b""
    while select.select([read], [], [], 60)[0]:
        part = os.read(read, 100)
        said += part
        if not part:
            break
    else:
        pytest.fail("it is still there")
    os.close(read)
    assert said == b"started\n"


@pytest.mark.long
def test_long_parts_run_over_the_fake_device(fake_library: str, tmp_path: pathlib.Path) -> None:
    parts = run_on_the_fake(fake_library, tmp_path, "bits,training,profile,compress")
    assert parts["bits"]["sparse"] == {"1": 60, "2": 60}
    assert {*parts["compress"]["rows"][0]["seconds"]} == {"gtopk", "topk_and_masking"}


def took(answer: dict) -> dict:
    return {"took_seconds": answer["took_seconds"]}


def test_two_failed_parts_are_both_reported_with_a_reason(tmp_path) -> None:
    done = ran(
        *(*INSTALLED, "--small", "--device", "fake", "--parts", "profile,compress"),
        *("--minutes", 60, "--out", tmp_path),
        GTOPK_CUDA_DRIVER="/nowhere/libcuda.so.1",
    )
    assert done.returncode == 1
    parts = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert "fake" in parts["profile"]["failed"]
    assert "fake" in parts["compress"]["failed"]
