"""An hour of mixed traffic (soak.py), and an hour of fuzz."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from helpers.paths import ROOT
from helpers.ranks import RankSet
from helpers.soak import soak

BUILT = ROOT / "build" / "release" / "tests"
# What takes bytes from outside: lists of every codec, headers, notices.
FUZZERS = {
    BUILT / "gtopk" / "wire" / "test_wire": "*WhateverBytesCome*",
    BUILT / "fuzz" / "test_fuzz": "*",
}


@pytest.mark.loopback
def test_some_rounds_of_random_streams(four: RankSet) -> None:
    outcomes = four.run(soak, 1, 4)
    assert [each["rounds"] for each in outcomes] == [4] * 4
    for some in ("by the reference", "of them gloo's", "broadcast", "from_anybody"):
        assert outcomes[0]["calls"][some] > 0


@pytest.mark.loopback
@pytest.mark.long
def test_an_hour_of_mixed_traffic_leaves_nothing_behind(request) -> None:
    minutes = request.config.getoption("--minutes") or 60
    seed = int(time.time())
    with RankSet(4) as ranks:
        outcomes = ranks.run(soak, seed, 1, 60 * minutes, timeout=60 * minutes + 300)
    print(f"seed {seed}, {outcomes[0]['rounds']} rounds of rank 0: {outcomes[0]['calls']}")
    for rank, each in enumerate(outcomes):
        print(f"rank {rank}: {each['third']:.1f} MiB after a third, {each['end']:.1f} at the end")
        assert each["end"] < each["third"] + 16, f"seed {seed}"


@pytest.mark.long
def test_an_hour_of_fuzz(request) -> None:
    missing = [program for program in FUZZERS if not program.exists()]
    if missing:
        pytest.skip(f"{missing[0].relative_to(ROOT)} is not built: tools/test --long builds it")
    ends = time.monotonic() + 60 * (request.config.getoption("--minutes") or 60)
    seed = 1 + int.from_bytes(os.urandom(2), "big")
    rounds = 0
    while time.monotonic() < ends:
        for program, tests in FUZZERS.items():
            ended = subprocess.run(
                [str(program), f"--gtest_filter={tests}", f"--gtest_random_seed={seed}"],
                capture_output=True,
                text=True,
                timeout=3600,
                check=False,
            )
            assert ended.returncode == 0, f"{ended.args}\n{ended.stdout[-20_000:]}"
        rounds += 1
        seed = seed % 99_999 + 1
    print(f"{rounds} rounds, the last of seed {seed}")
