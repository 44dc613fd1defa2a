"""The self-test on the first use of a device: who falls back, and what is said.

The device is a fake one (fake/device.hpp). Nothing here has run on a GPU.
"""

from __future__ import annotations

import os

import pytest
import torch

import gtopk
from helpers.device_values import FAKE, run_beside_the_fake, values
from helpers.ranks import Rank, RankSet

pytestmark = pytest.mark.loopback


def _steps(me: Rank, device: str) -> list[torch.Tensor]:
    done = []
    for dtype in (torch.float32, torch.bfloat16):
        residual = torch.zeros(300).to(device)
        for step in range(3):
            tensor = (values(me, 300, dtype) * (step + 1)).to(device)
            gtopk.sparse_all_reduce(tensor, k=9, residual=residual)
            done += [tensor.cpu(), residual.cpu().clone()]
    return done


def check_one_rank_stages_and_all_results_are_those_of_the_cpu(me: Rank, fault: str) -> None:
    os.environ["GTOPK_CUDA_SELF_TEST"] = "1"
    if me.rank == 1:
        os.environ["FAKE_DEVICE_KERNEL"] = fault
    expected = _steps(me, "cpu")
    assert all(map(torch.equal, _steps(me, FAKE), expected))
    tested = torch.ops.fake.counts()
    assert all(map(torch.equal, _steps(me, FAKE), expected))
    calls = torch.ops.fake.counts()["select"] - tested["select"]
    assert calls == (6 if me.rank == 0 else 0)
    assert tested["select"] > 20  # the self-test's


@pytest.mark.parametrize("kernel", ["select", "commit"])
def test_a_rank_with_a_wrong_kernel_falls_back_alone(fake_library: str, kernel: str) -> None:
    with RankSet(2, device=fake_library) as ranks:
        check = check_one_rank_stages_and_all_results_are_those_of_the_cpu
        ranks.run(check, f"wrong:{kernel}", timeout=90.0)
        logs = [log for _, log in ranks.ends()]
    assert [log.count("failed the self-test") for log in logs] == [0, 1]
    assert "fake:0 (a fake, CUDA 13.0" in logs[1]
    assert f"The first: {kernel} (" in logs[1]
    assert ": expected 0x" in logs[1]
    assert "GTOPK_CUDA_SELF_TEST=0" in logs[1]


SCRIPT = """
import os, torch, torch.distributed as dist, fake, gtopk
fake.use()
dist.init_process_group("cpu:gtopk,fake:gtopk", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.arange(5.0).to("fake")
"""


def test_a_driver_that_refuses_a_later_wait_lets_none_wait(fake_library: str) -> None:
    script = """
torch.ops.fake.let_fail("wait_value", 7)
for _ in range(3):
    dist.all_reduce(tensor)
print(tensor.cpu().tolist(), torch.ops.fake.counts()["wait_value"])
dist.destroy_process_group()
"""
    printed = run_beside_the_fake(SCRIPT + script, fake_library, GTOPK_CUDA_SELF_TEST="1")
    assert printed == "[0.0, 1.0, 2.0, 3.0, 4.0] 8\n"


def test_an_invalid_value_of_the_variable_is_an_error(fake_library: str) -> None:
    script = """
for value in ("perhaps", "0"):
    os.environ["GTOPK_CUDA_SELF_TEST"] = value
    try:
        gtopk.sparse_all_reduce(tensor, k=2)
        print(tensor.cpu().tolist())
    except ValueError as error:
        print(error)
dist.destroy_process_group()
"""
    kernels = {"GTOPK_CUDA_KERNELS": fake_library}
    error, result = run_beside_the_fake(SCRIPT + script, fake_library, **kernels).splitlines()
    assert "GTOPK_CUDA_SELF_TEST is 'perhaps': expected 0, 1 or full" in error
    assert result == "[0.0, 0.0, 0.0, 3.0, 4.0]"
