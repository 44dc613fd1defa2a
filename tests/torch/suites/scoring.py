"""Runs test suites of PyTorch's own: ranks that a fork server starts, a list of
what is not run or known to fail and why, and a score. For upstream.py and reusable.py.
"""

from __future__ import annotations

import collections
import functools
import multiprocessing
import os
import pathlib
import re
import time
import unittest
from collections.abc import Callable, Iterable
from typing import Any

import tomllib

LOG = "GTOPK_SUITE_LOG"  # environment variable: the file that ranks print to


def print_to_the_log() -> None:
    """In a rank."""
    log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)


def run_rank(environment: dict[str, str], run: Callable[..., None], *args: Any, **kwargs: Any):
    """In a rank: the environment names a directory of its own for each test."""
    os.environ.update(environment)
    print_to_the_log()
    run(*args, **kwargs)


def forks_ranks(module: str) -> Callable[[Any], None]:
    """A MultiProcessTestCase's `_spawn_processes` that forks ranks from a process that has imported
    torch and `module`: a third of a second per test.
    """

    def spawn(self: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([module])

        def start(target, name, args, kwargs):
            return context.Process(
                target=run_rank, name=name, args=(dict(os.environ), target, *args), kwargs=kwargs
            )

        self._start_processes(start)

    return spawn


def lasting_ranks(base: Any, module: str) -> None:
    """Prepares MultiProcContinuousTest, `base`, whose ranks serve all tests of a class: they are
    forked from a process that has imported torch and `module`, and start anew after a test that
    failed, so that the class's other tests still run.
    """
    set_up, serve = base.setUp, base._worker_loop.__func__

    def starts_anew(self: Any) -> None:
        cls = type(self)
        if cls.poison_pill:
            for rank in cls.processes:
                rank.kill()
                rank.join()
            cls.poison_pill = cls._processes_spawned = False
        set_up(self)

    @functools.wraps(serve)  # pickled by its name
    def serves(cls: Any, *args: Any) -> None:
        print_to_the_log()
        serve(cls, *args)

    base.setUp, base._worker_loop = starts_anew, classmethod(serves)
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload([module])


class Expected:
    """A list's groups for some conditions: why each test is not run, or fails."""

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self.not_run: dict[str, str] = {}
        self.fails: dict[str, str] = {}
        for group in groups:
            into = self.fails if group["outcome"] == "fails" else self.not_run
            into.update(dict.fromkeys(group["tests"], group["reason"]))


def groups_of(path: pathlib.Path) -> list[dict[str, Any]]:
    return tomllib.loads(path.read_text(encoding="utf-8")).get("group", [])


class Result(unittest.TestResult):
    """Prints a line for each test that did not pass, and keeps all outcomes by name."""

    def __init__(self, known: dict[str, str], name: Callable[[unittest.TestCase], str]) -> None:
        super().__init__()
        self.known = known
        self.name = name
        self.outcomes: dict[str, list[str]] = collections.defaultdict(list)
        self.began = 0.0

    def startTest(self, test):  # noqa: N802
        super().startTest(test)
        self.began = time.monotonic()

    def _note(self, test, outcome: str, why: str = "") -> None:
        name = self.name(test)
        self.outcomes[outcome].append(name)
        seconds = time.monotonic() - self.began
        print(f"{outcome:>19} {seconds:5.1f} s  {name}{': ' if why else ''}{why}", flush=True)

    def addSuccess(self, test):  # noqa: N802
        self._note(test, "unexpected success" if self.name(test) in self.known else "passed")

    def addSkip(self, test, reason):  # noqa: N802
        self._note(test, "skipped", reason)

    def addFailure(self, test, err):  # noqa: N802
        outcome = "expected failure" if self.name(test) in self.known else "failed"
        self._note(test, outcome, last_error(str(err[1])))

    def addError(self, test, err):  # noqa: N802
        self.addFailure(test, err)


def last_error(text: str) -> str:
    """The line of the first rank's traceback that names the exception."""
    lines = re.findall(r"^[\w.]*(?:Error|Exception|NotImplemented)(?::.*)?$", text, re.MULTILINE)
    return (lines[0] if lines else text.strip().splitlines()[-1])[:160]


def run(
    tests: dict[str, unittest.TestCase],
    expected: Expected,
    wanted: list[str],
    *,
    everything: bool,
    title: str,
) -> int:
    """Run the tests whose name contains a wanted word; print the score; return the exit status.

    everything: also what is listed as not run. title: of the score.
    """
    name_of = {id(test): name for name, test in tests.items()}
    result = Result(expected.fails, lambda test: name_of[id(test)])
    suite = unittest.TestSuite()
    for name, test in tests.items():
        if wanted and not any(each in name for each in wanted):
            continue
        if name in expected.not_run and not everything:
            result.outcomes["not run"].append(name)
            continue
        suite.addTest(test)
    began = time.monotonic()
    suite.run(result)

    unknown = (expected.not_run.keys() | expected.fails.keys()) - tests.keys()
    if unknown:
        print("listed, but not in the suite:", *sorted(unknown))
    score = ", ".join(
        f"{len(each)} {outcome}" for outcome, each in sorted(result.outcomes.items()) if each
    )
    print(f"{title}: {score or 'nothing run'}; {time.monotonic() - began:.0f} s")
    wrong = [*result.outcomes["failed"], *result.outcomes["unexpected success"], *unknown]
    return 1 if wrong or not score else 0
