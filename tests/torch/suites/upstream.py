"""PyTorch's own distributed tests, from its wheel, with this backend.

    python tests/torch/suites/upstream.py [--world-size P] [--gate BACKEND] [--all] [NAME ...]

Runs torch.testing._internal.distributed.distributed_test on P ranks of one host and CPU tensors.
upstream.toml says which tests are not run or known to fail, and why. A test that fails without
being named there is an error, and so is one that is named there and passes. Ends with the score.
"""

from __future__ import annotations

import argparse
import logging
import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent

if __name__ == "__main__":
    # Ranks find the classes under the module's own name, and the suite reads the environment when
    # it is imported, so set it first.
    for _at, _word in enumerate(sys.argv):
        for _option, _variable in (("--world-size", "WORLD_SIZE"), ("--gate", "UPSTREAM_GATE")):
            if _word.startswith(_option):
                os.environ[_variable] = _word.partition("=")[2] or sys.argv[_at + 1]
    # Python 3.11's fork server takes the module path from the environment, not from sys.path.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(HERE), os.environ.get("PYTHONPATH")))
    )
    sys.path.insert(0, str(HERE))
    import upstream

    sys.exit(upstream.main())

BACKEND = "gtopk"
TEST_TIMEOUT = 60  # seconds per test

# The suite reads them when it is imported, by the ranks too. Its decorators run a test for the
# backends that they name: the gate's name decides that, but this backend runs.
os.environ["BACKEND"] = os.environ.setdefault("UPSTREAM_GATE", BACKEND)
os.environ.setdefault("WORLD_SIZE", "4")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", str(TEST_TIMEOUT))

from scoring import LOG, Expected, forks_ranks, groups_of, run  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

# The features that the suite's list gives a backend, set before its decorators ask. Tests that need
# a GPU stay out.
for _feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[_feature].add(BACKEND)

from torch.testing._internal.distributed import distributed_test  # noqa: E402

distributed_test.BACKEND = os.environ["BACKEND"] = BACKEND
for _profiled in (
    distributed_test.PROFILING_SUPPORTED_BACKENDS,
    distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
):
    _profiled.append(BACKEND)


class TestUpstream(
    distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    _spawn_processes = forks_ranks("upstream")

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


def listed(world_size: int, gate: str) -> Expected:
    """upstream.toml for this number of ranks, gate and version of torch."""
    torch = ".".join(distributed_test.torch.__version__.split(".")[:2])
    return Expected(
        group
        for group in groups_of(HERE / "upstream.toml")
        if world_size in group.get("world_sizes", [world_size])
        and group.get("gate", gate) == gate
        and group.get("torch", torch) == torch
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world-size", type=int, default=4, help="ranks (default 4)")
    parser.add_argument("--gate", default=BACKEND, help="run the tests that are for this backend")
    parser.add_argument("--all", action="store_true", help="also what is listed as not run")
    parser.add_argument("names", nargs="*", help="only tests whose name contains one of these")
    parser.add_argument("--log", default=os.devnull, help="what the ranks print")
    arguments = parser.parse_args()
    os.environ[LOG] = os.path.abspath(arguments.log)
    logging.getLogger("torch.testing._internal.common_distributed").setLevel(logging.WARNING)
    names = unittest.TestLoader().getTestCaseNames(TestUpstream)
    return run(
        {name: TestUpstream(name) for name in names},
        listed(arguments.world_size, arguments.gate),
        arguments.names,
        everything=arguments.all,
        title=f"world size {arguments.world_size}, torch {distributed_test.torch.__version__}",
    )
