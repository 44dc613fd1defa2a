"""A test that hangs ends as a failure, and the next one runs (tests/conftest.py)."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from helpers.paths import TORCH
from helpers.ranks import WATCHDOG, environment

TESTS = """
import subprocess, sys, threading
import pytest

def somewhere_else(event):
    event.wait()

@pytest.fixture
def program():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
    print("ended:", running.returncode)

@pytest.fixture
def never_done():
    yield
    threading.Event().wait()

def test_hangs(program):
    threading.Thread(target=somewhere_else, args=[threading.Event()], daemon=True).start()
    try:
        program.wait()
    except Exception:
        pass

def test_hangs_when_it_is_over(never_done):
    pass

def test_passes():
    pass
"""


def test_hanging_test_fails_with_all_stacks_and_next_test_runs(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nlongest = 2\nmarkers = once\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", str(tmp_path)],
        env=environment() | {"PYTHONPATH": os.pathsep.join([str(TORCH.parent), str(TORCH)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    for expected in (
        "FAILED test_some.py::test_hangs - Failed: not done after 2 s",
        "ERROR test_some.py::test_hangs_when_it_is_over - Failed: not done after 2 s",
        "1 failed, 2 passed, 1 error",
        "in somewhere_else",
        "ended: 1",
    ):
        assert expected in done.stdout, done.stdout + done.stderr
