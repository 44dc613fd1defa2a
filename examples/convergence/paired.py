"""Makes one Markdown table of sweep.py's runs: each method at its best rate against dense.

    python examples/convergence/paired.py runs.jsonl

Differences are between runs of one seed, each method at the rate that is best on the first seed.
Knows the lines that sweep.py writes; trains nothing.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from records import Record, cost, final, read
from table import Cell, cells_of, mean_of


class Row(NamedTuple):
    """One method at its best rate."""

    name: str
    rate: float
    inside: bool
    """Whether rates on both sides of it were run, and are worse."""
    scores: dict[int, float]
    """By seed."""
    bytes: float
    """Sent by a rank in a step, per parameter, after any warm-up."""
    sweep: dict[float, float]
    """The first seed's scores by rate."""


def label(record: Record) -> str:
    """The method as sweep.py is told it."""
    density = record["density"]
    return record["method"] if density is None else f"{record['method']}@{density:g}"


def row_of(name: str, runs: Sequence[Record]) -> Row:
    """The row of one method's runs. The first seed is the lowest."""
    first = min(run["seed"] for run in runs)
    swept = sorted((run for run in runs if run["seed"] == first), key=lambda run: run["lr"])
    sweep = {run["lr"]: final(run) for run in swept}
    rate = min(swept, key=cost)["lr"]
    best = [run for run in runs if run["lr"] == rate]
    return Row(
        name,
        rate,
        min(sweep) < rate < max(sweep),
        {run["seed"]: final(run) for run in best},
        statistics.mean(map(_bytes_a_step, best)) / best[0]["parameters"],
        sweep,
    )


def _bytes_a_step(run: Record) -> float:
    """Over the second half."""
    points = run["points"]
    middle, last = points[len(points) // 2 - 1], points[-1]
    return (last["bytes"] - middle["bytes"]) / (last["step"] - middle["step"])


def rows_of(records: Sequence[Record]) -> list[Row]:
    """One row for each method, in the order of the file."""
    grouped: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        grouped[label(record)].append(record)
    return [row_of(name, runs) for name, runs in grouped.items()]


def worse(row: Row, dense: Row, *, lower: bool = True) -> list[float]:
    """By how many per cent of a loss, or by how many points where more is better; by seed."""
    both = sorted(row.scores.keys() & dense.scores.keys())
    pairs = [(row.scores[seed], dense.scores[seed]) for seed in both]
    return [100 * (own / its - 1) if lower else its - own for own, its in pairs]


def table(cell: Cell, records: Sequence[Record]) -> str:
    """The table, and the head that says what was run."""
    rows = rows_of(records)
    dense = next((row for row in rows if row.name == "dense"), None)
    one = records[0]
    lower = one.get("lower", True)
    named, unit, digits = ("loss", "%", 3) if lower else ("score", "points", 2)
    pairs = f", pairs of characters: {one['bigrams']:.3f}" if "bigrams" in one else ""
    lines = [
        f"**{cell.task}, {one['parameters']:,} parameters, {cell.ranks} simulated ranks, data "
        f"{cell.shards}, {cell.steps} steps**; {one['unit']}{pairs}",
        "",
        f"| method | best rate | {named} | worse than dense, {unit} | bytes per parameter and step "
        "| fewer than dense | seeds |",
        f"|{' --- |' * 7}",
    ]
    for row in rows:
        apart = worse(row, dense, lower=lower) if dense else []
        cells = [
            f"`{row.name}`",
            f"{row.rate:g}" + ("" if row.inside else " (edge)"),
            mean_of(list(row.scores.values()), digits),
            mean_of(apart, 2, sign=True) if apart and row.name != "dense" else "",
            f"{row.bytes:.3g}",
            f"{dense.bytes / row.bytes:.1f} ×" if dense else "",
            str(len(row.scores)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rates(records: Sequence[Record]) -> str:
    """The first seed's scores at each rate; the best is bold."""
    rows = rows_of(records)
    columns = sorted({rate for row in rows for rate in row.sweep})
    lines = [
        f"| method | {' | '.join(f'{rate:g}' for rate in columns)} |",
        f"|{' --- |' * (len(columns) + 1)}",
    ]
    for row in rows:
        cells = []
        for rate in columns:
            score = row.sweep.get(rate, math.nan)
            text = "" if math.isnan(score) else f"{score:.3f}"
            cells.append(f"**{text}**" if rate == row.rate else text)
        lines.append(f"| `{row.name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables. Exit code: 0, or 2 if there is no run to show."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="of sweep.py")
    options = parser.parse_args(arguments)
    records = [record for path in options.files for record in read(path)]
    for cell, some in cells_of(records).items():
        print(table(cell, some), rates(some), sep="\n\n", end="\n\n")
    if not records:
        print("paired: no runs in there", file=sys.stderr)
    return 0 if records else 2


if __name__ == "__main__":
    sys.exit(main())
