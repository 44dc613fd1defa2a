"""examples/convergence: its data, its runs, its tables."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import torch

from helpers.paths import EXAMPLES
from helpers.ranks import environment

EXAMPLE = EXAMPLES / "convergence"
sys.path.insert(0, str(EXAMPLE))

import table  # noqa: E402
from tasks import SHARDS, TASKS  # noqa: E402

WATCHDOG = 600


def runs(into: pathlib.Path, ranks: int, *arguments: str, timeout: float = WATCHDOG) -> list[dict]:
    """Runs train.py on that many ranks."""
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), str(EXAMPLE / "train.py")),
            *("--into", str(into), *arguments),
        ],
        env=environment(),
        check=True,
        timeout=timeout,
    )
    return [json.loads(line) for line in into.read_text().splitlines()]


@pytest.mark.parametrize("name", ["digits", "text", "gpt-0.1m"])
def test_a_task_learns_and_its_seed_says_all(name):
    task, again = (TASKS[name](0, 2, "alike", 3) for _ in range(2))
    assert torch.equal(torch.cat(task.batch()[:1]), torch.cat(again.batch()[:1]))
    before = task.score(task.model)
    optimizer, _ = task.recipe.optimizer(task.model.parameters(), task.lr, 20)
    for _ in range(20):
        inputs, targets = task.batch()
        optimizer.zero_grad()
        task.loss(task.model(inputs), targets).backward()
        optimizer.step()
    after = task.score(task.model)
    assert after < before - 0.3 if task.lower else after > before + 20


def test_skewed_ranks_see_few_digits_and_others_all():
    seen = {}
    for shards in SHARDS:
        batches = [TASKS["digits"](rank, 5, shards, 0) for rank in range(5)]
        seen[shards] = [
            set(torch.cat([each.batch()[1] for _ in range(30)]).tolist()) for each in batches
        ]
    assert all(len(each) == 10 for each in seen["alike"])
    assert all(len(each) <= 4 for each in seen["skewed"])
    assert set.union(*seen["skewed"]) == set(range(10))


def test_skewed_ranks_read_other_topics():
    ones, others = (TASKS["text"](rank, 4, "skewed", 0).batch()[0] for rank in (0, 3))
    assert not torch.equal(ones, others)


@pytest.mark.long
@pytest.mark.loopback
def test_runs_are_lines_that_are_not_repeated(tmp_path):
    into = tmp_path / "runs.jsonl"
    methods = ("dense", "gtopk", "adaptive", "momentum", "topk-2bit")
    arguments = ("--seeds", "1", "--shards", "alike", "--densities", "0.01", "--steps", "24")
    once = runs(into, 2, *arguments, "--methods", *methods[:2])
    assert [each["method"] for each in once] == ["dense", "gtopk"]
    assert [each["step"] for each in once[0]["points"]] == list(range(2, 25, 2))
    for record in once:
        sent = [each["bytes"] for each in record["points"]]
        assert sent == sorted(sent)
        assert record["points"][-1]["score"] > 30
        seconds = [each["seconds"] for each in record["points"]]
        assert seconds[0] > 0
        assert seconds == sorted(seconds)
    last = once[1]["points"][-1]
    assert last["bytes"] < 0.5 * once[0]["points"][-1]["bytes"]
    assert 0 <= last["recall"] <= 1
    assert 0 < last["contraction"] < 1
    assert last["residual"] > 0
    twice = runs(into, 2, *arguments, "--methods", *methods)
    assert twice[:2] == once
    added, momentum, rough = twice[2:]
    assert {layer["density"] <= 0.04 for layer in added["layers"]} == {True}
    assert momentum["points"][-1]["residual"] > 2 * last["residual"]  # of momenta, not gradients
    assert all(each["points"][-1]["score"] > 30 for each in (momentum, rough))
    assert "`adaptive`" in table.table(*next(iter(table.cells_of(twice).items())))


def record(method: str, seed: int, scores: list[float], sent: float, **more) -> dict:
    points = [
        {"step": i + 1, "score": score, "bytes": sent * (i + 1)} for i, score in enumerate(scores)
    ]
    plain = {"task": "digits", "ranks": 4, "shards": "alike", "steps": len(scores)}
    plain |= {"method": method, "seed": seed, "density": None, "unit": "% right", "lower": False}
    return {**plain, "points": points, **more}


def test_a_table_says_what_falls_outside():
    records = [
        *(record("dense", seed, [50, 90, 96.0 + seed], 100e3) for seed in range(3)),
        *(record("good", seed, [40, 60, 95.5 + seed], 10e3, density=0.01) for seed in range(3)),
        *(record("bad", seed, [40, 60, 94.5 + seed], 10e3, density=0.001) for seed in range(2)),
        record("dense", 0, [1], 1, ranks=8, steps=1),
    ]
    cells = table.cells_of(records)
    assert [cell.ranks for cell in cells] == [4, 8]
    dense, good, bad = table.rows_of(records[:-1])
    assert good.worse == [0.5, 0.5, 0.5]
    assert [table.keeps_up(each, records[:-1]) for each in (dense, good, bad)] == [
        True,
        True,
        False,
    ]
    text = table.table(*next(iter(cells.items())))
    assert "| `bad` | 0.001 | 95.00 ± 6.35 | +1.50 ± 0.00 | **no** | 10.0 | 95.00 |" in text
    assert "| `dense` |  | 97.00 ± 2.48 | +0.00 ± 0.00 | yes | 100.0 |  |" in text
    assert "ms a step" not in text  # these runs do not say what they took
    for each in records:
        pace = {"dense": 0.5, "good": 0.25, "bad": 0.125}[each["method"]]
        for point in each["points"]:
            point["seconds"] = pace * point["step"]
    text = table.table(*next(iter(table.cells_of(records).items())))
    assert "| ms a step | at 0.0 MB | at 0.8 s |" in text
    assert "| `dense` |  | 97.00 ± 2.48 | +0.00 ± 0.00 | yes | 100.0 | 500.0 |  | 50.00 |" in text
    good = "| `good` | 0.01 | 96.50 ± 2.48 | +0.50 ± 0.00 | yes | 10.0 | 250.0 | 96.50 | 96.50 |"
    assert good in text
    losses = [
        record("dense", 0, [2.0], 1, lower=True, unit="nats"),
        record("close", 0, [2.01], 1, lower=True, unit="nats", density=0.01),
        record("far", 0, [2.03], 1, lower=True, unit="nats", density=0.01),
    ]
    rows = table.rows_of(losses)
    assert [table.keeps_up(row, losses) for row in rows] == [True, True, False]


def test_curves_have_a_column_for_each_point():
    records = [record("dense", seed, [1, 2, 3 + seed], 1) for seed in range(2)]
    text = table.curves(table.Cell("digits", 4, "alike", 3), records)
    assert "| step | 1 | 2 | 3 |" in text
    assert "| score | 1 | 2 | 3.5 |" in text


@pytest.mark.long
@pytest.mark.loopback
def test_digits_end_within_a_point_of_dense_at_a_hundredth(tmp_path):
    arguments = ("--densities", "0.01", "--shards", "alike", "--seeds", "5")
    methods = ("dense", "gtopk", "gtopk-merged", "rs-ag", "topk", "layer-wise")
    found = runs(tmp_path / "runs.jsonl", 4, *arguments, "--methods", *methods, timeout=3600)
    for row in table.rows_of(found):
        assert table.keeps_up(row, found), (row.name, row.worse)
