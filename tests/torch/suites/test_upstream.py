"""PyTorch's own distributed suite on this backend; see upstream.py."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.loopback, pytest.mark.long]

SUITE = pathlib.Path(__file__).with_name("upstream.py")


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize(
    ("gate", "names"), [("gtopk", []), ("mpi", ["all_to_all"])], ids=["all", "all_to_all"]
)
def test_nothing_fails_but_what_is_listed(ranks: int, gate: str, names: list[str]) -> None:
    command = [sys.executable, str(SUITE), f"--world-size={ranks}", f"--gate={gate}", *names]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    print(ended.stdout[-200:])  # shows the score in the report
    assert ended.returncode == 0, ended.stdout
