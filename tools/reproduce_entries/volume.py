"""Entry `volume`: what a rank sends as the number of ranks grows, beside the papers' formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reproduce_entries.entry import Cell, Check, Entry, Records, Result
from reproduce_entries.page import COLOURS, table
from reproduce_entries.ranks import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D, DENSITY = 2**20, 0.01
# The formulas give the elements of 4 bytes that a rank sends, over k.
FORMULAS: dict[str, Callable[[int], float]] = {
    "lower bound": lambda ranks: 2 * (ranks - 1) / ranks,
    "SparDL": lambda ranks: 4 * (ranks - 1) / ranks,
    "Ok-Topk, at most": lambda ranks: 6 * (ranks - 1) / ranks,
    "gTop-k": lambda ranks: 2 * math.log2(ranks),
    "Top-k": lambda ranks: 2 * (ranks - 1),
}
# These are gtopk's algorithms, each with the formula that it must not exceed.
ALGORITHMS = {
    "rs-ag": "SparDL",
    "exact": "Ok-Topk, at most",
    "gtopk": "gTop-k",
    "gtopk-tree": "gTop-k",
    "topk": "Top-k",
}
WIRES = ("raw", "lossless", "bf16")
SLACK = 1.02  # headers, and the ranks' agreement


def cells(quick: bool) -> list[Cell]:
    size = {"d": D // 8 if quick else D, "density": DENSITY, "wires": list(WIRES)}
    return [
        {"part": f"{ranks} ranks", "kind": "measured", "ranks": ranks, "alike": alike, **size}
        for ranks in ((2, 4) if quick else (2, 4, 8))
        for alike in (False, True)
    ]


def run(cell: Cell) -> Result:
    names = [(algorithm, wire) for algorithm in ALGORITHMS for wire in cell["wires"]]
    asked: list[dict[str, Any]] = [
        {
            "list": {"algorithm": algorithm, "wire": wire, "density": cell["density"]},
            "d": cell["d"],
            "alike": cell["alike"],
        }
        for algorithm, wire in names
    ]
    k = round(cell["density"] * cell["d"])
    found = counted(asked, cell["ranks"])
    return {
        f"{algorithm} {wire}": count["bytes"] / 4 / k
        for (algorithm, wire), count in zip(names, found, strict=True)
    }


def checks(records: Records) -> list[Check]:
    found = []
    for algorithm, formula in ALGORITHMS.items():
        over = max(
            record.result[f"{algorithm} raw"] / FORMULAS[formula](record.cell["ranks"])
            for record in records
        )
        said = f"`{algorithm}` sends at most {over:.3f} of {formula.removesuffix(', at most')}'s."
        found.append(Check(over <= SLACK, said))
    return found


def fields(records: Records) -> dict[str, str]:
    rows = [
        (name, "", *(f"{formula(record.cell['ranks']):.2f}" for record in records))
        for name, formula in FORMULAS.items()
    ]
    rows += [
        (f"`{name}`", wire, *(f"{record.result[f'{name} {wire}']:.2f}" for record in records))
        for name in ALGORITHMS
        for wire in WIRES
    ]
    head = [
        f"{record.cell['ranks']} ranks, {'alike' if record.cell['alike'] else 'apart'}"
        for record in records
    ]
    return {"volumes": table(("", "wire", *head), rows)}


def draw(records: Records, figure: Figure) -> None:
    axes = figure.subplots()
    ranks = sorted({record.cell["ranks"] for record in records})
    for colour, (name, formula) in zip(COLOURS, FORMULAS.items(), strict=False):
        axes.plot(ranks, [formula(each) for each in ranks], "-", color=colour, label=name)
        for algorithm, other in ALGORITHMS.items():
            if other == name and algorithm != "gtopk-tree":
                for wire, mark in (("raw", "o"), ("lossless", "v")):
                    sent = [
                        record.result[f"{algorithm} {wire}"]
                        for record in records
                        if not record.cell["alike"]
                    ]
                    label = f"{algorithm}, {wire}"
                    axes.plot(ranks, sent, mark, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(each) for each in ranks])
    axes.set_xlabel("ranks")
    axes.set_ylabel("elements of 4 bytes sent, over k")
    axes.legend(fontsize=7)


VOLUME = Entry("volume", cells, run, checks, fields, draw)
