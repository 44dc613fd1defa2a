"""Room: tests/torch. 200 random failures of real processes, by the C++ program that draws ten."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

pytestmark = [pytest.mark.loopback, pytest.mark.long]

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "release" / "tests" / "communicator" / "test_random_failures"
ROUNDS = 20


def test_two_hundred_failures_are_told_in_time() -> None:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM.relative_to(ROOT)} is not built: tools/test --long builds it")
    ended = subprocess.run(
        [str(PROGRAM), f"--gtest_repeat={ROUNDS}"],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    rounds = re.findall(r"(\d+) failures, the latest told (\d+) ms after", ended.stdout)
    print(f"the latest was told {max(int(latest) for _, latest in rounds)} ms after its time-out")
    assert ended.returncode == 0, ended.stdout[-20_000:]
    assert sum(int(failures) for failures, _ in rounds) == 10 * ROUNDS
