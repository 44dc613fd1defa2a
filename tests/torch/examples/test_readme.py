"""The scripts of README.md and docs/training.md run as they stand."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
import torch

from helpers.paths import ROOT
from helpers.ranks import WATCHDOG, environment

README = (ROOT / "README.md").read_text(encoding="utf-8")


def output_of(page: str, folder: pathlib.Path) -> str:
    """What the only script of that page prints on two ranks under torchrun."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    program = folder / "train.py"
    program.write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(program)],
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Error" not in done.stderr
    return done.stdout


@pytest.mark.loopback
def test_the_quick_start_learns(tmp_path: pathlib.Path):
    printed = output_of("README.md", tmp_path)
    found = re.fullmatch(r"loss (\d\.\d{3})\n", printed)
    assert found, printed
    assert float(found[1]) < 0.5 * torch.tensor(8.0).log()


@pytest.mark.loopback
def test_the_complete_script_learns_and_leaves_checkpoints(tmp_path: pathlib.Path):
    printed = output_of("docs/training.md", tmp_path)
    found = re.fullmatch(r"200 steps, loss (\d\.\d{3}), \d+\.\d MiB sent\n", printed)
    assert found, printed
    assert float(found[1]) < 0.5 * torch.tensor(8.0).log()
    saved = [torch.load(tmp_path / f"checkpoint-{rank}.pt") for rank in range(2)]
    assert [each["gtopk"]["step"] for each in saved] == [200, 200]
    for name, parameter in saved[0]["net"].items():
        assert torch.equal(parameter, saved[1]["net"][name])


def test_the_readme_is_one_page_and_keeps_the_two_commands():
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1500
    assert "\n    tools/demo\n    tools/test\n" in README


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
