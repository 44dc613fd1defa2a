"""Does gTop-k reach dense training's accuracy? Five seeds on five folds.

Knows the statistics of paired samples; must not know how a training runs (it is passed one).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence

from data import FOLDS
from scipy.stats import t as student

# The claim: at most this many percentage points between the means.
POINTS = 1.0


def compare_accuracy(hosts, options: argparse.Namespace, runs: Sequence, train: Callable) -> int:
    """Trains the first (dense) and the last (gTop-k) of `runs` on every fold, writes
    options.accuracy and returns 0 when gTop-k is within a point of dense, else 1."""
    dense, sparse = runs[0], runs[-1]
    rows = []
    for fold in range(FOLDS):
        accuracies = [
            100 * train(hosts, run, options, fold=fold)[0]["accuracy"] for run in (dense, sparse)
        ]
        rows.append(accuracies)
        print(
            f"fold and seed {fold}: {dense.name} {accuracies[0]:.2f} %, "
            f"{sparse.name} {accuracies[1]:.2f} %"
        )
    text = report(dense.name, sparse.name, rows, options.epochs, hosts.hosts)
    options.accuracy.parent.mkdir(parents=True, exist_ok=True)
    options.accuracy.write_text(text, encoding="utf-8")
    print(f"{text}\nwritten to {options.accuracy}")
    return 0 if within(rows) else 1


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half the width of its 95 % interval (Student's t)."""
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), half


def within(rows: Sequence[Sequence[float]]) -> bool:
    """Whether the second column's mean is at most POINTS below the first's."""
    return statistics.mean(first - second for first, second in rows) <= POINTS


def report(
    first: str, second: str, rows: Sequence[Sequence[float]], epochs: int, ranks: int
) -> str:
    """The markdown page: every fold, the means, and the paired difference with its interval."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    columns.append([b - a for a, b in rows])
    lines = [
        "# Accuracy of gTop-k against dense",
        "",
        "Made by `tools/demo --accuracy`; do not edit.",
        "",
        f"ResNet-20 on scikit-learn's digits, {ranks} ranks, {epochs} epochs. Test accuracy in "
        "percent; row n tests on fold n of 5 and is seeded with n, alike for both columns. "
        "Intervals are 95 % (Student's t), the last column's over the paired differences.",
        "",
        f"| fold and seed | {first} | {second} | difference (points) |",
        "| --- | --- | --- | --- |",
    ]
    for fold, values in enumerate(zip(*columns, strict=True)):
        lines.append(f"| {fold} | {values[0]:.2f} | {values[1]:.2f} | {values[2]:+.2f} |")
    means = [interval(column) for column in columns]
    cells = [f"{mean:.2f} ± {half:.2f}" for mean, half in means[:2]]
    cells.append(f"{means[2][0]:+.2f} ± {means[2][1]:.2f}")
    lines.append(f"| mean | {cells[0]} | {cells[1]} | {cells[2]} |")
    verdict = "is" if within(rows) else "is NOT"
    lines += ["", f"gTop-k {verdict} within {POINTS:g} point of dense.", ""]
    return "\n".join(lines)
