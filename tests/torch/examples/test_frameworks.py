"""The scripts of docs/frameworks.md, where the frameworks are installed."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from helpers.frameworks import SCRIPTS
from helpers.ranks import environment

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
NETWORK = 64 * 256 + 256 + 256 * 8 + 8  # parameters
LLAMA = 2 * 64 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
# By the package that a script needs: what starts its ranks, and the parameters of its model.
RUNS = {
    "accelerate": (TORCHRUN, NETWORK),
    "fabric": (TORCHRUN, NETWORK),
    "lightning": (TORCHRUN, NETWORK),
    "transformers": (TORCHRUN, LLAMA),
    "submitit": ((), NETWORK),
    "ray": ((), NETWORK),
}
# Fabric makes its DDP as Lightning does, submitit only starts ranks, and Ray starts ten processes.
LONG = {"accelerate", "fabric", "submitit", "ray"}


@pytest.fixture
def variables(tmp_path: pathlib.Path) -> Iterator[dict[str, str]]:
    """A script's environment: Ray writes to the test's folders, needs no token, reports nothing."""
    # The paths of Ray's sockets are too long below tmp_path.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield {
            **environment(),
            "HOME": str(tmp_path),
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
        }


def test_every_script_of_the_pages_is_run_and_compiles():
    assert sorted(SCRIPTS) == sorted([*RUNS, "replicas", "torchft"])  # those: test_torchft.py
    for name, script in SCRIPTS.items():
        compile(script, name, "exec")


@pytest.mark.loopback
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.long) if each in LONG else each for each in RUNS]
)
def test_framework_script_trains_equal_ranks_and_saves_residuals(name, tmp_path, variables):
    pytest.importorskip({"fabric": "lightning.fabric"}.get(name, name))
    starts, parameters = RUNS[name]
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[name])
    done = subprocess.run(
        [sys.executable, *starts, str(script)],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(
        r"rank (\d): (\d+) steps, (\d+)% right, (\d+) bytes sent, \|w\| (\S+)", done.stdout
    )
    # Ray shows a line once as printed and once as logged.
    ranks, steps, right, sent, norms = zip(*sorted(set(said)), strict=True)
    assert sorted(ranks) == ["0", "1"], done.stdout
    assert {int(each) for each in steps} == {64}
    assert all(int(each) > 60 for each in right), said
    # Five dense steps and 59 sparse ones; all dense: three times the upper bound.
    assert all(5 * parameters * 4 < int(each) < 64 * parameters * 4 / 3 for each in sent), said
    assert len(set(norms)) == 1, said
    assert (tmp_path / "residuals-1" / "CURRENT").exists()
