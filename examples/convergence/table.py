"""Tables of runs in Markdown: final scores next to dense, and why.

    python examples/convergence/table.py runs.jsonl [--curves]

Knows the lines that train.py writes; trains nothing.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from records import Record, read
from scipy.stats import t as student

# The claim: no worse than dense by more than this: points of a percentage, or a share of a loss.
POINTS, SHARE = 1.0, 0.01
QUALITIES = ("recall", "contraction", "residual")


class Cell(NamedTuple):
    """The runs of one task, number of ranks and way of sharing data, with all seeds."""

    task: str
    ranks: int
    shards: str
    steps: int


class Row(NamedTuple):
    """One method at one density in a cell."""

    name: str
    density: float | None
    scores: dict[int, float]
    """By seed, of the last point."""
    worse: list[float]
    """Than dense of the same seed; negative: better."""
    points: list[list[dict[str, float]]]


def mean_of(values: Sequence[float], digits: int = 2, *, sign: bool = False) -> str:
    """A mean, and half of its 95 % interval (Student's t) for two values or more."""
    text = f"{statistics.mean(values):{'+' if sign else ''}.{digits}f}"
    if len(values) < 2:
        return text
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{text} ± {half:.{digits}f}"


def cells_of(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """Sorts the runs into cells."""
    cells: dict[Cell, list[Record]] = defaultdict(list)
    for record in records:
        cells[Cell(*(record[name] for name in Cell._fields))].append(record)
    return dict(sorted(cells.items()))


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Returns one row per method and density, in the order of the file."""
    dense = {each["seed"]: final(each) for each in records if each["method"] == "dense"}
    grouped: dict[tuple[str, float | None], list[Record]] = defaultdict(list)
    for each in records:
        grouped[each["method"], each["density"]].append(each)
    rows = []
    for (name, density), runs in grouped.items():
        scores = {each["seed"]: final(each) for each in runs}
        sign = 1 if runs[0]["lower"] else -1
        both = sorted(scores.keys() & dense.keys())
        worse = [sign * (scores[seed] - dense[seed]) for seed in both]
        rows.append(Row(name, density, scores, worse, [each["points"] for each in runs]))
    return sorted(rows, key=lambda row: (row.density is not None, -(row.density or 0)))


def final(record: Record) -> float:
    """The score of a run's last point."""
    return record["points"][-1]["score"]


def keeps_up(row: Row, records: Sequence[Record]) -> bool | None:
    """Whether the mean is within the claim; None without a dense run to compare with."""
    if not row.worse:
        return None
    dense = statistics.mean(final(each) for each in records if each["method"] == "dense")
    allowed = SHARE * dense if records[0]["lower"] else POINTS
    return statistics.mean(row.worse) <= allowed


def score_within(points: Sequence[dict[str, float]], key: str, budget: float) -> float:
    """The score at the last point that had spent no more of bytes or seconds; NaN if none had."""
    within = [each["score"] for each in points if each[key] <= budget]
    return within[-1] if within else math.nan


def table(cell: Cell, records: Sequence[Record]) -> str:
    """Final scores, bytes and times, scores at equal ones, and quality of the last selections."""
    rows = rows_of(records)
    timed = all("seconds" in point for row in rows for points in row.points for point in points)
    budgets = {key: _budget(rows, key) for key in ("bytes", "seconds")[: 1 + timed]}
    digits = 3 if records[0]["lower"] else 2
    seeds = len({each["seed"] for each in records})
    lines = [
        f"**{cell.task}, {cell.ranks} ranks, data {cell.shards}, {cell.steps} steps, "
        f"{seeds} seeds**; {records[0]['unit']}",
        "",
        "| method | density | at the end | worse than dense | within the claim | kB a step "
        f"after the warm-up |{' ms a step |' * timed} at {budgets['bytes'] / 1e6:.1f} MB |"
        + (f" at {budgets['seconds']:.1f} s |" if timed else "")
        + " recall | contraction | residual |",
        f"|{' --- |' * (10 + 2 * timed)}",
    ]
    for row in rows:
        kept = {True: "yes", False: "**no**", None: ""}[keeps_up(row, records)]
        took = {key: statistics.mean(_a_step(each, key) for each in row.points) for key in budgets}
        equal = []
        for key, budget in budgets.items():
            scores = [score_within(each, key, budget) for each in row.points]
            missing = any(map(math.isnan, scores))
            equal.append("" if missing else f"{statistics.mean(scores):.{digits}f}")
        last = [[each[-1][key] for each in row.points] for key in QUALITIES if _has(row, key)]
        qualities = [f"{statistics.mean(each):.3g}" for each in last] or ["", "", ""]
        cells = [
            f"`{row.name}`",
            "" if row.density is None else f"{row.density:g}",
            mean_of(list(row.scores.values()), digits),
            mean_of(row.worse, digits, sign=True) if row.worse else "",
            kept,
            f"{took['bytes'] / 1e3:.1f}",
            *([f"{1e3 * took['seconds']:.1f}"] if timed else []),
            *equal,
            *qualities,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def curves(cell: Cell, records: Sequence[Record]) -> str:
    """Score, recall, contraction and residual norm over the steps: means over the seeds."""
    lines = []
    for row in rows_of(records):
        steps = [each["step"] for each in row.points[0]]
        name = row.name if row.density is None else f"{row.name} at {row.density:g}"
        lines += [
            f"**{name}**: {cell.task}, {cell.ranks} ranks, data {cell.shards}",
            "",
            f"| step | {' | '.join(str(each) for each in steps)} |",
            f"|{' --- |' * (len(steps) + 1)}",
        ]
        for key in ("score", *(each for each in QUALITIES if _has(row, each))):
            means = []
            for i in range(len(steps)):
                values = [each[i][key] for each in row.points if key in each[i]]
                means.append(f"{statistics.mean(values):.3g}" if values else "")
            lines.append(f"| {key} | {' | '.join(means)} |")
        lines.append("")
    return "\n".join(lines)


def _budget(rows: Sequence[Row], key: str) -> float:
    """The common budget: what the thriftiest method of the largest density spends in all."""
    largest = max((row.density for row in rows if row.density is not None), default=None)
    totals = [max(each[-1][key] for each in row.points) for row in rows]
    return min(t for t, row in zip(totals, rows, strict=True) if row.density == largest)


def _a_step(points: Sequence[dict[str, float]], key: str) -> float:
    """Averaged over the second half, after any warm-up."""
    middle, last = points[len(points) // 2 - 1], points[-1]
    return (last[key] - middle[key]) / max(1, last["step"] - middle["step"])


def _has(row: Row, key: str) -> bool:
    return all(key in each[-1] for each in row.points)


def main(arguments: list[str]) -> int:
    """Prints the tables. Exit code: 0, or 2 if there is no run to show."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="of train.py")
    parser.add_argument("--curves", action="store_true", help="over the steps, for every method")
    options = parser.parse_args(arguments)
    cells = cells_of(record for path in options.files for record in read(path))
    for cell, records in cells.items():
        print(table(cell, records), end="\n\n")
        if options.curves:
            print(curves(cell, records))
    if not cells:
        print("table: no runs in there", file=sys.stderr)
    return 0 if cells else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
