"""The launcher of PyTorch's reusable suites, on a file of the same form.

The suites themselves are in PyTorch's sources, not in its wheels: see reusable.py.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from helpers.ranks import environment

# Long, as what it launches is.
pytestmark = [pytest.mark.loopback, pytest.mark.long]

LAUNCHER = pathlib.Path(__file__).with_name("reusable.py")

HARNESS = """
from dataclasses import dataclass
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

@dataclass(frozen=True)
class BackendConfig:
    name: str
    device_type: str
    supports_coalescing: bool = False

C10D_BACKENDS = (BackendConfig("gloo", "cpu"), BackendConfig("nccl", "cuda"))

class C10dBackendTest(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()
"""

SUITE = """
import torch, torch.distributed as dist
from c10d_backend_common import C10D_BACKENDS, C10dBackendTest

class Abstract:
    def test_sums(self):
        store = dist.FileStore(self.file_name, self.world_size)
        name = self.config.name
        dist.init_process_group(name, store=store, rank=self.rank, world_size=self.world_size)
        assert dist.get_backend() == "gtopk" and self.config.supports_coalescing
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0, 2.0]
        dist.destroy_process_group()

    def test_fails(self):
        raise RuntimeError(f"as rank {self.rank} was told")

    def test_waits(self):
        raise RuntimeError("for ever, if it were run")

    def test_skips(self):
        self.skipTest("always")

for each in C10D_BACKENDS:
    bases, name = (Abstract, C10dBackendTest), f"{each.name.title()}P2PTest"
    globals()[name] = type(name, bases, {"config": each, "__module__": __name__})
"""

LASTING = """
import torch, torch.distributed as dist
from c10d_backend_common import C10D_BACKENDS
from torch.testing._internal.common_distributed import MultiProcContinuousTest

class Abstract:
    world_size, served = 2, 0

    def test_1_sums(self):
        type(self).served += 1
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert dist.get_backend() == "gtopk" and tensor.tolist() == [2.0, 2.0]

    def test_2_is_served_by_the_same_ranks(self):
        assert self.served == 1
        if self.rank == 0:
            raise RuntimeError("rank 0 was told to")

    def test_3_is_served_by_new_ranks(self):
        assert self.served == 0
        dist.barrier()

for each in C10D_BACKENDS:
    bases, name = (Abstract, MultiProcContinuousTest), f"{each.name.title()}LastingTest"
    backend = classmethod(lambda cls, name=each.name: name)
    globals()[name] = type(name, bases, {"backend_str": backend, "__module__": __name__})
"""

DTENSOR = """
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch import arange
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorContinuousTestBase, DTensorTestBase, create_local_tensor_test_class, with_comms
)

class Abstract:
    world_size = 2

    def check(self):
        assert dist.get_backend() == "gtopk"
        mesh = dist.init_device_mesh("cpu", (self.world_size,))
        placed = distribute_tensor(arange(4.0), mesh, [Shard(0)])
        assert placed.to_local().tolist() == arange(4.0).chunk(2)[self.rank].tolist()
        assert placed.redistribute(placements=[Replicate()]).to_local().tolist() == [0, 1, 2, 3]

class TensorTest(Abstract, DTensorTestBase):
    @with_comms
    def test_places(self):
        self.check()

class LastingTensorTest(Abstract, DTensorContinuousTestBase):
    def test_places(self):
        self.check()

LocalTest = create_local_tensor_test_class(TensorTest)
instantiate_device_type_tests(TensorTest, globals(), except_for=["cpu"])
"""


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "test" / "distributed"
    folder.mkdir(parents=True)
    (folder / "c10d_backend_common.py").write_text(HARNESS)
    (folder / "test_c10d_p2p.py").write_text(SUITE)
    return tmp_path


def launch(checkout: pathlib.Path, listed: str, *names: str) -> tuple[int, str]:
    """With a list of its own of what is expected. Returns the exit status and what it printed."""
    (checkout / "expected.toml").write_text(listed)
    command = [sys.executable, str(LAUNCHER), "--torch-source", str(checkout), *names]
    command += ["--expected", str(checkout / "expected.toml")]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def fails(*tests: str, outcome: str = "fails") -> str:
    return f'[[group]]\noutcome = "{outcome}"\nreason = "a reason"\ntests = {list(tests)}\n'


def test_backend_list_of_a_file_becomes_gtopk_and_its_tests_run(checkout) -> None:
    known = fails("GtopkP2PTest.test_fails") + fails("GtopkP2PTest.test_waits", outcome="not run")
    status, said = launch(checkout, known)
    assert status == 0, said
    assert "1 expected failure, 1 not run, 1 passed, 1 skipped;" in said
    assert "GtopkP2PTest.test_fails: RuntimeError: as rank" in said
    assert "GlooP2PTest" not in said
    assert "test_c10d_collectives.py" in said  # is not in this checkout


def test_ranks_shared_by_several_tests_restart_after_a_failure(checkout) -> None:
    (checkout / "test" / "distributed" / "test_c10d_collectives.py").write_text(LASTING)
    known = fails("GtopkLastingTest.test_2_is_served_by_the_same_ranks")
    status, said = launch(checkout, known, "Lasting")
    assert status == 0, said
    assert "1 expected failure, 2 passed;" in said
    assert "RuntimeError: rank 0 was told to" in said


def test_suites_of_dtensor_run_on_this_backend_and_the_cpu(checkout) -> None:
    folder = checkout / "test" / "distributed" / "tensor" / "parallel"
    folder.mkdir(parents=True)
    (folder / "test_tp_style.py").write_text(DTENSOR)
    status, said = launch(checkout, "", "Tensor", "Local")
    assert status == 0, said
    assert "TensorTestCPU.test_places_cpu" in said
    assert "2 passed;" in said


def test_what_is_not_as_listed_is_an_error(checkout) -> None:
    status, said = launch(checkout, fails("GtopkP2PTest.test_sums"), "sums")
    assert (status, "1 unexpected success;" in said) == (1, True), said
    unlisted = fails("GtopkP2PTest.test_waits", outcome="not run")
    status, said = launch(checkout, unlisted, "waits", "--all")
    assert (status, "1 failed;" in said) == (1, True), said
    status, said = launch(checkout, fails("GtopkP2PTest.test_gone"), "of no test")
    assert (status, "nothing run;" in said) == (1, True), said
    assert "not in the suite: GtopkP2PTest.test_gone" in said
