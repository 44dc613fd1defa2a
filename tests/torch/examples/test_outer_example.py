"""examples/outer: the GPT under an outer optimizer, and `tools/demo --outer`."""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

import pytest
from netlab import Loopback

from helpers.paths import EXAMPLES
from helpers.ranks import environment

EXAMPLE = EXAMPLES / "outer" / "train.py"
sys.path.insert(0, str(EXAMPLE.parent))

import compare  # noqa: E402


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
    assert report["shared_parameters_equal"]
    assert "links=" in ended.stderr  # the bar


@pytest.mark.loopback
def test_the_comparison_has_a_table_a_picture_and_a_record(tmp_path, monkeypatch, capfd) -> None:
    few = ("--preset=sparseloco", "--inner-steps=3", "--inner-lr=4e-3")
    monkeypatch.setattr(compare, "RUNS", {"sparseloco": few})
    options = argparse.Namespace(output=tmp_path, steps=10, timeout=300)
    assert compare.compare(Loopback(2), "2 ranks", options) == 0
    record = json.loads((tmp_path / "outer.json").read_text())
    (run,) = record["runs"]
    # The seconds are those after which each step ended.
    assert [step for step, _, _ in run["points"]] == [*range(1, 11)]
    assert run["points"][-1][2] <= run["seconds"] + 0.1
    assert (run["dense_steps"], run["megabytes"]) == (2, None)
    assert compare.table(record["runs"]) in capfd.readouterr().out
    drawn = (tmp_path / "outer.svg").read_text()
    assert drawn == compare.picture(record["title"], record["runs"])
    assert drawn.count("<polyline") == 1


def test_replicas_that_end_with_other_parameters_are_an_error(tmp_path) -> None:
    class Apart(Loopback):
        def run(self, command, **_):
            report = {"shared_parameters_equal": False}
            pathlib.Path(command[command.index("--record") + 1]).write_text(json.dumps(report))
            return argparse.Namespace(ok=True)

    options = argparse.Namespace(output=tmp_path, steps=10, timeout=300)
    with Apart(2) as hosts, pytest.raises(RuntimeError, match=r"dense DDP: shared .* differ"):
        compare.train(hosts, "dense DDP", options)
