"""Room: tests/torch. examples/outer: the GPT under an outer optimizer, from the command line."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from ranks import environment

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "outer" / "train.py"


@pytest.mark.long
@pytest.mark.loopback
def test_the_example_reports_loss_bytes_and_rounds() -> None:
    """Of 20 steps the first 4 are dense: four rounds of four steps are left."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    arguments = ["--steps", "20", "--preset", "sparseloco", "--inner-steps", "4", "--k", "16"]
    ended = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(EXAMPLE), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert (report["replicas"], report["preset"], report["k"]) == (2, "sparseloco", 16)
    assert (report["dense_steps"], report["outer"]["rounds"]) == (4, 4)
    first, last = report["points"][0][1], report["held_out_loss"]
    assert last < first
    # A dense step alone sends 4 bytes of each parameter.
    assert 0 < report["outer"]["bytes_sent"] < 4 * report["parameters"]
    assert "links=" in ended.stderr  # the bar
