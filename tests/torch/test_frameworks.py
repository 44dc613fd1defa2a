"""Room: tests/torch. The scripts of docs/frameworks.md, where the frameworks are installed."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
from ranks import environment

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
SCRIPTS = dict(re.findall(r"```python (\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S))


def test_every_script_of_the_page_is_run_and_compiles():
    assert sorted(SCRIPTS) == ["accelerate", "lightning", "torchft"]
    for name, script in SCRIPTS.items():
        compile(script, name, "exec")


@pytest.mark.loopback
@pytest.mark.parametrize("name", ["accelerate", "lightning"])  # torchft: test_torchft.py
def test_a_script_trains_two_ranks_alike_and_leaves_residuals(name, tmp_path):
    pytest.importorskip(name)
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[name])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(script)),
        ],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"rank (\d): (\d+) steps, (\d+)% right", done.stdout)
    assert {rank for rank, _, _ in said} == {"0", "1"}, done.stdout
    assert {int(steps) for _, steps, _ in said} == {64}
    assert all(int(right) > 60 for _, _, right in said), said
    assert (tmp_path / "residuals-1" / "CURRENT").exists()
