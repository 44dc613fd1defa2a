"""Draws the programs' --json files. Called by tools/plot.

For gtopk-allreduce and gtopk-pingpong, a line is the median of each size's samples, and the band
around it reaches from the minimum to the 99th percentile; predictions by the model are dashed. For
gtopk-info --doctor, it draws the matrices of latency and bandwidth between hosts. For a
SparseState's layers (docs/tuning.md), it draws when each is ready and sent, and its density. For
gtopk-bench-growth, a line is the model's prediction for the links, and a point is an exchange in
virtual time; each file has its own axes. For tools/bench/run collectives, it draws gtopk's time
relative to the faster other, with the range of its pairs; each file has its own axes. For
gtopk.diagnose (docs/tuning.md), it draws what selections left out over steps, against the papers'
bounds, and the last step's histogram. For gtopk-info, it draws the machine (plot_machine.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import pathlib
import statistics
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from plot_machine import draw_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A drawing is reproducible, and its text stays text.
matplotlib.rcParams.update({"svg.hashsalt": "gtopk", "svg.fonttype": "none"})

# These are colour-blind safe (Okabe and Ito's palette).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
# These settings may distinguish lines of gtopk-allreduce, and are named if they do.
_SETTINGS = ("algorithm", "select", "wire", "dtype", "put_back")

_MOST_WITH_FIGURES = 12  # most hosts whose figures fit in a picture

_PAPER = {"facecolor": "white", "alpha": 0.7, "linewidth": 0}  # background of figures on any colour


class Point(NamedTuple):
    """The samples of one size."""

    size: int
    seconds: list[float]
    model: float | None


Lines = dict[str, list[Point]]
Records = dict[str, dict[str, Any]]


class BadFileError(Exception):
    """Says which file contains nothing that can be drawn, and why."""


def read(path: pathlib.Path) -> dict[str, Any]:
    """Read a program's record. Raises BadFileError."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadFileError(f"{path} cannot be read: {error}") from None
    program = record.get("program") if isinstance(record, dict) else None
    if program not in _DRAWN_BY:
        names = " or ".join(_DRAWN_BY)
        raise BadFileError(f"{path}: expected what {names} wrote with --json")
    if program in _MACHINES:
        if not record["topology"]["cores"]:
            raise BadFileError(f"{path} has no topology: {record['topology']['source']}")
    elif not record["rows"]:
        raise BadFileError(f"{path} has no rows")
    return record


def lines_of(records: Records) -> Lines:
    """Return the records' rows as lines, named by the settings that differ between them."""
    rows = [(name, row) for name, record in records.items() for row in record["rows"]]
    keys = ("layer",) if "layer" in rows[0][1] else _SETTINGS
    told = [key for key in keys if len({row[key] for _, row in rows}) > 1] or [keys[0]]
    lines: Lines = defaultdict(list)
    for name, row in rows:
        words = [str(row[key]) for key in told]
        if len(records) > 1:
            words.insert(0, f"{name}:")
        size = row["bytes"] if "bytes" in row else row["n"]
        point = Point(size, sorted(row["samples_seconds"]), row.get("model_seconds"))
        lines[" ".join(words)].append(point)
    return {name: sorted(points) for name, points in lines.items()}


def draw_times(axes: Axes, lines: Lines) -> None:
    """Draw microseconds over size, both logarithmic."""
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        sizes = [point.size for point in points]
        least = [1e6 * point.seconds[0] for point in points]
        most = [1e6 * point.seconds[int(0.99 * (len(point.seconds) - 1))] for point in points]
        axes.fill_between(sizes, least, most, color=colour, alpha=0.12, linewidth=0)
        medians = [1e6 * statistics.median(point.seconds) for point in points]
        axes.plot(sizes, medians, marker="o", markersize=3, color=colour, label=name)
        modelled = [(point.size, 1e6 * point.model) for point in points if point.model]
        if modelled:
            axes.plot(*zip(*modelled, strict=True), linestyle="--", linewidth=0.8, color=colour)
    axes.set(xscale="log", yscale="log")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")


def draw_allreduce(records: Records) -> None:
    """Draw the time of a step over elements."""
    lines = lines_of(records)
    _, axes = pyplot.subplots(figsize=(7, 5))
    draw_times(axes, lines)
    axes.set(title="all-reduce", xlabel="elements", ylabel="µs per step (dashed: the model)")


def draw_pingpong(records: Records) -> None:
    """Draw the time and bandwidth of a message over bytes."""
    lines = lines_of(records)
    _, (times, bandwidths) = pyplot.subplots(1, 2, figsize=(12, 5))
    draw_times(times, lines)
    times.set(title="ping-pong", xlabel="bytes", ylabel="µs, one way")
    for number, (name, points) in enumerate(lines.items()):
        sizes = [point.size for point in points]
        speeds = [point.size / statistics.median(point.seconds) / 1e9 for point in points]
        colour = _COLOURS[number % len(_COLOURS)]
        bandwidths.plot(sizes, speeds, marker="o", markersize=3, color=colour, label=name)
    bandwidths.set(title="bandwidth", xlabel="bytes", ylabel="GB/s (1e9 bytes)")
    bandwidths.set(xscale="log", yscale="log")
    bandwidths.grid(visible=True, which="major", alpha=0.3)


def draw_layers(records: Records) -> None:
    """Draw layers from top to bottom (waiting is pale, sending is full), and their densities."""
    _, (times, densities) = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True)
    names = []
    for colour, (name, record) in zip(itertools.cycle(_COLOURS), records.items()):
        for row in record["rows"]:
            at = len(names)
            names.append(f"{row['names'][0]} (+{len(row['names']) - 1})"[-40:])
            ready, starts, seconds = (1e3 * row[key] for key in ("ready", "starts", "seconds"))
            times.barh(at, starts - ready, left=ready, color=colour, alpha=0.3)
            times.barh(at, seconds, left=starts, color=colour, label=name)
            densities.plot(row["density"], at, marker="o", color=colour)
            name = None  # one entry per legend
    times.set(title="predicted", xlabel="ms after the backward's first unit")
    times.set_yticks(range(len(names)), names, fontsize=6)
    times.invert_yaxis()
    times.legend()
    densities.set(title="density", xscale="log")
    densities.grid(visible=True, which="major", alpha=0.3)


def matrices(record: dict[str, Any]) -> tuple[list[list[float]], list[list[float]]]:
    """Return microseconds and GB/s from each host (row) to each (column); NaN means no figure."""
    hosts = range(len(record["hosts"]))
    latencies = [[math.nan for _ in hosts] for _ in hosts]
    bandwidths = [[math.nan for _ in hosts] for _ in hosts]
    for row in record["rows"]:
        if "error" in row:
            continue
        one, other = row["hosts"]
        latencies[one][other] = latencies[other][one] = 1e6 * row["latency_seconds"]
        bandwidths[other][one] = row["bytes_per_second"][1] / 1e9
        bandwidths[one][other] = row["bytes_per_second"][0] / 1e9
    return latencies, bandwidths


def draw_matrix(axes: Axes, values: list[list[float]], names: list[str], title: str) -> None:
    """Draw one cell per row and column, with figures in the cells if they fit."""
    axes.set_facecolor("#dddddd")  # visible in cells without a figure
    shown = axes.imshow(values, cmap="viridis")
    pyplot.colorbar(shown, ax=axes)
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.set(title=title, xlabel="to", ylabel="from")
    if len(names) > _MOST_WITH_FIGURES:
        return
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if not math.isnan(value):
                axes.text(column, row, f"{value:.3g}", ha="center", va="center", bbox=_PAPER)


def draw_doctor(records: Records) -> None:
    """Draw latency and bandwidth between hosts. Raises BadFileError for several records."""
    if len(records) > 1:
        raise BadFileError("gtopk-info --doctor: one file makes one picture")
    (record,) = records.values()
    _, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5))
    names = [f"{number} {host['machine']}" for number, host in enumerate(record["hosts"])]
    latencies, bandwidths = matrices(record)
    draw_matrix(left, latencies, names, "latency, µs one way")
    draw_matrix(right, bandwidths, names, "bandwidth, GB/s (1e9 bytes)")


def draw_topology(records: Records) -> None:
    """Draw a machine with its NICs and GPUs. Raises BadFileError for several records."""
    if len(records) > 1:
        raise BadFileError("gtopk-info: one file makes one picture")
    ((name, record),) = records.items()
    draw_machine(name, record)


def draw_growth(records: Records) -> None:
    """Draw milliseconds of a step over ranks."""
    _, panels = pyplot.subplots(
        1, len(records), figsize=(1 + 6 * len(records), 5), sharey=True, squeeze=False
    )
    for axes, record in zip(panels[0], records.values(), strict=True):
        rows = record["rows"]
        for number, name in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
            colour = _COLOURS[number % len(_COLOURS)]
            of_name = [row for row in rows if row["algorithm"] == name]
            ranks = [row["ranks"] for row in of_name]
            model = [1e3 * row["links_seconds"] for row in of_name]
            style = "-" if number < len(_COLOURS) else "--"
            axes.plot(ranks, model, style, linewidth=1, color=colour, label=name)
            ran = [row for row in of_name if row["virtual_seconds"]]
            seconds = [1e3 * row["virtual_seconds"] for row in ran]
            axes.plot([row["ranks"] for row in ran], seconds, "o", markersize=4, color=colour)
        each = record["ranks_per_host"]
        dealt = ", in turn" if record["in_turn"] else ""
        axes.set(xscale="log", yscale="log", xlabel="ranks")
        axes.set(title=f"{each} rank{'s' if each > 1 else ''} a host{dealt}")
        axes.set_xscale("log", base=2)
        axes.grid(visible=True, which="major", alpha=0.3)
    panels[0][0].set(ylabel="ms per step on the links (points: virtual time)")
    panels[0][0].legend(fontsize="small")


def draw_collectives(records: Records) -> None:
    """Draw ratios over bytes, one line per collective; above the dashed line gtopk is slower."""
    _, panels = pyplot.subplots(
        1, len(records), figsize=(1 + 4 * len(records), 5), sharey=True, squeeze=False
    )
    for axes, (name, record) in zip(panels[0], records.items(), strict=True):
        rows = record["rows"]
        for number, collective in enumerate(dict.fromkeys(row["collective"] for row in rows)):
            colour = _COLOURS[number % len(_COLOURS)]
            of_name = sorted(
                (row["bytes"], row["ratio"], *row["range"])
                for row in rows
                if row["collective"] == collective
            )
            sizes, ratios, least, most = zip(*of_name, strict=True)
            axes.fill_between(sizes, least, most, color=colour, alpha=0.12, linewidth=0)
            axes.plot(sizes, ratios, marker="o", markersize=3, color=colour, label=collective)
        axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
        axes.set(title=f"{name}: {record['ranks']} ranks", xlabel="bytes", xscale="log")
        axes.set(yscale="log")
        axes.grid(visible=True, which="major", alpha=0.3)
    against = {record["against"] for record in records.values()}
    panels[0][0].set(ylabel=f"time over that with {' or '.join(sorted(against))}")
    panels[0][0].legend(fontsize="small")


def draw_diagnosis(records: Records) -> None:
    """Draw the parts left out and recalled over steps, one line per unit, and a histogram."""
    if len(records) > 1:
        raise BadFileError("gtopk-diagnosis: one file makes one picture")
    (record,) = records.values()
    units: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in record["rows"]:
        others = len(row["names"]) - 1
        name = f"{row['names'][0]} (+{others})" if others else row["names"][0]
        units[name[-40:]].append(row)
    _, panels = pyplot.subplots(2, 3, figsize=(16, 9))
    (left, deltas, recalls), (norms, chords, bells) = panels
    for colour, (name, rows) in zip(itertools.cycle(_COLOURS), units.items()):
        for axes, key, style in (
            (left, "contraction", "-"),
            (left, "random", ":"),
            (left, "bell", "--"),
            (deltas, "delta", "-"),
            (recalls, "recall", "-"),
            (recalls, "delivered_recall", "--"),
            (norms, "residual_norm", "-"),
            (norms, "norm", ":"),
            (chords, "above_chord", "-"),
        ):
            shown = [(row["step"], row[key]) for row in rows if row[key] is not None]
            label = name if style == "-" and len(units) <= _MOST_WITH_FIGURES else None
            if shown:
                axes.plot(*zip(*shown, strict=True), style, color=colour, label=label, marker=".")
    deltas.axhline(1, color="black", linewidth=0.8, linestyle="--")
    left.set(title="left of |u|², Top-k (dotted: 1 − k/d, dashed: its square)")
    deltas.set(title="delta: left of |Σu|² over Random-k's (Assumption 1: ≤ 1)")
    recalls.set(title="recall of the selector (dashed: of the result in Σu)")
    norms.set(title="|residual| after the step (dotted: |u|)")
    chords.set(title="sorted squares above their chord (0: below)")
    draw_histogram(bells, record["rows"])
    for axes in (left, deltas, recalls, norms, chords):
        axes.set(xlabel="step")
        axes.grid(visible=True, which="major", alpha=0.3)
    if len(units) <= _MOST_WITH_FIGURES:
        norms.legend(fontsize="small")


def draw_histogram(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw all units of the last step, in standard deviations, beside the normal curve."""
    last = max(row["step"] for row in rows)
    counts = [row["histogram"] for row in rows if row["step"] == last]
    every = [sum(each) for each in zip(*counts, strict=True)]
    width = 16 / len(every)
    middles = [-8 + width * (i + 0.5) for i in range(len(every))]
    total = sum(every)
    normal = [total * width * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in middles]
    axes.bar(middles, every, width=width, color=_COLOURS[0], label="u")
    axes.plot(middles, normal, color=_COLOURS[1], label="normal")
    axes.set(yscale="log", ylim=(0.5, max(2, *every) * 2), xlabel="u / its root mean square")
    axes.set(title=f"all units in step {last}")
    axes.legend(fontsize="small")


_DRAWN_BY = {
    "gtopk-allreduce": draw_allreduce,
    "gtopk-pingpong": draw_pingpong,
    "gtopk-layers": draw_layers,
    "gtopk-info --doctor": draw_doctor,
    "gtopk-bench-growth": draw_growth,
    "gtopk-bench-collectives": draw_collectives,
    "gtopk-diagnosis": draw_diagnosis,
    "gtopk-info": draw_topology,
    "gtopk-info --topology": draw_topology,
}
_MACHINES = ("gtopk-info", "gtopk-info --topology")


def main(arguments: list[str]) -> int:
    """Draw the files; return 0, or 2 if there is nothing to draw."""
    parser = argparse.ArgumentParser(prog="tools/plot", description=__doc__)
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="of one of the programs")
    parser.add_argument(
        "-o", "--output", type=pathlib.Path, help="a PNG, or an SVG by its name; default: FILE.png"
    )
    options = parser.parse_args(arguments)
    output = options.output or options.files[0].with_suffix(".png")
    try:
        records = {path.stem: read(path) for path in options.files}
        programs = {record["program"] for record in records.values()}
        if len(programs) > 1:
            raise BadFileError(f"{' and '.join(sorted(programs))} have no picture in common")
        if len(records) < len(options.files):
            raise BadFileError("two files have one name, by which their lines would be told apart")
        _DRAWN_BY[programs.pop()](records)
        pyplot.tight_layout()
        if output.suffix == ".svg":
            pyplot.savefig(output, format="svg", metadata={"Date": None})
        else:
            pyplot.savefig(output, dpi=150, format="png")
    except (BadFileError, OSError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return 2
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
