"""Entry `baselines`: steps on a shaped link, compared with gloo, bfloat16 and PowerSGD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reproduce_entries.entry import Cell, Check, Entry, Records, Result, results
from reproduce_entries.page import COLOURS, table
from reproduce_entries.steps import MOST_BUSY, timed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADERS = 1.08
# For each way: its name in the benchmark, and the share of float32's bytes that it sends by its
# arithmetic.
WAYS = {
    "gloo": ("gloo", 1.0),
    "gloo-4": ("gloo, four connections", 1.0),
    "dense": ("gtopk, float32", 1.0),
    "bf16": ("gtopk, bfloat16", 1 / 2),
    "int8": ("gtopk, `int8`", None),
    "4bit": ("gtopk, `4bit`", None),
    "ternary": ("gtopk, `ternary`", None),
    "powersgd-1": ("PowerSGD, rank 1", None),
    "powersgd-4": ("PowerSGD, rank 4", None),
    "topk": ("`topk`, 0.01", None),
    "default unit": ("`gtopk`, 0.01", None),
}
FULL = ("gloo", "gloo-4", "dense")
PARAMETERS = 1_638_400


def cells(quick: bool) -> list[Cell]:
    shared = {"part": "steps", "kind": "measured", "rate": "100mbit", "density": 0.01}
    if quick:
        return [{**shared, "hosts": 2, "bucket": 1.0, "turns": 2}]
    return [{**shared, "hosts": 4, "bucket": each, "turns": 9} for each in (0.1, 1.0, 25.0)]


def run(cell: Cell) -> Result:
    """Run one cell; needs root."""
    options = ["--net", "paced", "--density", str(cell["density"]), "--bucket", str(cell["bucket"])]
    return timed(WAYS, cell["hosts"], cell["rate"], cell["turns"], *options)


def best(records: Records, way: str) -> tuple[float, float, float, float]:
    """Return median, minimum and KB of a step, and the bucket, where the median is smallest."""
    of_buckets = [
        (*result["ways"][way], cell["bucket"]) for cell, result in results(records, "steps")
    ]
    return min(of_buckets)


def busy(records: Records) -> float:
    return max(result["busy"] for _, result in results(records, "steps"))


def sent(records: Records, way: str) -> float:
    """Return the bytes sent, relative to float32 by arithmetic."""
    hosts = results(records, "steps")[0][0]["hosts"]
    return best(records, way)[2] * 1e3 / (2 * (hosts - 1) / hosts * 4 * PARAMETERS)


def checks(records: Records) -> list[Check]:
    found = []
    full = min(FULL, key=lambda way: best(records, way)[0])
    pairs = [("ternary", full, 1 / 4), ("4bit", full, 1 / 3), ("int8", full, 1 / 2)]
    pairs.append(("default unit", "powersgd-4", 1.0))
    for way, other, bound in pairs if busy(records) <= MOST_BUSY else ():
        ratio = best(records, way)[0] / best(records, other)[0]
        said = f"{WAYS[way][0]} takes {ratio:.2f} of the time of {WAYS[other][0]}"
        found.append(Check(ratio <= bound, f"a step by {said}, at most {bound:.2f}."))
    for way, (name, share) in WAYS.items():
        if share is not None:
            over = sent(records, way) / share
            found.append(Check(1 <= over <= HEADERS, f"{name} sends {over:.3f} of its arithmetic."))
    return found


def fields(records: Records) -> dict[str, str]:
    rows = []
    for way, (name, _) in WAYS.items():
        middle, least, _, bucket = best(records, way)
        rows.append(
            [
                name,
                f"{middle:.0f} ({least:.0f})",
                f"{middle / best(records, 'gloo')[0]:.2f}",
                f"{100 * sent(records, way):.2f} %",
                f"{bucket:g}",
            ]
        )
    head = ("exchange", "step (ms)", "over gloo", "sent", "bucket (MiB)")
    count = busy(records) <= MOST_BUSY
    return {
        "steps": table(head, rows),
        "turns": str(results(records, "steps")[0][0]["turns"]),
        "alone": f"{best(records, 'no_sync')[0]:.0f}",
        "busy": f"{100 * busy(records):.0f} % or less",
        "decided": (
            "so the ratios count"
            if count
            else "**so nothing is decided here**: no time may be claimed from such a run"
        ),
    }


def draw(records: Records, figure: Figure) -> None:
    axes = figure.subplots()
    names = [name.replace("`", "") for name, _ in WAYS.values()]
    alone = best(records, "no_sync")[0]
    rest = [best(records, way)[0] - alone for way in WAYS]
    axes.barh(names, [alone] * len(names), color="#bbbbbb", label="without exchange")
    axes.barh(names, rest, left=alone, color=COLOURS[0], label="exchange that is not hidden")
    axes.invert_yaxis()
    axes.set_xlabel("ms a step, median")
    axes.legend(fontsize=7)


BASELINES = Entry("baselines", cells, run, checks, fields, draw)
