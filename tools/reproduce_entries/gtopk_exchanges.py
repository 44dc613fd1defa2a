"""Exchanges of lists and whole gradients in the sizes of gTop-k's models, real or virtual."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from reproduce_entries.entry import Cell, Records, Result, results
from reproduce_entries.page import table
from reproduce_entries.steps import MOST_BUSY, busy, program, said

DENSITY = 0.001
# These are numbers of parameters. The LSTM's is counted from
# hclhkbu/gtopkssgd@6f57343:models/lstm.py, with
# 10,000 words.
SIZES = {
    "VGG-16": 14_700_000,
    "ResNet-20": 272_000,
    "AlexNet": 61_100_000,
    "ResNet-50": 25_600_000,
    "LSTM": 66_034_000,
}
GIGABIT, CHECKED = "1gbit", "100mbit"
RATES = {GIGABIT: "1 Gbit/s", CHECKED: "100 Mbit/s"}
RUN = (2, 4)  # ranks at 1 Gbit/s; with more, the two cores are the limit (docs/lab.md)
MANY = 8  # ranks at 100 Mbit/s
LINK = (33.0, 8.08)  # microseconds, nanoseconds per byte (docs/lab.md, 1 Gbit/s)
WIRE = 8e-9  # seconds per byte at 1 Gbit/s
LONGER = 1.5  # times the link's prediction; more refutes the entry


def cells(quick: bool) -> list[Cell]:
    if quick:
        some = {"model": "ResNet-20", "d": SIZES["ResNet-20"], "rate": GIGABIT, "ranks": 2}
        return [
            {"part": "lists", "kind": "measured", **some, "exchanges": 20},
            {"part": "dense", "kind": "measured", **some, "pairs": 2},
        ]
    found: list[Cell] = []
    for name, d in SIZES.items():
        about = {"model": name, "d": d}
        link = {"kind": "measured", **about, "rate": GIGABIT}
        for ranks in RUN:
            found.append({"part": "lists", **link, "ranks": ranks, "exchanges": 200})
            found.append({"part": "dense", **link, "ranks": ranks, "pairs": 3})
        slow = {"rate": CHECKED, "ranks": MANY, "exchanges": 50}
        found.append({"part": "lists", "kind": "measured", **about, **slow})
        found.append(
            {"part": "virtual", "kind": "simulated", **about, "most": 32, "link": list(LINK)}
        )
    return found


def run(cell: Cell) -> Result:
    kinds = {"lists": lists_run, "dense": dense_run, "virtual": virtual_run}
    return kinds[cell["part"]](cell)


def entries(d: int) -> int:
    return round(DENSITY * d)


def lists_run(cell: Cell) -> Result:
    """Run exchanges of preselected lists: nothing is selected or written back."""
    program("gtopk-bench-exchange")
    with tempfile.TemporaryDirectory() as folder:
        into = pathlib.Path(folder) / "exchange.json"
        sizes = ("-d", str(cell["d"]), "-k", str(entries(cell["d"])), "-n", str(cell["exchanges"]))
        text = said("exchange", cell["ranks"], cell["rate"], *sizes, "--json", str(into))
        found = json.loads(into.read_text(encoding="utf-8"))
    kept = ("alpha_seconds", "beta_seconds", "mean_seconds", "model_seconds", "bytes_sent")
    return {name: found[name] for name in (*kept, "cpu_seconds")} | {"busy": busy(text)}


def dense_run(cell: Cell) -> Result:
    """Run all-reduces of float32; return the medians of gtopk and gloo."""
    pairs = ("--elements", str(cell["d"]), "--pairs", str(cell["pairs"]))
    return dense_parsed(said("dense", cell["ranks"], cell["rate"], *pairs))


def dense_parsed(text: str) -> Result:
    """Parse the output of tools/bench/dense.py; return seconds."""
    found: Result = {"busy": busy(text)}
    for name in ("gtopk", "gloo"):
        (row,) = re.findall(rf"^ *{name} +\S+ +(\S+) ", text, re.MULTILINE)
        found[name] = float(row) / 1e3
    return found


def virtual_run(cell: Cell) -> Result:
    """Return seconds by number of ranks: of links in virtual time, and what the planner adds."""
    with tempfile.TemporaryDirectory() as folder:
        into = pathlib.Path(folder) / "growth.json"
        options = ("-d", str(cell["d"]), "-k", str(entries(cell["d"])), "--algorithms", "gtopk")
        options += ("--between", *map(str, cell["link"]), "--json", str(into))
        options += ("--most", str(cell["most"]), "--measured", str(cell["most"]), "--preselected")
        command = [program("gtopk-bench-growth"), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(into.read_text(encoding="utf-8"))["rows"]
    return {
        str(row["ranks"]): {
            "links": row["virtual_seconds"],
            "computing": row["model_seconds"] - row["links_seconds"],
        }
        for row in rows
    }


def wire_speed(d: float, ranks: int) -> float:
    """Return the seconds of a dense ring at 1 Gbit/s, without headers, latency or computing."""
    return 2 * (ranks - 1) / ranks * 4 * d * WIRE


def found(records: Records, part: str, **cell: Any) -> Result | None:
    """Return the result of the cell with these values."""
    for each, result in results(records, part):
        if all(each.get(name) == value for name, value in cell.items()):
            return result
    return None


def exchange_seconds(records: Records, model: str, ranks: int) -> float | None:
    """Return the exchange's seconds as measured at 1 Gbit/s, or else in virtual time."""
    measured = found(records, "lists", model=model, ranks=ranks, rate=GIGABIT)
    if measured:
        return float(measured["mean_seconds"])
    return virtual_seconds(records, model, ranks)


def virtual_seconds(records: Records, model: str, ranks: int) -> float | None:
    """Return the seconds in virtual time, including coding and merging."""
    virtual = found(records, "virtual", model=model)
    if not virtual:
        return None
    return float(sum(virtual[str(ranks)].values()))


def over_link(records: Records) -> dict[tuple[str, str, int], float]:
    """Return measured over predicted time, by model, rate and ranks, where cores were idle."""
    return {
        (cell["model"], cell["rate"], cell["ranks"]): result["mean_seconds"]
        / result["model_seconds"]
        for cell, result in results(records, "lists")
        if result["busy"] <= MOST_BUSY
    }


def worst(ratios: dict[tuple[str, str, int], float]) -> str:
    name, _, ranks = max(ratios, key=lambda each: ratios[each])
    return f"{max(ratios.values()):.2f} times, of {name} with {ranks} ranks"


def measured_table(records: Records) -> str:
    """Return a table of measured milliseconds."""
    rows: list[Sequence[str]] = []
    for cell, lists in results(records, "lists"):
        ranks, rate = cell["ranks"], cell["rate"]
        row = [
            f"{cell['model']}, {ranks}",
            rate.replace("gbit", " Gbit/s").replace("mbit", " Mbit/s"),
        ]
        row += [_ms(lists[name]) for name in ("mean_seconds", "model_seconds")]
        row.append(f"{lists['mean_seconds'] / lists['model_seconds']:.2f}")
        virtual = virtual_seconds(records, cell["model"], ranks) if rate == GIGABIT else None
        row.append("" if virtual is None else _ms(virtual))
        dense = found(records, "dense", model=cell["model"], ranks=ranks, rate=rate)
        row += [_ms(dense[each]) if dense else "" for each in ("gtopk", "gloo")]
        row.append(_ms(wire_speed(cell["d"], ranks)) if dense else "")
        both = [lists["busy"], *([dense["busy"]] if dense else [])]
        row.append(", ".join(f"{100 * each:.0f}" for each in both))
        rows.append(row)
    head = ("model, P", "link", "lists", "α, β", "lists over α, β", "virtual")
    return table((*head, "dense: gtopk", "gloo", "wire speed", "cores busy, %"), rows)


def fitted(records: Records) -> str:
    """Return alpha and beta of the runs at 1 Gbit/s."""
    runs = [result for cell, result in results(records, "lists") if cell["rate"] == GIGABIT]
    alphas = [1e6 * each["alpha_seconds"] for each in runs]
    betas = [1e9 * each["beta_seconds"] for each in runs]
    return (
        f"α = {min(alphas):.0f} to {max(alphas):.0f} µs and β = {min(betas):.2f} to "
        f"{max(betas):.2f} ns a byte"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"
