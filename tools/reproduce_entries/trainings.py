"""Trains simulated ranks on digits: each way at its best learning rate, against dense.

The nets and exchanges come from examples/convergence, whose simulated ranks give the same bits as
real ones (tests/torch/examples/test_simulation.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from simulate import train
from simulated import Method
from table import mean_of
from tasks import TASKS

from reproduce_entries.entry import Cell, Records, Result
from reproduce_entries.page import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DENSE = "dense"
RANKS = 4


def cells(
    ways: Sequence[str],
    task: str,
    steps: int,
    rates: Sequence[float],
    seeds: int,
) -> list[Cell]:
    """Return cells of every way at every rate with every seed."""
    shared = {"kind": "simulated", "task": task, "ranks": RANKS, "steps": steps}
    return [
        {"part": way, **shared, "lr": lr, "seed": seed}
        for way in ways
        for lr in rates
        for seed in range(seeds)
    ]


def run(cell: Cell, method: Method) -> Result:
    """Train; the score is the percentage of correct test images at the end."""
    torch.set_num_threads(1)
    ranks = range(cell["ranks"])
    tasks = [TASKS[cell["task"]](rank, len(ranks), "alike", cell["seed"]) for rank in ranks]
    record = train({"steps": cell["steps"], "lr": cell["lr"]}, tasks, method)
    middle, last = (record["points"][at] for at in (len(record["points"]) // 2 - 1, -1))
    sent = (last["bytes"] - middle["bytes"]) / (last["step"] - middle["step"])
    score = round(last["score"], 3)
    return {"score": score, "parameters": record["parameters"], "bytes_a_step": round(sent)}


def scores(records: Records, way: str) -> dict[float, dict[int, float]]:
    """Return the scores by learning rate and seed."""
    found: dict[float, dict[int, float]] = {}
    for each in records:
        if each.cell["part"] == way:
            found.setdefault(each.cell["lr"], {})[each.cell["seed"]] = each.result["score"]
    return found


def best_rate(records: Records, way: str) -> float:
    """Return the rate with the best mean over seeds, ignoring rates that only one seed ran."""
    by_rate = scores(records, way)
    most = max(len(each) for each in by_rate.values())
    whole = [lr for lr, each in by_rate.items() if len(each) == most]
    return max(whole, key=lambda lr: statistics.mean(by_rate[lr].values()))


def best(records: Records, way: str) -> dict[int, float]:
    """Each seed's score at the best rate."""
    return scores(records, way)[best_rate(records, way)]


def behind(records: Records, way: str, other: str = DENSE) -> list[float]:
    """Return points behind the other way, seed by seed, both at their best rates."""
    own, others = best(records, way), best(records, other)
    return [others[seed] - own[seed] for seed in sorted(own)]


def mean_behind(records: Records, way: str, other: str = DENSE) -> float:
    return statistics.mean(behind(records, way, other))


def said(records: Records, way: str, other: str = DENSE) -> str:
    """Say how far one is behind the other, with the interval."""
    return f"{mean_of(behind(records, way, other), 2, sign=True)} points behind {other}"


def row(records: Records, way: str) -> list[str]:
    """Return a table row: the way, its best rate, score and difference from dense."""
    tried, rate = scores(records, way), best_rate(records, way)
    edge = " (edge)" if len(tried) > 1 and rate in (min(tried), max(tried)) else ""
    apart = "" if way == DENSE else mean_of(behind(records, way), 2, sign=True)
    return [way, f"{rate:g}{edge}", mean_of(list(best(records, way).values()), 2), apart]


HEAD = ("way", "best rate", "% right", "points behind dense")


def draw(records: Records, ways: Sequence[str], figure: Figure) -> None:
    """Draw a point for each seed at each way's best rate, and a bar at their mean."""
    axes: Any = figure.subplots()
    for i, way in enumerate(ways):
        points = list(best(records, way).values())
        axes.plot([i] * len(points), points, "o", color=COLOURS[i % len(COLOURS)], alpha=0.6)
        axes.hlines(statistics.mean(points), i - 0.3, i + 0.3, color=COLOURS[i % len(COLOURS)])
    axes.set_xticks(range(len(ways)), [way.replace(", ", ",\n") for way in ways], fontsize=7)
    axes.set_ylabel("% right at the best rate, each seed")
