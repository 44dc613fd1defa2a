"""The demo's training, its measures and its statistics, without a network."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys

import pytest
import torch

from helpers.paths import EXAMPLES

EXAMPLE = EXAMPLES / "digits"
sys.path.insert(0, str(EXAMPLE))

from accuracy import interval, report, within  # noqa: E402
from data import Batches, load_fold  # noqa: E402
from measure import StepClock, parameter_hash  # noqa: E402
from model import ResNet20  # noqa: E402
from netlab import Loopback  # noqa: E402
from report import smoothed, table  # noqa: E402

WATCHDOG = 300


def phase(name: str, steps: int, **costs: float) -> dict:
    plain = {"compress": 0.0, "communicate": 0.0, "cpu_seconds": 1.0, "cores_busy": 0.5}
    return {"name": name, "steps": steps, "step": 0.1, "bytes_sent": None, **plain, **costs}


@pytest.mark.once
@pytest.mark.parametrize(
    ("option", "status", "said"),
    [
        ("--help", 0, "--bandwidth"),
        ("--bandwith=1gbit", 2, "unrecognized"),
        ("--bandwidth=foo", 2, "'foo'"),
        ("--bandwidth=50mbit", 9, ""),
        ("--bandwidth=none", 9, ""),
        ("--epochs=1", 9, ""),
        ("--outer --steps=5", 9, ""),
        ("--outer --epochs=1", 2, "--epochs cannot be combined with --outer"),
        ("--steps=5", 2, "--steps needs --outer"),
    ],
)
def test_the_demo_reads_its_options_before_the_set_up(tmp_path, option, status, said):
    (tmp_path / "tools").mkdir()
    shutil.copy(EXAMPLE.parents[1] / "tools" / "demo", tmp_path / "tools")
    (tmp_path / "tools" / "setup").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "tools" / "setup").chmod(0o755)
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    demo = [str(tmp_path / "tools" / "demo"), *option.split()]
    ended = subprocess.run(demo, capture_output=True, text=True, timeout=WATCHDOG, check=False)
    assert ended.returncode == status, ended.stderr
    assert said in ended.stdout + ended.stderr


def test_the_five_folds_test_every_image_once():
    splits = [load_fold(fold) for fold in range(5)]
    assert sum(len(split.test_labels) for split in splits) == 1797
    for split in splits:
        assert len(split.train_labels) + len(split.test_labels) == 1797
        assert split.train_images.mean().abs() < 1e-3


def test_ranks_share_an_epoch_without_overlap_and_in_equal_parts():
    split = load_fold(0)
    split.train_labels.copy_(torch.arange(len(split.train_labels)))
    parts = [Batches(split, 32, rank, 4, seed=1) for rank in range(4)]
    for _ in range(2):
        epoch = [[labels for _, labels in part.epoch()] for part in parts]
        assert {len(batches) for batches in epoch} == {11}
        seen = torch.cat([labels for batches in epoch for labels in batches])
        assert len(seen.unique()) == len(seen) == 11 * 32 * 4


def test_resnet20_has_its_size_and_answers_with_ten_logits():
    model = ResNet20()
    assert sum(parameter.numel() for parameter in model.parameters()) == 269_434
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_the_parameter_hash_sees_every_bit():
    model = torch.nn.Linear(3, 2)
    before = parameter_hash(model)
    assert parameter_hash(model) == before
    with torch.no_grad():
        model.bias[1] = torch.nextafter(model.bias[1], torch.tensor(9.0))
    assert parameter_hash(model) != before


def test_compute_compress_and_communicate_make_up_the_step():
    model = torch.nn.Linear(4, 1)
    seconds = iter(range(100))
    clock = StepClock(model, [("warm-up", 3), ("", 4)], None, lambda: 1e-9 * next(seconds))
    clock.start()
    for _ in range(7):
        clock.step_begins()
        model(torch.ones(2, 4)).sum().backward()
        clock.gradients_reduced()
        clock.step_ends(0.5)
    clock.stop()
    record = clock.record()
    assert [part["steps"] for part in record["phases"]] == [3, 4]
    assert len(record["losses"]) == len(record["ends"]) == 7
    for part in record["phases"]:
        assert part["compress"] == pytest.approx(1e-9)
        assert 0 < part["compress"] + part["communicate"] < part["step"]


def test_table_weighs_phases_by_steps_and_adds_row_after_warmup():
    warm = phase("warm-up", 10, step=0.4, communicate=0.2, bytes_sent=10_000_000)
    then = phase("", 30, step=0.2, communicate=0.1, compress=0.02, bytes_sent=3_000_000)
    rank = {"accuracy": 0.9812, "phases": [warm, then]}
    rows = table({"gTop-k": [rank, rank]}).splitlines()
    assert rows[3].split() == [
        "gTop-k",
        "98.12%",
        "250.00",
        "110.00",
        "15.00",
        "125.00",
        "325.0",
        "13.0",
        "2.0",
        "50%",
    ]
    assert rows[4].split()[3:] == [
        "200.00",
        "80.00",
        "20.00",
        "100.00",
        "100.0",
        "3.0",
        "1.0",
        "50%",
    ]


def test_smoothing_keeps_length_and_constants():
    assert smoothed([2.0] * 30) == [2.0] * 30
    assert smoothed([float(i) for i in range(30)])[10] == 10.0


def test_the_interval_is_students_for_five_folds():
    mean, half = interval([98.0, 99.0, 97.0, 98.0, 98.0])
    assert mean == 98.0
    assert half == pytest.approx(2.776445 * math.sqrt(0.5) / math.sqrt(5), rel=1e-5)


def test_mean_over_a_point_lower_is_reported_as_not_within():
    assert within([(99.0, 98.0), (98.0, 97.0)])
    assert not within([(99.0, 98.0), (98.0, 96.9)])
    assert within([(97.0, 99.0), (98.0, 99.0)])
    assert "is NOT within" in report("dense", "gTop-k", [(99.0, 97.0), (98.0, 97.0)], 24, 4)


@pytest.mark.loopback
def test_training_leaves_equal_parameters_and_a_record_per_rank(tmp_path):
    command = [sys.executable, EXAMPLE / "train.py", "--backend", "gtopk", "--epochs", "1"]
    command += ["--wire", "4bit"]
    with Loopback(2) as hosts:
        outcome = hosts.run([*command, "--records", tmp_path], timeout=WATCHDOG)
    assert outcome.ok, outcome.report()
    records = [json.loads((tmp_path / f"rank{r}.json").read_text()) for r in range(2)]
    assert records[0]["hashes"] == records[1]["hashes"]
    assert len(set(records[0]["hashes"])) == 1
    assert records[0]["phases"][0]["steps"] == len(records[0]["losses"]) == 1437 // 64
