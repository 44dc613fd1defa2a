"""Room: tests/torch. PyTorch's own distributed tests, from its wheel, with this backend.

    python tests/torch/upstream.py [--world-size P] [--gate BACKEND] [--all] [NAME ...]

Runs torch.testing._internal.distributed.distributed_test on P ranks of one host and CPU tensors.
upstream.toml says which tests are not run or known to fail, and why. A test that fails without
being named there is an error, and so is one that is named there and passes. Ends with the score.
"""

from __future__ import annotations

import argparse
import collections
import logging
import multiprocessing
import os
import pathlib
import re
import sys
import time
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import tomllib

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


def run_rank(environment: dict[str, str], run: Callable[..., None], *args: Any, **kwargs: Any):
    """In a rank: the environment names a directory of its own for each test."""
    os.environ.update(environment)
    log = os.open(environment["UPSTREAM_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    run(*args, **kwargs)


class TestUpstream(
    distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    """Ranks are forked from a process that has imported torch: a third of a second per test."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["upstream"])

        def start(target, name, args, kwargs):
            return context.Process(
                target=run_rank, name=name, args=(dict(os.environ), target, *args), kwargs=kwargs
            )

        self._start_processes(start)


class Expected:
    """upstream.toml for this number of ranks and gate: why each test is not run, or fails."""

    def __init__(self, world_size: int, gate: str) -> None:
        self.not_run: dict[str, str] = {}
        self.fails: dict[str, str] = {}
        for group in tomllib.loads((HERE / "upstream.toml").read_text())["group"]:
            if world_size not in group.get("world_sizes", [world_size]):
                continue
            if group.get("gate", gate) != gate:
                continue
            into = self.fails if group["outcome"] == "fails" else self.not_run
            into.update(dict.fromkeys(group["tests"], group["reason"]))


class Result(unittest.TestResult):
    """Prints a line for each test that did not pass, and keeps all outcomes by name."""

    def __init__(self, known: dict[str, str]) -> None:
        super().__init__()
        self.known = known
        self.outcomes: dict[str, list[str]] = collections.defaultdict(list)
        self.began = 0.0

    def startTest(self, test):  # noqa: N802
        super().startTest(test)
        self.began = time.monotonic()

    def _note(self, test, outcome: str, why: str = "") -> None:
        name = test.id().rsplit(".", 1)[-1]
        self.outcomes[outcome].append(name)
        seconds = time.monotonic() - self.began
        print(f"{outcome:>19} {seconds:5.1f} s  {name}{': ' if why else ''}{why}", flush=True)

    def addSuccess(self, test):  # noqa: N802
        name = test.id().rsplit(".", 1)[-1]
        self._note(test, "unexpected success" if name in self.known else "passed")

    def addSkip(self, test, reason):  # noqa: N802
        self._note(test, "skipped", reason)

    def addFailure(self, test, err):  # noqa: N802
        name = test.id().rsplit(".", 1)[-1]
        outcome = "expected failure" if name in self.known else "failed"
        self._note(test, outcome, last_error(str(err[1])))

    def addError(self, test, err):  # noqa: N802
        self.addFailure(test, err)


def last_error(text: str) -> str:
    """The line of the first rank's traceback that names the exception."""
    lines = re.findall(r"^[\w.]*(?:Error|Exception|NotImplemented)\b.*$", text, re.MULTILINE)
    return (lines[0] if lines else text.strip().splitlines()[-1])[:160]


def names() -> Iterator[str]:
    yield from unittest.TestLoader().getTestCaseNames(TestUpstream)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world-size", type=int, default=4, help="ranks (default 4)")
    parser.add_argument("--gate", default=BACKEND, help="run the tests that are for this backend")
    parser.add_argument("--all", action="store_true", help="also what is listed as not run")
    parser.add_argument("names", nargs="*", help="only tests whose name contains one of these")
    parser.add_argument("--log", default=os.devnull, help="what the ranks print")
    arguments = parser.parse_args()
    os.environ["UPSTREAM_LOG"] = os.path.abspath(arguments.log)
    logging.getLogger("torch.testing._internal.common_distributed").setLevel(logging.WARNING)

    expected = Expected(arguments.world_size, arguments.gate)
    unknown = (expected.not_run.keys() | expected.fails.keys()) - set(names())
    result = Result(expected.fails)
    suite = unittest.TestSuite()
    for name in names():
        if arguments.names and not any(each in name for each in arguments.names):
            continue
        if name in expected.not_run and not arguments.all:
            result.outcomes["not run"].append(name)
            continue
        suite.addTest(TestUpstream(name))
    began = time.monotonic()
    suite.run(result)

    wrong = [*result.outcomes["failed"], *result.outcomes["unexpected success"], *sorted(unknown)]
    if unknown:
        print("named in upstream.toml, but not in the suite:", *sorted(unknown))
    score = ", ".join(
        f"{len(each)} {outcome}" for outcome, each in sorted(result.outcomes.items()) if each
    )
    print(
        f"world size {arguments.world_size}, torch {distributed_test.torch.__version__}: "
        f"{score}; {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong else 0
