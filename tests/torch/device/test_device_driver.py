"""Which driver and which kernels are found, and what is done without them.

The device is a fake one (fake/device.hpp), also beside the kernels of the wheel, which find no
driver of their own here.
"""

from __future__ import annotations

import pathlib
import shutil

import pytest

import gtopk
from helpers.device_values import run_beside_the_fake
from helpers.ranks import run_script

pytestmark = pytest.mark.loopback

PACKAGE = pathlib.Path(gtopk.__file__).parent
KERNELS = PACKAGE / "libgtopk_cuda.so"
TWO_CALLS = """
import os, torch, torch.distributed as dist, fake, gtopk
os.dup2(1, 2)
fake.use()
dist.init_process_group("cpu:gtopk,fake:gtopk", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(2):
    tensor = torch.arange(5.0).to("fake")
    gtopk.sparse_all_reduce(tensor, k=2)
    print(tensor.cpu().tolist(), "select" in torch.ops.fake.counts())
dist.destroy_process_group()
"""


def test_a_driver_that_is_missing_is_named(fake_library: str) -> None:
    script = """
import os, torch, torch.distributed as dist, fake
fake.use()
os.environ["GTOPK_CUDA_DRIVER"] = "/nowhere/libcuda.so.1"
dist.init_process_group("cpu:gtopk,fake:gtopk", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
try:
    dist.all_reduce(tensor.to("fake"))
except dist.DistBackendError as error:
    print(error)
dist.destroy_process_group()
"""
    printed = run_beside_the_fake(script, fake_library)
    assert "/nowhere/libcuda.so.1 cannot be used" in printed
    assert "GTOPK_CUDA_DRIVER" in printed


def test_missing_kernels_are_an_error_and_none_means_staging(
    fake_library: str,
) -> None:
    script = """
import os, torch, torch.distributed as dist, fake, gtopk
fake.use()
os.environ["GTOPK_CUDA_KERNELS"] = "/nowhere/libgtopk_cuda.so"
dist.init_process_group("cpu:gtopk,fake:gtopk", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.arange(5.0).to("fake")
try:
    gtopk.sparse_all_reduce(tensor, k=2)
except dist.DistBackendError as error:
    print(error)
os.environ["GTOPK_CUDA_KERNELS"] = "none"
gtopk.sparse_all_reduce(tensor, k=2)
print(tensor.cpu().tolist(), "select" in torch.ops.fake.counts())
dist.destroy_process_group()
"""
    printed = run_beside_the_fake(script, fake_library)
    assert "the kernels for GPUs in /nowhere/libgtopk_cuda.so cannot be used" in printed
    assert "GTOPK_CUDA_KERNELS" in printed
    assert "[0.0, 0.0, 0.0, 3.0, 4.0] False" in printed


def test_a_device_that_is_too_old_for_the_kernels_is_staged(fake_library: str) -> None:
    script = TWO_CALLS.replace("fake.use()", 'fake.use()\ntorch.ops.fake.let_fail("load", 0)')
    printed = run_beside_the_fake(script, fake_library, GTOPK_CUDA_KERNELS=fake_library)
    assert printed.count("[0.0, 0.0, 0.0, 3.0, 4.0] False") == 2
    assert printed.count("fake:0 or its driver is too old for gtopk's kernels") == 1
    assert "GTOPK_CUDA_KERNELS=none" in printed


def test_cpu_tensors_load_neither_driver_nor_kernels() -> None:
    assert KERNELS.is_file()
    script = """
import torch, torch.distributed as dist, gtopk
dist.init_process_group("gtopk", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.arange(5.0)
dist.all_reduce(tensor)
gtopk.sparse_all_reduce(tensor, k=2)
print(tensor.tolist())
loaded = open("/proc/self/maps").read()
print([name for name in ("libgtopk_cuda.so", "libcuda.so", "_torch_") if name in loaded])
dist.destroy_process_group()
"""
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0.0, 0.0, 0.0, 3.0, 4.0]\n['_torch_']\n"


@pytest.mark.skipif(pathlib.Path("/dev/nvidiactl").exists(), reason="the kernels find a driver")
def test_kernels_that_find_no_driver_are_not_used(fake_library: str) -> None:
    printed = run_beside_the_fake(TWO_CALLS, fake_library, GTOPK_CUDA_KERNELS=str(KERNELS))
    assert printed.count("[0.0, 0.0, 0.0, 3.0, 4.0] False") == 2
    (said,) = [line for line in printed.splitlines() if "too old" in line]
    assert "fake:0 or its driver is too old for gtopk's kernels" in said
    assert "cudaErrorInsufficientDriver" in said


def test_a_build_without_kernels_says_so_once(fake_library: str, tmp_path: pathlib.Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "gtopk", ignore=shutil.ignore_patterns(KERNELS.name))
    printed = run_beside_the_fake(TWO_CALLS, fake_library, PYTHONPATH=str(tmp_path))
    assert printed.count("[0.0, 0.0, 0.0, 3.0, 4.0] False") == 2
    assert printed.count("this build has no kernels for GPUs") == 1
    assert "GTOPK_CUDA_KERNELS=none" in printed


def test_only_the_kernels_of_a_calls_element_type_are_loaded(fake_library: str) -> None:
    script = """
import torch, torch.distributed as dist, fake, gtopk
fake.use()
dist.init_process_group("cpu:gtopk,fake:gtopk", store=dist.HashStore(), rank=0, world_size=1)
for dtype in (torch.float32, torch.bfloat16, torch.float32):
    tensor = torch.arange(5.0).to(dtype).to("fake")
    gtopk.sparse_all_reduce(tensor, k=2)
    counts = torch.ops.fake.counts()
    print(counts["loaded"], counts["select"], "launched_unloaded" in counts)
dist.destroy_process_group()
"""
    printed = run_beside_the_fake(script, fake_library, GTOPK_CUDA_KERNELS=fake_library)
    loaded, calls, unloaded = zip(*(line.split() for line in printed.splitlines()), strict=True)
    assert (calls, unloaded) == (("1", "2", "3"), ("False",) * 3)
    assert 0 < int(loaded[0]) < int(loaded[1]) == int(loaded[2])


def test_a_first_use_while_a_graph_is_captured_allocates_nothing(fake_library: str) -> None:
    script = """
import torch, torch.distributed as dist, fake, gtopk
fake.use()
dist.init_process_group("cpu:gtopk,fake:gtopk", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.arange(5.0).to("fake")
before = torch.ops.fake.counts()
torch.ops.fake.capture(True)
for call in (dist.all_reduce, lambda tensor: gtopk.sparse_all_reduce(tensor, k=2)):
    try:
        call(tensor)
    except NotImplementedError as error:
        print("captured into a CUDA graph" in str(error), torch.ops.fake.counts() == before)
torch.ops.fake.capture(False)
gtopk.sparse_all_reduce(tensor, k=2)
print(tensor.cpu().tolist())
dist.destroy_process_group()
"""
    printed = run_beside_the_fake(script, fake_library, GTOPK_CUDA_KERNELS=fake_library)
    assert printed == "True True\nTrue True\n[0.0, 0.0, 0.0, 3.0, 4.0]\n"
