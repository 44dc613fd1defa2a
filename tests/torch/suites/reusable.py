"""PyTorch's test suites for any backend, from its sources, with this backend.

    python tests/torch/suites/reusable.py --torch-source FOLDER [--all] [NAME ...]

FOLDER is a checkout of PyTorch: its wheels do not have these files. Most list the backends that
they test; gtopk takes the place of that list. Those of DTensor take the default backend of their
device, which is then gtopk, and the CPU. Nothing else changes. reusable.toml says which tests are
not run or known to fail, and why. Any other failure is an error, and so is a listed test that
passes. Ends with the score. Ranks use CPU tensors.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import pathlib
import sys
import unittest
from types import CodeType, ModuleType
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = "REUSABLE_SOURCE"  # environment variable: the folder of the files

if __name__ == "__main__":
    # Ranks find the classes under the module's own name.
    for _at, _word in enumerate(sys.argv):
        if _word.startswith("--torch-source"):
            _root = _word.partition("=")[2] or "".join(sys.argv[_at + 1 : _at + 2])
            os.environ[SOURCE] = str(pathlib.Path(_root).resolve() / "test" / "distributed")
    # Python 3.11's fork server takes the module path from the environment, not from sys.path.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(HERE), os.environ.get("PYTHONPATH")))
    )
    sys.path.insert(0, str(HERE))
    import reusable

    sys.exit(reusable.main())

os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "120")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from scoring import LOG, Expected, forks_ranks, groups_of, lasting_ranks, run  # noqa: E402
from torch.testing._internal import common_device_type  # noqa: E402
from torch.testing._internal.common_distributed import (  # noqa: E402
    DistributedTestBase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
)
from torch.testing._internal.distributed._tensor import common_dtensor  # noqa: E402

BACKEND = "gtopk"
FILES = (
    "test_c10d_backend_collectives",
    "test_c10d_collectives",
    "test_c10d_p2p",
    "test_c10d_process_group",
    "test_c10d_nan_check",
    "test_c10d_fault_tolerance",
    "tensor/parallel/test_tp_style",
)
HARNESS = "c10d_backend_common"
PATHS = {path.rpartition("/")[2]: f"{path}.py" for path in (*FILES, HARNESS)}

# What the files' lists of backends may say of this one. Left out: what they test on GPUs alone.
ABILITIES = {
    "supports_bitwise_reductions": True,
    "supports_coalescing": True,
    "supports_collectives_timing": True,
    "supports_dropped_p2p_work": True,
    "supports_gather_single": True,
    "supports_sequence_numbers": True,
    "supports_uneven_all_gather": True,
    "supports_work_sequence_number": True,
    "supports_work_result": True,
    "premul_sum_dtypes": (torch.float16, torch.float32, torch.float64, torch.bfloat16),
}
LISTS = {
    "C10D_BACKENDS": ABILITIES,
    "FAULT_TOLERANCE_BACKENDS": {},
    "BACKEND_ALLOWLIST": {},
    "ALL_TO_ALL_BACKENDS": {},
    "ALL_GATHER_COALESCED_BACKENDS": {},
}


def this_backend(name: str, listed: Any) -> Any:
    """What takes the place of a file's list of backends, which are names or dataclasses."""
    first = listed[0]
    if isinstance(first, str):
        return type(listed)([BACKEND])
    fields = {field.name for field in dataclasses.fields(first)}
    abilities = {key: value for key, value in LISTS[name].items() if key in fields}
    return type(listed)([type(first)(BACKEND, "cpu", **abilities)])


def with_this_backend(text: str, path: str) -> CodeType:
    """The file's code, with `LIST = …` made `LIST = this_backend("LIST", …)` at its top level."""
    module = ast.parse(text, path)
    for statement in module.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name = statement.targets[0].id
        if name in LISTS:
            call = ast.Call(ast.Name("this_backend", ast.Load()), [], [])
            call.args = [ast.Constant(name), statement.value]
            statement.value = ast.copy_location(call, statement.value)
    return compile(ast.fix_missing_locations(module), path, "exec")


class Loader(importlib.abc.Loader):
    """Runs a file of PyTorch's with this backend in its list."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["this_backend"] = this_backend
        text = self.path.read_text(encoding="utf-8")
        exec(with_this_backend(text, str(self.path)), module.__dict__)
        old = getattr(module, "BackendCollectivesTest", None)
        if old is not None:  # it knows each backend's device by name
            old._device_for_backend = lambda self, backend: torch.device("cpu")


class Finder(importlib.abc.MetaPathFinder):
    """Of the suites and their harness, in PyTorch's sources."""

    def find_spec(self, fullname, path=None, target=None):
        file = pathlib.Path(os.environ[SOURCE]) / PATHS.get(fullname, "")
        if fullname not in PATHS or not file.exists():
            return None
        return importlib.util.spec_from_loader(fullname, Loader(file))


def with_the_cpu(cls: type, scope: dict[str, Any], **_: Any) -> None:
    """For instantiate_device_type_tests(), which some files call for all devices but the CPU."""
    for_each_device(cls, scope, only_for=("cpu",))


def joins_with_this_backend(self: Any, eager_init: bool, backend: str | None = None) -> None:
    """A DTensorTestBase's init_pg(), which knows torch's own backends alone."""
    assert backend in (None, "gloo"), f"the test wants the backend {backend}"
    where = f"file://{self.file_name}"
    dist.init_process_group(BACKEND, init_method=where, rank=self.rank, world_size=self.world_size)


def on_ranks(each: Any, module: str) -> bool:
    """Whether it is a suite of that file, whose ranks are processes."""
    bases = (MultiProcessTestCase, MultiProcContinuousTest)
    return (
        isinstance(each, type)
        and issubclass(each, bases)
        and each.__module__ == module
        and not issubclass(each, common_dtensor.LocalDTensorTestBase)
    )


def suites() -> dict[str, unittest.TestCase]:
    """The tests that run on ranks, by Class.name."""
    tests = {}
    for path in FILES:
        name = path.rpartition("/")[2]
        if importlib.util.find_spec(name) is None:
            print(f"not in {os.environ[SOURCE]}: {path}.py")
            continue
        for each in vars(importlib.import_module(name)).values():
            if on_ranks(each, name):
                for test in unittest.TestLoader().getTestCaseNames(each):
                    tests[f"{each.__name__}.{test}"] = each(test)
    return tests


if SOURCE in os.environ:
    sys.meta_path.insert(0, Finder())
    for_each_device = common_device_type.instantiate_device_type_tests
    common_device_type.instantiate_device_type_tests = with_the_cpu
    MultiProcessTestCase._spawn_processes = forks_ranks("reusable")
    lasting_ranks(MultiProcContinuousTest, "reusable")
    DistributedTestBase.backend = lambda self, device: BACKEND
    common_dtensor.DTensorTestBase.init_pg = joins_with_this_backend
    dist.Backend.default_device_backend_map["cpu"] = BACKEND  # for DTensorContinuousTestBase


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-source", required=True, help="a checkout of PyTorch")
    parser.add_argument("--all", action="store_true", help="also what is listed as not run")
    parser.add_argument("names", nargs="*", help="only where Class.name contains one of these")
    parser.add_argument("--log", default=os.devnull, help="what the ranks print")
    parser.add_argument(
        "--expected", default=HERE / "reusable.toml", type=pathlib.Path, help="another list"
    )
    arguments = parser.parse_args()
    os.environ[LOG] = os.path.abspath(arguments.log)
    logging.getLogger("torch.testing._internal.common_distributed").setLevel(logging.WARNING)
    tests = suites()
    there = {name.partition(".")[0] for name in tests}  # not every version has every suite
    groups = groups_of(arguments.expected)
    for group in groups:
        group["tests"] = [name for name in group["tests"] if name.partition(".")[0] in there]
    return run(
        tests,
        Expected(groups),
        arguments.names,
        everything=arguments.all,
        title=f"torch {torch.__version__}",
    )
