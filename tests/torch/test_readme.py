"""Room: tests/torch. The README's script runs as it stands, and its lines fit."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
import torch
from ranks import WATCHDOG, environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.loopback
def test_the_script_runs_under_torchrun_learns_and_leaves_checkpoints(tmp_path: pathlib.Path):
    (script,) = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    program = tmp_path / "train.py"
    program.write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(program)],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.fullmatch(r"200 steps, loss (\d\.\d{3}), \d+\.\d MiB sent\n", done.stdout)
    assert said, done.stdout
    assert float(said[1]) < 0.5 * torch.tensor(8.0).log()
    assert "Error" not in done.stderr
    saved = [torch.load(tmp_path / f"checkpoint-{rank}.pt") for rank in range(2)]
    assert [each["gtopk"]["step"] for each in saved] == [200, 200]
    for name, parameter in saved[0]["net"].items():
        assert torch.equal(parameter, saved[1]["net"][name])


def test_lines_fit_into_a_hundred_columns_but_for_tables():
    lines = [line for line in README.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.loopback
def test_the_ladders_script_measures_every_setting():
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/ladder.py"), "--parameters", "80000", "--steps", "1"],
        env={**environment(), **alone},
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\S+)\s+\d+\.\d ms", done.stdout) == [
        *("DDP", "dense", "0.25", "0.1", "0.05", "0.01", "0.001")
    ]
