"""200 random failures of real processes, by the C++ program that draws ten."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

import pytest
from netlab import Impairment, Lab

from helpers.paths import ROOT

pytestmark = pytest.mark.long

PROGRAM = ROOT / "build" / "release" / "tests" / "communicator" / "test_random_failures"
ROUNDS = 20


def run_rounds(prefix: Sequence[str] = (), hosts: str | None = None) -> None:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM.relative_to(ROOT)} is not built: tools/test --long builds it")
    ended = subprocess.run(
        [*prefix, str(PROGRAM), f"--gtest_repeat={ROUNDS}"],
        env={**os.environ, **({"GTOPK_TEST_HOSTS": hosts} if hosts else {})},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    rounds = re.findall(r"(\d+) failures, the latest told (\d+) ms after", ended.stdout)
    print(f"the latest was told {max(int(latest) for _, latest in rounds)} ms after its time-out")
    assert ended.returncode == 0, ended.stdout[-20_000:]
    assert sum(int(failures) for failures, _ in rounds) == 10 * ROUNDS


@pytest.mark.loopback
def test_two_hundred_failures_are_told_in_time() -> None:
    run_rounds()


@pytest.mark.network
def test_two_hundred_failures_are_told_in_time_between_sites() -> None:
    # As many hosts as a group has ranks at most: two ranks on one would sum in another order.
    with Lab(5, "100mbit", impairment=Impairment.of("25ms", "2ms", "0.01%")) as lab:
        holders = [lab.holder(host) for host in range(lab.hosts)]
        run_rounds(lab.enter(0), f"{lab.address(0)} {' '.join(map(str, holders))}")
        print(lab.switch_counters())
